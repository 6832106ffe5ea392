"""Every condition of `verify` by itself: the line that it adds names what is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.release.test_release import N, edit, prepared, tuned

from dpsweep.release import ReleaseError
from dpsweep.release.verify import verify

__all__ = ["prepared", "tuned"]  # fixtures

Change = Callable[[dict[str, Any]], None]


def put(*path: str | int, value: Any = None, factor: float = 1.0) -> Change:
    """A change of one field: to a value, or by a factor."""

    def change(content: Any) -> None:
        *outer, last = path
        for key in outer:
            content = content[key]
        content[last] = factor * content[last] if value is None else value

    return change


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (put("pld_epsilon", factor=1.001), "pld_epsilon: found"),
        (put("delta", value=1.5 / N), "delta: found"),
        (put("setting", "learning_rate", value=0.02), "setting: is not among tuning.candidates"),
        (put("tuning", "score_noise", factor=0.9), "tuning.score_noise: found"),
        (put("epsilon", factor=0.99), "epsilon: found"),
        (put("split", "held_out", value=1), "split.held_out: found 1"),
        (put("setting", "steps", value=7), "setting.steps: found 7"),
    ],
)
def test_a_field_that_cannot_be_is_named(
    change: Change,
    named: str,
    tuned: Path,
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(tuned, tmp_path / "copy"))
    edit(folder, change)
    with pytest.raises(ReleaseError) as refused:
        verify(folder)
    lines = [line.strip() for line in str(refused.value).splitlines()]
    assert any(line.startswith(named) for line in lines), lines
