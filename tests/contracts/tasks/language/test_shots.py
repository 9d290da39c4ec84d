"""In-context learning: prompts of examples, exact matches, and bad input, each in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import manyheads
from manyheads import cli, directory, train
from manyheads.data.text.tokenizers import END_OF_TEXT, train_character
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.tasks.language.predictor import LanguageModel
from manyheads.tasks.language.shots import read_prompts
from tests.support.services import translator

PAIRS = [(f"in{i}", f"out{i}") for i in range(6)]
POSITIONS = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt")
    tokenizer = train_character(["in out -> 0123456789\n"])
    sizes: dict[str, Any] = {"vocab": tokenizer.get_vocab_size(), "end": tokenizer.token_to_id(END_OF_TEXT)}
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", **sizes, width=16, layers=2, heads=2, max_positions=POSITIONS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    directory.save(folder, model, tokenizer)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    file.write_text("input\toutput\n" + "".join(f"{a}\t{b}\n" for a, b in PAIRS))
    return file


def language_model(path: Path) -> LanguageModel:
    model = manyheads.load(path)
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("shots", [0, 1, 5])
def test_a_prompt_has_other_pairs_and_the_input(shots: int, table: Path) -> None:
    tests, prompts = read_prompts(table, shots)
    assert read_prompts(PAIRS, shots)[1] == prompts
    for (source, _), prompt in zip(PAIRS, prompts, strict=True):
        *examples, last = prompt.split("\n")
        assert last == f"{source} ->"
        assert len({*examples}) == len(examples) == shots
        assert {*examples} <= {f"{a} -> {b}" for a, b in PAIRS if a != source}
    assert list(tests.targets) == [target for _, target in PAIRS]


def test_examples_come_from_the_training_table(tmp_path: Path, table: Path) -> None:
    table.rename(tmp_path / "test.tsv")
    (tmp_path / "train.tsv").write_text("input\toutput\n" + "".join(f"x{i}\ty{i}\n" for i in range(3)))
    _, prompts = read_prompts(tmp_path, 2)
    assert len(prompts) == 6
    assert all(line.startswith("x") for prompt in prompts for line in prompt.split("\n")[:-1])


def test_completions_are_those_of_transformers(path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs: Any = AutoModelForCausalLM.from_pretrained(path)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    result = language_model(path).outcome(table, shots=2)
    _, prompts = read_prompts(table, 2)
    for prompt, output in zip(prompts, result.outputs, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        whole = theirs.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
        assert tokenizer.decode(whole, skip_special_tokens=True).split("\n")[0].strip() == output
    assert result.metrics == {"exact_match": {"value": 0.0, "signature": "2 shots|6 pairs"}}
    assert len(result.errors()) == 6
    assert cli.main(["evaluate", str(path), "--data", str(table), "--shots", "2"]) == 0
    assert capsys.readouterr().out.split() == ["exact_match", "0.0000", "2", "shots|6", "pairs"]


def test_a_model_that_copies_a_rule_is_right(tmp_path: Path) -> None:
    """Every line of the training text is `a -> b`, so the output is `b` with and without examples."""
    lines = ("a -> b\\n" * count for count in range(4, 40))
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in lines))
    settings = {
        "data": str(tmp_path / "text.jsonl"), "tokenizer": "character", "block": 32, "rows": 8, "threads": 1,
        "preset": "gpt2/nano", "model": {"layers": 1, "width": 16, "heads": 2, "window": 4}, "training.steps": 60,
        "training.learning_rate": 1e-2, "training.warmup": 5,
    }  # fmt: skip
    train("language-modeling", settings, out=tmp_path / "run")
    rows = [("a", "b"), ("a ", "b"), ("a  ", "a")]
    model = language_model(tmp_path / "run")
    assert [model.evaluate(rows, shots=shots).metrics["exact_match"]["value"] for shots in (1, 2)] == [2 / 3] * 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shots", "-1", "--data", "{table}"], "--shots: expected a whole number from 0 to 10000, found '-1'"),
        (["--shots", "2"], "shots need pairs: give a table with the columns input and output (--data)"),
        (["--shots", "6", "--data", "{table}"], "shots is 6: expected less than the number of different inputs, 6"),
        (
            ["--shots", "5", "--data", "{table}"],
            "prompt 1 has 66 tokens with its examples, and outputs have up to 6; the model takes 64: reduce the shots",
        ),
    ],
)
def test_bad_input_is_reported_in_one_line(
    words: list[str], message: str, path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(table=table) for word in words]
    try:
        status = cli.main(["evaluate", str(path), *given])
    except SystemExit as stopped:  # argparse
        status = int(str(stopped.code))
    assert status == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_another_model_has_no_shots(tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", str(translator(tmp_path / "model")), "--data", str(table), "--shots", "1"]) == 2
    assert "--shots applies to language models" in capsys.readouterr().err
