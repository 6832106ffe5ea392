"""Docstrings of functions with many parameters explain the parameters."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "dpsweep"
MANY = 4


class Documented(NamedTuple):
    """A public function, or a method of a public class."""

    place: str
    owner: str
    """the class, or the function itself"""
    parameters: tuple[str, ...]
    """without self and cls"""
    text: str
    """the docstring"""

    @property
    def explained(self) -> set[str]:
        """The parameters in the section Args."""
        _, _, rest = self.text.partition("\nArgs:\n")
        section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
        return set(re.findall(r"^    (\w+): \S", section, re.MULTILINE))


def functions(file: Path) -> Iterator[Documented]:
    """Yield public functions and methods, with ``__call__`` and without commands, which have --help."""
    where = file.relative_to(SOURCE).as_posix()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner in (tree, *(each for each in classes if not each.name.startswith("_"))):
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            decorators = {ast.unparse(each) for each in node.decorator_list}
            is_private = node.name.startswith("_") and node.name != "__call__"
            if is_private or any(each.startswith("app.command(") for each in decorators):
                continue
            given, is_method = node.args, isinstance(owner, ast.ClassDef)
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            if is_method and "staticmethod" not in decorators:
                named = named[1:]
            named += [each for each in (given.vararg, given.kwarg) if each is not None]
            yield Documented(
                place=f"{where}: {owner.name + '.' if is_method else ''}{node.name}",
                owner=owner.name if is_method else node.name,
                parameters=tuple(each.arg for each in named),
                text=ast.get_docstring(node) or "",
            )


def lacking(found: list[Documented]) -> dict[str, str]:
    """Return the functions that do not explain their parameters, with the missing ones.

    A docstring may instead name a function or class that explains the same parameters, or the function of
    torch that it computes.
    """
    explained = {(each.owner, each.parameters) for each in found if each.explained}
    wrong = {}
    for each in found:
        names = {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", each.text)}
        is_torch = "gradients" in each.place and re.search(r"``F\.\w+``", each.text)
        said = any((name, each.parameters) in explained for name in names - {each.owner})
        absent = set(each.parameters) - each.explained
        if len(each.parameters) >= MANY and absent and not said and not is_torch:
            wrong[each.place] = f"Args lacks {', '.join(sorted(absent))}"
    return wrong


def test_functions_with_many_parameters_explain_them() -> None:
    found = [each for file in sorted(SOURCE.rglob("*.py")) for each in functions(file)]
    assert lacking(found) == {}
