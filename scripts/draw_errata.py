"""Run the examples of docs/explanation/errata.md, which draw its pictures: `python scripts/draw_errata.py`.

A section of the page is one doctest: names persist from example to example, but not between sections.
"""

from __future__ import annotations

import doctest
import os
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "errata.md"


def sections(page: Path = PAGE) -> dict[str, doctest.DocTest]:
    """The examples under each heading that has some; they keep their line numbers, which a failure names."""
    lines = page.read_text(encoding="utf-8").splitlines()
    kept: dict[str, list[str]] = {}
    heading, inside = "", False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            inside = line == "```pycon"
        elif inside:
            kept.setdefault(heading, [""] * len(lines))[number] = line
        elif line.startswith("### "):
            heading = line.removeprefix("### ")
    parser = doctest.DocTestParser()
    return {name: parser.get_doctest("\n".join(code), {}, name, str(page), 0) for name, code in kept.items()}


def run(section: doctest.DocTest) -> str:
    """Return the examples whose output differs from the page."""
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(section, out=told.append)
    return "".join(told)


if __name__ == "__main__":
    os.chdir(PAGE.parent)
    Path("errata").mkdir(exist_ok=True)
    sys.exit("".join(map(run, sections().values())) or None)
