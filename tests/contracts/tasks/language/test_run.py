"""Language-modeling recipes on texts small enough to memorize, from files to generated text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import manyheads
from manyheads import cli
from manyheads.data.embedded.standard_library import source_files
from manyheads.data.sources.recorded import recorded_data
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.language.recipes import TINY_SHAKESPEARE, TINY_SHAKESPEARE_GPU
from manyheads.tasks.registry import RECIPES
from manyheads.tasks.train import train
from manyheads.training import session

VERSE = "One for the master, one for the dame,\nand one for the little boy who lives down the lane.\n"
SMALL: dict[str, Any] = {
    "threads": 1,
    "block": 24,
    "rows": 8,
    "model.width": 32,
    "model.layers": 2,
    "model.heads": 2,
    "training.warmup": 10,
    "training.checkpoint_every": 20,
    "training.log_every": 20,
}


def sizes(result: dict[str, Any]) -> dict[str, int]:
    """Return the size in bytes of each recorded split."""
    recorded = recorded_data(result)
    assert recorded is not None
    return {name: texts.bytes for name, texts in recorded.source.read().known.items()}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "input.txt").write_text(VERSE * 20, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished character model that has memorized its text."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**SMALL, "data": str(corpus), "training.steps": 250, "training.learning_rate": 1e-2}
    train("language-modeling/tiny-shakespeare", settings, out=out)
    return out


def test_a_small_text_can_be_overfitted(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    metrics = {name: metric["value"] for name, metric in result["metrics"].items()}
    assert metrics["loss"] < 0.3
    assert metrics["perplexity"] == pytest.approx(2.718281828 ** metrics["loss"], rel=1e-6)
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / 0.6931471806, rel=1e-6), "a byte a character"
    assert "windows of 24, one every 24" in result["metrics"]["loss"]["signature"]
    assert sizes(result) == {"train": 1620, "validation": 180}
    for key in ("recipe", "overrides", "wall_seconds", "hardware", "flops", "parameters", "seed", "commit"):
        assert result[key] is not None, key
    continued = manyheads.load(run).generate("One for", max_tokens=40, temperature=0)
    assert continued == VERSE[:47], "twice the context"


def test_a_universal_transformer_overfits_a_text(corpus: Path, tmp_path: Path) -> None:
    learns_by_heart(corpus, tmp_path, "fixed")


def learns_by_heart(corpus: Path, tmp_path: Path, halting: str) -> None:
    """Train a model, and try all that a Universal Transformer promises."""
    sizes = {"width": 32, "heads": 2, "feed_forward": 64, "steps": 3, "norm": "pre", "dropout": 0.0, "halting": halting}
    settings = {name: SMALL[name] for name in SMALL if not name.startswith("model.")} | {"preset": "universal/tiny"}
    settings |= {f"model.{name}": value for name, value in sizes.items()}
    settings |= {"data": str(corpus), "training.steps": 250, "training.learning_rate": 1e-2}
    recipe, out = "language-modeling/tiny-shakespeare", tmp_path / "run"
    assert train(recipe, settings, out=out, dry_run=True)["parameters"] > 0
    result = train(recipe, settings, out=out)
    assert result["metrics"]["loss"]["value"] < 0.5
    model = manyheads.load(out)
    assert model.family == "manyheads-universal-sequence"
    assert evaluate(model)["loss"]["value"] == pytest.approx(result["metrics"]["loss"]["value"], abs=1e-6)
    prompts = ["One for", "and", "the little boy wh"]
    texts = model.generate(prompts, max_tokens=12, temperature=0)
    assert texts == [model.generate(prompt, max_tokens=12, temperature=0) for prompt in prompts]
    uncached = model.encode(["One for"])[0]
    for _ in range(12):  # within the context
        uncached.append(int(model.model(torch.tensor([uncached]))[0, -1].argmax()))
    assert model.tokenizer.decode(uncached) == texts[0]
    assert len(model.attend("One for the").axes["self"]) == 3
    with pytest.raises(
        ValueError,
        match="model.head is 'encoder': expected decoder, which hides later tokens",
    ):
        train(recipe, {**settings, "model.head": "encoder"}, out=out, dry_run=True)
    tuned = {"data": str(corpus), "threads": 1, "block": 24, "rows": 8, "training.steps": 1, "training.warmup": 0}
    again = train(recipe, {**tuned, "training.learning_rate": 1e-9}, out=tmp_path / "tuned", init=str(out))
    assert again["metrics"]["loss"]["value"] == pytest.approx(result["metrics"]["loss"]["value"], abs=1e-3)


def test_a_run_is_reevaluated_and_compared(run: Path, corpus: Path, tmp_path: Path) -> None:
    generator = manyheads.load(run)
    recorded = json.loads((run / "result.json").read_text())["metrics"]
    again = evaluate(generator)
    assert {name: m["value"] for name, m in again.items()} == pytest.approx(
        {name: recorded[name]["value"] for name in again}, rel=1e-5
    )
    found = compare(generator, generator)
    assert found["bootstrap"]["log2 probability a byte"]["difference"] == 0
    other = tmp_path / "other.txt"
    other.write_text(VERSE * 3)
    assert evaluate(generator, str(other))["loss"]["value"] < 0.5
    (tmp_path / "unknown.txt").write_text("Q")
    with pytest.raises(ValueError, match="test text 1 has 'Q' at character 1, which is not in the vocabulary"):
        evaluate(generator, str(tmp_path / "unknown.txt"))


def test_the_directory_opens_in_transformers(run: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(run)
    model: Any = AutoModelForCausalLM.from_pretrained(run)
    ids = tokenizer("One for the", return_tensors="pt")
    written = model.generate(**ids, max_new_tokens=10, do_sample=False)
    text = tokenizer.decode(written[0], skip_special_tokens=True)
    assert text == manyheads.load(run).generate("One for the", max_tokens=10, temperature=0) == VERSE[:21]


def test_a_stopped_and_resumed_run_is_identical(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SMALL, "data": str(corpus), "training.steps": 60, "model.dropout": 0.1}
    name, whole, stopped = "language-modeling/tiny-shakespeare", tmp_path / "whole", tmp_path / "stopped"
    train(name, settings, out=whole)
    clock = iter(range(10**6))
    monkeypatch.setattr(
        session, "time", SimpleNamespace(monotonic=lambda: next(clock))
    )  # a second passes at every look
    sessions = 1
    while not train(name, settings, out=stopped, resume=sessions > 1, max_minutes=0.5):
        sessions += 1
        assert sessions < 20
    assert sessions > 2
    assert (stopped / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_training_continues_from_another_model(run: Path, corpus: Path, tmp_path: Path) -> None:
    settings = {"data": str(corpus), "block": 24, "threads": 1, "training.steps": 1, "training.learning_rate": 1e-9}
    result = train("language-modeling", {**settings, "scored": "validation"}, out=tmp_path / "tuned", init=str(run))
    assert result["metrics"]["loss"]["value"] < 0.4
    assert (tmp_path / "tuned" / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    for wrong, message in (
        ({"model.width": 64}, "model.width: determined by the initial model"),
        ({"vocabulary": 300}, "vocabulary: determined by the initial model"),
        ({"block": 64}, "block is 64 tokens, but the model has only 24 positions"),
    ):
        with pytest.raises(ValueError, match=message):
            train("language-modeling", {**settings, **wrong}, out=tmp_path / "wrong", init=str(run))


def test_python_source_needs_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the built-in corpus, one step: byte-level BPE, scored on modules that were held out."""
    part = source_files()[0:150:10]
    monkeypatch.setattr("manyheads.data.embedded.standard_library.source_files", lambda: part)
    tiny = {**SMALL, "model.layers": 1, "vocabulary": 260, "share": 0.01, "block": 256, "training.steps": 1}
    result = train("language-modeling", tiny, out=tmp_path / "run")
    assert result["data"]["data"] is None
    assert set(result["data"]["items"]) == {"train", "validation", "test"}
    assert 6.5 < result["metrics"]["bits_per_byte"]["value"] < 8.5, "after one step the model predicts almost at random"
    assert evaluate(manyheads.load(tmp_path / "run"))["loss"]["value"] == pytest.approx(
        result["metrics"]["loss"]["value"], rel=1e-5
    )


def test_changed_test_data_are_detected(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text(VERSE * 4)
    train("language-modeling/tiny-shakespeare", {
        **SMALL, "data": str(tmp_path), "scored": "test", "training.steps": 1}, out=tmp_path / "run")  # fmt: skip
    generator = manyheads.load(tmp_path / "run")
    assert evaluate(generator, str(tmp_path))["loss"] == evaluate(generator)["loss"]
    (tmp_path / "test.txt").write_text(VERSE)
    with pytest.raises(ValueError, match="changed since the run"):
        evaluate(generator)


def test_published_recipes() -> None:
    cpu, gpu = (
        train(name, {}, out="nowhere", dry_run=True)
        for name in ("language-modeling/tiny-shakespeare", "language-modeling/tiny-shakespeare-gpu")
    )
    # nanoGPT's counts have 65 entries in the vocabulary; ours has two more, for what is unknown and between texts
    assert cpu["parameters"] == (65 + 64) * 128 + 4 * (12 * 128**2 + 2 * 128) + 128 + 2 * 128
    assert gpu["parameters"] == 10_745_088 + 2 * 384
    assert (TINY_SHAKESPEARE.training.steps, TINY_SHAKESPEARE_GPU.training.steps) == (2000, 5000)
    with pytest.raises(ValueError, match=r"requires the setting data: data=FILE, tiny-shakespeare's input\.txt"):
        train("language-modeling/tiny-shakespeare", {}, out="nowhere")
    for name in RECIPES:
        if name.startswith("language-modeling"):
            assert RECIPES[name].command(name).startswith(f"manyheads train {name}")


def test_tiny_shakespeare_is_split_and_counted_as_published(
    real_data: Callable[[str], Path], tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    settings = {**SMALL, "data": str(real_data("tiny_shakespeare")), "training.steps": 1, "model.layers": 1}
    result = train("language-modeling/tiny-shakespeare", {**settings, "block": 512, "rows": 1}, out=tmp_path / "run")
    told = log.text
    assert "1,003,855 training tokens, 111,541 validation tokens" in told  # nanoGPT's, and what a text begins with
    assert sizes(result) == {"train": 1_003_854, "validation": 111_540}
    assert manyheads.load(tmp_path / "run").tokenizer.get_vocab_size() == 65 + 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": 0}, "block is 0: expected an integer from 1"),
        ({"stride": 25}, "stride is 25: expected 1 to block, which is 24"),
        ({"block": 2000}, "the text has 1,621 tokens, but a block requires 2,001"),
        ({"share": 0.0}, "share is 0.0: expected a number above 0"),
        ({"model.heads": 5}, "model.heads is 5: expected an integer that divides width"),
        ({"preset": "gpt9"}, "unknown preset 'gpt9'"),
        ({"tokenizer": "words"}, "byte-bpe"),
        ({"data": "nowhere"}, "nowhere: no such file or directory"),
    ],
)
def test_wrong_settings_are_refused(corpus: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    given = {**SMALL, "data": str(corpus), "training.steps": 1, **settings}
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train("language-modeling/tiny-shakespeare", given, out=tmp_path / "run")


def test_the_command_tags_and_prints(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "40"]

    def answer(*arguments: str, status: int = 0) -> str:
        assert cli.main(["generate", str(run), *arguments]) == status
        shown = capsys.readouterr()
        return shown.err if status else shown.out

    whole = VERSE[:47]
    assert answer("One for", "One for the master", *greedy).startswith(f"{whole}\nOne for the master, one")
    assert answer("One for", *greedy, "--stream") == f"{whole}\n"
    assert answer("One for", *greedy, "--stop", ",\n", "--stop", "Q") == VERSE.split(",\n")[0] + "\n"
    (found,) = json.loads(answer("One for", *greedy, "--json"))
    assert found == {"prompt": "One for", "text": VERSE[7:47], "tokens": 40, "reason": "length"}
    sampled = answer("One", "One", "One", "--temperature", "3", "--seed", "7").split("\nOne")
    assert len(set(sampled)) == 3, "every text has its own RNG"
    assert answer("One", "--temperature", "3", "--seed", "8") == f"One{sampled[1]}\n"
    (tmp_path / "stdin").write_bytes(b"One for\n\nOne for the master\n")
    with (tmp_path / "stdin").open("rb") as file:
        monkeypatch.setattr(sys, "stdin", file)
        lines = answer(*greedy).split("\n")
    assert (len(lines), lines[0]) == (4, whole.replace("\n", " "))
    for arguments, message in (
        (["Q"], "text 1 has 'Q' at character 1"),
        (["One " * 10], "text 1 has 40 tokens, the model takes 24"),
        (["One", "--top-p", "2"], "top_p is 2.0: expected a number above 0 and at most 1"),
        (["One", "--stream", "--json"], "use one of the two"),
        (["One", "--temprature", "2"], "did you mean --temperature?"),
    ):
        told = answer(*arguments, status=2)
        assert message in told
        assert told.count("\n") == 1


def test_the_seed_of_a_line_is_its_index(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The result does not depend on the timing of lines on stdin."""
    (tmp_path / "stdin").write_bytes(b"One\nand\nOne\n")
    found = []
    for size in (1 << 16, 4):
        monkeypatch.setattr("manyheads.cli.lines.CHUNK", size)
        with (tmp_path / "stdin").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert cli.main(["generate", str(run), "--temperature", "2", "--seed", "5", "--max-tokens", "20"]) == 0
        found.append(capsys.readouterr().out.splitlines())
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
