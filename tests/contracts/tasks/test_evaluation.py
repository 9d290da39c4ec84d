"""Choice of the test data of a run, and the items on which two models differ the most."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyheads import cli
from manyheads.data.readers.labeled import Columns
from manyheads.data.sources.corpora import LabeledSource, QuestionSource
from manyheads.errors import UserError
from manyheads.tasks.comparison import Comparison, compare
from manyheads.tasks.evaluation import scored_data
from manyheads.tasks.label_evaluation import LabelEvaluation


@pytest.mark.parametrize("content", ['{"data":', "[]", "\xff"])
def test_a_damaged_record_is_reported_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=r"result\.json: expected the record of a run, found damaged content"):
        scored_data(tmp_path, None, QuestionSource())


class Fixed:
    """Predictor with a known evaluation result."""

    path = Path("model")

    def __init__(self, outputs: str, probabilities: list[float]) -> None:
        quality = [float(output == "a") for output in outputs]
        items = [f"item {i}" for i in range(len(outputs))]
        self._outcome = LabelEvaluation(
            items,
            list(outputs),
            ["a"] * len(outputs),
            quality,
            {},
            probabilities,
            ("a", "b"),
            np.empty((0, 2), np.float32),
        )

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> Any:
        return self._outcome


def test_items_are_ranked_by_the_probability_of_the_correct_label() -> None:
    """Among items that are all right in one model and wrong in the other, names would decide."""
    first = Fixed("bbbbbbbbaaaa", [0.4, 0.1, 0.3, 0.2, 0.4, 0.4, 0.4, 0.4, 0.6, 0.9, 0.7, 0.5])
    second = Fixed("aaaaaaaabbba", [0.6, 0.9, 0.7, 0.8, 0.6, 0.6, 0.6, 0.6, 0.4, 0.1, 0.3, 0.5])
    comparison = compare(first, second)
    assert (comparison["better"], comparison["worse"]) == (8, 3)
    changed = [(item["input"], item["change"]) for item in comparison["most_changed"]]
    assert [item for item in changed if item[1] > 0][:3] == [("item 1", 0.8), ("item 3", 0.6), ("item 2", 0.4)]
    assert [item for item in changed if item[1] < 0] == [("item 9", -0.8), ("item 10", -0.4), ("item 8", -0.2)]
    assert [abs(change) for _, change in changed] == sorted((abs(change) for _, change in changed), reverse=True)
    assert comparison["ranked_by"] == "probability of the right label"
    assert comparison["bootstrap"]["right"]["difference"] == pytest.approx(5 / 12)  # of what is right, as before
    html = comparison._repr_html_()
    assert "<td style='text-align: left'>item 9</td>" in html
    assert "8 are better with 2, 3 with 1" in html


def test_printed_changes_name_the_models(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    models = {"x": Fixed("bbbbbbbbaaaa", [0.4] * 8 + [0.9] * 4), "y": Fixed("aaaaaaaabbbb", [0.6] * 8 + [0.1] * 4)}
    monkeypatch.setattr("manyheads.cli.compare.model_for", lambda verb, run, precision: models[run])
    assert cli.main(["compare", "x", "y"]) == 0
    blocks = capsys.readouterr().out.split("\n\n")[3:]
    assert [block.split()[0] for block in blocks] == ["-0.8", "-0.8", "+0.2", "+0.2"]
    assert [line.split() for line in blocks[0].splitlines()[1:]] == [
        ["model", "1", "a"], ["model", "2", "b"], ["truth", "a"],
    ]  # fmt: skip


def test_the_difference_is_drawn_with_its_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"x": Fixed("bbbbbbbbaaaa", [0.4] * 12), "y": Fixed("aaaaaaaabbbb", [0.6] * 12)}
    monkeypatch.setattr("manyheads.cli.compare.model_for", lambda verb, run, precision: models[run])
    assert cli.main(["compare", "x", "y", "--out", str(tmp_path / "d.svg")]) == 0
    assert "95% interval of 12 items" in (tmp_path / "d.svg").read_text()
    assert cli.main(["compare", "x", "y", "--out", str(tmp_path / "d.txt")]) == 2
    with pytest.raises(UserError, match="found no interval of a difference to draw"):
        Comparison({"bootstrap": {"loss": {"p_value": None}}}).draw(tmp_path / "none.png")


def test_named_columns_leave_the_others_of_the_run(tmp_path: Path) -> None:
    rows = [f"{i},{'good' if i % 2 else 'poor'}" for i in range(20)]
    (tmp_path / "train.csv").write_text("\n".join(["review,sentiment", *rows]))
    columns = Columns(text="review", label="sentiment")
    source = LabeledSource(data=str(tmp_path / "train.csv"), validation=str(tmp_path / "train.csv"), columns=columns)
    (tmp_path / "result.json").write_text(json.dumps({"data": source.describe(source.read())}))
    (tmp_path / "test.csv").write_text("body,sentiment\nfine,good\nbad,poor\n")
    scored = scored_data(tmp_path, str(tmp_path / "test.csv"), LabeledSource(), columns=Columns(text="body"))
    assert (scored.texts, scored.labels) == (["fine", "bad"], ["good", "poor"])
