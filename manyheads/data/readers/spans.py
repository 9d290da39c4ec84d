"""Reader of texts with labeled spans, as doccano, Label Studio, Prodigy and spaCy export them, for taggers.

    {"text": "EU rejects", "label": [[0, 2, "ORG"]]}                    doccano; `_LISTS` has the names in other tools
    {"data": {"text": "EU rejects"}, "annotations": [{"result": [...]}]}    Label Studio; each result has a span
    ["EU rejects", {"entities": [[0, 2, "ORG"]]}]                       spaCy, as an entry of a JSON array or as a tuple

A span is a list of start, end and label, or an object with these names. Positions count characters from 0, and the end
is not part of the span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from manyheads.data.readers.rows import BadRow, Cells, Row

_LISTS = ("label", "labels", "entities", "spans", "ents")  # names of the list of spans in different tools
COLUMNS = ("text", "data", "annotations", *_LISTS)
Span = tuple[int, int, str]  # (start, end, label)


def as_object(row: Row[Cells]) -> Row[Cells]:
    """Return the row of a JSON array whose entry is a pair (text, spans) as a row with the columns of a tuple."""
    pair: object = row.cells
    if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], Mapping):
        return Row(row.file, row.number, dict(zip(("tokens", "tags"), pair, strict=True)), name=row.name)
    return row


def read_spans(cells: Cells) -> tuple[str, list[Span]] | None:
    """Return the text of a row and its spans in order; None if the row has no text with a list of spans.

    Raises BadRow for a span of another form, and for a text that was annotated several times or not at all.
    """
    data, tags, text = cells.get("data"), cells.get("tags"), cells.get("text")
    if isinstance(data, Mapping):
        text = data.get("text")
        found = [item for item in _list(cells.get("annotations")) if not item.get("was_cancelled")]
        if len(found) != 1:
            raise BadRow(f"expected one annotation of a text, found {len(found)}", "export one for each text")
        values = _list([result.get("value") for result in _list(found[0].get("result"))])
        spans: object = [value for value in values if "labels" in value]
    else:
        given = tags if isinstance(tags, Mapping) else cells
        text = cells.get("tokens") if isinstance(tags, Mapping) else text
        spans = next((given[name] for name in _LISTS if isinstance(given.get(name), list | tuple)), None)
    if not isinstance(text, str) or not isinstance(spans, list | tuple):
        return None
    return text, sorted(map(_span, spans))


def _list(value: object) -> list[Cells]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _span(item: object) -> Span:
    parts: Sequence[object] = item if isinstance(item, list | tuple) else ()
    if isinstance(item, Mapping):
        labels = item.get("labels") or [item.get("label")]
        parts = (*(item.get(name, item.get(f"{name}_offset")) for name in ("start", "end")), *labels)
    if [type(part) for part in parts] != [int, int, str] or not str(parts[2]).strip():
        raise BadRow(f"expected spans with a start, an end and one label: found {str(item)[:80]}", "correct the span")
    start, end, label = parts[0], parts[1], str(parts[2]).strip()
    if label == "O" or label.startswith(("B-", "I-")):
        raise BadRow(f"found the tag {label!r} as the label of a span", "name the entity without B- or I-")
    return start, end, label  # type: ignore[return-value]  # The types were compared above.


def tags_of(text: str, words: Sequence[tuple[int, int]], spans: Sequence[Span]) -> list[str]:
    """Return the IOB2 tag of each word.

    words  start and end of each word in the text
    spans  labeled spans in order

    Raises BadRow for a span outside the text or that does not begin and end with a word, for spans that overlap, and
    for a blank text.
    """
    if not words:
        raise BadRow("found a text without words", "remove it")
    first, last = ({word[side]: index for index, word in enumerate(words)} for side in (0, 1))
    tags = ["O"] * len(words)
    for start, end, label in spans:
        if not 0 <= start < end <= len(text):
            fault = "ends before it starts" if end < start else "is empty" if end == start else "is outside the text"
            raise BadRow(f"a span {fault}: [{start}, {end}, {label!r}] in {len(text):,} characters", "correct it")
        shown = f"[{start}, {end}, {label!r}] is {text[start:end][:40]!r}"
        if start not in first or end not in last:
            raise BadRow(f"a span does not begin and end with a word: {shown}", "move it to the edges of words")
        inside = slice(first[start], last[end] + 1)
        if set(tags[inside]) != {"O"}:
            raise BadRow(f"a span overlaps another span: {shown}", "keep one of them")
        tags[inside] = [f"B-{label}", *[f"I-{label}"] * (inside.stop - inside.start - 1)]
    return tags
