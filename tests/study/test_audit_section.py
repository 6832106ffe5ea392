"""The audit section: its settings, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.study.small import complaints, load_small

AUDIT = {
    "sweep": "flat",
    "epsilon": [1, 8],
    "epochs": 4,
    "batch_size": [256, "full"],
    "clipping_bound": 1,
    "learning_rate": 0.01,
}


def test_settings_go_batch_size_by_batch_size(tmp_path: Path) -> None:
    study = load_small(tmp_path, {"audit": AUDIT})
    assert [cell.name for cell in study.audit_cells()] == [
        "eps1_epochs4_B256_C1",
        "eps8_epochs4_B256_C1",
        "eps1_epochs4_Bfull_C1",
        "eps8_epochs4_Bfull_C1",
    ]


def test_a_study_without_audit_has_no_settings(tmp_path: Path) -> None:
    assert load_small(tmp_path, {}).audit_cells() == []


def test_a_batch_may_hold_more_than_the_real_examples(tmp_path: Path) -> None:
    # 1347 digits and 1000 canaries.
    study = load_small(tmp_path, {"audit": AUDIT | {"batch_size": [2346]}})
    assert study.audit_cells()[0].batch_size == 2346


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"sweep": "flet"},
            'audit.sweep: found "flet"; did you mean flat? allowed: flat, automatic',
        ),
        ({"batch_size": [2347]}, "audit.batch_size: found 2347; allowed: below 2347"),
        ({"guesses": 201}, "audit.guesses: found 201; allowed: an even number up to the canaries"),
        ({"guesses": 1002}, "audit.guesses: found 1002; allowed: an even number"),
        ({"canaries": 60_000}, "audit.canaries: found 60000; allowed: at most 50000"),
        ({"epsilon": [float("inf")]}, "audit.epsilon[0]: found .inf; allowed: a finite number"),
        ({"clipping_bound": "none"}, 'audit.clipping_bound: found "none"; allowed:'),
        ({"canaires": 10}, "audit.canaires: unknown key; did you mean canaries?"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    (found,) = complaints(tmp_path, {"audit": AUDIT | changes})
    assert found.startswith(problem)
