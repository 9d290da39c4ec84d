"""Tagging recipes and the tag command, on a corpus small enough to memorize."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import cli, directory
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.train import train

NAMES, PLACES = ["Ann", "Bob", "Cid", "Dot", "Eve"], ["Rome", "Oslo", "New York", "Bonn"]
SMALL: dict[str, Any] = {
    "vocabulary": 78, "threads": 1, "batch_tokens": 128, "max_length": 32, "training.checkpoint_every": 50,
    "model": {"width": 32, "heads": 2, "layers": 1, "feed_forward": 64, "max_positions": 32, "dropout": 0.0,
              "attention_dropout": 0.0},
}  # fmt: skip


def sentence(name: str, place: str, end: str) -> str:
    """Columns of `NAME went to PLACE .`"""
    rows = [(name, "B-PER"), ("went", "O"), ("to", "O")]
    rows += [(word, f"{'I' if i else 'B'}-LOC") for i, word in enumerate(place.split())]
    return "".join(f"{word} {tag}\n" for word, tag in [*rows, (end, "O")]) + "\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    every = [sentence(n, p, end) for n in NAMES for p in PLACES for end in (".", "!")]
    for name, part in (("train", every[::2]), ("dev", every[1::4]), ("test", every[3::4])):
        (folder / f"{name}.txt").write_text("".join(part))
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    report = train("tagging", {**SMALL, "data": str(corpus), "training.epochs": 25, "training.warmup": 5}, out=out)
    assert report["metrics"]["entity_f1"]["value"] == 1.0
    return out


def test_record_and_evaluation_agree(run: Path, corpus: Path) -> None:
    record = json.loads((run / "result.json").read_text())
    assert record["data"]["items"] == {"train": 20, "validation": 10, "test": 10}
    assert record["data"]["test"] == str(corpus / "test.txt")
    assert record["flops"] > 0
    tagger = manyheads.load(run)
    metrics = evaluate(tagger)
    assert metrics["entity_f1"] == record["metrics"]["entity_f1"]
    assert "whole spans" in metrics["entity_f1"]["signature"]
    assert evaluate(tagger, str(corpus / "dev.txt"))["accuracy"]["value"] == 1.0
    assert compare(tagger, tagger)["most_changed"] == []


def test_the_command_tags_and_prints(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tag", str(run), "Bob went to New York!", "Ann"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Bob/B-PER went/O to/O New/B-LOC York/I-LOC !/O"
    assert cli.main(["tag", str(run), "--words", "Bob went to U.S. York!", ""]) == 0
    assert [pair.rpartition("/")[0] for pair in capsys.readouterr().out.split()] == [
        "Bob",
        "went",
        "to",
        "U.S.",
        "York!",
    ]
    assert cli.main(["tag", str(run), "--words", "--json", " Bob  went\tto York"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    for word in document["words"]:
        assert document["text"][word["start"] : word["end"]] == word["text"]
    assert cli.main(["tag", str(run), "--json", "Bob went to New York!"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert document["words"][4].keys() == {"text", "tag", "probability", "start", "end"}
    place = document["entities"][1]
    assert (place["kind"], place["text"], place["start"], place["end"]) == ("LOC", "New York", 12, 20)


def test_one_line_of_input_gives_one_line_of_output(
    run: Path, stdin: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stdin("Bob went to Oslo.\n\nEve\n")
    assert cli.main(["tag", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == ["Bob/B-PER went/O to/O Oslo/B-LOC ./O", "", "Eve/B-PER"]


def test_fine_tuning_starts_from_the_encoder(
    run: Path, corpus: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    overrides = {"data": str(corpus), "threads": 1, "batch_tokens": 128, "max_length": 32, "training.epochs": 1}
    train("conll2003", {**overrides, "model": {"dropout": 0.0}}, init=str(run), out=tmp_path / "a")
    assert "new: none" in log.text  # the same labels: the classifier too is kept
    assert evaluate(manyheads.load(tmp_path / "a"))["entity_f1"]["value"] == 1.0
    other = tmp_path / "other"
    other.mkdir()
    for name in ("train", "dev"):
        text = (corpus / f"{name}.txt").read_text().replace("-PER", "-WHO")
        (other / f"{name}.txt").write_text(text)
    train("tagging", {**overrides, "data": str(other)}, init=str(run), out=tmp_path / "b")
    assert "new: classifier.weight, classifier.bias" in log.text
    record = json.loads((tmp_path / "b" / "result.json").read_text())
    assert record["steps"] == 2
    assert set(directory.load(tmp_path / "b").model.config.labels) == {"O", "B-LOC", "I-LOC", "B-WHO"}
    scores = evaluate(manyheads.load(tmp_path / "b"))
    assert scores["entity_f1"]["value"] == record["metrics"]["entity_f1"]["value"]
    assert "the run has no test data; scoring its validation data" in log.text


@pytest.mark.parametrize("tuned", ["last", "last-four"])
def test_a_frozen_encoder_supports_a_reader(run: Path, corpus: Path, tmp_path: Path, tuned: str) -> None:
    overrides = {"data": str(corpus), "threads": 1, "batch_tokens": 128, "max_length": 32, "training.epochs": 12,
                 "tuned": tuned, "training.warmup": 2, "training.learning_rate": 1e-2}  # fmt: skip
    bert = directory.load(run).model
    torch.manual_seed(0)
    deeper = adapt(Bert(replace(bert.config, layers=4)), head="none", labels=())[0]
    directory.save(tmp_path / "deeper", deeper, directory.load(run).tokenizer)
    train("conll2003", overrides, init=str(tmp_path / "deeper"), out=tmp_path / "run")
    tagger = manyheads.load(tmp_path / "run")
    frozen = dict(deeper.named_parameters())
    assert all(torch.equal(p, frozen[name]) for name, p in tagger.model.bert.named_parameters())
    assert evaluate(tagger)["entity_f1"]["value"] > 0.5
    texts = ["Bob went to New York!", "Ann"]
    for text, one in zip(texts, tagger.tag(texts), strict=True):
        alone = tagger.tag(text)
        assert [w[:2] for w in alone.words] == [w[:2] for w in one.words]
        assert [w.probability for w in alone.words] == pytest.approx([w.probability for w in one.words], abs=1e-5)


@pytest.mark.parametrize(
    ("recipe", "overrides", "init", "message"),
    [
        ("conll2003", {}, None, "conll2003 requires the setting data: data=DIR"),
        ("conll2003", {"data": "x"}, None, "give the model to start from with --init MODEL"),
        ("tagging", {"data": "nowhere"}, None, "nowhere: no such file"),
        ("tagging", {"max_length": 4096}, None, "expected at most 1024, the batch_tokens"),
        ("tagging", {"preset": "huge"}, None, "unknown preset 'huge'"),
        ("tagging", {"tuned": "last"}, None, "tuned: no effect without a model to start from"),
        ("tagging", {"vocabulary": 50}, "somewhere", "vocabulary: determined by the initial model"),
    ],
)
def test_impossible_runs_are_refused(
    recipe: str, overrides: dict[str, Any], init: str | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(recipe, overrides, init=init, out=tmp_path / "run")


def test_a_tag_missing_in_training_is_reported_before_training(corpus: Path, tmp_path: Path) -> None:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text((corpus / f"{name}.txt").read_text())
    (tmp_path / "test.txt").write_text("Ann B-PER\nwent O\nhome B-ORG\n")
    with pytest.raises(ValueError, match=r"test\.txt:3: the tag 'B-ORG' does not occur in the training data"):
        train("tagging", {**SMALL, "data": str(tmp_path)}, out=tmp_path / "run")


def test_malformed_sentences_are_skipped_and_counted(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.txt").write_text((corpus / f"{name}.txt").read_text())
    for name in ("train", "test"):
        with (tmp_path / f"{name}.txt").open("a") as file:
            file.write("\nZed B-ZED\n\n" * (name == "test") + "Ann I-PER\n\nBob\n")
    overrides = {**SMALL, "data": str(tmp_path), "training.epochs": 1}
    arguments = [f"{key}={json.dumps(value) if isinstance(value, dict) else value}" for key, value in overrides.items()]
    command = ["train", "tagging", *arguments, "--out", str(tmp_path / "run")]
    assert cli.main(command) == 2
    assert "train.txt:" in (told := capsys.readouterr().err)
    assert "I-PER at the start of a sentence violates IOB2" in told
    assert cli.main([*command, "--skip-bad-lines"]) == 0
    told = capsys.readouterr().err
    assert "skipped sentences: 1 of" in told
    assert "test.txt: tags not in the training data" in told
    assert cli.main(["evaluate", str(tmp_path / "run")]) == 0  # skips what the run has skipped


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in ("tagging", "conll2003", "question-answering", "xquad"):
        small = ["size=1000"] if recipe == "tagging" else []
        assert cli.main(["train", recipe, *small, "--dry-run", "--out", str(tmp_path / "x")]) == 0
        assert "parameters:" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_kind_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["answer", str(run), "--question", "Who?", "--context", "Ann"]) == 2
    assert "this model does not support answer: use it with manyheads tag" in capsys.readouterr().err


def test_warmup_is_limited_in_a_short_run(run: Path, corpus: Path, tmp_path: Path) -> None:
    overrides = {"data": str(corpus), "threads": 1, "batch_tokens": 128, "max_length": 32, "training.epochs": 10,
                 "training.log_every": 1}  # fmt: skip
    train("conll2003", overrides, init=str(run), out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [row["learning_rate"] for row in rows if "learning_rate" in row]
    assert max(rates) == pytest.approx(5e-5)
    assert rates.index(max(rates)) + 1 == len(rates) // 10


def test_a_dry_run_plans_the_model_to_start_from(run: Path, corpus: Path, tmp_path: Path) -> None:
    model = manyheads.load(str(run)).model
    heads = {name: p.numel() for name, p in model.named_parameters() if name.startswith("classifier.")}
    planned = train("conll2003", {"data": str(corpus)}, out=tmp_path / "x", init=str(run), dry_run=True)
    without = sum(p.numel() for p in model.parameters()) - sum(heads.values())
    assert planned["parameters"] == without + 4 * (model.config.width + 1)  # the labels of the data


def test_several_test_files_and_one_tag_are_refused(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train", "val", "test_a", "test_b"):
        (folder / f"{name}.txt").write_text("a O\nb O\n\nc O\n")
    with pytest.raises(ValueError, match="several test files"):
        train("tagging", {**SMALL, "data": str(folder)}, out=tmp_path / "x")
    (folder / "test_b.txt").unlink()
    with pytest.raises(ValueError, match="expected two or more different tags, found only O"):
        train("tagging", {**SMALL, "data": str(folder)}, out=tmp_path / "x")
