"""Bugs as mutations of a function's syntax tree.

A mutation names a function, method, class or constant of a module, and a change of its code. The code is
parsed and compared as a tree, so formatting, comments and positions do not matter. In a pattern

* ``_1``, ``_2``, ... stand for any expression, the same one for each occurrence of the name;
* one ``...`` stands for any further arguments, elements, operands or statements.

Both may be used in the replacement.
"""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PLACEHOLDER = re.compile(r"_\d")
_IGNORED = ("ctx", "kind", "type_comment", "type_params")
Found = dict[str, Any]
"""Values of the placeholders; for ``...`` a list, and a list of keyword arguments."""


class PlaceNotFoundError(ValueError):
    """Code to change that is missing, or occurs more than once."""


@dataclass(frozen=True)
class Mutation:
    """A change of one function; exactly one of replace, negate, drop and returns is given.

    Attributes:
        function: its qualified name in the module, such as ``GaussianNoise.add``, or a class or constant.
        replace: an expression or statement that occurs once in the function, replaced by the code ``by``.
        negate: a condition that occurs once.
        drop: a statement that occurs once.
        returns: an expression that the function returns instead of its own code.
    """

    function: str
    replace: str | None = None
    by: str | None = None
    negate: str | None = None
    drop: str | None = None
    returns: str | None = None

    def __post_init__(self) -> None:
        verbs = (self.replace, self.negate, self.drop, self.returns)
        if sum(verb is not None for verb in verbs) != 1:
            raise ValueError(f"{self.function}: give one of replace, negate, drop and returns")
        if (self.replace is None) != (self.by is None):
            raise ValueError(f"{self.function}: replace and by belong together")

    def applied(self, source: str) -> ast.Module:
        """Return the tree of a module with the bug in it.

        Args:
            source: the module's text.

        Raises:
            PlaceNotFoundError: the function or the code to change does not occur exactly once, or the
                mutation has no effect.
        """
        module = ast.parse(source)
        place = _definition(module, self.function)
        before = ast.dump(place)
        if self.returns is not None:
            place.body = ast.parse(f"return {self.returns}").body
        else:
            self._change(place)
        if ast.dump(place) == before:
            raise PlaceNotFoundError(f"{self.function} is the same with the mistake")
        return ast.fix_missing_locations(module)

    def _change(self, place: ast.AST) -> None:
        text = self.replace or self.negate or self.drop or ""
        pattern: ast.AST = ast.parse(text).body[0]
        if self.drop is None and isinstance(pattern, ast.Expr):
            pattern = pattern.value
        candidates = ((node, matched(pattern, node)) for node in ast.walk(place))
        places = [(node, found) for node, found in candidates if found is not None]
        if len(places) != 1:
            raise PlaceNotFoundError(f"{self.function} has `{text}` {len(places)} times, not once")
        old, found = places[0]
        if self.negate is not None:
            assert isinstance(old, ast.expr)
            new: Any = ast.UnaryOp(ast.Not(), old)
        else:
            new = _Filled(found).visit(ast.parse(self.by or "pass")).body
            if isinstance(old, ast.expr):
                if not (len(new) == 1 and isinstance(new[0], ast.Expr)):
                    raise ValueError(f"{self.function}: `{self.by}` is not one expression")
                new = new[0].value
        _Exchange(old, new).visit(place)


def matched(pattern: ast.AST, node: ast.AST) -> Found | None:
    """Return the values of a pattern's placeholders if a node matches, else None.

    A name that is assigned to does not match an expression.
    """
    if isinstance(pattern, ast.expr) and not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return None
    found: Found = {}
    return found if _same(pattern, node, found) else None


def _same(pattern: Any, node: Any, found: Found) -> bool:
    match pattern:
        case ast.Name(id=name) if _PLACEHOLDER.fullmatch(name):
            stands_for = found.setdefault(name, node) if isinstance(node, ast.expr) else None
            return stands_for is not None and ast.dump(stands_for) == ast.dump(node)
        case list():
            return isinstance(node, list) and _same_list(pattern, node, found)
        case ast.AST():
            compared = [each for each in pattern._fields if each not in _IGNORED]
            if isinstance(pattern, ast.Call) and isinstance(node, ast.Call):
                compared.remove("keywords")
                if not _same_keywords(pattern, node, found):
                    return False
            return type(pattern) is type(node) and all(
                _same(getattr(pattern, each), getattr(node, each), found) for each in compared
            )
    return bool(pattern == node)


def _same_list(pattern: list[Any], nodes: list[Any], found: Found) -> bool:
    place = next((place for place, each in enumerate(pattern) if _is_rest(each)), None)
    if place is not None:
        end = len(nodes) - (len(pattern) - place - 1)
        if end < place:
            return False
        found["..."] = nodes[place:end]
        pattern, nodes = pattern[:place] + pattern[place + 1 :], nodes[:place] + nodes[end:]
    return len(pattern) == len(nodes) and all(
        _same(ours, theirs, found) for ours, theirs in zip(pattern, nodes, strict=True)
    )


def _same_keywords(pattern: ast.Call, node: ast.Call, found: Found) -> bool:
    """Tell whether calls have the same keyword arguments, in any order."""
    given = {keyword.arg: keyword for keyword in node.keywords}
    wanted = {keyword.arg: keyword for keyword in pattern.keywords}
    rest = [keyword for name, keyword in given.items() if name not in wanted]
    open_ended = any(map(_is_rest, pattern.args))
    if open_ended:
        found["keywords"] = rest
    return (
        wanted.keys() <= given.keys()
        and (open_ended or not rest)
        and all(_same(each.value, given[name].value, found) for name, each in wanted.items())
    )


def _is_rest(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is Ellipsis


class _Filled(ast.NodeTransformer):
    """A transformer that fills in the values of placeholders."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.found.get(node.id, node))

    def visit_Constant(self, node: ast.Constant) -> Any:
        return copy.deepcopy(self.found.get("...", node)) if _is_rest(node) else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if _is_rest(node) and "..." in self.found:
            return copy.deepcopy(self.found["..."])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        further = self.found.get("keywords", []) if any(map(_is_rest, node.args)) else []
        self.generic_visit(node)
        node.keywords = [*node.keywords, *copy.deepcopy(further)]
        return node


class _Exchange(ast.NodeTransformer):
    """A transformer that replaces one node by another, or by several."""

    def __init__(self, old: ast.AST, new: Any) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _definition(module: ast.Module, qualified: str) -> Any:
    """Return the definition with a qualified name.

    Raises:
        PlaceNotFoundError: there is not exactly one definition.
    """
    node: ast.AST = module
    for name in qualified.split("."):
        found = [each for each in _scope(node) if name in _names(each) and not _is_overload(each)]
        if len(found) != 1:
            raise PlaceNotFoundError(f"{qualified} is defined {len(found)} times, not once")
        node = found[0]
    return node


def _is_overload(node: ast.AST) -> bool:
    """Return whether a definition only describes a signature to type checkers."""
    return any(ast.unparse(each) == "overload" for each in getattr(node, "decorator_list", ()))


def _scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the definitions and assignments of a scope, also those inside `if` or `with`."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _scope(child)


def _names(node: ast.AST) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]
