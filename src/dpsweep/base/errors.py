"""The base class of errors that the user can fix."""

from pathlib import Path


class DpsweepError(Exception):
    """A mistake outside the code: its message says what was found, and what to do.

    The command line prints such a message without a traceback, and below it the command that makes
    ``remake`` again, ready to be pasted.

    Args:
        message: for the reader.
        remake: outputs of the study to make, or to make again, as the remedy: files, or rules.
    """

    def __init__(self, message: str, remake: tuple[Path | str, ...] = ()) -> None:
        super().__init__(message)
        self.remake = remake
