"""Commands that must fail, and their one-line error messages."""

import pytest

from manyheads import cli


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail, and return its one-line error message."""
    assert cli.main(list(arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("manyheads: ")
    assert shown.err.count("\n") == 1
    return shown.err
