"""The tests themselves: each asserts where a reader sees it, and on every way through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ENDINGS = ("pytest.fail", "pytest.skip", "assume")
CHECKS = ("assert", "check", "expect")
"""How the name of a helper that asserts begins."""


def asserts(statements: Sequence[ast.AST]) -> bool:
    """Return whether there is an assertion anywhere in ``statements``."""
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises")
        for statement in statements
        for node in ast.walk(statement)
    )


def checks(statements: Sequence[ast.AST]) -> bool:
    """Return whether ``statements`` assert, themselves or by a helper named for it."""
    return asserts(statements) or any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2].lstrip("_").startswith(CHECKS)
        for statement in statements
        for node in ast.walk(statement)
    )


def silent(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each test that shows no assertion."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test_") and not checks(node.body):
                yield node.name


def swallowed(tree: ast.AST) -> Iterator[int]:
    """Yield the line of each ``except`` that takes whatever goes wrong."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"):
                yield node.lineno


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
    ("source", "names"),
    [
        ("def test_a():\n    b()", ["test_a"]),
        ("def test_a():\n    assert b", []),
        ("def test_a():\n    with pytest.raises(ValueError):\n        b()", []),
        ("def test_a():\n    assert_refused(b)", []),
        ("def test_a():\n    page.expect(b)", []),
        ("def test_a():\n    refused(b)", ["test_a"]),
        ("class TestA:\n    def test_a(self):\n        b()", ["test_a"]),
        ("def helper():\n    b()", []),
    ],
)
def test_tests_without_an_assertion_are_found(source: str, names: list[str]) -> None:
    assert list(silent(ast.parse(source))) == names


@pytest.mark.parametrize(
    ("kinds", "lines"),
    [("", [3]), (" Exception", [3]), (" BaseException as e", [3]), (" (KeyError, OSError)", [])],
)
def test_handlers_of_everything_are_found(kinds: str, lines: list[int]) -> None:
    assert list(swallowed(ast.parse(f"try:\n    a()\nexcept{kinds}:\n    b()"))) == lines


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("test_*.py")), ids=lambda p: p.relative_to(TESTS).as_posix()
)
def test_every_test_asserts_visibly_and_unconditionally(path: Path) -> None:
    tree = ast.parse(path.read_text())
    offenders = list(unguarded(tree))
    assert offenders == [], "assert on both branches, or filter first and assert what remains"
    assert list(silent(tree)) == [], "assert, or call a helper whose name begins with assert_"
    assert list(swallowed(tree)) == [], "name the exceptions"
