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
CELL = "eps8_epochs4_B64_C1"
STUDIES = {
    "mine.yaml": "extends: demo\nresults: results/mine\n",
    "private.yaml": "extends: demo\ndatasets: {digits: {private: true}}\n",
}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        # stages
        ("prepare-dataset digit", "allowed: *digits"),
        ("prepare-dataset digits --study nope.yaml", "study: no such file as nope.yaml"),
        ("prepare-tokenizer txt", "allowed: *text"),
        ("prepare-tokenizer vit-strong", "backbones.vit-strong: reads no text"),
        ("prepare-backbone vit-strng", "did you mean vit-strong?"),
        ("compute-features digits vit-strong", 'found "digits vit-strong"; allowed: nothing'),
        ("calibrate digit 8 8 64", "allowed: *digits"),
        ("calibrate digits 8 8 all", "allowed: full, or 1 to 1347"),
        ("calibrate digits 8 8 9999", "allowed: full, or 1 to 1347"),
        (f"train {FILM}s {CELL}", f"allowed: *{FILM}"),
        (f"train {FILM} eps8_epochs4_B65_C1", f"allowed: *{CELL}"),
        (f"gradient-norms {FILM} 8 4 x", "allowed: *eps8_epochs4_C1"),
        (f"aggregate {FILM}s", f"allowed: *{FILM}"),
        ("audit-setting eps8", "allowed: *eps1_epochs"),
        ("audit", "settings are not audited*To make it again:\n  dpsweep run mine.yaml audit"),
        ("figure fig1", "allowed: *fig1_accuracy_heatmaps"),
        ("table table", "allowed: *tab1_tuning_implications"),
        ("report", "are missing:*.parquet is missing*--partial*dpsweep run mine.yaml all"),
        # studies
        ("check nope.yaml", 'no such file as nope.yaml: found "nope.yaml"; allowed: mine.yaml'),
        ("check dmo", "did you mean demo? allowed: *, or the path of a file"),
        ("compare mine.yaml min.yaml", "did you mean mine.yaml?"),
        ("keys relase", "did you mean release?"),
        ("new a.yaml --images nowhere", "nowhere: no such folder; allowed: <split>/<class>/"),
        ("plan digit", "allowed: *digits_"),
        *((f"plan --teraflops={each}", "teraflops") for each in ("abc", "-2", "nan", "inf", "1,4")),
        ("status mine.yaml", "nothing of mine.yaml has run; begin with: dpsweep run mine.yaml"),
        # run
        ("run mine.yaml alll", "did you mean all?"),
        ("run mine.yaml release", "target: release: the study has no section `release`"),
        *(
            (f"run mine.yaml {each}", f"found {each}; options of Snakemake stand behind --")
            for each in ("-n", "--cores", "--no-such")
        ),
        # Of two, Snakemake would drop the first: the study, or what the user gave.
        *(
            (f"run mine.yaml -- {each}", f"found {each.split()[0]}; dpsweep run sets it")
            for each in ("-C study=other.yaml", "-Cunaccounted=1", "--config=a=1", "--config a=1")
        ),
        ("run private.yaml -- -n", " and 21 more: 708 trials on*--unaccounted"),
        # releases
        ("recommend --epsilon 1 digit", "allowed: *digits_vit-weak_all"),
        ("recommend --epsilon 1", "sweep: found nothing; allowed: *digits_vit-weak_film"),
        (f"recommend --epsilon -1 {FILM}", "found epsilon = -1*allowed: an epsilon above 0"),
        ("explain 1 2", "delta = 2; allowed: *a delta above 0 and below 1"),
        ("explain 1 1e-5 --steps 10", "found --steps alone; allowed: --train-size and --steps"),
        ("release", "release: missing; allowed: a section that says what is trained"),
        ("verify nowhere", "nowhere: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(
    command: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = "private.yaml" if "private.yaml" in command else "mine.yaml"
    (tmp_path / study).write_text(STUDIES[study])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dpsweep", *command.split()])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    # Typer prints the errors of options, and exits with 2.
    message = capsys.readouterr().err if stopped.value.code == 2 else str(stopped.value.code)
    assert message.lower().lstrip("╭─ ").startswith(("error: ", "usage: "))
    for part in said.split("*"):
        assert part in message, message
        message = message.partition(part)[2]
    assert [file.name for file in tmp_path.iterdir()] == [study]


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

    monkeypatch.setattr("dpsweep.study.load.load_study", broken)
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
