"""What every command does: it refuses unknown names, expands paths, and reports errors in one message."""

import signal
import sys
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from dpsweep.cli import main as cli
from dpsweep.cli import releases, run, stages, studies
from dpsweep.study import StudyError

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


PATHS = [
    pytest.param(hint, id=f"{command.callback.__name__}-{name}")
    for part in (studies, run, releases, stages)
    for command in part.app.registered_commands
    if command.callback is not None
    for name, hint in get_type_hints(command.callback, include_extras=True).items()
    if "pathlib.Path" in repr(hint)
]


@pytest.mark.parametrize("hint", PATHS)
def test_every_path_of_the_command_line_expands(hint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands ``--ledger=~/ledger.jsonl``."""
    monkeypatch.setenv("HOME", "/home/me")
    (option,) = hint.__metadata__
    expand = option.parser or option.callback
    assert str(copy_context().run(expand, "~/it")) == "/home/me/it"


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_unexpected_error_is_one_message_and_a_file_unless_it_follows_ctrl_c(
    interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch swallows Ctrl-C while it imports numpy; a later import then fails."""

    def broken(*_: object) -> None:
        if interrupted:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise StudyError("cannot build")
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("dpsweep.cli.options.load_study", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dpsweep", "status", "config.yaml"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    files = list(tmp_path.iterdir())
    if interrupted:
        assert (end.value.code, files) == (128 + signal.SIGINT, [])
        return
    first, second = str(end.value).splitlines()
    assert first == "error: ZeroDivisionError: by nothing"
    assert second.endswith(f"Please report it with this file: {files[0]}")
    assert "Traceback" in files[0].read_text()
