"""Restore the data source of a run from its record (`Source.describe`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from manyheads.core.config import check_fields
from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import Columns
from manyheads.data.sources.corpora import LabeledSource, ParallelSource, QuestionSource, TaggedSource
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import UNRECORDED, Source
from manyheads.errors import UserError
from manyheads.versions import EarlierVersion, check_complete

# One entry for each kind of data. Each has a fuzz target in tests/stress/fuzzing/targets/runs.py.
KINDS: dict[str, type[Source[Any]]] = {
    source.kind: source
    for source in (
        ParallelSource, LabeledSource, TaggedSource, QuestionSource, TextSource, DocumentSource,
        ImageSource,
    )
}  # fmt: skip


def source_of(record: Mapping[str, Any], *more: type[Source[Any]]) -> Source[Any] | None:
    """Return the data source that a run's `result.json` describes; None if it describes no data of a known kind.

    more  data sources outside of this package, whose kinds are known in addition to those of `KINDS`

    Raises UserError if the record is damaged, or if an earlier version wrote it. No data are opened here: see
    `Source.read_again` and `Source.read_evaluation_data`.
    """
    try:
        data = record.get("data") or {}
        if not data:
            return None
        check_complete("result.json", {"kind"}.difference(data.keys()))
        kind, kinds = data["kind"], KINDS | {source.kind: source for source in more}
        if kind not in kinds:
            return None
        source = kinds[kind]
        values = {**data, "whole": True}  # A record names the file or folder of each split.
        if "columns" in values:
            values["columns"] = (ImageColumns if kind == "images" else Columns)(**values["columns"])
            check_fields(values["columns"])
        if "names" in values:
            values["names"] = tuple(map(str, values["names"]))
        values["recorded"] = {split: str(digits) for split, digits in values.get("fingerprints", {}).items()}
        known = {field.name for field in fields(source)}
        restored = source(**{name: value for name, value in values.items() if name in known})
        check_fields(restored)
        check_complete("result.json", sorted({*known, "fingerprints"}.difference(UNRECORDED, data)))
        return restored
    except EarlierVersion:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"result.json is damaged and does not describe the run's data ({error}); give data with --data "
                         "PATH") from None  # fmt: skip
