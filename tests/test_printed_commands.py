"""The programs accept the commands printed in README and docs."""

import re
import runpy
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer
from click.exceptions import ClickException, Exit
from snakemake.cli import parse_args

from dpsweep.cli.main import app
from dpsweep.planning.plan import Plan
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from tests.tracked import ROOT, prose, tracked

PAGES = tracked("README.md", "CONTRIBUTING.md", "results/README.md", "docs/*.md")
OURS = ("make", "snakemake", "dpsweep", "python")
NAMED = re.compile(r"dpsweep\s([\w-]+)")
# Study files that a page tells the reader to write.
WRITTEN = set(
    re.findall(r"^# (studies/\S+\.yaml)$", "\n".join(page.read_text() for page in PAGES), re.M)
) | {"studies/mine.yaml"}


def calls() -> Iterator[list[str]]:
    """Yield the words of each call in a shell block or a sentence; && and || separate calls.

    In a sentence, dpsweep with one word is only the name of a command. The calls in figures.md are generated
    from the study's targets, and left out.
    """
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
        lines = [line for each in blocks for line in each.replace("\\\n", " ").splitlines()]
        if page.name != "figures.md":
            named = re.findall(rf"`((?:{'|'.join(OURS)})\s[^`]+)`", prose(page))
            lines += [each for each in named if not NAMED.fullmatch(each)]
        for part in re.split(
            r" && | \|\| |\n", "\n".join(" ".join(line.split()) for line in lines)
        ):
            if words := shlex.split(part.partition(" > ")[0], comments=True):
                yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


def commands(program: str) -> list[list[str]]:
    """Return the arguments of every printed call of a program."""
    return [words for name, *words in calls() if name == program]


def test_targets_modules_and_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for words in commands("make"):
        named = {word for word in words if "=" not in word and not word.startswith("-")}
        assert named <= targets, words
    for words in commands("python"):
        assert words[0] == "-m" and find_spec(words[1]), words
        # Modules of the package take no other arguments.
        assert not words[1].startswith("dpsweep.") or words[2:] in ([], ["--schema"]), words
    names = set(typer.main.get_command(app).list_commands(None))  # type: ignore[attr-defined]
    sentences = "\n".join(prose(page) for page in PAGES)
    assert "plan" in (named := set(re.findall(rf"`{NAMED.pattern}`", sentences)))
    assert named <= names


@pytest.mark.parametrize("words", commands("dpsweep"), ids=shlex.join)
def test_dpsweep_accepts_printed_arguments(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # independent of files in this checkout
    group = typer.main.get_command(app)
    context = group.make_context("dpsweep", list(words[:1]), resilient_parsing=True)
    command = group.get_command(context, words[0])
    assert command is not None, f"there is no command {words[0]}"
    try:
        command.make_context(words[0], list(words[1:]), parent=context)
    except (ClickException, Exit) as error:
        raise AssertionError(f"dpsweep {shlex.join(words)}: {error}") from error


@cache
def study(file: str) -> Study:
    return load_study(ROOT / file)


def rules() -> set[str]:
    files = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    return set(re.findall(r"^\s*rule (\w+):", "\n".join(map(Path.read_text, files)), re.M))


@pytest.mark.parametrize("words", commands("snakemake"), ids=shlex.join)
def test_snakemake_accepts_printed_arguments(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    _, arguments = parse_args(words)
    settings = dict(each.split("=", 1) for each in arguments.config or [])
    demo = "demo" in (arguments.profile or "")
    file = settings.get("study", "studies/demo.yaml" if demo else "config.yaml")
    if file in WRITTEN or "<" in shlex.join(words):
        assert "<" in shlex.join(words) or set(arguments.targets) <= rules()
        return
    chosen = study(file)
    paths = set(arguments.targets or []) - rules()
    # Figures, tables and cells of a plan, and files under results/, must exist in the study.
    targets = [*paths, *settings.get("targets", "").split()]
    if targets:
        # Without results, a plan lists every target that exists.
        monkeypatch.chdir(tmp_path)
        assert Plan(chosen, Paths(Path(chosen.results)), targets).estimates(), words


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    sorted({tuple(words) for words in commands("python") if "benchmarks." in "".join(words[1:2])}),
    ids=shlex.join,
)
def test_scripts_accept_printed_arguments(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are called in this process, so that most of their libraries are imported only once."""

    class HasBegunError(Exception):
        """A script has parsed its arguments and would start."""

    parse = ArgumentParser.parse_args

    def parse_and_stop(self: ArgumentParser, *arguments: Any) -> NoReturn:
        parse(self, *arguments)
        raise HasBegunError

    monkeypatch.setattr(ArgumentParser, "parse_args", parse_and_stop)
    for name in [each for each in sys.modules if each.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", list(words[1:]))
    with pytest.raises(HasBegunError):
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
