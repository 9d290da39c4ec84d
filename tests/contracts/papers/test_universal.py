"""Digit recipes: training, tests on longer inputs, records, and each model from the command line."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.data.sources.recorded import recorded_data
from manyheads.inference import CompiledModel
from manyheads.models.universal import Universal
from manyheads.runs.run import planned_model
from manyheads.tasks import train as training
from manyheads.tasks.comparison import compare
from papers.command import run as run_command
from papers.universal import length_curve
from papers.universal.__main__ import main
from papers.universal.digit_strings import algorithmic_pairs, digit_tokenizer
from papers.universal.pondering import pondering
from papers.universal.predictor import load
from papers.universal.recipes import RECIPES, DigitsConfig
from papers.universal.run import _model, _objective
from papers.universal.source import DigitSource, by_length
from papers.universal.task import measure

TINY: dict[str, Any] = {
    "longest": 4, "size": 400, "lengths": [2, 4, 6], "tested": 10, "batch_tokens": 128, "threads": 1,
    "training.warmup": 10, "training.learning_rate": 1e-2, "training.log_every": 10, "training.checkpoint_every": 100,
    "training.validate_every": 100,
}  # fmt: skip
train = partial(training.train, recipes=RECIPES)
SMALL = {"network.width": 32, "network.heads": 2, "network.steps": 3, "network.feed_forward": 32}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "copy"
    train("universal/copy", {**TINY, **SMALL, "network.halting": "basic", "training.steps": 180}, out=out)
    return out


def test_short_strings_are_copied_and_longer_ones_scored(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    metrics = {name: metric["value"] for name, metric in result["metrics"].items()}
    curve = result["curve"]
    assert curve["exact_match"]["2"] > 0.8
    for length in ("2", "4", "6"):
        assert 0 <= curve["exact_match"][length] <= curve["accuracy"][length] <= 1
        for stack in ("encoder", "decoder"):
            assert 1 <= curve[f"{stack}_steps"][length] <= 3
    assert 1 <= metrics["encoder_steps"] <= 3
    assert metrics["accuracy_4"] == curve["accuracy"]["4"]
    # evaluated: the trained length and the longest length, but not twice the trained length
    assert "accuracy_2" not in metrics
    assert "exact_match_6" in metrics
    assert result["data"]["longest"] == 4
    assert result["examples"]["6"]["right"] == result["examples"]["6"]["input"]
    assert result["flops"] > 0
    assert (run / "lengths.png").read_bytes().startswith(b"\x89PNG")
    lines = (run / "steps.txt").read_text().splitlines()
    assert lines[0].split()[0] == "encoder"
    assert len(lines[0]) == len(lines[1])  # step counts are aligned below their tokens
    assert set("".join(lines[1].split()[1:])) <= set("123")
    assert len(lines) == 3 * 4 + 2  # tokens and steps of two stacks; a blank line between examples


def test_the_run_is_a_digit_translator(run: Path) -> None:
    translator = manyheads.load(run)
    assert translator.translate(["12", "90"], beam=1) == ["12", "90"]
    model: Universal = translator.model
    _, thoughts = model.forward_with_halting(torch.tensor([[3, 4, 0]]), None, torch.tensor([[13, 3, 4]]))
    found = pondering(translator, "12", "12")
    assert [token for token, _ in found.stacks["decoder"]] == ["<pad>", "1", "2"]
    for stack, positions in found.stacks.items():
        assert [steps for _, steps in positions] == thoughts[stack].steps[0].tolist()
    translator.model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match="expected a Universal Transformer"):
        pondering(translator, "12")


def test_steps_use_the_precision_of_translation(run: Path) -> None:
    translator = manyheads.load(run, precision="bf16")
    seen = []
    hook = translator.model.encoder.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    pondering(translator, "12", "12")
    hook.remove()
    assert seen == [True]


def test_a_digit_run_is_scored_on_its_test_digits(run: Path, tmp_path: Path) -> None:
    record = json.loads((run / "result.json").read_text())
    predictor = load(run)
    outcome = predictor.outcome()
    assert set(outcome.metrics) == {f"{name}_{n}" for name in ("accuracy", "exact_match") for n in (2, 4, 6)}
    for name in ("accuracy", "exact_match"):
        assert {n: outcome.metrics[f"{name}_{n}"]["value"] for n in "246"} == record["curve"][name]
    assert all(record["metrics"][name] == metric for name, metric in outcome.metrics.items() if name[-2:] != "_2")
    assert outcome.inputs == outcome.references
    assert [len(text) for text in outcome.inputs] == [2] * 10 + [4] * 10 + [6] * 10
    assert [quality == 1 for quality in outcome.quality[:10]] == [
        output[:2] == given for output, given in zip(outcome.outputs[:10], outcome.inputs[:10], strict=True)
    ]
    same = compare(predictor, predictor)
    assert same["items"] == 30
    assert same["bootstrap"]["accuracy"]["difference"] == 0
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    for change, message in (
        ({"seed": record["seed"] + 1}, "the test data changed since the run"),
        ({"seed": None}, r"result\.json is damaged and does not describe the run's data"),
        ({"lengths": [-1]}, r"result\.json is damaged and does not describe the run's data"),
    ):
        (copied / "result.json").write_text(json.dumps({**record, "data": {**record["data"], **change}}))
        with pytest.raises(ValueError, match=message):
            load(copied).outcome()


def test_the_command_prints_the_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(main, ["evaluate", str(run)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        f"{name}_{n}" for n in (2, 4, 6) for name in ("accuracy", "exact_match")
    ]
    with pytest.raises(ValueError, match="found no languages in result.json"):
        manyheads.load(run).outcome()


def test_digit_tests_are_ordered_by_length() -> None:
    groups = by_length(DigitSource(lengths=(3, 4), tested=5, size=10).tests())
    assert {length: len(pairs) for length, pairs in groups.items()} == {3: 5, 4: 5}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"size": 10_000_000, "longest": 10_000_000}, "found up to 100,"),
        ({"tested": 10_000_000, "lengths": [1000, 1000]}, "found up to 20,"),
        ({"validated": "a"}, "validated is 'a': expected an integer from 1 to 10000000"),
        ({"algorithm": "none"}, "algorithm is 'none': expected one of"),
        ({"lengths": [10**9]}, "lengths is .* expected a list with each item an integer from 1"),
    ],
)
def test_a_record_of_impossible_strings_is_damaged(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=rf"result\.json is damaged .*{fault}"):
        recorded_data({"data": {"kind": "digits", **settings}}, DigitSource)


def test_scores_are_counted_correctly(run: Path) -> None:
    pairs = algorithmic_pairs("copy", 7, 6, shortest=6, seed=5, split="test")
    model, tokenizer = directory.load(run).model, digit_tokenizer()
    found, outputs = measure(CompiledModel(model, prepare(threads=1)), tokenizer, pairs)
    right = sum(output[i : i + 1] == c for output, t in zip(outputs, pairs.targets, strict=True)
                for i, c in enumerate(t))  # fmt: skip
    assert found["accuracy"] == pytest.approx(right / 42)
    hits = 0
    for source, target in zip(pairs.sources, pairs.targets, strict=True):  # one by one, given what comes before
        ids, wanted = tokenizer.encode(source).ids, tokenizer.encode(target).ids
        with torch.no_grad():
            logits = model(torch.tensor([ids]), None, torch.tensor([[13, *wanted[:-1]]]))
        logits[..., 13] = -torch.inf  # padding
        hits += int((logits[0].argmax(-1) == torch.tensor(wanted)).sum())
    assert found["forced_accuracy"] == pytest.approx(hits / 49)


@pytest.mark.parametrize("model", ["transformer", "lstm"])
@pytest.mark.parametrize("recipe", ["universal/reverse", "universal/addition"])
def test_baselines_are_compared(tmp_path: Path, recipe: str, model: str) -> None:
    settings = {**TINY, "lengths": [4, 6], "model": model, "network.width": 32, "training.steps": 3}
    result = train(recipe, settings, out=tmp_path)
    assert set(result["metrics"]) == {
        "loss",
        "perplexity",
        "accuracy_4",
        "accuracy_6",
        "exact_match_4",
        "exact_match_6",
    }
    assert set(result["curve"]) == {"accuracy", "exact_match", "forced_accuracy"}
    assert not (tmp_path / "steps.txt").exists()


def test_random_offsets_are_reproducible(tmp_path: Path) -> None:
    from manyheads.data.readers.splits import SplitData
    from manyheads.runs.options import Run

    config = DigitsConfig(longest=4, size=200, lengths=(4, 30), batch_tokens=160)
    pairs = algorithmic_pairs("copy", 200, 4, seed=1, split="train")
    splits = SplitData(pairs, pairs, None)
    found = []
    for _ in range(2):
        task = _objective(config, Run("universal/copy", tmp_path), _model(config), splits, prepare(threads=1))
        offsets = [batch.offset for batch in task.batches(3)]
        assert all(each is not None for each in offsets)
        found.append(torch.cat([each for each in offsets if each is not None]))
        assert task.model.config.max_positions == 42
    assert torch.equal(*found)
    assert found[0].min() == 0
    assert 30 < found[0].max() <= 42 - 2
    plain = DigitsConfig(longest=4, size=200, lengths=(4, 30), batch_tokens=160, offsets=False)
    assert _objective(plain, Run("x", tmp_path), _model(plain), splits, prepare(threads=1)).batches(0)[0].offset is None


def test_the_curve_of_a_run_is_drawn(run: Path, tmp_path: Path) -> None:
    ((name, record),) = length_curve.read_records([run])
    assert name.startswith("universal")
    assert length_curve.curve(record, "exact_match")[0] == [2, 4, 6]
    assert run_command(main, ["curve", str(run), "--out", str(tmp_path / "curve.svg")]) == 0
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_impossible_runs_are_reported(tmp_path: Path) -> None:
    for settings, message in (
        ({"lengths": [40, 20]}, "expected increasing lengths"),
        ({"lengths": "[nan]"}, "lengths: expected a list .* but item 1 is 'nan'"),
        ({"lengths": [2, 40]}, "addition needs 3 or more"),
        ({"longest": 0}, "longest is 0: expected an integer from 1"),
        ({"model": "gru"}, "gru"),
        ({"network.steps": 0}, "steps is 0: expected an integer from 1"),
        ({"network.depth": 3}, "unknown settings depth"),
        ({"network.pad": 3}, "cannot set pad: the data and the task determine"),
    ):
        with pytest.raises(ValueError, match=message):
            train("universal/addition", {**TINY, "lengths": [4], **settings}, out=tmp_path / "x")
    with pytest.raises(ValueError, match="max_positions is 12: expected .* or more"):
        train("universal/copy", {**TINY, "network.max_positions": 12, "lengths": [4, 40]}, out=tmp_path / "z")
    with pytest.raises(ValueError, match=r"training\.width: always the width of the model"):
        train("universal/copy", {**TINY, "training.width": 99}, out=tmp_path / "z")
    with pytest.raises(ValueError, match="cannot start from another model"):
        train("universal/copy", TINY, out=tmp_path / "y", init=str(tmp_path))


@pytest.mark.parametrize("recipe", ["universal/copy", "universal/reverse", "universal/addition"])
def test_plans_are_printed(recipe: str, tmp_path: Path) -> None:
    planned = train(recipe, {"size": 300}, out=tmp_path, dry_run=True)
    assert planned["parameters"] > 50_000
    assert planned_model(RECIPES[recipe]) is not None
    assert not any(tmp_path.iterdir())
