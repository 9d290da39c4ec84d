"""Report of a finished run: the command that uses the model, and its display in notebooks."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from manyheads import cli
from manyheads.data.images.labeled_images import ImageData, Item
from manyheads.data.readers.conll import Tagged
from manyheads.data.readers.documents import Documents
from manyheads.data.readers.labeled import Labeled
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.squad import Question, Questions
from manyheads.data.readers.texts import Texts
from manyheads.files import JsonObject
from manyheads.runs.options import Run
from manyheads.runs.result import RunResult
from manyheads.runs.task import Task
from manyheads.tasks.answering.task import Answering
from manyheads.tasks.classification.task import Classification
from manyheads.tasks.images.task import ImageClassification
from manyheads.tasks.language.task import LanguageModeling
from manyheads.tasks.masked_words.task import Pretraining
from manyheads.tasks.registry import RECIPES
from manyheads.tasks.tagging.task import Tagging
from manyheads.tasks.trained_run import TrainedRun
from manyheads.tasks.translation.task import Translation

LONG = "word " * 30
PIXELS = np.zeros((8, 8), np.uint8)


@pytest.mark.parametrize(
    ("task", "held", "verb", "words"),
    [
        (Translation, Pairs([LONG, "A dog runs."], ["", ""]), "translate", ["A dog runs."]),
        (Translation, Pairs([LONG], [""]), "translate", [("word " * 12).strip()]),
        (Classification, Labeled(["It's a fine film"], ["good"]), "classify", ["It's a fine film"]),
        (Classification, Labeled(["a b"], ["same"], ["c d"]), "classify", ["a b", "--pair", "c d"]),
        (Tagging, Tagged([["In", "New", "York"]], [["O", "B-X", "I-X"]]), "tag", ["In New York"]),
        (
            Answering, Questions([Question("1", "Who?", "A dog.", (), "")]), "answer",
            ["--question", "Who?", "--context", "A dog."],
        ),
        (LanguageModeling, Texts(["a b c d e f"]), "generate", ["a b c d"]),
        (Pretraining, Documents(["A dog runs far.\nNo."]), "fill", ["A dog runs [MASK]"]),
        (
            ImageClassification, ImageData([Item(Path("cats/1.png"), "cat", "", (8, 8), "L")], ("cat",)),
            "classify", ["cats/1.png"],
        ),
        (ImageClassification, ImageData([Item(PIXELS, "cat", "", (8, 8), "L")], ("cat",)), "classify", ["IMAGE.png"]),
    ],
)  # fmt: skip
def test_the_next_command_uses_an_item_of_the_data(
    task: type[Task[Any, Any]], held: Any, verb: str, words: list[str]
) -> None:
    named, *arguments = task(RECIPES["translation"].config, Run("", Path())).example(held)
    assert [named, *arguments] == [verb, *words]
    assert cli._parse([verb, "run", *arguments]).name == verb


def test_scores_name_their_split(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    validation = {"loss": {"value": 0.3, "signature": "validation"}, "f1": {"value": 0.9, "signature": "validation"}}
    metrics = {**validation, "f1": {"value": 0.7, "signature": "2 texts"}}
    result = RunResult(recipe="tagging", wall_seconds=2.0, metrics=metrics, validation=validation, scored="test")
    run = TrainedRun(result, Path("r"))
    assert (run.metrics, run.validation) == ({"f1": 0.7}, {"loss": 0.3, "f1": 0.9})
    monkeypatch.setattr("manyheads.tasks.train.train", lambda *_, **__: run)
    assert cli.main(["train", "tagging"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["f1", "0.7000", "test:", "2", "texts"],
        ["loss", "0.3000", "validation"],
        ["f1", "0.9000", "validation"],
    ]
    assert "validation <table>" in run._repr_html_()
    whole = TrainedRun(RunResult(metrics=metrics, validation=metrics, scored="validation"), Path("r"))
    assert whole.metrics == whole.validation == {"f1": 0.7, "loss": 0.3}
    assert TrainedRun(None, Path("r")).validation == {}


def test_a_notebook_shows_scores_validations_and_warnings(tmp_path: Path) -> None:
    entries: list[JsonObject] = [{"step": 5, "epoch": 1, "loss": 0.75}]
    entries += [{"step": step, "epoch": 1, "validation": {"loss": 0.5, "top1": 0.25}} for step in range(6, 36)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    result = RunResult(recipe="tagging", wall_seconds=2.0, metrics={"accuracy": {"value": 0.5, "signature": "<2>"}})
    log = [logging.makeLogRecord({"msg": f"<{level}>", "levelno": level}) for level in (logging.INFO, logging.WARNING)]
    run = TrainedRun(result, tmp_path, log)
    assert run.warnings == ["<30>"]
    assert run.messages == ["<20>", "<30>"]
    html = run._repr_html_()
    assert "<p>warning: &lt;30&gt;</p>" in html
    assert "<pre>&lt;20&gt;\n&lt;30&gt;</pre>" in html
    assert html.count("<tr>") == 1 + 1 + 12  # a score, the head and the last validations
    assert repr(run) == "<TrainedRun tagging; accuracy 0.5000>"
    assert run.history.validations()[-1] == {
        "epoch": 1, "step": 35, "loss": 0.75, "validation_loss": 0.5, "validation_top1": 0.25,
    }  # fmt: skip
    assert TrainedRun(None, Path("<r>"))._repr_html_() == "&lt;r&gt;: stopped"


def test_a_finished_run_prints_metrics_and_the_next_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = RunResult(recipe="tagging", wall_seconds=2.0, metrics={"accuracy": {"value": 0.5, "signature": "<2>"}})
    result.next_command = "manyheads tag run 'a b'"
    monkeypatch.setattr("manyheads.tasks.train.train", lambda *_, **__: result)
    assert cli.main(["train", "tagging"]) == 0
    out, err = capsys.readouterr()
    assert out.split() == ["accuracy", "0.5000", "<2>"]
    assert err.endswith("try: manyheads tag run 'a b'\n")
    assert "<td>&lt;2&gt;</td>" in result._repr_html_()
