"""Errors that the user can fix, and the log that tells of them."""

import logging
import sys
from pathlib import Path


class DpsweepError(Exception):
    """An error outside the code. The message describes the cause and the remedy.

    The command line prints the message without a traceback, then a command that makes ``remake`` again.

    Args:
        message: for the user.
        remake: outputs of the study (files or rules) that must be made, or made again.
    """

    def __init__(self, message: str, remake: tuple[Path | str, ...] = ()) -> None:
        super().__init__(message)
        self.remake = remake


def start_log(level: int) -> None:
    """Write dpsweep's messages of at least some level, and other libraries' warnings and errors."""
    # `force` replaces the handlers that some libraries install.
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("dpsweep").setLevel(level)
