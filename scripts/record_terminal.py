"""Record a terminal session as an animated picture: `python -m scripts.record_terminal docs/images/first-minute.svg`.

It types commands and draws their output line by line. A wait longer than `LONGEST_WAIT` is shortened, and the real
duration of the command is printed below its output. The picture needs no script; without animation it shows the end.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

COMMANDS = (
    "make demo",
    '.venv/bin/manyheads translate runs/demo-en-de "July 4, 1999"',
    '.venv/bin/manyheads attend runs/demo-en-de "July 4, 1999" --out page.html',
)
COLUMNS, ROWS = 100, 26
LONGEST_WAIT, TYPING = 0.7, 1.2  # seconds
WIDTH, HEIGHT, EDGE = 8.4, 19, 16  # of a character, of a line, and around all, in pixels
STYLE = """
text {
  font: 14px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre; fill: #1b1f27;
}
.paper { fill: #f5f6f8 } .typed { font-weight: bold; fill: #0b5cad } .told { fill: #5d6675 } .bold { font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ef } .paper { fill: #14171d } .typed { fill: #7cc0ff } .told { fill: #9aa4b4 }
}
"""


class Line(NamedTuple):
    second: float  # when it appears
    text: str
    kind: str = ""  # typed, told or bold


def recorded(commands: Sequence[str], folder: Path) -> list[Line]:
    """Return the commands and their output. Raise ValueError if a command fails."""
    shown, lines = 0.0, list[Line]()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    for command in commands:
        lines.append(Line(shown, f"$ {command}", "typed"))
        shown, began = shown + TYPING, time.monotonic()
        before = began
        with subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, text=True, encoding="utf-8", errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for printed in process.stdout:
                now = time.monotonic()
                shown += min(now - before, LONGEST_WAIT)
                before = now
                bold = "\033[1m" in printed
                text = re.sub(r"\033\[[0-9;]*[A-Za-z]", "", printed).rstrip()
                lines.append(Line(shown, text[:COLUMNS], "bold" if bold else ""))
        if process.returncode:
            raise ValueError(f"{command}: exit status {process.returncode}")
        seconds = time.monotonic() - began
        took = f"{seconds / 60:.1f} minutes" if seconds >= 100 else f"{seconds:.0f} s"
        lines.append(Line(shown, f"# {took}", "told"))
        shown += LONGEST_WAIT
    return lines


def svg(lines: Sequence[Line]) -> str:
    """Lines that appear one by one; when the screen is full it moves up by one."""
    length = lines[-1].second + 1
    moves = {line.second: number - ROWS + 1 for number, line in enumerate(lines) if number >= ROWS}
    last = max(0, len(lines) - ROWS)
    steps = "".join(
        f"{100 * second / length:.2f}% {{ transform: translateY({-HEIGHT * move}px) }}"
        for second, move in moves.items()
    )
    style = (
        f"{STYLE}.all {{ transform: translateY({-HEIGHT * last}px); animation: up {length:.1f}s step-end }}\n"
        f"@keyframes up {{ 0% {{ transform: none }}{steps} }}\n"
        "@keyframes come { from, to { opacity: 0 } }\n"
        "@media (prefers-reduced-motion: reduce) { * { animation: none !important } }"
    )
    texts = "\n".join(
        f'<text x="{EDGE}" y="{EDGE + HEIGHT * number + 14}" class="{line.kind}" '
        f'style="animation: come {line.second:.2f}s">{escape(line.text)}</text>'
        for number, line in enumerate(lines)
        if line.text
    )
    width, height = round(2 * EDGE + COLUMNS * WIDTH), 2 * EDGE + ROWS * HEIGHT
    typed = escape(", then ".join(line.text[2:] for line in lines if line.kind == "typed"))
    size = f'width="{width}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} role="img">\n'
        f"<title>A terminal: {typed}</title>\n"
        f"<style>{style}</style>\n"
        f'<rect class="paper" {size} rx="8"/>\n'
        f'<svg y="{EDGE / 2:g}" width="{width}" height="{height - EDGE}"><g class="all">\n{texts}\n</g></svg>\n</svg>\n'
    )


def main() -> int:
    Path(sys.argv[1]).write_text(svg(recorded(COMMANDS, Path())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
