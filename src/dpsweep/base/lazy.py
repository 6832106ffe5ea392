"""Names of libraries that are imported when they are first used.

A class of figures stands in one file with its drawing. Every job of a study imports these classes, and pandas
and matplotlib would take most of its start. Type checkers see the import:

    if TYPE_CHECKING:
        import pandas as pd
        from matplotlib.figure import Figure
    else:
        pd, Figure = lazy("pandas"), lazy("matplotlib.figure:Figure")
"""

from importlib import import_module
from operator import attrgetter
from typing import Any


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def _loaded(self) -> Any:
        module, _, name = self._name.partition(":")
        found = import_module(module)
        return attrgetter(name)(found) if name else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded(), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._loaded()(*args, **options)


def lazy(name: str) -> Any:
    """Return a module, or a function or class of one, that is imported at its first use.

    >>> lazy("math").sqrt(4), lazy("math:sqrt")(4)
    (2.0, 2.0)

    Args:
        name: ``module``, or ``module:name``. A name can be called and has attributes; it is no value.

    Raises:
        AttributeError: at the first use, if the module has no such name.
        ModuleNotFoundError: at the first use, if there is no such module.
    """
    return _Lazy(name)
