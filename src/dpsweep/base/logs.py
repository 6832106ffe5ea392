"""The log of a command: its standard error."""

import logging
import sys


def start_log(level: int) -> None:
    """Write dpsweep's messages of at least some level, and other libraries' warnings and errors."""
    # `force` replaces the handlers that some libraries install.
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("dpsweep").setLevel(level)
