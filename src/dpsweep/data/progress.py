"""How far a preparation is: a bar on a terminal, a line now and then in a log."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 10


@contextmanager
def progress(what: str, done: int, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many more examples are done.

    Args:
        what: is being prepared.
        done: how many examples are done already.
        total: how many there are.
    """
    if sys.stderr.isatty():
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

        console = Console(stderr=True)
        columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, completed=done, total=total)
            yield lambda count: bar.advance(task, count)
        return
    started = spoken = time.monotonic()
    start = done

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        now = time.monotonic()
        if now - spoken > _SECONDS_BETWEEN_LINES:
            spoken = now
            rate = (done - start) / (now - started)
            log.info(
                "%s: %d of %d, %.0f a second, %.0f s left",
                what, done, total, rate, (total - done) / rate,
            )  # fmt: skip

    yield advance
