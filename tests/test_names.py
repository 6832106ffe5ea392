"""Every command refuses a name that the study does not have, and lists the names that it has."""

import sys
from pathlib import Path

import pytest

from dpsweep.cli import main as cli

FILM = "digits_vit-strong_film"


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("prepare-dataset digit", "digits"),
        ("prepare-tokenizer txt", "text"),
        ("prepare-backbone vit-strng", "vit-strong"),
        ("calibrate digit 8 8 64", "digits"),
        ("calibrate digits 8 8 all", "full, or 1 to 1347"),
        ("calibrate digits 8 8 9999", "full, or 1 to 1347"),
        (f"train {FILM}s eps8_epochs4_B64_C1", FILM),
        (f"train {FILM} eps8_epochs4_B65_C1", "eps8_epochs4_B64_C1"),
        (f"train {FILM} B64", "eps8_epochs4_B64_C1"),
        (f"gradient-norms {FILM} 8 4 x", "eps8_epochs4_C1"),
        (f"aggregate {FILM}s", FILM),
        ("audit-setting eps8", "eps1_epochs"),
        ("figure fig1", "fig1_accuracy_heatmaps"),
        ("table table", "tab1_tuning_implications"),
        ("plan digit", "digits_"),
    ],
)
def test_errors_about_wrong_names_list_the_right_ones(
    command: str, allowed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text("extends: demo\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpsweep", *command.split(), "--study", str(study)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    message = str(stopped.value.code)
    assert message.startswith("error: ") and allowed in message.partition("allowed: ")[2], message
    assert list(tmp_path.iterdir()) == [study]
