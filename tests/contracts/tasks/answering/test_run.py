"""Question-answering recipe and the answer command, on data small enough to memorize."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.train import train

NAMES, PLACES = ["Ann", "Bob", "Cid", "Dot", "Eve", "Fay"], ["Rome", "Oslo", "Bonn"]


def article(name: str) -> dict[str, Any]:
    """Paragraphs on where somebody went, with a question about who and one about where."""
    paragraphs = []
    for place in PLACES:
        context = f"In May {name} went to {place}."
        who = {"id": f"{name}{place}1", "question": "Who went?", "answers": [{"text": name, "answer_start": 7}]}
        where = {"text": place, "answer_start": context.index(place)}
        paragraphs.append(
            {"context": context, "qas": [who, {"id": f"{name}{place}2", "question": "Where to?", "answers": [where]}]}
        )
    return {"title": name, "paragraphs": paragraphs}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "train.json").write_text(json.dumps({"data": [article(name) for name in NAMES]}))
    (folder / "test.json").write_text(json.dumps({"data": [article(name) for name in NAMES[:2]]}))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder")
    text = " ".join(["In May", *NAMES, "went to", *PLACES, ". Who went? Where to?"])
    tokenizer = train_wordpiece([text] * 2, 70)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 32, "layers": 2, "heads": 2, "feed_forward": 64, "max_positions": 64}
    model = Bert(BertConfig(vocab=tokenizer.get_vocab_size(), dropout=0.0, attention_dropout=0.0, **sizes))
    directory.save(path, model, tokenizer)
    return path


@pytest.fixture(scope="module")
def run(data: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    overrides = {
        "data": str(data), "threads": 1, "batch_tokens": 128, "max_length": 40, "max_query": 16, "stride": 16,
        "training.epochs": 30, "training.learning_rate": 3e-3, "training.accumulate": 1, "training.warmup": 5,
        "training.validate_every": 1000,
    }  # fmt: skip
    report = train("question-answering", overrides, init=str(encoder), out=out)
    assert report["metrics"]["squad_em"]["value"] == 1.0
    assert report["metrics"]["squad_f1"]["value"] == 1.0
    return out


def test_record_and_evaluation_agree(run: Path, data: Path) -> None:
    record = json.loads((run / "result.json").read_text())
    assert record["data"]["items"]["test"] == 12
    assert record["data"]["items"]["train"] + record["data"]["items"]["validation"] == 36
    assert record["reading"] == {"max_length": 40, "stride": 16, "max_query": 16}
    assert record["flops"] > 0
    answerer = manyheads.load(run)
    assert evaluate(answerer)["squad_f1"] == record["metrics"]["squad_f1"]
    assert compare(answerer, answerer)["bootstrap"]["F1 of an answer"]["p_value"] == 1.0
    (best, *_) = answerer.answer("Where to?", "In May Dot went to Oslo.")
    assert (best.text, best.start, best.end) == ("Oslo", 19, 23)


def test_the_command_tags_and_prints(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*options: str) -> str:
        assert cli.main(["answer", str(run), "--question", "Who went?", *options]) == 0
        return capsys.readouterr().out

    context = "In May Cid went to Bonn."
    assert shown("--context", context) == "Cid\n"
    file = tmp_path / "context.txt"
    file.write_text(context)
    assert shown("--context", f"@{file}") == "Cid\n"
    rows = [line.split("\t") for line in shown("--context", context, "--nbest", "3").splitlines()]
    assert len(rows) == 3
    assert rows[0][1:] == ["7", "10", "Cid"]
    assert [float(row[0]) for row in rows] == sorted((float(row[0]) for row in rows), reverse=True)
    file.write_bytes("\ufeffIn May\r\nCid went\r\nto Bonn.\r\n".encode())
    (answer, *_) = json.loads(shown("--context", f"@{file}", "--json"))["answers"]
    assert file.read_bytes().decode()[answer["start"] : answer["end"]] == answer["text"] == "Cid"
    document = json.loads(shown("--context", context, "--json"))
    assert document["question"] == "Who went?"
    assert document["answers"][0].keys() == {"text", "probability", "start", "end", "score"}
    assert shown("--context", context, "--null-threshold", "-1000") == "\n"
    assert shown("--context", context, "--null-threshold", "1000") == "Cid\n"


def test_truncated_questions_are_reported(
    run: Path, data: Path, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        content = (data / f"{name}.json").read_text().replace("Where to?", f"{'Where ' * 20}to?")
        (tmp_path / "data" / f"{name}.json").write_text(content)
    assert cli.main(["evaluate", str(run), "--data", str(tmp_path / "data")]) == 0
    assert capsys.readouterr().err == "warning: 6 of 12 questions are cut to max_query, 16 tokens\n"
    log.clear()
    overrides = {"data": str(tmp_path / "data"), "max_length": 40, "max_query": 16, "stride": 16, "training.steps": 1}
    train("question-answering", overrides, init=str(encoder), out=tmp_path / "run")
    told = re.findall(r"(\d+ of \d+) questions are cut to max_query, 16 tokens", log.text)
    assert len(told) == 3  # of training, validation and test data
    assert told[2] == "6 of 12"
    with pytest.raises(ValueError, match=r"the question has \d+ tokens, the model reads 16: shorten it"):
        manyheads.load(run).answer("Where " * 20 + "?", "In May Dot went to Oslo.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--context", " "], "the context is blank"),
        (["--context", "@nowhere.txt"], "nowhere.txt: No such file"),
        (["--context", "x", "--nbest", "0"], "expected a whole number from 1 to 1000"),
    ],
)
def test_bad_input_of_the_command_is_reported(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["answer", str(run), "--question", "Who?", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("recipe", ["question-answering", "xquad"])
def test_requirements_of_a_run_are_listed(
    recipe: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        ([], f"{recipe} requires the setting data: data=DIR"),
        ([f"data={data}"], "give the model to start from with --init MODEL"),
        (["max_length=50"], "max_length is 50: expected at least max_query + 8"),
        (["stride=0"], "stride is 0"),
    ):
        assert cli.main(["train", recipe, *arguments, "--out", str(tmp_path / "run")]) == 2
        assert message in capsys.readouterr().err


def test_missing_files_of_a_directory_are_reported(tmp_path: Path, encoder: Path) -> None:
    for name in ("train.txt", "test.json"):
        (tmp_path / name).write_text("{}")
        expected = (
            r"expected train\.json \(or \.tsv, .*\.parquet\)(, and val and test in the same format; "
            r"found run, train.txt|; used as other splits: test\.json)$"
        )
        with pytest.raises(FileNotFoundError, match=expected):
            train("question-answering", {"data": str(tmp_path)}, init=str(encoder), out=tmp_path / "run")


def test_a_wrong_answer_offset_is_reported_with_its_question(data: Path, encoder: Path, tmp_path: Path) -> None:
    content = json.loads((data / "train.json").read_text())
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 8
    (tmp_path / "train.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"train\.json: question AnnRome1: the answer's offset does not match"):
        train("xquad", {"data": str(tmp_path)}, init=str(encoder), out=tmp_path / "run")
