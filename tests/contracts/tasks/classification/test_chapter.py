"""The textbook's training run, from unpacked folders of texts; and the data in a dry run."""

import json
from pathlib import Path

import pytest

import manyheads
from manyheads import cli
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.train import train
from tests.contracts.tasks.classification.test_run import SMALL, rows

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")


def test_the_chapters_run_is_reproduced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders of .txt files, RMSprop, validation after every epoch, the last weights, and accuracy next to the loss."""
    for split, start, count in (("train", 0, 100), ("val", 100, 20), ("test", 200, 30)):
        for i, (text, label) in enumerate(rows(count, start)):
            file = tmp_path / "aclImdb" / split / ("neg", "pos")[int(label)] / f"{i}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
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
    assert "neg/empty.txt:1: the text is blank; add text to the file, or remove it, or skip such files with" in line


@pytest.mark.parametrize("rows", [20, 1000])
def test_a_dry_run_refuses_data_of_one_label(tmp_path: Path, rows: int) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\tgood\n" for i in range(rows)))
    with pytest.raises(ValueError, match=r"train\.tsv: found only one label, 'good'; expected at least two"):
        train("text-classification", {"data": str(tmp_path)}, out=tmp_path / "run", dry_run=True)
