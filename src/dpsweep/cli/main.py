"""The command line: commands for users (`studies`, `run`, `releases`), and one for each stage (`stages`).

An error that the user can fix (an invalid study, a missing file, a full disk) ends in one message and exit
status 1. For any other error, the message names a file with the traceback.
"""

import logging
import os
import shlex
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from dpsweep import __version__
from dpsweep.base.errors import DpsweepError, start_log
from dpsweep.cli import releases, run, stages, studies
from dpsweep.cli.options import OPENED
from dpsweep.study.load import make_command

_SOON = 0.05  # seconds, until a finaliser has returned

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"dpsweep {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Find and explain good hyperparameters for differentially private deep transfer learning."""


app.add_typer(studies.app)
app.add_typer(run.app)
app.add_typer(releases.app)
for stage in stages.app.registered_commands:
    stage.rich_help_panel = "Stages, which the workflow calls"
app.add_typer(stages.app)


def main(call: Callable[..., None] = app) -> None:
    """Run the command line."""
    start_log(logging.INFO)
    with _noted_interrupts() as interrupts:
        try:
            call(prog_name="dpsweep")
        except Exception as error:
            # Torch swallows Ctrl-C while it imports numpy, as transformers does; a later import then fails.
            sys.exit(128 + signal.SIGINT if interrupts else _message(error))


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Yield a list that has an entry for each Ctrl-C; repeat one that a finaliser could only report."""
    # A shell's background job ignores Ctrl-C, and so does this process.
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield []
        return
    interrupts = list[int]()
    report = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        signal.default_int_handler(number, frame)

    def unraisable(found: "sys.UnraisableHookArgs") -> None:
        if issubclass(found.exc_type, KeyboardInterrupt):
            threading.Timer(_SOON, os.kill, [os.getpid(), signal.SIGINT]).start()
        else:
            report(found)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = unraisable
    try:
        yield interrupts
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _message(error: Exception) -> str:
    if isinstance(error, DpsweepError):
        if not error.remake:
            return f"error: {error}"
        command = make_command(OPENED.get(), error.remake)
        return f"error: {error}\nTo make it again:\n  {command}"
    return f"error: {error}" if isinstance(error, OSError) else _unexpected(error)


def _unexpected(error: Exception) -> str:
    """Write the traceback of a bug to a file; return a message that asks for a report."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="dpsweep-error-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"dpsweep {__version__}: {shlex.join(sys.argv)}\n\n")
        file.writelines(traceback.format_exception(error))
    first = str(error).splitlines()[0] if str(error) else ""
    return (
        f"error: {type(error).__name__}: {first}\n"
        f"This is a mistake in dpsweep. Please report it with this file: {file.name}"
    )
