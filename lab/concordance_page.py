"""The tables of docs/tutorials/concordance.md: every item of the four sources, and where the pages show it.

The items are in `lab/concordance/SOURCE.toml`, in the order of the source. A mark in the text of a tutorial,
`<!-- item: KEY -->` on a separate line, is the place that shows an item. Other places are the item's `pages`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from manyheads.cli.tutorials import site_anchor

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ITEMS = ROOT / "lab" / "concordance"
SOURCES = ("textbook", "blog", "slides", "lecture")  # names of the files of items, in the order of the page
KINDS = ("figure", "formula", "table", "claim", "code", "system", "text")
# verdicts of claims without a letter on docs/measured/evidence.md; those with a letter have the verdict of that page
VERDICTS = ("shown", "measured", "not tested", "in error")
MARK = re.compile(r"^<!-- item: (\S+) -->$")
HEADING = re.compile(r"^(#{1,3}) (.+)$")  # the site has no anchors for deeper levels
LETTER = re.compile(r"\(([a-z]\d?)\)")
EVIDENCE = "measured/evidence.md"
ERRATA = "explanation/errata.md"


@dataclass(frozen=True, kw_only=True)
class Item:
    """Figure, formula, claim or other item of a source.

    place    where the source has it
    pages    places outside the tutorials that show it, relative to docs, such as "papers/detr.md#run-it"
    command  command that shows it
    verdict  of a claim: a letter of docs/measured/evidence.md such as "(a)", or one of VERDICTS
    limit    what was not shown
    errata   numbers of the errata about it
    picture  of a figure: a file of docs/images
    rows     of a figure: a diagram that redraws it (lab/diagrams.py); arrows: its arrows
             A figure without both has the first picture after its mark in the notebook.
    """

    key: str
    kind: str
    place: str
    name: str
    pages: tuple[str, ...] = ()
    command: str = ""
    verdict: str = ""
    limit: str = ""
    errata: tuple[str, ...] = ()
    picture: str = ""
    rows: tuple[str, ...] = ()
    arrows: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"item {self.key}: expected a kind of {KINDS}, found {self.kind}")
        if (self.kind == "claim") != bool(self.verdict):
            raise ValueError(f"item {self.key}: a claim has a verdict, and other items have none")
        if self.verdict and self.verdict not in VERDICTS and not LETTER.fullmatch(self.verdict):
            raise ValueError(f"item {self.key}: expected a letter or a verdict of {VERDICTS}, found {self.verdict}")


@dataclass(frozen=True)
class Heading:
    """Heading of a page: path relative to docs, text, and anchor; `code_cells`: number of cells of code before it."""

    path: str
    text: str
    anchor: str
    code_cells: int

    @property
    def url(self) -> str:
        return f"{self.path}#{self.anchor}"


@dataclass(frozen=True)
class Place:
    """Place of a mark: the heading above it, and the number of cells of code before it."""

    heading: Heading
    code_cells: int


def read_items(folder: Path = ITEMS) -> dict[str, tuple[str, list[Item]]]:
    """Return title and items of each source. Raise ValueError for an unknown field, or a key that occurs twice."""
    found: dict[str, tuple[str, list[Item]]] = {}
    keys: set[str] = set()
    for name in SOURCES:
        content = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        items = []
        for entry in content["item"]:
            listed: dict[str, Any] = {
                field: tuple(value) if isinstance(value, list) else value for field, value in entry.items()
            }
            try:
                items.append(Item(**listed))
            except TypeError as error:
                raise ValueError(f"{name}.toml: item {entry.get('key')}: {error}") from None
            if items[-1].key in keys:
                raise ValueError(f"{name}.toml: item {items[-1].key} occurs twice")
            keys.add(items[-1].key)
        found[name] = content["source"], items
    return found


def anchor(heading: str) -> str:
    """Return the anchor that the site gives to a heading in Markdown."""
    return site_anchor(re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*$]", r"\1", heading))


def lines_of(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the lines of a page outside of fenced blocks, each with the number of cells of code before it."""
    fenced, cells = False, 0
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fenced = not fenced
            cells += fenced and line.startswith("```{code-cell}")
        elif not fenced:
            yield line, cells


@cache
def headings(path: str, docs: Path = DOCS) -> list[Heading]:
    """Return the headings of a page. The path is relative to docs; a notebook has the headings of its source."""
    file = docs / path
    if file.suffix == ".ipynb":
        file = file.parent / "source" / f"{file.stem}.md"
    return [
        Heading(path, match[2], anchor(match[2]), cells)
        for line, cells in lines_of(file)
        if (match := HEADING.match(line))
    ]


def marks(docs: Path = DOCS) -> dict[str, list[Place]]:
    """Return the places of the marks of each item, in the tutorials' order of names."""
    found: dict[str, list[Place]] = {}
    for file in sorted((docs / "tutorials" / "source").glob("*.md")):
        above = iter(headings(f"tutorials/{file.stem}.ipynb", docs))
        heading = None
        for line, cells in lines_of(file):
            if HEADING.match(line):
                heading = next(above)
            elif match := MARK.match(line):
                if heading is None:
                    raise ValueError(f"{file.name}: the mark of {match[1]} is above the first heading")
                found.setdefault(match[1], []).append(Place(heading, cells))
    return found


def homes(item: Item, placed: dict[str, list[Place]], docs: Path = DOCS) -> list[Heading]:
    """Return the headings below which an item is shown. Raise ValueError if there is none, or for a dead link."""
    found = [place.heading for place in placed.get(item.key, [])]
    for page in item.pages:
        path, _, fragment = page.partition("#")
        if not (docs / path).is_file():
            raise ValueError(f"item {item.key}: {path} does not exist")
        at = [heading for heading in headings(path, docs) if heading.anchor == fragment or not fragment]
        if not at:
            raise ValueError(f"item {item.key}: {path} has no heading with the anchor {fragment}")
        found.append(at[0] if fragment else Heading(path, at[0].text, "", 0))
    if not found:
        raise ValueError(f"item {item.key} has no home: put its mark into a tutorial, or name a page")
    return list(dict.fromkeys(found))


def link(heading: Heading) -> str:
    """Return a link from a page in docs/tutorials. A place outside the tutorials has the title of its page."""
    folder, _, name = heading.path.rpartition("/")
    path = name if folder == "tutorials" else f"../{heading.path}"
    text = heading.text if folder == "tutorials" else headings(heading.path)[0].text
    return f"[{text}]({path}{'#' * bool(heading.anchor)}{heading.anchor})"


@cache
def verdicts_of_claims(docs: Path = DOCS) -> dict[str, str]:
    """Return the verdict of each letter on the page of claims."""
    text = (docs / EVIDENCE).read_text(encoding="utf-8")
    found = re.findall(r"^\| \(([a-z]\d?)\) \| .+? \| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    return dict(reversed(found))  # the first row of a letter; later rows are about single requirements


def _verdict(item: Item) -> str:
    letter = LETTER.fullmatch(item.verdict)
    if letter is None:
        return f"**{item.verdict}**" if item.verdict else ""
    if letter[1] not in verdicts_of_claims():
        raise ValueError(f"item {item.key}: {EVIDENCE} has no claim {item.verdict}")
    return f"**{verdicts_of_claims()[letter[1]]}** ([claim {letter[1]}](../{EVIDENCE}))"


def _errata(item: Item) -> str:
    found = []
    for number in item.errata:
        at = [h for h in headings(ERRATA) if re.search(rf"\b{number}\b", h.text.partition(":")[0])]
        if not at:
            raise ValueError(f"item {item.key}: the errata have no {number}")
        found.append(f"[{number}](../{at[0].url})")
    return ", ".join(found)


def row(item: Item, placed: dict[str, list[Place]]) -> str:
    """Return the row of an item: its place, kind and name in the source; our places; the command; the result."""
    kind = "" if item.place.startswith(item.kind) else f", {item.kind}"
    shown = "<br>".join(link(heading) for heading in homes(item, placed))
    command = f"`{item.command}`" if item.command else ""
    result = "; ".join(filter(None, (_verdict(item), _errata(item), item.limit)))
    return f"| {item.place}{kind}: {item.name} | {shown} | {command} | {result} |"


def table(name: str) -> str:
    """Return the heading and the table of a source."""
    title, items = read_items()[name]
    placed = marks()
    head = ["| in the source | shown in | command | result and limits |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {title}", "", *head, *(row(item, placed) for item in items)])


def tables() -> str:
    return "\n\n".join(table(name) for name in SOURCES)


PARTS = (tables,)
