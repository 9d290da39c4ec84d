"""Pretraining recipe: from text to a directory that fills masks, resumed, continued, evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import transformers

from manyheads import cli, train
from manyheads.runs.run import planned_model
from manyheads.tasks.loading import load
from manyheads.tasks.registry import RECIPES

SMALL: dict[str, Any] = {
    "vocabulary": 120, "length": 24, "batch_tokens": 256, "threads": 1, "training.steps": 6, "training.warmup": 2,
    "training.checkpoint_every": 3, "training.validate_every": 3, "training.log_every": 1,
    "model": {"layers": 1, "width": 16, "heads": 2, "feed_forward": 24},
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of sentences about random things."""
    file, draw = tmp_path_factory.mktemp("text") / "things.txt", Random(0)
    things = [a + b for a in ("ba", "do", "ki", "lu") for b in ("ra", "to", "mi", "ne", "su")]
    documents = (
        " ".join(f"The {draw.choice(things)} has a {draw.choice(things)}." for _ in range(6)) for _ in range(200)
    )
    file.write_text("\n\n".join(documents))
    return file


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "first"
    train("bert/pretraining", {"data": str(text), **SMALL}, out=out)
    return out


def test_a_recorded_run_scores_equally_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads((run / "result.json").read_text())
    assert record["steps"] == 6
    assert record["flops"] > 1e6
    assert record["data"]["items"]["train"] + record["data"]["items"]["validation"] == 200
    assert set(record["metrics"]) == {"loss", "perplexity", "accuracy", "next_sentence_accuracy"}
    again = load(run).outcome().metrics
    for name, metric in record["metrics"].items():
        assert again[name]["value"] == pytest.approx(metric["value"], abs=1e-6), name
    assert cli.main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"] == again


def test_whole_words_and_special_tokens_are_scored_as_trained(text: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text.read_text().replace("has a", "has [MASK] and [SEP] a"))
    record = train("bert/pretraining", {"data": str(file), **SMALL, "whole_words": True}, out=tmp_path / "run")
    again = load(tmp_path / "run").outcome().metrics
    for name, metric in record["metrics"].items():
        assert again[name]["value"] == pytest.approx(metric["value"], abs=1e-6), name


def test_the_directory_opens_in_a_pipeline(run: Path) -> None:
    pipeline: Any = transformers.pipeline("fill-mask", str(run), top_k=3)
    assert pipeline.tokenizer.tokenize("The bara<br />has") == pipeline.tokenizer.tokenize("The bara has")
    expected: Any = pipeline("The bara has a [MASK].")
    assert [each["token_str"] for each in expected] == [f.token for f in load(run).fill("The bara has a [MASK].", 3)]
    assert type(transformers.AutoModelForPreTraining.from_pretrained(run)).__name__ == "BertForPreTraining"


def test_the_command_fills_and_ranks_words(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fill", str(run), "The [MASK] has a bara.", "A [MASK]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("The ")
    assert lines[0].endswith(" has a bara.")
    assert "[MASK]" not in lines[0]
    assert cli.main(["fill", str(run), "The [MASK] has a bara.", "--top", "3"]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3
    assert sorted((float(row[1]) for row in rows), reverse=True) == [float(row[1]) for row in rows]
    assert rows[0][3] == f"The {rows[0][2]} has a bara."
    assert cli.main(["fill", str(run), "The [MASK].", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found[0]["fills"]) == 5
    assert set(found[0]["fills"][0]) == {"token", "probability", "text"}
    assert cli.main(["fill", str(run), "no mask"]) == 2
    assert "text 1 has no [MASK]: write [MASK] in place of" in capsys.readouterr().err


def test_a_roberta_is_as_transformers_computes_it(text: Path, tmp_path: Path) -> None:
    settings = {"data": str(text), **SMALL, "vocabulary": 300, "training.accumulate": 3}
    record = train("bert/roberta", settings, out=tmp_path / "run")
    assert record["rules"]["full_sentences"]
    assert "next_sentence_accuracy" not in record["metrics"]
    assert "<mask>" in record.next_command
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["architectures"] == ["RobertaForMaskedLM"]
    assert (config["pad_token_id"], config["type_vocab_size"], config["max_position_embeddings"]) == (1, 1, 514)
    again = load(tmp_path / "run").outcome().metrics
    for name, metric in record["metrics"].items():
        assert again[name]["value"] == pytest.approx(metric["value"], abs=1e-6), name
    pipeline: Any = transformers.pipeline("fill-mask", str(tmp_path / "run"), top_k=3)
    expected, found = (
        pipeline("The bara<br />has a <mask>."),
        load(tmp_path / "run").fill("The bara<br />has a <mask>.", 3),
    )
    assert [f.probability for f in found] == pytest.approx([each["score"] for each in expected], rel=1e-5)
    assert [f.token for f in found] == [each["token_str"].strip() for each in expected]


def test_a_run_resumes_to_the_same_weights(
    run: Path, text: Path, tmp_path: Path, killed: Callable[[Path, Path], Path]
) -> None:
    out = killed(run, tmp_path / "out")
    train("bert/pretraining", {"data": str(text), **SMALL}, out=out, resume=True)
    assert (out / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_another_run_can_start_from_it(run: Path, text: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    settings = {key: value for key, value in SMALL.items() if key not in ("vocabulary", "model")}
    more = {"data": str(text), "next_sentence": False, "whole_words": True, "training.learning_rate": 1e-9}
    report = train("bert/pretraining", {**settings, **more}, out=tmp_path / "out", init=str(run))
    assert "next_sentence_accuracy" not in report["metrics"]
    assert "new: none" in log.text
    first, second = (load(path).fill("The [MASK] has a bara.") for path in (run, tmp_path / "out"))
    assert [f.probability for f in first] == pytest.approx([f.probability for f in second], abs=1e-4)


@pytest.mark.slow
def test_the_embedded_text_needs_no_data(tmp_path: Path) -> None:
    settings = {**SMALL, "vocabulary": 600, "training.steps": 2}
    report = train("bert/pretraining", settings, out=tmp_path / "out")
    assert report["data"]["data"] is None
    assert report["data"]["items"]["train"] > 100


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("bert/imdb", {}, "bert/imdb requires the setting data: data=PATH of IMDB's unsupervised.parquet"),
        ("bert/pretraining", {"data": "{two}"}, "found 1 validation document, but pairs need two"),
        ("bert/pretraining", {"length": 4}, "length is 4"),
        (
            "bert/pretraining",
            {"length": 600},
            "length is 600: the model takes at most 512 tokens",
        ),
        (
            "bert/pretraining",
            {"full_sentences": True},
            "full_sentences=true fills .* one span of text; set next_sentence=f",
        ),
        ("bert/roberta", {"vocabulary": 200}, "256 bytes and <s>, <pad>, </s>, <unk>, <mask> require at least 261 ids"),
        ("bert/pretraining", {"preset": "huge"}, "unknown preset 'huge'"),
        ("bert/pretraining", {"column": "txt", "data": "{parquet}"}, "expected a column 'txt'"),
    ],
)
def test_bad_settings_are_reported_in_one_line(
    recipe: str, settings: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"text": ["One. Two.", "Three."]}), tmp_path / "a.parquet")
    own = {} if recipe == "bert/imdb" else {"data": str(text)}
    (tmp_path / "two.txt").write_text("One.\n\nTwo.\n\nThree.")
    files = {"{parquet}": str(tmp_path / "a.parquet"), "{two}": str(tmp_path / "two.txt")}
    given = {key: files.get(value, value) for key, value in settings.items()}
    with pytest.raises(ValueError, match=message) as raised:
        train(recipe, {**own, "vocabulary": 120, **given}, out=tmp_path / "out")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("recipe", ["bert/pretraining", "bert/imdb"])
def test_a_dry_run_writes_nothing(recipe: str, tmp_path: Path) -> None:
    planned = train(recipe, {"vocabulary": 2000, "model": {"width": 32, "layers": 1}}, out=tmp_path / "out",
                    dry_run=True)  # fmt: skip
    assert planned["parameters"] > 2000 * 32
    assert planned["estimate"]["hours"] > 0
    assert not list(tmp_path.iterdir())
    assert planned_model(RECIPES[recipe]).head_name == ("pretraining" if recipe != "bert/imdb" else "masked_lm")
