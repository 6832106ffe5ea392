"""The table of docs/privacy.md that compares accounted tuning with the Renyi bound."""

from pathlib import Path

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from dpsweep.privacy.gaussian import gaussian_delta, gaussian_noise_multiplier
from dpsweep.privacy.tuning import total_epsilon

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
ORDERS = np.concatenate([np.linspace(1.1, 20, 200), np.arange(21, 200)])


def renyi_total(noise_multiplier: float, mean: float, shape: float) -> float:
    accountant = RdpAccountant(orders=ORDERS)
    base = dp_event.GaussianDpEvent(noise_multiplier)
    accountant.compose(dp_event.RepeatAndSelectDpEvent(base, mean=mean, shape=shape))
    return float(accountant.get_epsilon(1e-5))


def row(base: float) -> str:
    sigma = gaussian_noise_multiplier(base, 1e-5)
    cells = [f"{base:g}"]
    for mean, shape in ((3, 1), (10, 0)):
        ours = total_epsilon(lambda each: gaussian_delta(each, sigma), 1e-5, mean, shape)
        theirs = renyi_total(sigma, mean, shape)
        assert ours < theirs
        cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{100 * (1 - ours / theirs):.0f} %"]
    return f"| {' | '.join(cells)} |"


def test_the_table_is_what_both_bounds_give() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = [line for line in map(row, (0.5, 1, 2, 4, 8)) if line not in page]
    assert not missing, "\n".join(missing)
