"""Mistakes as mutations of a function's syntax tree.

A mutation names a function, method, class or constant of a module and says what to change in it, as
Python that is parsed and compared as a tree: neither formatting nor comments nor the place of a line
matter. In a pattern

* ``_1``, ``_2``, ... stand for any expression, the same one wherever the name occurs;
* one ``...`` stands for any further arguments, elements, operands or statements.

Both may be used in what stands there instead.
"""

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PLACEHOLDER = re.compile(r"_\d")
_REST = "..."
_IGNORED = ("ctx", "kind", "type_comment", "type_params")
Found = dict[str, Any]


class PlaceNotFoundError(ValueError):
    """The code to change is missing, or there more than once."""


@dataclass(frozen=True)
class Mutation:
    """A change of one function; exactly one of the verbs is given.

    Attributes:
        function: its qualified name in the module, such as ``GaussianNoise.add``; also a class or a
            constant.
        replace: an expression or statement that the function has once, replaced by the code ``by``.
        negate: an expression that it has once, a condition.
        drop: a statement that it has once.
        returns: the expression that the function returns, instead of all it does.
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
        """The tree of a module with the mistake in it.

        Args:
            source: the module's text.

        Raises:
            PlaceNotFoundError: the function or the place in it is not there, or more than once; or
                the change changes nothing.
        """
        module = ast.parse(source)
        place = _definition(module, self.function)
        before = ast.dump(place)
        if self.returns is not None:
            place.body = [ast.Return(_expression(self.returns))]
        else:
            self._change(place)
        if ast.dump(place) == before:
            raise PlaceNotFoundError(f"{self.function} is the same with the mistake")
        return ast.fix_missing_locations(module)

    def _change(self, place: ast.AST) -> None:
        text = self.replace or self.negate or self.drop or ""
        pattern: ast.AST = _statements(text)[0]
        if self.drop is None and isinstance(pattern, ast.Expr):
            pattern = pattern.value
        candidates = ((node, matched(pattern, node)) for node in ast.walk(place))
        places = [(node, found) for node, found in candidates if found is not None]
        if len(places) != 1:
            raise PlaceNotFoundError(f"{self.function} has `{text}` {len(places)} times, not once")
        old, found = places[0]
        _Exchange(old, self._instead(old, found)).visit(place)

    def _instead(self, old: ast.AST, found: Found) -> list[ast.AST]:
        """Replacement of a node: one expression, or statements."""
        if self.drop is not None:
            return [ast.Pass()]
        if self.negate is not None:
            assert isinstance(old, ast.expr)
            return [ast.UnaryOp(ast.Not(), old)]
        filled = [_Filled(found).visit(each) for each in _statements(self.by or "")]
        if isinstance(old, ast.expr):
            if not (len(filled) == 1 and isinstance(filled[0], ast.Expr)):
                raise ValueError(f"{self.function}: `{self.by}` is not one expression")
            return [filled[0].value]
        flat: list[ast.AST] = []
        for each in filled:
            flat.extend(each if isinstance(each, list) else [each])
        return flat


def matched(pattern: ast.AST, node: ast.AST) -> Found | None:
    """Match a node with a pattern: values of its placeholders; None if they differ.

    A name that is assigned to is no match for an expression.
    """
    if isinstance(pattern, ast.expr) and not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return None
    found: Found = {}
    return found if _same(pattern, node, found) else None


def _same(pattern: object, node: object, found: Found) -> bool:
    if isinstance(pattern, ast.Name) and _PLACEHOLDER.fullmatch(pattern.id):
        if not isinstance(node, ast.expr):
            return False
        return ast.dump(found.setdefault(pattern.id, node)) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    match pattern, node:
        case ast.Call(), ast.Call():
            same = _same_call(pattern, node, found)
        case ast.AST(), _:
            same = all(
                _same(value, getattr(node, field), found)
                for field, value in ast.iter_fields(pattern)
                if field not in _IGNORED
            )
        case list(), list():
            same = _same_list(pattern, node, found)
        case _:
            same = pattern == node
    return same


def _same_list(pattern: list[Any], nodes: list[Any], found: Found) -> bool:
    place = next((place for place, each in enumerate(pattern) if _is_rest(each)), None)
    if place is None:
        return len(pattern) == len(nodes) and all(
            _same(ours, theirs, found) for ours, theirs in zip(pattern, nodes, strict=True)
        )
    behind = len(pattern) - place - 1
    if len(nodes) < place + behind:
        return False
    found[_REST] = nodes[place : len(nodes) - behind]
    return _same_list(pattern[:place], nodes[:place], found) and _same_list(
        pattern[place + 1 :], nodes[len(nodes) - behind :], found
    )


def _same_call(pattern: ast.Call, node: ast.Call, found: Found) -> bool:
    """Whether calls agree; keyword arguments have no order."""
    given = {keyword.arg: keyword for keyword in node.keywords}
    wanted = {keyword.arg: keyword for keyword in pattern.keywords}
    rest = [keyword for name, keyword in given.items() if name not in wanted]
    if not wanted.keys() <= given.keys() or (rest and not any(map(_is_rest, pattern.args))):
        return False
    same = (
        _same(pattern.func, node.func, found)
        and _same_list(pattern.args, node.args, found)
        and all(_same(wanted[name].value, given[name].value, found) for name in wanted)
    )
    if any(map(_is_rest, pattern.args)):
        found["keywords"] = rest
    return same


def _is_rest(node: object) -> bool:
    value = node.value if isinstance(node, ast.Expr) else node
    return isinstance(value, ast.Constant) and value.value is Ellipsis


class _Filled(ast.NodeTransformer):
    """Code with what its placeholders stand for."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return copy.deepcopy(self.found.get(node.id, node))

    def visit_Constant(self, node: ast.Constant) -> Any:
        return copy.deepcopy(self.found.get(_REST, node)) if _is_rest(node) else node

    def visit_Expr(self, node: ast.Expr) -> Any:
        if _is_rest(node) and _REST in self.found:
            return copy.deepcopy(self.found[_REST])
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        further = self.found.get("keywords", []) if any(map(_is_rest, node.args)) else []
        self.generic_visit(node)
        node.keywords = [*node.keywords, *copy.deepcopy(further)]
        return node


class _Exchange(ast.NodeTransformer):
    """A tree with one node exchanged for others."""

    def __init__(self, old: ast.AST, new: list[ast.AST]) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is not self.old:
            return self.generic_visit(node)
        return self.new[0] if isinstance(node, ast.expr) else self.new


def _statements(code: str) -> list[ast.stmt]:
    return ast.parse(code).body


def _expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def _definition(module: ast.Module, qualified: str) -> Any:
    """The definition with a qualified name.

    Raises:
        PlaceNotFoundError: there is none, or more than one.
    """
    node: ast.AST = module
    for name in qualified.split("."):
        found = [each for each in _scope(node) if name in _names(each)]
        if len(found) != 1:
            raise PlaceNotFoundError(f"{qualified} is defined {len(found)} times, not once")
        node = found[0]
    return node


def _scope(node: ast.AST) -> Iterator[ast.AST]:
    """The definitions and assignments of a scope, those under an `if` or a `with` too."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _scope(child)


def _names(node: ast.AST) -> list[str]:
    """The names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    known = isinstance(node, (ast.Assign, ast.AnnAssign))
    return [each.id for each in targets if known and isinstance(each, ast.Name)]
