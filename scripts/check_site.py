"""`python -m scripts.check_site DIR`: check the built pages.

They load nothing from elsewhere, their links lead to existing pages and headings, and every table is rendered. If
Chromium is installed, no formula is cut off on the page of a phone.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    ("audio", "src"), ("embed", "src"), ("iframe", "src"), ("image", "href"), ("img", "src"), ("img", "srcset"),
    ("link", "href"), ("object", "data"), ("script", "src"), ("source", "src"), ("source", "srcset"), ("use", "href"),
    ("video", "src"),
}  # fmt: skip
CODE = ("code", "pre", "script", "style")
OF_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


RAW_TABLE = re.compile(r"\|\s*:?-{3,}:?\s*\|")  # the second line of a table in Markdown


class Page(HTMLParser):
    """Resources, links, anchors and visible text of a page, without code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.links, self.anchors = list[str](), list[str](), set[str]()
        self.text, self._code = "", 0  # _code: number of open elements with code
        self.loads += OF_STYLES.findall(text)
        self.feed(text)

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in CODE

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._code += tag in CODE
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADS:
                self.loads.append(value)
            elif (tag, name) == ("a", "href"):
                self.links.append(value)
            elif (tag, name) == ("iframe", "srcdoc"):
                self.loads += Page(value).loads


def faults(site: Path) -> list[str]:
    """A line for each thing that is wrong, in the order of the pages."""
    pages = {file.resolve(): Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    lines = []
    for file, page in pages.items():
        where = file.relative_to(site.resolve())
        lines += [f"{where}: loads {url}" for url in page.loads if urlsplit(url).netloc]
        lines += [f"{where}: a table is not rendered: {found[0]}" for found in RAW_TABLE.finditer(page.text)]
        for url in [*page.links, *page.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                lines.append(f"{where}: {url} is not there")
            elif target in pages and parts.fragment and unquote(parts.fragment) not in pages[target].anchors:
                lines.append(f"{where}: {url} names no place of {target.name}")
    for file in sorted(site.rglob("*.css")):
        urls = OF_STYLES.findall(file.read_text(encoding="utf-8"))
        lines += [f"{file.relative_to(site)}: loads {url}" for url in urls]
    return lines


PHONE = 400  # width of a page on a phone in pixels
TYPESET = "document.readyState === 'complete' && document.querySelector('mjx-container') !== null"
# the widest right edge of a formula; formulas in tables scroll with their table
EDGE = """MathJax.startup.promise.then(() => Math.max(0, ...[...document.querySelectorAll("mjx-container > mjx-math")]
  .filter((formula) => !formula.closest("table")).map((formula) => formula.getBoundingClientRect().right)))"""


def clipped(site: Path) -> list[str]:
    """A line for each page with a formula that is cut off on a phone. Without Chromium, nothing is checked."""
    from tests.support.browser import BINARY, Browser

    if BINARY is None:
        return []
    lines, browser = [], Browser()
    browser.send("Emulation.setDeviceMetricsOverride", width=PHONE, height=900, deviceScaleFactor=1, mobile=False)
    for file in sorted(site.rglob("*.html")):
        if re.search(r'class="math|<mjx-math', file.read_text(encoding="utf-8")):
            browser.send("Page.navigate", url=file.absolute().as_uri())
            browser.wait(TYPESET)
            if (edge := browser.run(EDGE)) > PHONE:
                lines.append(
                    f"{file.relative_to(site)}: a formula ends at {edge:.0f} of {PHONE} pixels: break its line"
                )
    browser.close()
    return lines


def main(arguments: list[str]) -> int:
    site = Path(*arguments)
    pages = len(list(site.rglob("*.html")))
    lines = [*faults(site), *clipped(site)] if pages else [f"{site}: no pages"]
    print(
        *lines or [f"{site}: {pages} pages, nothing is loaded from elsewhere, every link and every table is right"],
        sep="\n",
    )
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
