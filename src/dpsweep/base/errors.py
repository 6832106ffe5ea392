"""The base class of errors that the user can fix."""

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
