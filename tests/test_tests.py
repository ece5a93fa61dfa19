"""The tests themselves: none has an assertion that a branch can leave out unnoticed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ENDINGS = ("pytest.fail", "pytest.skip", "assume")


def asserts(statements: Sequence[ast.AST]) -> bool:
    """Return whether there is an assertion anywhere in ``statements``."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises")
        for statement in statements
        for node in ast.walk(statement)
    )


def ends(statements: Sequence[ast.AST]) -> bool:
    """Return whether ``statements`` assert, fail or skip."""
    return asserts(statements) or any(
        isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ENDINGS)
        for statement in statements
        for node in ast.walk(statement)
    )


def leaves(statements: Sequence[ast.stmt]) -> bool:
    """Return whether a block ends with a jump out of it, with no value to return."""
    last = statements[-1]
    if isinstance(last, ast.Return):
        return last.value is None
    return isinstance(last, ast.Continue | ast.Break)


def unguarded(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each ``if`` that has assertions on one way through it only."""
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if not (isinstance(block, list) and all(isinstance(s, ast.stmt) for s in block)):
                continue
            for place, statement in enumerate(block):
                if isinstance(statement, ast.If):
                    body, rest = statement.body, statement.orelse
                    rest = [*rest, *(block[place + 1 :] if leaves(body) else [])]
                    if (asserts(body) and not ends(rest)) or (asserts(rest) and not ends(body)):
                        yield statement.lineno


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("if a:\n    assert b", [1]),
        ("for a in b:\n    if a:\n        assert c", [2]),
        ("for a in b:\n    if a:\n        continue\n    assert c", [2]),
        ("if a:\n    b()\nelif c:\n    assert d", [1, 3]),
        ("if a:\n    assert b\nelif c:\n    assert d", [3]),
        ("if a:\n    with pytest.raises(ValueError):\n        b()", [1]),
        ("if a:\n    assert b\nelse:\n    assert c", []),
        ("if a:\n    assert b\nelse:\n    pytest.fail('no a')", []),
        ("def f():\n    if a:\n        assert b\n        return\n    assert c", []),
        ("if a:\n    pytest.skip('no a')\nassert b", []),
        ("if a:\n    b()\nassert c", []),
        ("for a in b:\n    with c:\n        assert d", []),
    ],
)
def test_conditional_assertions_are_found(source: str, lines: list[int]) -> None:
    assert list(unguarded(ast.parse(source))) == lines


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: p.relative_to(TESTS).as_posix()
)
def test_no_assertion_depends_on_a_condition(path: Path) -> None:
    offenders = list(unguarded(ast.parse(path.read_text())))
    assert offenders == [], "assert on both branches, or filter first and assert what remains"
