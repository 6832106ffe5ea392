"""Results of campaigns accumulate over calls."""

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.campaigns import campaign

from dpsweep.base.files import read_json


def grow(
    folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, *options: str
) -> list[dict[str, Any]]:
    """Call a campaign for a number of pieces; return the pieces in its file."""
    monkeypatch.setattr(campaign, "commit", lambda: "abc")
    call = ["campaign", str(count), "--scratch", str(folder / "scratch"), *options]
    monkeypatch.setattr(sys, "argv", call)
    campaign.grow(
        folder / "found.json",
        "pieces",
        lambda scratch, seed: {"square": seed**2},
        size=lambda piece: 1,
        is_good=lambda piece: True,
    )
    found: list[dict[str, Any]] = read_json(folder / "found.json")["pieces"]
    return found


def test_a_campaign_continues_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = grow(tmp_path, 2, monkeypatch)
    assert [piece["square"] for piece in first] == [1, 4]
    assert {piece["commit"] for piece in first} == {"abc"}
    assert grow(tmp_path, 4, monkeypatch)[:2] == first
    assert len(grow(tmp_path, 4, monkeypatch)) == 4


def test_a_campaign_starts_again_with_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path, 3, monkeypatch)
    assert [piece["square"] for piece in grow(tmp_path, 2, monkeypatch, "--anew")] == [1, 4]
