"""Lists of dates for in-context learning: templates of the tests are hidden from training, as are their dates."""

import json
from datetime import date
from pathlib import Path

import pytest

from manyheads import train
from papers.in_context.__main__ import main
from papers.in_context.lists import rewritten, templates, write
from tests.paths import ROOT


def test_templates_and_dates_of_tests_are_new(tmp_path: Path) -> None:
    write(tmp_path, documents=300, tables=2, rows=5)
    known, new = templates()
    assert len({*known, *new}) == len(known) + len(new) == 144
    day = date(2031, 3, 5)
    assert rewritten(day, (("y", "m", "d"), "-", "MAR", "31")) == "31-MAR-05"
    documents = [json.loads(line)["text"] for line in (tmp_path / "documents.jsonl").open()]
    lines = [line.split(" -> ") for text in documents for line in text.splitlines()]
    assert len(lines) == 3000
    trained = {source for source, _ in lines}
    for kind, group in (("seen", known), ("unseen", new)):
        for table in tmp_path.glob(f"{kind}-*.tsv"):
            rows = [line.split("\t") for line in table.read_text().splitlines()[1:]]
            assert not trained & {source for source, _ in rows}
            assert len(rows) == 5
            fitting = [t for t in group if all(out == rewritten(_day(source), t) for source, out in rows)]
            assert fitting, table


def _day(text: str) -> date:
    from datetime import datetime

    return datetime.strptime(text, "%d %B %Y").date()


def test_scores_are_printed_for_every_number_of_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "lists", documents=40, tables=1, rows=12)
    settings = {
        "data": str(tmp_path / "lists" / "documents.jsonl"), "tokenizer": "character", "block": 320, "rows": 2,
        "preset": "gpt2/nano", "model": {"layers": 1, "width": 16, "heads": 2}, "training.steps": 2, "threads": 1,
    }  # fmt: skip
    train("language-modeling", settings, out=tmp_path / "run")
    main(["score", str(tmp_path / "lists"), str(tmp_path / "run")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    assert [line[0] for line in lines] == ["0", "1", "4", "8"]
    assert all(0 <= float(score) <= 1 for line in lines for score in line[1:])


def test_the_page_has_the_recorded_scores() -> None:
    recorded = json.loads((ROOT / "lab" / "results" / "shots.json").read_text(encoding="utf-8"))["shots"]
    page = (ROOT / "docs" / "papers" / "gpt3.md").read_text(encoding="utf-8")
    for shots, found in recorded.items():
        assert f"| {shots} | {found['seen']:.3f} | {found['unseen']:.3f} |" in page
