"""Every file is either a valid study, or refused with one error."""

import json
import signal
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.described import described
from tests.workflow.chain import STUDY

from dpsweep.cli import main as command_line
from dpsweep.cli import releases, run, stages, studies
from dpsweep.study import StudyError, load_study

SWEEP = "sweeps: {digits_vit_film: {%s}}"
DIGITS, VIT = (
    json.dumps(STUDY[kind][name]) for kind, name in (("datasets", "digits"), ("backbones", "vit"))
)
LONG = "d" * 100  # the longest allowed name
ONE = json.dumps(STUDY["sweeps"]["digits_vit_film"] | {"dataset": LONG, "backbone": LONG})
BASE = json.dumps(described(STUDY) | {"results": "results"})
MANY = ", ".join(f"{0.1 + number / 1000}" for number in range(50_000))


def loaded(text: str | bytes, folder: Path) -> None:
    """Load a study that extends the smallest one."""
    (folder / "base.yaml").write_text(BASE)
    file = folder / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    load_study(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title: !!int abc", "cannot be read as YAML"),
        ("title: !!timestamp x", "cannot be read as YAML"),
        ("title: 2024-13-45", "cannot be read as YAML"),
        (f"privacy: {{delta: {'1' * 5000}}}", "cannot be read as YAML"),
        (f"title: {'[' * 500}{']' * 500}", "cannot be read as YAML: maximum recursion"),
        (b"title: \xff", "cannot be read as YAML"),
        ("? ", "the study: found null; allowed: strings"),
        ("training: {2024-01-01: 3}", 'training: found "2024-01-01"; allowed: strings'),
        ("datasets: {digits: {source: !replace {kind: folder, path: ~nosuchuser/x}}}", "users that exist"),
        ('datasets: {digits: {source: !replace {kind: folder, path: "a\\0b"}}}', "control characters"),
        ('results: "a\\0b"', "control characters"),
        ('references: "a\\0b"', "control characters"),
        (f"references: {'r' * 300}", "at most 255 bytes"),
        (f"results: {'r' * 300}", "at most 255 bytes"),
        ('results: "res{cell}"', "a path without { and }"),
        (SWEEP % "learning_rate: {first: 0.001, last: 0.1, count: 1000000000}", "1000"),
        (SWEEP % f"epsilon: [{MANY}]", "1000"),
        (SWEEP % "learning_rate: [0.1, 0.10000000000001]", "values that differ in six digits"),
        (SWEEP % "seeds: 1000000000", "1000"),
        ("methods: {film: !replace {kind: lora, rank: 10000000, target_modules: [qkv]}}", "equal to 4096"),
        ("backbones: {vit: {mean: [.nan]}}", "a finite number"),
        ("roles: {neighbours: {film: [3, 2, 1]}}", "sorted from small to large"),
        ("theory: {draws: 1000000000}", "1000"),
        (f"datasets: {{'a{{cell}}': {DIGITS}}}", 'datasets."a{cell}": found "a{cell}"; allowed: letters'),
        (f"datasets: {{'{LONG}': {DIGITS}}}\nbackbones: {{'{LONG}': {VIT}}}\nsweeps: {{one: {ONE}}}",
         "sweeps.one: found names of dataset, backbone and method with 206 characters together"),
    ],
)  # fmt: skip
def test_invalid_values_are_refused(text: str | bytes, said: str, tmp_path: Path) -> None:
    head = b"extends: base.yaml\n"
    with pytest.raises(StudyError) as refusal:
        loaded(head + (text if isinstance(text, bytes) else text.encode()), tmp_path)
    assert said in " ".join(str(refusal.value).split())
    assert len(str(refusal.value)) < 3000


@settings(max_examples=75)
@given(st.binary(max_size=60) | st.text(alphabet="abc:{}[]&*!-|>?'\"\n 0159e.~,%@", max_size=40))
def test_random_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, text: bytes | str
) -> None:
    with pytest.raises(StudyError):
        loaded(text, tmp_path_factory.getbasetemp())


def test_an_unexpected_error_is_one_message_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("dpsweep.cli.options.load_study", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dpsweep", "status", "config.yaml"])
    with pytest.raises(SystemExit) as end:
        command_line.main()
    first, second = str(end.value).splitlines()
    assert first == "error: ZeroDivisionError: by nothing"
    (file,) = tmp_path.glob("dpsweep-error-*.txt")
    assert second.endswith(f"Please report it with this file: {file}")
    assert "Traceback" in file.read_text()


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


def test_every_path_of_a_study_expands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("EMPTY", "")  # $EMPTY/results would be /results
    (tmp_path / "base.yaml").write_text(
        "extends: demo\nresults: ${SCRATCH}/results\nfigures: none\n"
        "datasets: {digits: {source: !replace {kind: folder, path: ~/images}}}\n"
        "backbones:\n"
        "  copied: {title: A, architecture: 'local-dir:$SCRATCH/vit', weights: {kind: random}}\n"
    )
    file = tmp_path / "study.yaml"
    file.write_text("extends: ~/base.yaml\n")
    study = load_study(file)
    assert study.results == f"{tmp_path}/scratch/results"
    assert study.backbones["copied"].described_at == ("local-dir", f"{tmp_path}/scratch/vit")
    assert study.datasets["digits"].source.local_folders() == {"path": f"{tmp_path}/images"}
    for path in (
        "results: $NOWHERE/results",
        "results: ${EMPTY}results",
        "results: ${NOWHERE:-/tmp}/results",
        "extends: ${NOWHERE}/base.yaml",
        "figures: [$NOWHERE/a.py]",
        "backbones: {vit: {architecture: 'local-dir:$NOWHERE/vit'}}",
    ):
        file.write_text(path if path.startswith("extends") else f"extends: demo\n{path}\n")
        with pytest.raises(StudyError, match=r"\$.* is not, or is empty"):
            load_study(file)


@pytest.mark.parametrize("error", [ImportError("numpy"), StudyError("cannot build"), OSError()])
def test_an_error_after_ctrl_c_is_no_mistake(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch swallows Ctrl-C while it imports numpy; a later import then fails."""

    def interrupted(*_: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr("dpsweep.cli.options.load_study", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["dpsweep", "status", "config.yaml"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as end:
            command_line.main()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 128 + signal.SIGINT
    assert not list(tmp_path.iterdir())
