"""Restore the data source of a run from its record, in the current format (`Source.describe`) or an earlier format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from manyheads.core.config import check_fields
from manyheads.data.embedded.moving_digits import ClipSource
from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import Columns
from manyheads.data.sources.corpora import LabeledSource, ParallelSource, QuestionSource, TaggedSource
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import Source
from manyheads.errors import UserError

# One entry for each kind of data. Each has a fuzz target in tests/stress/fuzzing/targets/runs.py.
KINDS: dict[str, type[Source[Any]]] = {
    source.kind: source
    for source in (
        ParallelSource, LabeledSource, TaggedSource, QuestionSource, TextSource, DocumentSource,
        ImageSource, ClipSource,
    )
}  # fmt: skip
# In earlier records, the kind of data is not named. The first of these keys that a record contains identifies it.
_KIND_BY_KEY = {
    "algorithm": "digits", "source": "parallel", "columns": "labeled", "sentences": "tagged", "locale": "tagged",
    "questions": "questions", "share": "texts", "rules": "documents", "items": "images",
}  # fmt: skip


def source_of(record: Mapping[str, Any], *more: type[Source[Any]]) -> Source[Any] | None:
    """Return the data source that a run's `result.json` describes; None if it describes no data of a known kind.

    more  data sources outside of this package, whose kinds are known in addition to those of `KINDS`

    Raises UserError if the record is damaged. No data are opened here: see `Source.read_again` and
    `Source.read_evaluation_data`.
    """
    try:
        data = record.get("data") or {}
        kind = data.get("kind") or next((kind for key, kind in _KIND_BY_KEY.items() if key in data), None)
        kinds = KINDS | {source.kind: source for source in more}
        if kind not in kinds:
            return None
        source = kinds[kind]
        values = dict(data) if "kind" in data else _convert_old_record(kind, data, record)
        if "columns" in values:
            values["columns"] = (ImageColumns if kind == "images" else Columns)(**values["columns"])
            check_fields(values["columns"])
        if "names" in values:
            values["names"] = tuple(map(str, values["names"]))
        # A record that states the kind of data also names the file or folder of each split.
        values.setdefault("whole", "kind" in data)
        values["recorded"] = {split: str(digits) for split, digits in values.get("fingerprints", {}).items()}
        known = {field.name for field in fields(source)}
        restored = source(**{name: value for name, value in values.items() if name in known})
        check_fields(restored)
        return restored
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"result.json is damaged and does not describe the run's data ({error}); give data with --data "
                         "PATH") from None  # fmt: skip


def _convert_old_record(kind: str, data: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an earlier record, which does not name the kind of data, to the current format of `describe`."""
    values = {**data, "seed": record.get("seed", 0)}
    if kind == "digits":
        counts = data["pairs"]
        lengths = [int(length) for length in record["curve"]["accuracy"]]
        return {**values, "lengths": lengths, "size": counts["train"], "validated": counts["validation"],
                "tested": counts["test"]}  # fmt: skip
    if kind == "texts":
        return {**values, "data": data["path"], "skip_bad_lines": data["skip_bad_files"]}
    if kind == "documents":
        # Earlier records lack this setting; evaluation always skipped faulty lines.
        return {**values, "skip_bad_lines": True}
    # This record is from the former command `reading`, whose evaluation used the validation data.
    if "paths" not in data:
        fingerprints = data["fingerprints"]
        fingerprints = {"train": fingerprints["train"], "validation": fingerprints["test"]}
        return {**values, "locale": data["locale"] or "en", "fingerprints": fingerprints}
    files = {split: path if isinstance(path, str) else ",".join(path) for split, path in data["paths"].items()}
    paths = {split: path for split, path in files.items() if path}  # An embedded corpus has no file paths.
    held_out = paths.get("validation") == paths.get("train")
    values |= {
        "data": paths.get("train"),
        "validation": None if held_out else paths.get("validation"),
        "test": data["test"][0] if data["test"] else None,
        # Earlier translators did not record this setting. The fingerprints verify that the same rows are used.
        "skip_bad_lines": data.get("skipped", kind == "parallel"),
        **(data.get("cldr") or {}),
    }
    if "digits" in data:
        values["seed"] = data["digits"]
    return values
