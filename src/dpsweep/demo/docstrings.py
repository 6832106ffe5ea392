"""Docstrings of the installed Python packages: real texts without a download.

The sources are parsed, never imported or run. The label of a text is its module. The names of the packages
are removed, so the label must be predicted from the content. The same versions of the packages give the same
dataset.
"""

import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import packages_distributions, version
from pathlib import Path

import numpy as np

from dpsweep.base.errors import DpsweepError
from dpsweep.demo import Generated, Labels, Part
from dpsweep.study.datasets import DocstringsSource

# Other names of packages in their docstrings.
_ALIASES = {
    "matplotlib": ("mpl", "plt", "pyplot"),
    "numpy": ("np",),
    "pandas": ("pd",),
    "scipy": ("sp",),
}
_SKIPPED_FOLDERS = {"test", "tests"}
_LEAST_CHARACTERS = 60
# Texts with the same beginning count as copies. The limit for each file gives every class many files.
_COMPARED_CHARACTERS = 80
_MOST_PER_FILE = 12
_distributions = cache(packages_distributions)
_DOCTEST = re.compile(r"^\s*(>>>|\.\.\.).*$", re.MULTILINE)


def load_docstrings(source: DocstringsSource) -> Generated:
    """Return texts in random order, with one class for each module of the source.

    The first iteration reads them. It raises DpsweepError if a module is not installed as source code, or
    has too few docstrings.
    """
    read = cache(partial(_read, source))
    random = np.random.default_rng([source.seed, len(source.modules)])

    def mixed(part: slice, per_class: int) -> Part:
        labels = np.repeat(np.arange(len(source.modules)), per_class)
        order = random.permutation(len(labels))
        return _Texts(read, part, order), labels[order]

    return Generated(
        train=mixed(slice(source.train_per_class), source.train_per_class),
        test=mixed(slice(source.train_per_class, None), source.test_per_class),
        classes=list(source.modules),
        origin="docstrings of installed packages",
        revision=_versions(source.modules),
    )


@dataclass(frozen=True)
class _Texts:
    """The texts of one split."""

    read: Callable[[], list[list[str]]]
    """returns the texts of each class"""
    part: slice
    """the texts of each class that belong to this split"""
    order: Labels

    def __iter__(self) -> Iterator[str]:
        flat = [text for each in self.read() for text in each[self.part]]
        return (flat[place] for place in self.order)


def _read(source: DocstringsSource) -> list[list[str]]:
    """Return the texts of each class in random order.

    Raises:
        DpsweepError: a module is not installed as source code, or has too few docstrings.
    """
    needed = source.train_per_class + source.test_per_class
    names = _package_names(source.modules)
    seen: set[str] = set()
    texts: list[list[str]] = []
    for index, module in enumerate(source.modules):
        random = np.random.default_rng([source.seed, index])
        found = []
        for text in _texts(module, names, random):
            beginning = text[:_COMPARED_CHARACTERS].casefold()
            if beginning not in seen:
                seen.add(beginning)
                found.append(text)
            if len(found) == needed:
                break
        else:
            raise DpsweepError(
                f"docstrings: {module} has {len(found)} that can be used; {needed} are needed "
                "(train_per_class + test_per_class): ask for fewer, or leave it out"
            )
        texts.append([found[place] for place in random.permutation(needed)])
    return texts


def _texts(module: str, names: re.Pattern[str], random: np.random.Generator) -> Iterator[str]:
    """Yield the usable docstrings of a module, files in random order."""
    files = _files(module)
    for place in random.permutation(len(files)):
        texts = list(_docstrings(files[place]))
        for chosen in random.permutation(len(texts))[:_MOST_PER_FILE]:
            text = _one_line_text(texts[chosen], names)
            if len(text) >= _LEAST_CHARACTERS:
                yield text


def _files(module: str) -> list[Path]:
    """Return the source files of a module and of its submodules, without importing them."""
    package, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        spec = None
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    path = Path(folders[0], *inner) if folders else None
    if path is not None and path.is_dir():
        found = [
            each
            for each in path.rglob("*.py")
            if not _SKIPPED_FOLDERS & set(each.relative_to(path).parts)
        ]
        return sorted(found, key=lambda each: each.relative_to(path).as_posix())
    if path is not None and path.with_suffix(".py").is_file():
        return [path.with_suffix(".py")]
    if not inner and spec is not None and spec.origin and spec.origin.endswith(".py"):
        return [Path(spec.origin)]
    raise DpsweepError(
        f"docstrings: no Python source of {module} is installed; install the package, or take it "
        "out of source.modules"
    )


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        # Ignore warnings about strings in the parsed code.
        warnings.simplefilter("ignore", SyntaxWarning)
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return  # code for another version of Python
    documented = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield text


def _one_line_text(text: str, names: re.Pattern[str]) -> str:
    """Return a docstring in one line, without code examples and names of packages."""
    words = _DOCTEST.sub(" ", text.replace("\0", "")).split()
    return " ".join(word for word in words if not names.search(word))


def _package_names(modules: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches words with the name of a package in them."""
    packages = {module.split(".")[0] for module in modules}
    names = set(packages)
    for package in packages:
        names |= {*_ALIASES.get(package, ()), *_distributions().get(package, ())}
    # Short names must be whole words, because they occur in many other words.
    inside = "|".join(sorted(re.escape(name) for name in names if len(name) > 3))
    alone = "|".join(sorted(re.escape(name) for name in names if len(name) <= 3))
    nothing = "(?!)"
    return re.compile(
        rf"{inside or nothing}|(?<![^\W_])(?:{alone or nothing})(?![^\W_])", re.IGNORECASE
    )


def _versions(modules: Sequence[str]) -> str:
    found = {}
    for package in sorted({module.split(".")[0] for module in modules}):
        name = _distributions().get(package, ["Python"])[0]
        found[name] = sys.version.split()[0] if name == "Python" else version(name)
    return ", ".join(f"{name} {number}" for name, number in found.items())
