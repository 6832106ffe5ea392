"""Modules that are imported when they are first used.

A class of figures stands in one file with its drawing. Every job of a study imports these classes, and pandas
and matplotlib would take most of its start. So these classes take libraries from here. A package names its
modules that use such libraries, and ``from dpsweep.analysis import frames`` does not import them yet:

    if not TYPE_CHECKING:
        __getattr__ = submodules(__name__, "frames")
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["matplotlib", "np", "pa", "pd", "pq", "sns", "submodules"]


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def submodules(package: str, *names: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, some of whose modules are imported at their first use.

    >>> submodules("json", "decoder")("decoder").JSONDecoder().decode("[1]")
    [1]

    Args:
        package: its name.
        names: of these modules.
    """

    def found(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return _Lazy(f"{package}.{name}")

    return found


if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.cm
    import matplotlib.collections
    import matplotlib.colors
    import matplotlib.figure
    import matplotlib.lines
    import matplotlib.ticker
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq
    import seaborn as sns
else:
    # seaborn imports these parts of matplotlib.
    matplotlib, np, pd, sns = map(_Lazy, ("matplotlib", "numpy", "pandas", "seaborn"))
    pa, pq = map(_Lazy, ("pyarrow", "pyarrow.parquet"))
