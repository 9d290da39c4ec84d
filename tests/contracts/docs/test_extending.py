"""The diffs of the worked examples fit the code; `make test-system` also runs the examples."""

from __future__ import annotations

from tests.paths import ROOT
from tests.system.test_examples import EXAMPLES, changed


def test_all_diffs_of_the_worked_examples_apply_together() -> None:
    texts: dict[str, str] = {}
    for example in EXAMPLES.values():
        for file, change in example.changes:
            text = texts[file] if file in texts else (ROOT / file).read_text(encoding="utf-8")
            texts[file] = changed(text, change)
    assert texts
