"""Tutorials and kept records agree: notebooks are not executed again when a record is added."""

import ast
import re
from pathlib import Path

import pytest

from tests.paths import ROOT

TUTORIALS = sorted(ROOT.glob("docs/tutorials/source/*.md"))
READERS = {"kept", "recorded"}  # names of the functions with which tutorials print the records of a recipe
MODULES = {"lab.records", "textwrap"}  # what such a function is made of


def reads_records(statement: ast.stmt) -> bool:
    """Return True if the statement only prints records, once or in a loop over recipes."""
    if isinstance(statement, ast.For):
        return all(reads_records(inner) for inner in statement.body)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in READERS


def statements(page: Path) -> list[ast.stmt]:
    cells = re.findall(r"^```\{code-cell\} python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    lines = [line for cell in cells for line in cell.splitlines() if not line.lstrip().startswith(("!", "%", ":"))]
    return ast.parse("\n".join(lines)).body


def needed(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return {name.name for name in statement.names} <= MODULES
    if isinstance(statement, ast.ImportFrom):
        return statement.module in MODULES
    return isinstance(statement, ast.FunctionDef) and statement.name in READERS


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_records_printed_by_a_tutorial_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = statements(page)
    asked = [statement for statement in body if reads_records(statement)]
    if not asked:
        pytest.skip("reads no records")
    names: dict[str, object] = {}
    exec(compile(ast.Module([s for s in body if needed(s)], []), str(page), "exec"), names)
    for statement in asked:
        exec(compile(ast.Module([statement], []), str(page), "exec"), names)
        assert capsys.readouterr().out.strip(), f"{page.name}: {ast.unparse(statement)} finds nothing"
