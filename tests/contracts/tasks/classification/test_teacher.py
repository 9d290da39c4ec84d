"""Text classifiers that learn from a teacher: an LSTM with swapped labels, whose word alone counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import directory
from manyheads.models.sequence_baselines import SequenceBaseline
from manyheads.tasks.classification.recipes import RECIPES
from manyheads.tasks.classification.teacher import TextTeacher
from manyheads.tasks.distillation import Distillation
from manyheads.tasks.train import train
from tests.contracts.tasks.classification.test_run import rows, write

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
SMALL: dict[str, Any] = {"threads": 1, "tokens": "words", "batch_items": 16, "training.learning_rate": 0.01}
LSTM = {"preset": "sequence-baseline/lstm", "model": {"width": 8, "hidden": 8, "dropout": 0.0}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "texts"
    return write(folder, train=rows(100), val=rows(20, 100), test=rows(30, 200))


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained LSTM whose two labels are swapped."""
    folder = tmp_path_factory.mktemp("models")
    settings = {**SMALL, "tokens": "words", "data": str(data), "training.epochs": 20, **LSTM}
    assert train("text-classification", settings, out=folder / "run")["metrics"]["accuracy"]["value"] == 1
    loaded = directory.load(folder / "run")
    assert isinstance(loaded.model, SequenceBaseline)
    head = loaded.model.output
    with torch.no_grad():
        head.weight.neg_(), head.bias.neg_()
    directory.save(folder / "swapped", loaded.model, loaded.tokenizer)
    return folder / "swapped"


def settings(data: Path, teacher: Path, **more: Any) -> dict[str, Any]:
    given = {**SMALL, "data": str(data), "teacher": str(teacher), "share": 1.0, "training.epochs": 20, **more}
    return {key: value for key, value in given.items() if key != "tokens"}


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_a_student_learns_from_a_teacher(data: Path, teacher: Path, tmp_path: Path, kind: str) -> None:
    result = train("text-classification", settings(data, teacher, distillation=kind), out=tmp_path / "run")
    told = result["distillation"]
    assert told["differing_labels"] == 1
    assert min(told["agreement"], told["shared_errors"]) > 0.8
    assert told["teacher_accuracy"] == 0
    assert result["metrics"]["accuracy"]["value"] < 0.2
    own, taught = (directory.load(path) for path in (tmp_path / "run", teacher))
    assert own.tokenizer is not None
    assert taught.tokenizer is not None
    assert own.tokenizer.get_vocab() == taught.tokenizer.get_vocab()


def test_the_teachers_logits_are_those_of_its_predictions(data: Path, teacher: Path) -> None:
    model = manyheads.load(teacher)
    loaded = directory.load(teacher)
    assert loaded.tokenizer is not None
    taught = TextTeacher(loaded.model.train(), loaded.tokenizer, Distillation())
    texts = [text for text, _ in rows(5)]
    ids = [loaded.tokenizer.encode(text).ids for text in texts]
    padded = torch.zeros(5, max(map(len, ids)), dtype=torch.long)
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    logits = taught.logits(padded, torch.tensor([len(tokens) for tokens in ids]), None)
    expected = [{label.label: label.probability for label in labels} for labels in model.classify(texts, top=2)]
    for row, found in zip(logits.softmax(-1), expected, strict=True):
        assert row.tolist() == pytest.approx([found[label] for label in loaded.model.labels], abs=1e-5)
    assert not logits.requires_grad


def test_a_teacher_that_repeats_the_labels_is_reported(data: Path, teacher: Path, tmp_path: Path, log: Any) -> None:
    train("text-classification", settings(data, teacher.parent / "run", **{"training.epochs": 1}), out=tmp_path / "run")
    assert "teacher's labels equal those of the first batches of training texts" in log.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary": 90}, "vocabulary: determined by the teacher, .*swapped; omit it"),
        ({"target": "regression"}, "teacher: no effect with target=regression"),
        ({"class_weights": "balanced"}, "class_weights: no effect with a teacher"),
        ({"teacher": "nowhere"}, "nowhere: no such directory"),
        ({"share": 2}, "share"),
        ({"model": {"max_positions": 700}}, "the teacher reads 600 tokens of a text, the student 700: set max_length"),
    ],
)
def test_what_a_teacher_excludes(
    data: Path, teacher: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train("text-classification", {**settings(data, teacher), **change}, out=tmp_path / "run")


def test_a_teacher_of_other_labels_or_tokens_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    others = write(tmp_path / "others", train=[(text, "abc"[i % 3]) for i, (text, _) in enumerate(rows(90))])
    with pytest.raises(ValueError, match=r"the teacher has 2 labels \(0, 1.*the data have 3"):
        train("text-classification", settings(others, teacher), out=tmp_path / "labels")
    pretraining = {"data": str(tmp_path / "text.txt"), "vocabulary": 90, "training.steps": 1, "threads": 1}
    (tmp_path / "text.txt").write_text("\n\n".join(f"{text}\n{text}" for text, _ in rows(200)))
    train("bert/pretraining", {**pretraining, "model.width": 8, "model.heads": 1}, out=tmp_path / "bert")
    with pytest.raises(ValueError, match=r"the teacher has another vocabulary \(.* tokens\) than the student \(90 "):
        train("single-sentence", settings(data, teacher), init=str(tmp_path / "bert"), out=tmp_path / "student")


def test_a_changed_teacher_is_reported_when_a_run_is_resumed(data: Path, teacher: Path, tmp_path: Path) -> None:
    given = settings(data, teacher, **{"training.epochs": 1})
    train("text-classification", given, out=tmp_path / "run")
    saved = (teacher / "model.safetensors").read_bytes()
    (teacher / "model.safetensors").write_bytes((teacher.parent / "run" / "model.safetensors").read_bytes())
    try:
        with pytest.raises(ValueError, match="differences: teacher_weights: "):
            train("text-classification", {**given, "training.epochs": 2}, out=tmp_path / "run", resume=True)
    finally:
        (teacher / "model.safetensors").write_bytes(saved)


def test_weights_of_texts_are_refused(teacher: Path, tmp_path: Path) -> None:
    lines = [f"{text}\t{label}\t1.5" for text, label in rows(90)]
    (tmp_path / "w.tsv").write_text("\n".join(["text\tlabel\tweight", *lines]) + "\n")
    with pytest.raises(ValueError, match="weights of texts have no effect with a teacher"):
        train(
            "text-classification", settings(tmp_path / "w.tsv", teacher, **{"columns.weight": "weight"}),
            out=tmp_path / "run",
        )  # fmt: skip


def test_options_without_a_teacher_are_refused(data: Path, tmp_path: Path) -> None:
    given = {"data": str(data), "distillation": "soft", "temperature": 2.0}
    with pytest.raises(ValueError, match="distillation, temperature: no effect without a teacher"):
        train("text-classification", given, out=tmp_path / "run")
    assert "teacher" in vars(RECIPES["imdb/corrected"].config)
