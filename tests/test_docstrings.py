"""Whoever calls a function with many parameters reads in its docstring what they are."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "dpsweep"
MANY = 4


@dataclass(frozen=True)
class Documented:
    """A public function or method.

    Attributes:
        file: under the sources.
        owner: the class, or the function itself.
        name: of the function.
        parameters: without self and cls.
        text: the docstring.
        command: whether typer calls it: then its docstring is what --help prints.
    """

    file: str
    owner: str
    name: str
    parameters: tuple[str, ...]
    text: str
    command: bool

    def __str__(self) -> str:
        owner = "" if self.owner == self.name else f"{self.owner}."
        return f"{self.file}: {owner}{self.name}"

    @property
    def explained(self) -> set[str]:
        """The parameters in the section Args."""
        _, _, rest = self.text.partition("\nArgs:\n")
        section = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
        return set(re.findall(r"^    (\w+): \S", section, re.MULTILINE))

    @property
    def references(self) -> set[str]:
        """What the docstring names in backquotes, without its module."""
        return {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", self.text)}

    @property
    def is_torch(self) -> bool:
        """Whether it computes a function of torch, whose parameters it has."""
        return "gradients" in self.file and bool(re.search(r"``F\.\w+``", self.text))


def functions(file: Path) -> Iterator[Documented]:
    """The public functions of a module, and methods of its public classes; ``__call__`` counts."""
    where = file.relative_to(SOURCE).as_posix()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner in (tree, *(each for each in classes if not each.name.startswith("_"))):
        for node in owner.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_") and node.name != "__call__":
                continue
            decorators = {ast.unparse(each) for each in node.decorator_list}
            given = node.args
            named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
            if isinstance(owner, ast.ClassDef) and "staticmethod" not in decorators:
                named = named[1:]
            named += [each for each in (given.vararg, given.kwarg) if each is not None]
            yield Documented(
                file=where,
                owner=owner.name if isinstance(owner, ast.ClassDef) else node.name,
                name=node.name,
                parameters=tuple(each.arg for each in named),
                text=ast.get_docstring(node) or "",
                command=any(each.startswith("app.command(") for each in decorators),
            )


def lacking(found: list[Documented]) -> dict[str, str]:
    """Functions that do not say what their parameters are, and what is wrong.

    It is enough to name a function or class in the docstring where the same parameters are explained.
    """
    explained = {(each.owner, each.parameters) for each in found if each.explained}
    wrong = {}
    for each in found:
        if len(each.parameters) < MANY or each.command or each.is_torch:
            continue
        if any((name, each.parameters) in explained for name in each.references - {each.owner}):
            continue
        if absent := set(each.parameters) - each.explained:
            wrong[str(each)] = f"Args lacks {', '.join(sorted(absent))}"
    return wrong


def test_functions_with_many_parameters_say_what_they_are() -> None:
    found = [each for file in sorted(SOURCE.rglob("*.py")) for each in functions(file)]
    wrong = lacking(found)
    assert not wrong


def test_a_function_without_its_parameters_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    section = "\n\n    Args:\n        a: it.\n        b: it.\n        c: it.\n        d: it.\n    "
    (tmp_path / "module.py").write_text(
        f'''
def good(a, b, *, c, d=1):
    """Do it.{section}"""
def partly(a, b, c, d, e):
    """Do it.{section}"""
def referring(a, b, c, d):
    """Arguments are those of `module.good`."""
def referring_with_others(a, b, c, e):
    """Arguments are those of `module.good`."""
def short(a, b, c):
    """Do it."""
def _private(a, b, c, d): ...
class Public:
    def method(self, a, b, c, **more):
        """Do it."""
''',
        encoding="utf-8",
    )
    assert lacking(list(functions(tmp_path / "module.py"))) == {
        "module.py: partly": "Args lacks e",
        "module.py: referring_with_others": "Args lacks a, b, c, e",
        "module.py: Public.method": "Args lacks a, b, c, more",
    }
