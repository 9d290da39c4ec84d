"""Runs that predict a number, several labels, or rare classes: from files to commands, the service and resumed runs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import cli, directory
from manyheads.core.runtime import prepare
from manyheads.data.readers.labeled import Labeled
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.service.server import Settings, service_of
from manyheads.tasks.classification.objective import ClassificationObjective
from manyheads.tasks.targets import Target
from manyheads.tasks.train import train
from tests.support.services import Ask, asked_of

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
WORDS = ["red", "blue", "green", "moon", "sun"]
SMALL: dict[str, Any] = {"threads": 1, "training.log_every": 5, "vocabulary": 40, "batch_items": 10}
FAST = {**SMALL, "training.epochs": 12, "training.learning_rate": 0.02, "training.warmup": 5, "model.dropout": 0.0}


def texts(count: int, start: int = 0) -> list[list[str]]:
    return [[WORDS[i % 5], WORDS[(i * i + i // 5) % 5], f"{i}"] for i in range(start, start + count)]


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    for split, (count, start) in {"train": (120, 0), "val": (20, 120), "test": (30, 140)}.items():
        rows = []
        for words in texts(count, start):
            colors: list[str] = sorted({word for word in words if word in WORDS[:3]})
            label: Any = colors if kind == "labels" else 0.5 * words.count("red") + 1.5 * words.count("sun") - 1
            rows.append(json.dumps({"text": " ".join(words), "label": label}))
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers")
    settings = {
        **FAST,
        "data": str(write(path / "data", "numbers")),
        "target": "regression",
        "training.metric": "spearman",
    }
    train("text-classification", settings, out=path / "run")
    return path / "run"


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("labels")
    settings = {**FAST, "data": str(write(path / "data", "labels")), "target": "multi-label", "training.metric": "map"}
    train("text-classification", {**settings, "threshold": 0.4}, out=path / "run")
    return path / "run"


def test_a_number_is_predicted(numbers: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = json.loads((numbers / "result.json").read_text())
    assert {"mse", "mae", "pearson", "spearman"} <= result["metrics"].keys()
    assert result["metrics"]["spearman"]["value"] > 0.9
    model = manyheads.load(str(numbers))
    found, blank = model.predict(["sun sun", " "])
    assert found == pytest.approx(2.0, abs=0.5)
    assert math.isnan(blank)
    assert model.predict("sun sun") == pytest.approx(found)
    with pytest.raises(ValueError, match="found one text, but a list of second texts"):
        model.predict("sun", ["moon"])
    with pytest.raises(ValueError, match="this model predicts a number: call predict"):
        model.classify("sun")
    assert cli.main(["classify", str(numbers), "sun sun"]) == 0
    assert capsys.readouterr().out == f"{found:.4f}\n"
    assert cli.main(["classify", str(numbers), "sun sun", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"text": "sun sun", "value": pytest.approx(found, abs=1e-6)}]
    assert cli.main(["classify", str(numbers), "sun", "--top", "2"]) == 2
    assert "top applies to labels, but this model predicts a number" in capsys.readouterr().err
    assert cli.main(["evaluate", str(numbers), "--errors", str(tmp_path / "errors.csv")]) == 0
    rows = (tmp_path / "errors.csv").read_text().splitlines()
    assert rows[0] == "row,text,label,truth,prediction,error"
    assert rows[1].split(",")[0].isdigit()
    errors = [float(row.rsplit(",", 1)[1]) for row in rows[1:]]
    assert errors == sorted(errors, reverse=True)
    assert cli.main(["evaluate", str(numbers), "--by-label"]) == 2
    assert "found --by-label, but the model supports --errors" in capsys.readouterr().err


def test_several_labels_are_predicted(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = json.loads((labels / "result.json").read_text())
    assert result["metrics"]["map"]["value"] > 0.95
    assert "threshold 0.4" in result["metrics"]["micro_f1"]["signature"]
    model = manyheads.load(str(labels))
    assert model.evaluate(model._test_data(None, None, False)).metrics == {
        name: result["metrics"][name] for name in ("micro_f1", "macro_f1", "map")
    }
    assert {str(label) for label in model.classify("red blue 7")} == {"red", "blue"}
    assert model.classify("moon moon 7") == []
    assert len(model.classify("moon", top=2)) == 2
    with pytest.raises(ValueError, match="this model predicts labels: call classify"):
        model.predict(["moon"])
    assert cli.main(["classify", str(labels), "red blue 7", "moon 3", "--threshold", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[0].split("\t")) == 4
    assert lines[1] == ""
    assert cli.main(["evaluate", str(labels), "--by-label", "--json"]) == 0
    assert [row["label"] for row in json.loads(capsys.readouterr().out)["labels"]] == ["blue", "green", "red"]


def test_the_service_answers_with_numbers_and_labels(numbers: Path, labels: Path) -> None:
    service = service_of(Settings({"n": str(numbers), "l": str(labels)}))

    async def scene(ask: Ask) -> list[Any]:
        asked: list[dict[str, Any]] = [
            {"model": "n"},
            {"model": "l"},
            {"model": "l", "threshold": 0.0},
            {"model": "l", "threshold": 2},
        ]
        return [await ask(texts=["red sun 1"], **one) for one in [*asked, {"model": "n", "top": 2}]]

    number, some, every, refused, no_labels = asked_of(service, scene)
    assert number.json()["results"][0]["value"] == pytest.approx(manyheads.load(str(numbers)).predict(["red sun 1"])[0])
    assert [label["label"] for label in some.json()["results"][0]] == ["red"]
    assert len(every.json()["results"][0]) == 3
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "threshold")
    assert no_labels.status_code == 400
    assert "this model predicts a number" in no_labels.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "multi-label", "threshold": 1.5}, "threshold is 1.5: expected a number from 0 to 1"),
        ({"target": "rank"}, "target: expected one of classes, regression, multi-label, found 'rank'"),
        ({"target": "regression", "names": ["a", "b"]}, "names: no effect with target=regression"),
        ({"target": "regression", "class_weights": "balanced"}, "class_weights: no effect with target=regression"),
        ({"class_weights": "balanced", "sampling": "balanced"}, "expected one of them"),
        ({"threshold": 0.3}, "threshold: no effect with target=classes"),
        ({"names": ["a", "b"], "positive": "c"}, "positive is 'c': expected one of the names a, b"),
        ({"target": "regression", "model.target": "classes"}, "target"),
    ],
)
def test_wrong_settings_are_refused_before_data_are_read(
    settings: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyheads.data.sources.corpora.read_labeled", lambda *_, **__: pytest.fail("data were read"))
    with pytest.raises(ValueError, match=message):
        train("text-classification", {**SMALL, "data": str(tmp_path), **settings}, out=tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize("setting", ["class_weights", "sampling"])
def test_rare_classes_are_balanced(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, count in {"train": 100, "val": 40, "test": 40}.items():
        rows = [f"{' '.join(words)}\t{'rare' if i % 10 == 0 else 'usual'}" for i, words in enumerate(texts(count))]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    once = {**FAST, "data": str(tmp_path), "training.epochs": 6, "positive": "rare"}
    found = {}
    for name, added in (("plain", {}), ("balanced", {setting: "balanced"})):
        out = tmp_path / name
        result = train("text-classification", {**once, **added}, out=out)
        assert result is not None
        assert "'rare'" in result["metrics"]["f1"]["signature"]
        outcome = manyheads.load(str(out)).outcome()
        assert outcome.metrics["f1"] == result["metrics"]["f1"], "the run records its positive label"
        found[name] = outcome.outputs.count("rare")
    assert found["plain"] < found["balanced"]
    assert cli.main(["evaluate", str(tmp_path / "plain"), "--confusion", "-"]) == 0
    assert capsys.readouterr().out.splitlines()[-3].split() == ["true", "\\", "predicted", "rare", "usual"]


def test_sampling_draws_all_classes_alike_and_reproducibly() -> None:
    words = [" ".join(words) for words in texts(100)]
    data = Labeled(words, ["rare" if i % 10 == 0 else "usual" for i in range(100)])
    tokenizer = train_wordpiece(words, 60)
    sizes: dict[str, Any] = {"vocab": 60, "width": 8, "layers": 1, "heads": 1, "feed_forward": 8}
    model = Bert(BertConfig(head="sequence", labels=("rare", "usual"), **sizes))
    task = ClassificationObjective(
        model, tokenizer, data, data, compute=prepare(threads=1), batch_tokens=400, batch_items=10, max_length=20,
        truncate=False, seed=1, target=Target("classes", ("rare", "usual")), balanced=True,
    )  # fmt: skip
    epochs = [torch.cat([batch.labels for batch in task.batches(epoch)]) for epoch in (0, 0, 1)]
    assert torch.equal(epochs[0], epochs[1])
    assert not torch.equal(epochs[0], epochs[2])
    assert all(len(labels) == 100 and 30 < labels.sum() < 70 for labels in epochs)


def test_a_regression_starts_from_bert_and_opens_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_wordpiece([" ".join(words) for words in texts(200)], 60)
    sizes: dict[str, Any] = {"vocab": 60, "width": 16, "layers": 1, "heads": 2, "feed_forward": 16}
    directory.save(tmp_path / "bert", Bert(BertConfig(head="masked_lm", **sizes)), tokenizer)
    settings = {"threads": 1, "batch_items": 10, "training.epochs": 1, "data": str(write(tmp_path / "data", "numbers"))}
    train("single-sentence", {**settings, "target": "regression"}, out=tmp_path / "run", init=str(tmp_path / "bert"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")(["red sun 1"], return_tensors="pt")
    (ours,) = manyheads.load(str(tmp_path / "run")).predict(["red sun 1"])
    assert theirs.config.num_labels == 1
    assert theirs(**batch).logits.item() == pytest.approx(ours, abs=1e-5)
