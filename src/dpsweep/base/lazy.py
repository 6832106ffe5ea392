"""Modules that are imported when they are first used.

A class of figures stands in one file with its drawing. Every job of a study imports these classes, and pandas
and matplotlib would take most of its start. Type checkers see the import:

    if TYPE_CHECKING:
        import pandas as pd
    else:
        pd = lazy("pandas")
"""

from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)


def lazy(name: str) -> ModuleType:
    """Return a module that is imported when one of its names is read.

    >>> lazy("math").sqrt(4)
    2.0

    Raises:
        AttributeError: at the first use, if the module has no such name.
        ModuleNotFoundError: at the first use, if there is no such module.
    """
    return _Lazy(name)
