"""Data of an earlier run, read again as its result.json describes them (`Source.describe`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from manyheads.core.config import check_fields
from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.images.object_source import ObjectSource
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import Columns
from manyheads.data.readers.splits import PATHS, Data, from_here
from manyheads.data.readers.text_pairs import PairColumns
from manyheads.data.sources.corpora import (
    LabeledSource,
    ParallelSource,
    QuestionSource,
    TaggedSource,
    TextPairSource,
)
from manyheads.data.sources.running_text import DocumentSource, TextSource
from manyheads.data.sources.source import FINGERPRINT_DIGITS, HUB, UNRECORDED, Source
from manyheads.errors import UserError
from manyheads.files import JsonMapping
from manyheads.versions import EarlierVersion, check_complete

D = TypeVar("D", bound=Data)

# Data sources by kind of data. Each kind has a fuzz target in tests/stress/fuzzing/targets/runs.py.
KINDS: dict[str, type[Source[Any]]] = {
    source.kind: source
    for source in (
        ParallelSource, LabeledSource, TextPairSource, TaggedSource, QuestionSource, TextSource, DocumentSource,
        ObjectSource,
        ImageSource,
    )
}  # fmt: skip


@dataclass(frozen=True)
class RecordedData(Generic[D]):
    """Data of an earlier run, as its result.json describes them.

    source        location of the data, and the options for reading them
    fingerprints  fingerprint of each split
    in_memory     True if the run was trained on data in memory, which cannot be read again
    """

    source: Source[D]
    fingerprints: Mapping[str, str]
    in_memory: bool = False

    def read(self, split: str = "test", labels: Sequence[str] = ()) -> D:
        """Read a split of the run's data again.

        The file result.json may come from an untrusted source. A path in it is therefore opened only if it is a file
        or directory and if result.json contains a fingerprint to verify it. Nothing is downloaded.

        labels  labels of the run's model

        Raises UserError if the split has changed or cannot be read again, and FileNotFoundError if it is missing.
        """
        if self.in_memory:
            raise UserError(
                "the run was trained on data in memory; give data to score with --data PATH, or data= in Python"
            )
        source, expected = self.source, self.fingerprints.get(split)
        if expected is None:
            raise UserError(f"the model was trained without {split} data; give some with --data PATH")
        if "test" not in self.fingerprints:  # The run did not score its test data, because they have no labels.
            source = replace(source, test=None)
        corpus = {"validation": source.validation, "test": source.test}.get(split)
        for path in filter(None, [corpus] if corpus else [source.data, source.validation, source.test]):
            if path.startswith(HUB):
                raise UserError(
                    f"the run's data are {path}, which is not downloaded automatically; request it with --data {path}"
                )
            source.files(path)  # raises FileNotFoundError
        data = source.read_one(corpus, labels) if corpus else source.read().known.get(split)
        # Reject a fingerprint that is too short, as in a damaged record, because it would also match other data.
        if len(expected) >= FINGERPRINT_DIGITS and data and source.fingerprint(data, split).startswith(expected):
            return data
        name = corpus or source.data or "the built-in corpus"
        raise UserError(
            f"{name}: the {split} data changed since the run; to evaluate on the current ones, pass --data {name}"
        )


def recorded_data(record: JsonMapping, *more: type[Source[Any]], run: Path | None = None) -> RecordedData[Any] | None:
    """Return the data that a run's `result.json` describes, without opening them. None for an unknown kind of data.

    record  content of result.json
    more    classes of data sources outside of this package, in addition to those in `KINDS`
    run     run directory. Relative paths of the data then lead from it to the data, in any working directory

    Raises UserError if the record is damaged, or if an earlier version wrote it.
    """
    try:
        data = record.get("data") or {}
        if not data:
            return None
        check_complete("result.json", {"kind"}.difference(data.keys()))
        kind, kinds = data["kind"], KINDS | {source.kind: source for source in more}
        if kind not in kinds:
            return None
        # The record names the path of each split, so these paths must not be searched for splits.
        values = {**data, "whole": True}
        if run is not None and "directory" in data:
            values |= {name: from_here(values[name], run, data["directory"]) for name in PATHS if values.get(name)}
        if "columns" in values:
            columns: type[Any] = {"images": ImageColumns, "text-pairs": PairColumns}.get(kind, Columns)
            values["columns"] = columns(**values["columns"])
            check_fields(values["columns"])
        if "names" in values:
            values["names"] = tuple(map(str, values["names"]))
        prints = {split: str(digits) for split, digits in data.get("fingerprints", {}).items()}
        known = {field.name for field in fields(kinds[kind])}
        source = kinds[kind](**{name: value for name, value in values.items() if name in known})
        check_complete("result.json", sorted({*known, "fingerprints"}.difference(UNRECORDED, data)))
        return RecordedData(source, prints, bool(data.get("in_memory")))
    except EarlierVersion:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"result.json is damaged and does not describe the run's data ({error}); give data with --data "
                         "PATH") from None  # fmt: skip
