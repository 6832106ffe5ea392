"""Campaigns add up over calls, as long as the code that they try is the same."""

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import campaign

from dpsweep.files import read_json


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for the code that is tried."""
    (tmp_path / "workflow").mkdir()
    file = tmp_path / "workflow" / "rule.smk"
    file.write_text("rule all:\n")
    monkeypatch.setattr(campaign, "REPOSITORY", tmp_path)
    monkeypatch.setattr(campaign, "TRIED", ("workflow",))
    monkeypatch.setattr(campaign, "commit", lambda: "abc")
    return file


def grow(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Call a campaign for so many pieces; return what its file holds."""
    monkeypatch.setattr(sys, "argv", ["campaign", str(count), "--scratch", str(folder / "scratch")])
    campaign.grow(
        folder / "found.json",
        "pieces",
        lambda scratch, seed: {"square": seed**2},
        size=lambda piece: 1,
        is_good=lambda piece: True,
    )
    found: list[dict[str, Any]] = read_json(folder / "found.json")["pieces"]
    return found


def test_a_campaign_goes_on_where_it_was_stopped(
    tmp_path: Path, tried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = grow(tmp_path, 2, monkeypatch)
    assert [piece["square"] for piece in first] == [1, 4]
    assert {piece["commit"] for piece in first} == {"abc"}
    (tmp_path / "docs.md").write_text("is not tried")
    assert grow(tmp_path, 4, monkeypatch)[:2] == first
    assert len(grow(tmp_path, 4, monkeypatch)) == 4


def test_a_campaign_begins_anew_when_what_it_tries_has_changed(
    tmp_path: Path, tried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = grow(tmp_path, 3, monkeypatch)
    tried.write_text("rule other:\n")
    second = grow(tmp_path, 1, monkeypatch)
    assert [piece["square"] for piece in second] == [1]
    assert second[0]["code"] != first[0]["code"]


def test_what_is_tried_is_there() -> None:
    names = (*campaign.TRIED, campaign.NOT_TRIED)
    assert [name for name in names if not (campaign.REPOSITORY / name).exists()] == []
