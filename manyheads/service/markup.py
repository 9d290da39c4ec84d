"""Splitting of texts into parts that are translated separately: the lines of a text, or the texts between HTML tags."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

_TAG = re.compile("<(?=[a-zA-Z/!?])")  # start of an HTML tag; before other characters, "<" is text
# End of an HTML tag: ">" outside of quoted values. A quotation mark starts a quoted value only directly after "=", not
# in `title=it's`.
_TAG_END = re.compile(r"""(?:=\s*+"[^"]*"|=\s*+'[^']*'|[^>])*+>""")
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_KEPT = re.compile(r"""\s(?:translate\s*=\s*["']?no\b|class\s*=\s*["']?[^"'>]*\bnotranslate\b)""", re.IGNORECASE)
# end tags of the elements that contain code
_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_LINES = ("pre", "textarea")  # elements in which a browser shows all line breaks and spaces
# elements that have no end tag
_EMPTY = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr")


@dataclass(frozen=True)
class Split:
    """Text that is split into parts to translate, and the characters around these parts, which are not translated.

    parts    texts to translate
    around   characters before each part, and after the last part
    escaped  True if translations must be escaped for HTML
    """

    parts: list[str]
    around: list[str]
    escaped: bool = False

    def joined(self, translations: Sequence[str]) -> str:
        """Return the whole text with its parts replaced by their translations."""
        texts = [html.escape(text, quote=False) for text in translations] if self.escaped else translations
        return "".join(before + text for before, text in zip(self.around, [*texts, ""], strict=True))


def of_lines(text: str) -> Split:
    """Split a plain text into its lines. Blanks around a line, and blank lines, are not translated."""
    split = Split([], [""])
    _add(split, text, lines=True)
    return split


def of_html(text: str) -> Split:
    """Split HTML into the texts between its tags. White space around these texts, and code, are not translated.

    Elements with `translate="no"` or the class "notranslate" are not translated either. In `<pre>`, each line is a
    part.
    """
    split = Split([], [""], escaped=True)
    at, code = 0, ""
    kept, depth = "", 0  # name of the element that is not translated, and the number of open elements of this name
    lines = 0  # number of open elements, such as <pre>, in which each line is a part
    while at < len(text):
        found = (_ENDS[code] if code else _TAG).search(text, at)
        begin = found.start() if found else len(text)
        if code or depth:
            split.around[-1] += text[at:begin]
        else:
            _add(split, text[at:begin], lines=lines > 0)
        if text.startswith("<!--", begin):
            end = text.find("-->", begin)
            at = len(text) if end < 0 else end + 3
        else:
            tag_end = _TAG_END.match(text, begin)
            at = tag_end.end() if tag_end else len(text)
        tag = text[begin:at]
        split.around[-1] += tag
        named = _NAME.match(tag)
        name = named[1].lower() if named else ""
        step = -1 if tag.startswith("</") else int(not tag.endswith("/>") and name not in _EMPTY)
        code = name if step > 0 and name in _ENDS else ""
        if depth:
            depth += step * (name == kept)
        elif step > 0 and _KEPT.search(tag):
            kept, depth = name, 1
        if name in _LINES:
            lines = max(0, lines + step)
    return split


def _add(split: Split, content: str, *, lines: bool) -> None:
    """Add a text to the parts of a split, without the white space around it.

    lines  if True, add each line of the text as a separate part
    """
    for piece in re.findall(r"[^\n]*\n|[^\n]+", content) if lines else [content]:
        if core := piece.strip():
            before, _, after = piece.partition(core)
            split.around[-1] += before
            plain = html.unescape(core) if split.escaped else core
            split.parts.append(plain if lines else " ".join(plain.split()))
            split.around.append(after)
        else:
            split.around[-1] += piece
