"""The data of a run from its record, as `Source.describe` writes it or as earlier versions wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from manyheads.core.config import check_fields
from manyheads.data.embedded.moving_digits import ClipSource
from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labelled import Columns
from manyheads.data.sources.corpora import LabelledSource, ParallelSource, QuestionSource, TaggedSource
from manyheads.data.sources.digits import DigitSource
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import Source
from manyheads.errors import UserError

# the table of all kinds of data; the fuzzers' rows of each are in tests/stress/fuzzing/targets/runs.py
KINDS: dict[str, type[Source[Any]]] = {
    source.kind: source
    for source in (
        ParallelSource, LabelledSource, TaggedSource, QuestionSource, TextSource, DocumentSource, DigitSource,
        ImageSource, ClipSource,
    )
}  # fmt: skip
# a key that only the records of a kind had, before they named it; the first one that is there decides
_FORMERLY = {
    "algorithm": "digits", "source": "parallel", "columns": "labelled", "sentences": "tagged", "locale": "tagged",
    "questions": "questions", "share": "texts", "rules": "documents", "items": "images",
}  # fmt: skip


def source_of(record: Mapping[str, Any]) -> Source[Any] | None:
    """The data that a run's `result.json` describes; None where it has none. Raises UserError where it is damaged.

    Nothing is opened: see `Source.again` and `Source.named`.
    """
    try:
        data = record.get("data") or {}
        kind = data.get("kind") or next((kind for key, kind in _FORMERLY.items() if key in data), None)
        if kind is None:
            return None
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}: known are {', '.join(KINDS)}")
        source = KINDS[kind]
        values = dict(data) if "kind" in data else _former(kind, data, record)
        if "columns" in values:
            values["columns"] = (ImageColumns if kind == "images" else Columns)(**values["columns"])
            check_fields(values["columns"])
        if "names" in values:
            values["names"] = tuple(map(str, values["names"]))
        values.setdefault("whole", "kind" in data)  # which names the file or folder of each split
        values["recorded"] = {split: str(digits) for split, digits in values.get("fingerprints", {}).items()}
        known = {field.name for field in fields(source)}
        made = source(**{name: value for name, value in values.items() if name in known})
        check_fields(made)
        return made
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"result.json is damaged, it does not tell the run's data ({error}): name some with --data "
                         "PATH") from None  # fmt: skip


def _former(kind: str, data: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a record that names no kind, as `describe` would write them now."""
    values = {**data, "seed": record.get("seed", 0)}
    if kind == "digits":
        counts = data["pairs"]
        lengths = [int(length) for length in record["curve"]["accuracy"]]
        return {**values, "lengths": lengths, "size": counts["train"], "validated": counts["validation"],
                "tested": counts["test"]}  # fmt: skip
    if kind == "texts":
        return {**values, "data": data["path"], "skip_bad_lines": data["skip_bad_files"]}
    if kind == "documents":
        return {**values, "skip_bad_lines": True}  # not recorded; evaluation always left faulty lines out
    if "paths" not in data:  # of `reading`, which was scored on validation data
        fingerprints = data["fingerprints"]
        fingerprints = {"train": fingerprints["train"], "validation": fingerprints["test"]}
        return {**values, "locale": data["locale"] or "en", "fingerprints": fingerprints}
    files = {split: path if isinstance(path, str) else ",".join(path) for split, path in data["paths"].items()}
    paths = {split: path for split, path in files.items() if path}  # none of an embedded corpus
    held_out = paths.get("validation") == paths.get("train")
    values |= {
        "data": paths.get("train"),
        "validation": None if held_out else paths.get("validation"),
        "test": data["test"][0] if data["test"] else None,
        # translators did not tell it: the fingerprints show whether what is left is what was scored
        "skip_bad_lines": data.get("skipped", kind == "parallel"),
        **(data.get("cldr") or {}),
    }
    if "digits" in data:
        values["seed"] = data["digits"]
    return values
