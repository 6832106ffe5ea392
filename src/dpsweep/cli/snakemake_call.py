"""A call of Snakemake, parsed by Snakemake's own parser into options as typed, and targets.

`snakemake.cli.get_argument_parser` is the parser that Snakemake's documentation is generated from. It
accepts every spelling, abbreviations and profiles included, so this module lists no options.
"""

import argparse
import contextlib
import io
import logging
import os
import runpy
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from dpsweep.config.messages import brief
from dpsweep.study.commands import UNACCOUNTED, is_true
from dpsweep.study.find import is_study

USAGE = "dpsweep run [STUDY] [TARGETS]... [OPTIONS OF SNAKEMAKE]... [-- TARGETS...]"


class _Word(str):
    """A word of a command line; ``is`` distinguishes it from equal words."""

    __slots__ = ()


@dataclass(frozen=True)
class SnakemakeCall:
    """A parsed call.

    Attributes:
        options: all words but the targets, as they were typed.
        targets: the targets, from any position among the options.
        changes: values of ``--set``, an option of ``dpsweep run`` alone.
        unaccounted: whether ``--unaccounted`` is given, also an option of ``dpsweep run`` alone.
        settings: the options as Snakemake parses them.
    """

    options: Sequence[str]
    targets: Sequence[str]
    changes: Sequence[str]
    unaccounted: bool
    settings: argparse.Namespace

    @property
    def profiles(self) -> list[str]:
        """The profiles of the call, or of ``SNAKEMAKE_PROFILE``."""
        return list(self.settings.profile or [])

    @property
    def config(self) -> list[str]:
        """The ``key=value`` words of ``--config``."""
        return list(self.settings.config or [])

    @property
    def study(self) -> str | None:
        """The study in the options of Snakemake: ``--config study=``, a ``--configfile``, or named in one."""
        if (named := self._configured("study")) is not None:
            return str(yaml.safe_load(named))
        for file in self.settings.configfile:
            if is_study(file):
                return str(file)
            content = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
            if isinstance(content, dict) and "study" in content:
                return str(content["study"])
        return None

    @property
    def permits_unaccounted(self) -> bool:
        """Whether ``--unaccounted``, ``--config`` or the environment permits sweeps of private data.

        Raises:
            DpsweepError: a value is neither true nor false.
        """
        if (word := self._configured("unaccounted")) is None:
            word = os.environ.get(UNACCOUNTED, "false")
        return is_true("unaccounted", word) or self.unaccounted

    def _configured(self, name: str) -> str | None:
        """Return the last value of ``--config name=value``."""
        values = (word.partition("=")[2] for word in self.config if word.startswith(f"{name}="))
        return next(reversed([*values]), None)

    def with_profiles(self, places: Mapping[str, str]) -> "SnakemakeCall":
        """Return the same call with other paths of profiles, and with their ``--config``.

        Args:
            places: the path of every profile of the call, by name.
        """
        from snakemake.cli import get_argument_parser

        if not places:
            return self
        options = [_moved(word, places) for word in self.options]
        profiles = [place for place in places.values() if place != "none"]
        settings, _ = _parsed(get_argument_parser(profiles), options)
        return replace(self, options=options, settings=settings)


def _parsed(
    parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse words; report every error of Snakemake in one sentence.

    Raises:
        SystemExit: with that sentence; Snakemake checks some values outside the parser's error handling.
    """
    from snakemake.exceptions import CliException, WorkflowError

    try:
        return parser.parse_known_args(words)
    except (CliException, WorkflowError, ValueError) as error:
        parser.prog = "dpsweep run"
        parser.usage = USAGE
        parser.error(
            f"Snakemake cannot read {shlex.join(words)} ({brief(error)}). Targets stand before the options, "
            "or behind --"
        )


def _moved(word: str, places: Mapping[str, str]) -> str:
    option, equals, name = word.partition("=")
    if not equals:
        return places.get(word, word)
    is_profile = len(option) > 2 and "--profile".startswith(option)
    return f"{option}={places[name]}" if is_profile and name in places else word


def read_call(words: Sequence[str]) -> SnakemakeCall:
    """Parse the words of a command line as Snakemake does.

    Targets may also stand between options. They need a ``--`` after an option with any number of values.

    Raises:
        SystemExit: Snakemake's parser refuses an option, or prints its help or its version.
    """
    from snakemake.cli import get_argument_parser

    end = words.index("--") if "--" in words else len(words)
    ours = argparse.ArgumentParser(prog="dpsweep run", add_help=False, allow_abbrev=False)
    ours.add_argument("--set", action="append", default=[])
    ours.add_argument("--unaccounted", action="store_true")
    own, before = ours.parse_known_args([_Word(word) for word in words[:end]])
    parser = get_argument_parser()
    parser.prog = "dpsweep run"
    # Instead of eighty lines, which are in Snakemake's own help.
    parser.usage = None if {"-h", "--help"} & set(before) else USAGE
    settings, unread = _parsed(parser, before)
    if unknown := [word for word in unread if word.startswith("-")]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    targets = [*settings.targets, *unread]
    options = [word for word in before if not any(word is target for target in targets)]
    targets += words[end + 1 :]
    return SnakemakeCall(options, targets, own.set, own.unaccounted, settings)


def is_profile(name: str) -> bool:
    """Return whether Snakemake finds a profile of this name."""
    from snakemake.cli import get_argument_parser

    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        get_argument_parser([name])
        return True
    return False


def run_snakemake(words: Sequence[str]) -> int:
    """Run ``python -m snakemake`` with these words in this process, which has already imported its libraries.

    Args:
        words: the words after ``snakemake``.

    Returns:
        Its exit status.
    """
    sys.argv[1:] = words
    # Our handlers would print its messages a second time.
    logging.getLogger().handlers.clear()
    try:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
