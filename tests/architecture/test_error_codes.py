"""Kafka's error codes have names: no source and no test writes the number of one, but the table that defines them.

A number counts as an error code where it is compared with a name that holds one, where it is the key of a table that such a name is
looked up in or that says what an error calls for, where it makes an error, or where it is given the name of an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

import pytest

from ottla.errors import ERROR_CODES
from tests.architecture.sources import PACKAGE, name, python_files, tree

TABLE = PACKAGE / "errors" / "codes.py"
NAMES = {error for error, _ in ERROR_CODES.values()}
CODE = re.compile(r"(\w*error_)?codes?")
OF_ERRORS = re.compile(r"REACTION|HINT|ERROR|FATAL")


CONCERNED = (
    ast.AnnAssign,
    ast.Assign,
    ast.Call,
    ast.Compare,
    ast.Dict,
    ast.Match,
    ast.Subscript,
    ast.arguments,
    ast.keyword,
)
"""The nodes that a number may be found in. There are a million others."""


def numbers(*nodes: ast.expr | None) -> list[ast.expr]:
    """The literal error codes in expressions, and in tuples, lists, sets and frozensets of them; 0 is no error."""
    found: list[ast.expr] = []
    for node in nodes:
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
                found.append(node)
            case ast.Constant(value=int(value)) if type(value) is int and value in ERROR_CODES:
                found.append(node)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                found += numbers(*items)
            case ast.Call(func=ast.Name(id="frozenset" | "set" | "int"), args=items):
                found += numbers(*items)
    return found


def named(node: ast.expr | None) -> str:
    """The last part of a name; ``int(name)`` is the name's."""
    match node:
        case ast.Name(id=word) | ast.Attribute(attr=word):
            return word
        case ast.Call(func=ast.Name(id="int"), args=[inner]):
            return named(inner)
    return ""


def is_code(node: ast.expr | None) -> bool:
    """Whether a name holds an error code."""
    return CODE.fullmatch(named(node)) is not None


def tables(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of what error codes are looked up in."""
    found = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="get", value=table), args=[key, *_]) if is_code(key):
                found.add(named(table))
            case ast.Subscript(value=table, slice=key) if is_code(key):
                found.add(named(table))
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[table]) if is_code(key):
                found.add(named(table))
    return found - {""}


def bare(source: ast.AST) -> Iterator[str]:
    """The lines of ``source`` with the number of an error code."""
    nodes = [node for node in ast.walk(source) if isinstance(node, CONCERNED)]
    looked_up = tables(nodes)
    for node in nodes:
        found: list[ast.expr] = []
        match node:
            case ast.Compare(left=left, comparators=right) if any(map(is_code, (left, *right))):
                found = numbers(left, *right)
            case ast.Match(subject=subject, cases=cases) if is_code(subject):
                found = [
                    one for case in cases for inner in ast.walk(case.pattern) for one in numbers(getattr(inner, "value", None))
                ]
            case ast.Call(func=function, args=[first, *_]) if named(function) in ("ErrorCode", "broker_error", "error_class"):
                found = numbers(first)
            case ast.keyword(arg="error_code", value=value):
                found = numbers(value)
            case ast.arguments():
                given = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
                pairs = zip([*given, *node.kwonlyargs], [*node.defaults, *node.kw_defaults], strict=True)
                found = [one for argument, default in pairs if CODE.fullmatch(argument.arg) for one in numbers(default)]
            case ast.Dict(keys=keys, values=[*_, ast.Attribute(value=ast.Name(id=word))]) if word.endswith("Reaction"):
                found = numbers(*keys)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=value):
                found = _assigned(target, value, looked_up)
        yield from (f"line {one.lineno}: {ast.unparse(one)}" for one in found)


def _assigned(target: ast.expr, value: ast.expr | None, looked_up: set[str]) -> list[ast.expr]:
    """The error codes among what is assigned: to the name of an error, or to a table of codes."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    else:
        pairs = [(target, value)]
    found = []
    for one, given in pairs:
        word = named(one)
        if word.strip("_").upper() in NAMES:
            found += numbers(given)
        elif word in looked_up or OF_ERRORS.search(word):
            found += numbers(*(given.keys if isinstance(given, ast.Dict) else [given]))
    return found


def test_error_codes_have_names() -> None:
    paths = [path for path in python_files("src", "tests") if path != TABLE]
    found = {name(path): sorted(set(bare(tree(path)))) for path in paths}
    wrong = {file: lines for file, lines in found.items() if lines}
    assert wrong == {}, "write ottla.protocol.ErrorCode, or the class in ottla.errors"


@pytest.mark.parametrize(
    "line",
    [
        "if code == 16: pass",
        "unknown = topic.error.code == 3",
        "lost = 25 != int(answer.error_code)",
        "if code not in (0, 29): pass",
        "if part.partition_error_code in {-1, 7}: pass",
        "_TABLE = {16: again}\n_TABLE.get(int(part.error_code))",
        "_LOST = frozenset({70, 71})\nlost = code in _LOST",
        "_COMMIT_REACTIONS: Mapping[int, Reaction] = {3: Reaction.AGAIN}",
        "table = {**SYNC_REACTIONS, 79: Reaction.ADOPT}",
        "HINTS = {112: 'set another assignor'}",
        "UNKNOWN_MEMBER_ID = 25",
        "_UNKNOWN_TOPIC_ID, count = 100, 1",
        "raise broker_error(27, what)",
        "raise error_class(24)(what)",
        "answer(ErrorCode(16))",
        "answer(error_code=35)",
        "def refuse(what, code=2): pass",
        "match code:\n    case 14 | 15: pass",
    ],
)
def test_a_number_is_found(line: str) -> None:
    assert list(bare(ast.parse(line))) != []


@pytest.mark.parametrize(
    "line",
    [
        "if code == 0: pass",
        "if code == 0x80000000: pass",
        "if count == 16: pass",
        "if code == ErrorCode.not_coordinator: pass",
        "REACTIONS = {ErrorCode.not_coordinator: Reaction.AGAIN, ErrorCode.none: Reaction.GO_ON}",
        "SOURCES = {1: 'topic', 2: 'broker'}",
        "UNKNOWN_SIZE = -1",
        "raise typer.Exit(code=3)",
        "kinds.get(2)",
    ],
)
def test_what_only_looks_like_one_is_not(line: str) -> None:
    assert list(bare(ast.parse(line))) == []
