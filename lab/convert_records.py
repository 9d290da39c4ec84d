"""Convert the kept records of runs (`lab/results`) to the form that this version of Manyheads writes.

    python -m lab.convert_records

A converted record stays unchanged, so the command can be repeated after each change of the form. Scores and
fingerprints are never changed. Entries that an earlier version did not measure stay absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Any

from lab.records import RESULTS
from manyheads.data.sources.recorded import KINDS
from manyheads.data.sources.source import UNRECORDED, Source
from manyheads.files import write_json
from papers.universal.source import DigitSource

SOURCES: dict[str, type[Source[Any]]] = {**KINDS, DigitSource.kind: DigitSource}
# former spelling of keys and names
SPELLINGS = {
    "training.optimiser": "training.optimizer", "language-modelling": "language-modeling",
    "tokeniser_threads": "tokenizer_threads", '"kind": "labelled"': '"kind": "labeled"',
}  # fmt: skip
# kind of data by the first of these keys in an early description of data, which does not name the kind
KIND_BY_KEY = {
    "algorithm": "digits", "source": "parallel", "columns": "labeled", "sentences": "tagged", "locale": "tagged",
    "questions": "questions", "share": "texts", "rules": "documents", "items": "images",
}  # fmt: skip
COUNTS = ("items", "pairs", "sentences", "questions", "documents")  # former names of the number of items by split


def main() -> None:
    changed = 0
    for path in sorted(RESULTS.rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        record = json.loads(text)
        if (now := converted(record)) != record:
            write_json(path, now)
            changed += 1
    print(f"converted {changed} records")


def converted(record: Any) -> Any:
    """Return the JSON content of a file in today's form."""
    text = json.dumps(record)
    for former, name in SPELLINGS.items():
        text = text.replace(former, name)
    record = json.loads(text)
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict) or not record["data"]:
        return record
    data, record = record["data"], dict(record)
    if "kind" not in data:
        for name in {"model", "rules"} & data.keys():  # Today these are entries of the record.
            record[name] = data[name]
        data = _described(data, record)
    record["data"] = _completed(data)
    if record["recipe"] == "reading":  # The record of a comparison has no validation scores.
        return record
    split = record["overrides"].get("scored", "test")
    if split in data["fingerprints"]:
        record.setdefault("scored", split)
    validated = {name: metric for name, metric in record["metrics"].items() if metric["signature"] == "validation"}
    record.setdefault("validation", validated)
    return record


def _completed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description of data with the defaults of the settings that it lacks."""
    settings = {}
    for field in fields(SOURCES[data["kind"]]):
        if field.name not in UNRECORDED:
            default = field.default if field.default_factory is MISSING else field.default_factory()
            settings[field.name] = data.get(field.name, json.loads(json.dumps(default, default=asdict)))
    return {"kind": data["kind"], **settings, **{name: value for name, value in data.items() if name not in settings}}


def _described(data: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return an early description of data with today's names."""
    kind = next(kind for key, kind in KIND_BY_KEY.items() if key in data)
    counts = next((data[name] for name in COUNTS if isinstance(data.get(name), dict)), None)
    values = {"kind": kind, "seed": record["seed"], "fingerprints": data["fingerprints"]}
    values |= {} if counts is None else {"items": counts}
    values |= {name: data[name] for name in ("source", "target", "columns", "locale", "column", "share", "bytes",
                                             "algorithm", "longest", "validation", "test") if name in data}  # fmt: skip
    if kind == "digits":
        assert counts is not None
        lengths = [int(length) for length in record["curve"]["accuracy"]]
        return {**values, "lengths": lengths, "size": counts["train"], "validated": counts["validation"],
                "tested": counts["test"]}  # fmt: skip
    if kind == "texts":
        return {**values, "data": data["path"], "skip_bad_lines": data["skip_bad_files"]}
    if kind == "documents":
        return {**values, "data": data["data"], "skip_bad_lines": True}
    if "paths" not in data:  # This comparison of encoders used the validation data.
        prints = data["fingerprints"]
        return {**values, "data": data["data"], "locale": data["locale"] or "en",
                "fingerprints": {"train": prints["train"], "validation": prints["test"]}}  # fmt: skip
    return {**values, **_files(data), **({"pairs": data["pairs"]} if kind == "labeled" else {})}


def _files(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files and the reading options of an early description of data."""
    files = {split: path if isinstance(path, str) else ",".join(path) for split, path in data["paths"].items()}
    train, validation = files.get("train") or None, files.get("validation") or None
    return {
        "data": train, "validation": None if validation == train else validation,
        "test": data["test"][0] if data["test"] else None,
        # Early translators skipped faulty lines by default, and did not record it.
        "skip_bad_lines": data.get("skipped", "source" in data), **(data.get("cldr") or {}),
        **({"seed": data["digits"]} if "digits" in data else {}),
    }  # fmt: skip


if __name__ == "__main__":
    main()
