"""Conversion of kept records of runs to today's form."""

from __future__ import annotations

from typing import Any

import pytest

from lab.convert_records import converted
from manyheads.data.sources.recorded import recorded_data

METRICS = {"loss": {"value": 1.5, "signature": "validation"}, "bleu_13a": {"value": 30.0, "signature": "nrefs:1"}}
PRINTS = {"train": "9e7c4258f013127b", "validation": "a8bbe9016ffd066a", "test": "e1ca01fbbaddd39d"}
COUNTS = {"train": 59, "validation": 1, "test": 1}
RECORD = {"recipe": "translation", "overrides": {"training.optimiser": "adam"}, "seed": 3, "metrics": METRICS}
FILES = {
    "paths": {"train": ["a.en", "a.de"], "validation": ["a.en", "a.de"], "test": ["t.en", "t.de"]},
    "test": ["/data/t.en,/data/t.de"], "cldr": None, "fingerprints": PRINTS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"source": "en", "target": "de", "pairs": COUNTS, **FILES},
         {"kind": "parallel", "data": "a.en,a.de", "validation": None, "test": "/data/t.en,/data/t.de",
          "source": "en", "skip_bad_lines": True, "items": COUNTS, "seed": 3}),
        ({"columns": {"text": "body", "pair": None, "label": "mark"}, "pairs": False, "skipped": False, "items": COUNTS,
          **FILES},
         {"kind": "labeled", "names": [], "target": "classes", "pairs": False, "skip_bad_lines": False}),
        ({"sentences": COUNTS, **FILES, "paths": {}, "test": [], "cldr": {"locale": "de", "size": 70}},
         {"kind": "tagged", "data": None, "test": None, "locale": "de", "size": 70}),
        ({"path": "texts", "validation": None, "test": None, "share": 0.1, "skip_bad_files": True, "scored": "test",
          "fingerprints": PRINTS, "bytes": COUNTS},
         {"kind": "texts", "data": "texts", "share": 0.1, "skip_bad_lines": True, "bytes": COUNTS}),
        ({"kind": "labelled", "data": "a.tsv", "fingerprints": PRINTS}, {"kind": "labeled", "fraction": None}),
    ],
    ids=["parallel", "labeled", "tagged", "texts", "spelling"],
)  # fmt: skip
def test_an_old_record_gets_todays_form(data: dict[str, Any], expected: dict[str, Any]) -> None:
    now = converted({**RECORD, "data": data})
    assert {name: now["data"][name] for name in expected} == expected
    assert now["data"]["fingerprints"] == PRINTS
    assert (now["overrides"], now["scored"]) == ({"training.optimizer": "adam"}, "test")
    assert (now["metrics"], now["validation"]) == (METRICS, {"loss": METRICS["loss"]})
    recorded = recorded_data(now)
    assert recorded is not None
    assert recorded.fingerprints == PRINTS
    assert converted(now) == now


@pytest.mark.parametrize("record", [{}, [1], {"data": {}, "recipe": "sst2"}, {"rows": 3}])
def test_other_files_stay_unchanged(record: Any) -> None:
    assert converted(record) == record
