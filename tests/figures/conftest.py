"""Results of a small study with a figure of every family."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.figure import Figure
from tests.figures.test_drawings import STUDY, write_results

from dpsweep.figures import style
from dpsweep.privacy.trade_off import mechanism_trade_off
from dpsweep.study.paths import Paths

Drawn = Callable[[str], Figure]


@pytest.fixture(scope="session", autouse=True)
def _curves_are_kept() -> Iterator[None]:
    """Cache the trade-off curves: all folders of results have the same noise, and a curve takes a second."""
    kept = cache(mechanism_trade_off)
    with mock.patch("dpsweep.privacy.trade_off.mechanism_trade_off", kept):
        yield


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the results; tests that change them copy it."""
    return write_results(tmp_path_factory.mktemp("results")).results


@pytest.fixture(scope="session")
def drawn(results: Path) -> Drawn:
    """A function that draws a family once, for tests that do not change the drawing."""

    @cache
    def plot(family: str) -> Figure:
        figure = STUDY.figures[family]
        with style.style():
            return figure.plot(figure.compute(STUDY, Paths(results)))

    return plot
