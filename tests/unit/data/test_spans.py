"""Span annotations of doccano, Label Studio, Prodigy and spaCy as tagged words, in files and in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from manyheads.data.readers.conll import Tagged, read_conll
from manyheads.data.readers.memory import Rows
from manyheads.errors import UserError

TEXT = "EU rejects (German) calls in New York, today."
SPANS = [(0, 2, "ORG"), (12, 18, "MISC"), (29, 37, "LOC")]
WORDS = ["EU", "rejects", "(", "German", ")", "calls", "in", "New", "York", ",", "today", "."]
TAGS = ["B-ORG", "O", "O", "B-MISC", "O", "O", "O", "B-LOC", "I-LOC", "O", "O", "O"]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
OFFSETS = [{"id": 7, "start_offset": s, "end_offset": e, "label": label} for s, e, label in SPANS]
RESULTS = [{"type": "labels", "value": {"start": s, "end": e, "text": TEXT[s:e], "labels": [k]}} for s, e, k in SPANS]
TASK: dict[str, Any] = {"id": 1, "data": {"text": TEXT}, "annotations": [
    {"was_cancelled": True, "result": []},
    {"was_cancelled": False, "result": [*RESULTS, {"type": "choices", "value": {"choices": ["news"]}}]},
]}  # fmt: skip
ROWS: dict[str, Any] = {
    "doccano": {"id": 1, "text": TEXT, "label": SPANS[::-1], "Comments": []},
    "older doccano": {"text": TEXT, "labels": SPANS},
    "doccano with relations": {"text": TEXT, "entities": OFFSETS, "relations": []},
    "Label Studio": TASK,
    "Label Studio, short": {"text": TEXT, "label": [result["value"] for result in RESULTS]},
    "Prodigy": {"text": TEXT, "spans": OBJECTS, "tokens": [{"text": "EU", "start": 0, "end": 2, "id": 0}]},
    "spaCy": {"text": TEXT, "entities": SPANS},
    "spaCy, to_json": {"text": TEXT, "ents": OBJECTS},
    "spaCy, training data": (TEXT, {"entities": SPANS}),
}  # fmt: skip


def read(rows: list[Any], path: Path, name: str = "a.json", **options: Any) -> Tagged:
    text = json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows)
    (path / name).write_text(text)
    return read_conll(path / name, **options)


@pytest.mark.parametrize("tool", ROWS)
def test_spans_become_tags(tool: str, tmp_path: Path) -> None:
    read_data = [read([ROWS[tool]], tmp_path), read_conll(Rows("train", [ROWS[tool]], [("tokens", "tags")]))]
    read_data += [read([ROWS[tool]], tmp_path, "a.jsonl")] if isinstance(ROWS[tool], dict) else []
    for found in read_data:
        assert (found.words, found.tags) == ([WORDS], [TAGS])


def test_tagged_words_have_the_characters_of_their_spans(tmp_path: Path) -> None:
    texts = ["Ada met Bob in Łódź 🎉 today", "nothing here", "  «Ada»  met  Bob-Jones! "]
    spans: list[Any] = [[[0, 3, "PER"], [8, 11, "PER"], [15, 19, "LOC"]], [], [[3, 6, "PER"], [14, 23, "PER"]]]
    found = read([{"text": t, "label": s} for t, s in zip(texts, spans, strict=True)], tmp_path, "a.jsonl")
    for text, given, words, tags in zip(texts, spans, found.words, found.tags, strict=True):
        assert "".join(words) == "".join(text.split())
        tagged = [word for word, tag in zip(words, tags, strict=True) if tag != "O"]
        assert tagged == [text[start:end] for start, end, _ in given]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "Anna's dog", "label": [[0, 4, "PER"]]},
         r"2: a span does not begin and end with a word: \[0, 4, 'PER'\] is 'Anna'; move it to the edges of words, or"),
        ({"text": "a b", "label": [[0, 9, "X"]]}, r"a span is outside the text: \[0, 9, 'X'\] in 3 characters"),
        ({"text": "a b", "label": [[5, 9, "X"]]}, "a span is outside the text"),
        ({"text": "a b", "label": [[-1, 1, "X"]]}, "a span is outside the text"),
        ({"text": "a b", "label": [[2, 1, "X"]]}, "a span ends before it starts"),
        ({"text": "a b", "label": [[2, 2, "X"]]}, "a span is empty"),
        ({"text": "a b", "label": [[0, 1, "B-X"]]}, "the tag 'B-X' as the label of a span; name the entity without B-"),
        ({"text": "a b", "label": [{"start": 0, "end": 1, "label": "I-X"}]}, "the tag 'I-X' as the label"),
        ({"text": "a b", "label": [[0, 1, " O"]]}, "the tag 'O' as the label"),
        ({"text": "a b c", "label": [[0, 3, "X"], [2, 5, "Y"]]}, r"a span overlaps another span: \[2, 5, 'Y'\]"),
        ({"text": "a b", "label": [[0, 1, "X"], [0, 1, "X"]]}, "a span overlaps another span"),
        ({"text": "a b", "label": [[0, 1]]}, r"expected spans with a start, an end and one label: found \[0, 1\]"),
        ({"text": "a b", "label": [[0, 1, ""]]}, "one label"),
        ({"text": "a b", "label": [[0, True, "X"]]}, "one label"),
        ({"text": "a b", "label": [{"start": 0, "end": 1, "labels": ["X", "Y"]}]}, "one label"),
        ({"text": "a b", "label": ["X"]}, "one label"),
        ({"text": "  ", "label": []}, "found a text without words; remove it"),
        ({"text": "a b", "label": "positive"}, "expected lists under .*, or a text with spans under 'label'"),
        ({**TASK, "annotations": []}, "expected one annotation of a text, found 0; export one for each text"),
        ({**TASK, "annotations": TASK["annotations"][1:] * 2}, "expected one annotation of a text, found 2"),
    ],
)  # fmt: skip
def test_faulty_rows_are_named(row: Any, message: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json"):
        with pytest.raises(UserError, match=message if name == "a.jsonl" else message.removeprefix("2: ")) as refused:
            read([ROWS["doccano"], row], tmp_path, name)
        assert "\n" not in str(refused.value)
        found = read([ROWS["doccano"], row, ROWS["doccano"]], tmp_path, name, skip_bad_lines=True)
        assert found.words == [WORDS, WORDS]
        assert list(found.skips.values()) == [1]


def test_rows_with_words_and_tags_are_read_as_before(tmp_path: Path) -> None:
    row = {"text": "a b", "label": [], "tokens": ["a", "b"], "tags": ["O", "B-X"]}
    assert read([row], tmp_path).tags == [["O", "B-X"]]
