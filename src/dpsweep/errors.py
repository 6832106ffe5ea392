"""The base of errors that the reader can mend."""


class DpsweepError(Exception):
    """A problem outside the code: its message says what was found, and what to do.

    The command line prints such a message without a traceback.
    """
