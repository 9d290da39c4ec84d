"""Texts that are translated in parts: the lines of a plain text, or the texts between the tags of HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

_TAG = re.compile("<(?=[a-zA-Z/!?])")  # other characters after < make it a text
_ENDS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}  # elements with code


@dataclass(frozen=True)
class Split:
    """Text as parts to translate, and the characters around them, which stay as they are.

    around   one text before each part, and one after the last part
    escaped  True if translations must be escaped for HTML
    """

    parts: list[str]
    around: list[str]
    escaped: bool = False

    def joined(self, translations: Sequence[str]) -> str:
        """Return the text with a translation in place of each part."""
        texts = [html.escape(text, quote=False) for text in translations] if self.escaped else translations
        return "".join(before + text for before, text in zip(self.around, [*texts, ""], strict=True))


def of_lines(text: str) -> Split:
    parts = text.split("\n")
    return Split(parts, ["", *["\n"] * (len(parts) - 1), ""])


def of_html(text: str) -> Split:
    """Split HTML into the texts between its tags. White space around these texts, and code, are not translated."""
    parts: list[str] = []
    around = [""]
    at, code = 0, ""
    while at < len(text):
        found = (_ENDS[code] if code else _TAG).search(text, at)
        begin = found.start() if found else len(text)
        content = text[at:begin]
        if content.strip() and not code:
            core = content.strip()
            before, _, after = content.partition(core)
            around[-1] += before
            parts.append(" ".join(html.unescape(core).split()))
            around.append(after)
        else:
            around[-1] += content
        closing = "-->" if text.startswith("<!--", begin) else ">"
        end = text.find(closing, begin)
        at = len(text) if end < 0 else end + len(closing)
        tag = text[begin:at]
        around[-1] += tag
        name = tag[1:].split(maxsplit=1)[0].rstrip(">").lower() if len(tag) > 2 and tag[1:].strip() else ""
        code = name if name in _ENDS and not tag.endswith("/>") else ""
    return Split(parts, around, escaped=True)
