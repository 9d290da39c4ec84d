"""Progress of a run as users see it, and the messages that a run keeps."""

from __future__ import annotations

import logging
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import manyheads.runs.progress as display
from manyheads.training.run_log import Progress

REPORT = Progress(1041, 0.75, 0.8575, 1706.0, "images", 0.22, 0.1, 61.0)


def test_plain_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "PLAIN_SECONDS", 0.0)
    report = Progress(30, 0.75, 0.5, 1234.0, "items", None, 0.0, 61.0)
    with display.ProgressDisplay() as shown:
        shown(report)
    assert capsys.readouterr() == ("", " 75%  step 30  loss 0.5000  1,234 items/s  1:01 left\n")


def test_plain_lines_in_a_cell_of_a_notebook(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "xterm", "JPY_PARENT_PID": "7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(display, "PLAIN_SECONDS", 0.0)
    with display.ProgressDisplay() as shown:
        shown(REPORT)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("columns", "details"),
    [
        (60, "  step 1,041"),
        (80, "  step 1,041  loss 0.8575"),
        (160, "  step 1,041  loss 0.8575  1,706 images/s  22% of this machine's peak"),
    ],
)
def test_a_bar_of_any_width_has_percent_and_time_left(
    columns: int, details: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    with display.ProgressDisplay() as shown:
        shown(REPORT)
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()
    line = next(line.rstrip() for line in reversed(lines) if "left" in line)
    assert len(line) <= columns
    bar = "━" if columns < display.WIDE else "━━"
    assert re.match(f"training {bar * 10}.*  75% 1:01 left{re.escape(details)}", line), line


def test_print_gets_a_line_every_30_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = 0.0, list[str]()
    monkeypatch.setattr(display, "time", SimpleNamespace(monotonic=lambda: now))
    write = display.ProgressLines(lines.append)
    for _ in range(72):
        write(REPORT)
        now += 0.5
    assert lines == [str(REPORT)] * 2


def test_a_notebook_updates_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, str]] = []

    def show(html: str, **_: Any) -> SimpleNamespace:
        shown.append(("new", html))
        return SimpleNamespace(update=lambda html: shown.append(("update", html)))

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=show))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with display.ProgressDisplay("a<b") as bar:
        bar(REPORT)
        bar(REPORT)
    assert [kind for kind, _ in shown] == ["new", "update"]
    assert shown[0][1].startswith("a&lt;b <progress value='0.7500' max='1'></progress> 75% &nbsp; 1:01 left · step")


@pytest.mark.parametrize(("quiet", "level", "printed"), [(False, "INFO", "iw"), (False, "WARNING", "w"), (True, 0, "")])
def test_messages_are_kept_and_logged_as_before(
    quiet: bool, level: str | int, printed: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("manyheads.some.module")
    caplog.set_level(level, logger="manyheads")
    before = logging.getLogger("manyheads").handlers
    with display.kept_messages(quiet=quiet) as records:
        logger.info("i")
        logger.warning("w")
    assert [record.getMessage() for record in records] == ["i", "w"]
    assert "".join(caplog.messages) == printed
    logger.error("e")
    assert caplog.messages[-1] == "e"
    assert logging.getLogger("manyheads").handlers == before
    assert len(records) == 2
