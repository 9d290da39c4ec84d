"""Commands and model directories that must be refused, with one-line error messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from manyheads import cli, directory


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must fail, and return its one-line error message."""
    assert cli.main(list(arguments)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("manyheads: ")
    assert shown.err.count("\n") == 1
    return shown.err


def assert_settings_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    """Change settings in the config.json of a model directory, and check that loading it fails with one line."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ValueError, match=message) as raised:
        directory.load(folder)
    assert "\n" not in str(raised.value)
