"""The textbook's classifier, trained as its chapter does."""

import json
from pathlib import Path
from typing import Any

import pytest

import manyheads
from manyheads import cli
from manyheads.recipes.train import train
from manyheads.tasks.evaluation import evaluate

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
SMALL: dict[str, Any] = {"threads": 1, "training.log_every": 5, "training.checkpoint_every": 50}


def review(i: int) -> str:
    """Words that say nothing, and one that tells whether i is odd."""
    filling = [("the", "film", "was", "a", "plot")[i * k % 5] for k in range(1, 4)]
    return " ".join([*filling, ("awful", "great")[i % 2], f"{i}."])


def test_the_chapter_s_own_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of .txt files as they are unpacked, RMSprop, every epoch, the last weights, accuracy beside the loss."""
    for split, start, count in (("train", 0, 100), ("val", 100, 20), ("test", 200, 30)):
        for i in range(start, start + count):
            file = tmp_path / "aclImdb" / split / ("neg", "pos")[i % 2] / f"{i}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(review(i), encoding="utf-8")
    data, run = tmp_path / "aclImdb", tmp_path / "run"
    settings = {**SMALL, "data": str(data), "vocabulary": 40, "batch_items": 10, "training.learning_rate": 0.01}
    result = train("imdb/keras", settings, out=run)
    assert (result["steps"], result["weights"]) == (150, "last")
    assert result["metrics"]["accuracy"]["value"] > 0.9
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line["accuracy"] for line in lines if "loss" in line]
    assert trained[0] < 0.8 < 0.9 < trained[-1] <= 1.0
    assert [line["epoch"] for line in lines if "validation" in line] == [*range(1, 16)]
    predictor = manyheads.load(run)
    assert predictor.labels == ("negative", "positive")
    assert evaluate(predictor)["accuracy"] == result["metrics"]["accuracy"]
    assert evaluate(predictor, str(data / "test"))["accuracy"] == result["metrics"]["accuracy"]
    (data / "test" / "neg" / "empty.txt").write_text("")
    capsys.readouterr()
    assert cli.main(["evaluate", str(run), "--data", str(data / "test")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "neg/empty.txt:1: the text is blank; write one, or remove the file, or skip such files with" in line
