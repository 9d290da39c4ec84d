"""Every tutorial executes, and its new outputs obey the rules of the committed ones."""

import pytest

pytest.importorskip("nbclient", reason="needs the extra docs")

from scripts import build_notebooks
from tests.contracts.docs.test_notebooks import MAX_LINES, texts


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", build_notebooks.names())
def test_tutorial_executes(name: str) -> None:
    """A failing cell, command or assertion raises an error."""
    for cell in build_notebooks.executed(build_notebooks.SOURCES / f"{name}.md"):
        assert len(texts(cell).splitlines()) <= MAX_LINES, cell["id"]
