"""Mutants of a module: copies of its source with one small fault each.

Faults are those that programmers make: a statement forgotten, arguments swapped, a condition negated, a
number off by one, an error not handled.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: Names that are easily taken for one another.
CONFUSED = {"SHUT_WR": "SHUT_RDWR", "SHUT_RDWR": "SHUT_WR", "SHUT_RD": "SHUT_RDWR"}
#: Functions whose arguments may come in any order.
COMMUTATIVE = {"min", "max", "suppress"}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.LShift: ast.RShift,
}


@dataclass(frozen=True)
class Mutant:
    """A copy of a module with one fault.

    :ivar line: the line of the fault in the original source.
    :ivar fault: the change, in words.
    :ivar before: the original statement or expression, in one line.
    :ivar source: the source of the whole mutant.
    """

    line: int
    fault: str
    before: str
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.fault}: {self.before}"


#: A change of a node: returns the node that replaces it, or None to remove it.
Change = Callable[[ast.AST], ast.AST | list[ast.stmt] | None]


def mutants(source: str) -> Iterator[Mutant]:
    """Yield all mutants of a module, in the order of its lines; each differs from all others."""
    tree = ast.parse(source)
    _drop_annotations(tree)
    seen = {ast.unparse(tree)}
    mutants_of_source = []
    caught = {id(node.type) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in caught:
            continue  # the order of the exceptions in an `except` has no effect
        for fault, change in _changes(node):
            mutated = _changed(tree, number, change)
            if mutated is not None and mutated not in seen:
                seen.add(mutated)
                line = getattr(node, "lineno", 0)
                before = ast.unparse(node).partition("\n")[0]
                mutants_of_source.append(Mutant(line, fault, before, mutated))
    yield from sorted(mutants_of_source, key=lambda mutant: mutant.line)


def _changed(tree: ast.Module, number: int, change: Change) -> str | None:
    """Return the source of a copy of ``tree`` whose node of this number is changed."""
    new = copy.deepcopy(tree)
    target = next(node for n, node in enumerate(ast.walk(new)) if n == number)
    _Replace(target, change).visit(new)
    try:
        text = ast.unparse(ast.fix_missing_locations(new))
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return None
    return text


def _drop_annotations(tree: ast.Module) -> None:
    """Drop annotations, because a fault in them has no effect."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Name("object", ast.Load())


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, change: Change) -> None:
        self._target = target
        self._change = change

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt] | None:
        if node is self._target:
            return self._change(node)
        self.generic_visit(node)
        if getattr(node, "body", None) == []:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]  # it had one statement
        return node


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    for kind, function in _FAULTS.items():
        if isinstance(node, kind):
            yield from function(node)


def _statement(node: ast.stmt) -> Iterator[tuple[str, Change]]:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if not is_text and isinstance(
        node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Return, ast.If, ast.For)
    ):
        yield "statement dropped", lambda _: ast.Pass()
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        yield "statement dropped", lambda _: ast.Pass()
    if isinstance(node, ast.Return) and node.value is not None:
        yield "nothing returned", lambda _: ast.Return(ast.Constant(None))
    if isinstance(node, ast.With) and "suppress" in ast.unparse(node.items[0]):
        yield "errors not suppressed", lambda old: old.body  # type: ignore[attr-defined]
    if isinstance(node, ast.Try):
        yield "errors not caught", lambda old: old.body  # type: ignore[attr-defined]
    if isinstance(node, (ast.While, ast.For)):
        yield "loop ends after one round", _once
    if isinstance(node, (ast.If, ast.While)):
        yield "condition negated", _negated
    if isinstance(node, ast.If):
        yield "condition always true", _set("test", ast.Constant(True))


def _expression(node: ast.expr) -> Iterator[tuple[str, Change]]:
    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            opposite = _COMPARISONS[type(op)]
            yield "comparison changed", _set_at("ops", place, opposite())
    if isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "and taken for or", _set("op", other_op)
        for place in range(len(node.values)):
            yield "part of a condition dropped", _drop_value(place)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield "operator changed", _set("op", _OPERATORS[type(node.op)]())
    if isinstance(node, ast.Call):
        yield from _call(node)
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.ctx, ast.Load):
        yield "elements swapped", _reversed
    if isinstance(node, ast.Constant):
        yield from _constant(node)
    if isinstance(node, ast.Attribute) and node.attr in CONFUSED:
        yield "name confused", _set("attr", CONFUSED[node.attr])


def _call(node: ast.Call) -> Iterator[tuple[str, Change]]:
    if len(node.args) > 1 and ast.unparse(node.func) not in COMMUTATIVE:
        yield "arguments swapped", _swapped
    for place, argument in enumerate(node.args):
        if ast.unparse(node.func) == "suppress":
            yield f"{ast.unparse(argument)} not suppressed", _drop_argument(place)
    for place in range(len(node.keywords)):
        yield f"{node.keywords[place].arg} dropped", _drop_keyword(place)


def _constant(node: ast.Constant) -> Iterator[tuple[str, Change]]:
    value = node.value
    if isinstance(value, bool):
        yield "truth inverted", _set("value", not value)
    elif isinstance(value, (int, float)):
        yield "one more", _set("value", value + 1)
        yield "one less", _set("value", value - 1)
    elif isinstance(value, str) and value.startswith(("<", ">", "!", "=")):
        yield "byte order changed", _set("value", ">" + value[1:])
    elif isinstance(value, str) and value in ("little", "big"):
        yield "byte order changed", _set("value", "big" if value == "little" else "little")


def _handler(node: ast.ExceptHandler) -> Iterator[tuple[str, Change]]:
    if isinstance(node.type, ast.Tuple):
        for place, kind in enumerate(node.type.elts):

            def change(old: ast.AST, place: int = place) -> ast.AST:
                assert isinstance(old, ast.ExceptHandler) and isinstance(old.type, ast.Tuple)
                del old.type.elts[place]
                return old

            yield f"{ast.unparse(kind)} not caught", change
    elif node.type is not None:
        yield "no error caught", _set("type", ast.Name("KeyboardInterrupt", ast.Load()))


_FAULTS: dict[type[ast.AST], Callable[..., Iterator[tuple[str, Change]]]] = {
    ast.stmt: _statement,
    ast.expr: _expression,
    ast.ExceptHandler: _handler,
}


def _set(field: str, value: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        setattr(node, field, value)
        return node

    return change


def _set_at(field: str, place: int, value: ast.AST) -> Change:
    def change(node: ast.AST) -> ast.AST:
        getattr(node, field)[place] = value
        return node

    return change


def _negated(node: ast.AST) -> ast.AST:
    assert isinstance(node, (ast.If, ast.While))
    node.test = ast.UnaryOp(ast.Not(), node.test)
    return node


def _once(node: ast.AST) -> ast.AST:
    assert isinstance(node, (ast.While, ast.For))
    node.body = [*node.body, ast.Break()]
    return node


def _swapped(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call)
    node.args[0], node.args[1] = node.args[1], node.args[0]
    return node


def _reversed(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Tuple)
    node.elts = node.elts[::-1]
    return node


def _drop_value(place: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.BoolOp)
        rest = [value for n, value in enumerate(node.values) if n != place]
        return rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)

    return change


def _drop_argument(place: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        del node.args[place]
        return node

    return change


def _drop_keyword(place: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        del node.keywords[place]
        return node

    return change
