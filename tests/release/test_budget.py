"""A study's budget limits all releases on its data; the report shows the rest of it."""

import random
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.release.releases import FIXED, PRIVATE, Content, release
from tests.release.releases import study as study_of

from dpsweep.base.units import rounded_down, rounded_up
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.accountants import composed_epsilon, total_delta
from dpsweep.privacy.calibration import calibrate
from dpsweep.release import ReleaseError
from dpsweep.release import train as release_training
from dpsweep.release.certificate import ReleasedModel
from dpsweep.release.ledger import (
    Ledger,
    account,
    open_ledger,
    refuse_beyond_budget,
    released_together,
)
from dpsweep.release.train import check_budget
from dpsweep.report import write as write_report
from dpsweep.study import Study
from dpsweep.study.paths import Paths

DELTA = 1e-5


def study(section: Content, epsilon: float, delta: float) -> Study:
    return study_of(section, budget={"epsilon": epsilon, "delta": delta})


def test_a_model_beyond_the_budget_is_refused_before_its_data_are_prepared(paths):
    allowed = study(FIXED, epsilon=8.0, delta=2 * DELTA)
    first = release(allowed, paths)
    shutil.move(first, first.with_name("published"))
    elsewhere = Paths(paths.results.with_name("unprepared"))
    assert elsewhere.ledger == paths.ledger and not elsewhere.results.exists()
    with pytest.raises(ReleaseError, match="of which epsilon 0 is left"):
        check_budget(allowed, elsewhere)
    check_budget(study(FIXED, epsilon=20.0, delta=2 * DELTA), elsewhere)


def test_the_budget_counts_what_the_certificate_counts():
    noise = calibrate(2.0, DELTA, 200, 200, 4)
    earlier = [ReleasedModel(certificate="0" * 64, epsilon=2.0, delta=DELTA, noise=noise)] * 2
    joint = released_together(earlier, earlier[0]).joint_epsilon
    for share, refused in ((1.001, False), (0.999, True)):
        made = study(FIXED | {"epsilon": 2.0}, epsilon=share * joint, delta=3 * DELTA)
        if refused:
            with pytest.raises(ReleaseError, match="budget"):
                refuse_beyond_budget(made, earlier, earlier[0])
        else:
            refuse_beyond_budget(made, earlier, earlier[0])


@pytest.mark.parametrize("epsilon", [800.0, 1e5])
def test_epsilons_with_overflowing_exponentials_add_up(epsilon):
    """After a release with such an epsilon, further releases must still work."""
    first, second = tuned_model(epsilon), tuned_model(2.0)
    assert released_together([first], second).joint_epsilon == epsilon + 2
    with pytest.raises(CalibrationError, match=r"found deltas that are 1\.2 together"):
        released_together([tuned_model(1.0, 0.6)], tuned_model(1.0, 0.6))


@pytest.mark.parametrize("delta", [0.9 * DELTA, 0.5 * DELTA])
def test_a_delta_above_that_of_the_budget_is_beyond_it(delta):
    """The epsilon of a choice among trials is not known at a smaller delta."""
    made = study(PRIVATE, epsilon=100.0, delta=delta)
    with pytest.raises(ReleaseError, match="makes epsilon inf"):
        refuse_beyond_budget(made, [], tuned_model(8.0))


def test_rounded_numbers_stay_on_their_side():
    chosen = random.Random(0)
    for _ in range(2000):
        number, digits = 10 ** chosen.uniform(-12, 3), chosen.randint(1, 6)
        below, above = rounded_down(number, digits), rounded_up(number, digits)
        assert float(below) <= number <= float(above)
        assert float(above) - float(below) < 1.001 * 10 ** (1 - digits) * float(above)
    assert (rounded_up(0.3, 3), rounded_down(2e-5), rounded_up(float("inf"))) == (
        "0.3",
        "2e-05",
        "inf",
    )


def tuned_model(epsilon: float, delta: float = DELTA) -> ReleasedModel:
    return ReleasedModel(certificate="0" * 64, epsilon=epsilon, delta=delta, noise=None)


@pytest.mark.parametrize("seed", range(6))
def test_the_rest_that_the_report_promises_is_accepted(seed, paths):
    chosen = random.Random(seed)
    models = []
    for _ in range(chosen.randint(1, 4)):
        if seed % 2:
            models.append(tuned_model(chosen.uniform(0.3, 2.0)))
            continue
        epsilon = round(chosen.uniform(0.3, 2.0), 2)
        noise = calibrate(epsilon, DELTA, 200, 200, 4)
        models.append(tuned_model(epsilon).model_copy(update={"noise": noise}))
    deltas = float(f"{len(models) + 1}e-05")
    small = study(PRIVATE | {"epsilon": 1.0}, epsilon=8.0, delta=deltas)
    with open_ledger(paths.ledger) as ledger:
        for each in models:
            ledger.add("", [["sklearn-digits"]], each)
    found = account(small, paths)
    assert found is not None and found.left is not None and found.left > 0
    write_report(small, Path("study.yaml"), paths)
    page = paths.report.read_text()
    (said,) = re.findall(r"a next model may have at least ε = (\S+) at", page)
    assert 0.99 * found.left < float(said) <= found.left
    following = study(PRIVATE | {"epsilon": float(said)}, epsilon=8.0, delta=deltas)
    refuse_beyond_budget(following, models, tuned_model(float(said)))
    # No accountant of all together is asked then: what models spent at the rest of delta adds to it.
    rest_of_delta = total_delta([deltas, -DELTA])
    noises = [each.noise for each in models if each.noise is not None]
    stated = [(each.epsilon, each.delta) for each in models if each.noise is None]
    assert composed_epsilon(noises, stated, rest_of_delta) + float(said) <= 8.0
    # A refusal promises no more.
    beyond = study(PRIVATE | {"epsilon": 8.0}, epsilon=8.0, delta=deltas)
    with pytest.raises(ReleaseError, match="makes epsilon") as refused:
        refuse_beyond_budget(beyond, models, tuned_model(8.0))
    (rest,) = re.findall(r"of which epsilon (\S+) is left", str(refused.value))
    assert 0.99 * found.left < float(rest) <= found.left
    # What the report says that is spent holds, too.
    (spent,) = re.findall(r"(?:it is|they are) \((\S+), \S+\)-differentially", page)
    assert found.epsilon <= float(spent) < 1.001 * found.epsilon


def test_deltas_add_up_as_they_are_written():
    """In floats 3 times 1e-05 is above 3e-05."""
    made = study(PRIVATE | {"epsilon": 1.0}, epsilon=3.0, delta=3e-5)
    refuse_beyond_budget(made, [tuned_model(1.0)] * 2, tuned_model(1.0))
    with pytest.raises(ReleaseError, match="makes epsilon inf"):
        refuse_beyond_budget(made, [tuned_model(1.0)] * 3, tuned_model(1.0))


def test_of_two_releases_at_once_one_is_beyond_the_budget(paths, monkeypatch):
    """Each is within the budget alone, and both have read the ledger before either adds its line."""
    made = study(FIXED, epsilon=8.0, delta=2 * DELTA)
    train, both = release_training.train_release, threading.Barrier(2, timeout=100)
    alone = threading.Lock()

    def train_at_once(*given: Any) -> Any:
        both.wait()
        with alone:  # the trainer is made for one training in a process
            return train(*given)

    monkeypatch.setattr(release_training, "train_release", train_at_once)
    other = Paths(Path(shutil.copytree(paths.results, paths.results.with_name("other"))))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(release, made, each) for each in (paths, other)]
        errors = [call.exception() for call in calls]
    (refused,) = filter(None, errors)
    assert "with 1 earlier on the same data makes epsilon" in str(refused)
    assert sum(each.release.exists() for each in (paths, other)) == 1
    assert len(Ledger(paths.ledger).released("", [["sklearn-digits"]])) == 1
    assert not list(paths.results.parent.rglob(".partial-*"))
