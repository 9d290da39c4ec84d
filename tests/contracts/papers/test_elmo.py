"""Pretraining of ELMo and fine-tuning from it: targets, exact resumption, new heads, scratch and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import manyheads
from manyheads import cli
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.documents import Documents
from manyheads.errors import UserError
from manyheads.models.presets import build, preset
from manyheads.tasks.train import train
from papers.directions.__main__ import main
from papers.directions.elmo import BEGIN, END, UNKNOWN, ElmoObjective, Passages
from papers.directions.spelling import spelled_words

SIZES: dict[str, Any] = {"width": 6, "hidden": 10, "filters": (3, 4), "max_characters": 9, "dropout": 0.0}
DOCUMENTS = Documents.of([["A dog, a cat.", "The naïve dog sleeps."], ["a cat"]])
SETTINGS = [
    "words=20", "length=8", "threads=1", "batch_tokens=120", "model.width=6", "model.hidden=10", "model.dropout=0.1",
    "training.log_every=2", "training.checkpoint_every=2", "training.warmup=1",
    "training.schedule=constant",
]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("data") / "text.txt"
    file.write_text("\n\n".join(f"The {n} dogs see one cat. It sleeps {n} hours, naïve." for n in range(60)))
    return file


@pytest.fixture(scope="module")
def pretrained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "elmo"
    main(["elmo", f"data={corpus}", *SETTINGS, "training.steps=4", "--out", str(out)])
    return out


def test_passages_have_words_and_marks() -> None:
    data = Passages.of(DOCUMENTS, 4, count=6)
    assert list(data.rows) == ["A dog , a", "cat . The naïve", "dog sleeps .", "a cat"]
    # The three most frequent words follow the three special ids; words of equal frequency are in the order of the text.
    assert data.index == {"dog": 3, "a": 4, "cat": 5}
    assert data.words(0) == [BEGIN, UNKNOWN, 3, UNKNOWN, 4, END]
    assert data.lengths == [len(spelled_words().encode(row).ids) for row in data.rows]


def test_the_loss_is_the_mean_of_both_neighbors() -> None:
    torch.manual_seed(0)
    model = build(preset("elmo/small", **SIZES, head="words", words=9)).double().eval()
    data = Passages.of(DOCUMENTS, 6, count=9)
    compute = ComputeConfig("cpu", "float32", 1, "highest", False)
    task = ElmoObjective(model, spelled_words(), data, data, compute=compute, batch_tokens=10_000, seed=1)
    total, count = 0.0, 0
    for row, text in enumerate(data.rows):
        states = model(torch.tensor([spelled_words().encode(text).ids]))[0].detach()
        words = data.words(row)
        for i in range(len(words) - 1):
            for state, word in ((states[i, :6], words[i + 1]), (states[i + 1, 6:], words[i])):
                total += F.cross_entropy(model.output(state), torch.tensor(word)).item()
                count += 1
    (batch,) = task.batches(0)
    loss = task.loss(batch)
    assert (batch.items, loss.count) == (count, count)
    assert loss.total.item() == pytest.approx(total, rel=1e-6)
    assert task.validate()["loss"] == pytest.approx(total / count, rel=1e-6)


def test_pretraining_resumes_exactly(pretrained: Path, corpus: Path, tmp_path: Path) -> None:
    main(["elmo", f"data={corpus}", *SETTINGS, "training.steps=2", "--out", str(tmp_path / "parts")])
    main(["--resume", str(tmp_path / "parts"), "training.steps=4"])
    whole, parts = ((folder / "model.safetensors").read_bytes() for folder in (pretrained, tmp_path / "parts"))
    assert whole == parts
    with pytest.raises(UserError, match="head 'words' makes no predictions by itself"):
        manyheads.load(pretrained)


def test_a_classifier_starts_from_the_pretrained_weights(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "train.tsv"
    rows = [f"{word} café {i}\t{label}" for i in range(20) for word, label in (("good", "yes"), ("bad", "no"))]
    table.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    settings = {
        "data": str(table),
        "max_length": 60,
        "threads": 1,
        "model.dropout": 0.0,
        "training.epochs": 20,
        "training.learning_rate": 0.03,
    }
    run = tmp_path / "run"
    train("single-sentence", settings, out=run, init=str(pretrained))
    assert json.loads((run / "result.json").read_text())["parameters"] > 0
    classifier: Any = manyheads.load(run)
    texts = ["good unseen café 7", "bad unseen café 7"]
    assert [label.label for (label, *_) in classifier.classify(texts)] == ["yes", "no"]
    alone = [classifier.predict_proba(text) for text in texts]
    assert classifier.predict_proba(texts) == pytest.approx(np.stack(alone), abs=1e-5)
    assert cli.main(["classify", str(run), texts[0]]) == 0
    assert "yes" in capsys.readouterr().out
    scratch = {**settings, "scratch": True, "training.epochs": 1}
    train("single-sentence", scratch, out=tmp_path / "scratch", init=str(pretrained))
    with pytest.raises(UserError, match=r"auxiliary: no effect on an ELMo, such as .*: leave it out"):
        train("single-sentence", {**settings, "auxiliary": 0.5}, out=tmp_path / "x", init=str(pretrained))
    with pytest.raises(UserError, match="found a manyheads-elmo model"):
        train("tagging", {}, out=tmp_path / "x", init=str(pretrained))


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("words=3", "words is 3: expected .* from 4"),
        ("model.words=9", "cannot set words"),
        ("model.hidden=64", "hidden is 64: expected more units than the width, 64"),
        ("preset=bert/tiny", "the preset 'bert/tiny' does not fit this task: expected one of elmo"),
    ],
)
def test_impossible_settings_are_refused(setting: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        main(["elmo", setting, "--dry-run", "--out", str(tmp_path / "run")])
