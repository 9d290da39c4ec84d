"""Docstrings: a row "name   meaning" names a parameter, a field, or a word of the code that it describes."""

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.paths import ROOT

FILES = [
    file for folder in ("manyheads", "papers", "lab", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))
]
ROW = re.compile(r"^(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*) {2,}\S", re.MULTILINE)
Described = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Return all classes of the project by name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def words(node: ast.AST) -> set[str]:
    """Return the names, attributes, arguments and texts in the code of a function or class, and of its base classes."""
    found: set[str] = set()
    for part in ast.walk(node):
        for name in ("id", "attr", "arg", "name"):
            found |= {value} if isinstance(value := getattr(part, name, None), str) else set()
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" not in part.value:
            found |= {*re.findall(r"\w+", part.value)}
    if isinstance(node, ast.ClassDef):
        names = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases} - {node.name}
        for parent in (parent for name in names for parent in classes().get(name, [])):
            found |= words(parent)
    return found


def unknown_names(tree: ast.AST) -> Iterator[str]:
    """Yield "LINE NAME: WORDS" for each docstring row whose words do not occur in the code that it describes.

    Docstrings of functions whose rows name no parameter are left out: they describe keys of a result, for example.
    """
    constants = {word for node in ast.iter_child_nodes(tree) if isinstance(node, ast.Assign) for word in words(node)}
    for node in ast.walk(tree):
        if isinstance(node, Described) and (text := ast.get_docstring(node)):
            rows = {name.lstrip("*") for row in ROW.findall(text) for name in row.split(", ")}
            if not isinstance(node, ast.ClassDef) and rows.isdisjoint(
                arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)
            ):
                continue
            known = words(node) | constants if rows else set()
            for row in ROW.findall(text):
                if missing := {name.lstrip("*") for name in row.split(", ")} - known:
                    yield f"{node.lineno} {node.name}: {', '.join(sorted(missing))}"


@pytest.mark.parametrize("folder", ["manyheads", "papers", "lab", "benchmarks"])
def test_rows_of_docstrings_name_parameters_and_fields(folder: str) -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in FILES
        if file.is_relative_to(ROOT / folder)
        if (names := [*unknown_names(ast.parse(file.read_text(encoding="utf-8")))])
    }
    assert found == {}


def test_a_row_about_a_missing_field_is_found() -> None:
    code = 'class A:\n    """Text.\n\n    size  its size\n    gone  a field of the past\n    """\n\n    size: int\n'
    assert [*unknown_names(ast.parse(code))] == ["1 A: gone"]
