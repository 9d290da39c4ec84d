"""The recipe `language-modeling/capacity`: sizes of the three kinds of models, equal batches, resumed rows."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads.analysis import costs
from manyheads.files import read_json
from manyheads.runs.options import Run
from manyheads.runs.overrides import apply, from_mapping
from manyheads.tasks import train as training
from papers.capacity.models import ConvolutionalLanguageModel, ConvolutionConfig, LSTMConfig, LSTMLanguageModel
from papers.capacity.recipes import RECIPES, ROWS, SIZES, WIDTHS, CapacityConfig
from papers.capacity.run import _row_config, _task

train = partial(training.train, "language-modeling/capacity", recipes=RECIPES)
TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(400))
ROWS_0 = [f"{architecture}-0.1" for architecture in WIDTHS]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "input.txt").write_text(TEXT)
    return tmp_path / "input.txt"


def settings(text: Path, **more: Any) -> dict[str, Any]:
    small = {"data": str(text), "rows": ROWS_0, "block": 16, "blocks": 4, "threads": 1}
    return {**small, "training.steps": 6, "training.validate_every": 3, "training.checkpoint_every": 2, **more}


def counted() -> dict[str, int]:
    """Return the number of parameters of each row without embeddings."""
    base, run = _row_config(CapacityConfig()), Run("capacity", Path())
    models = {name: _task(apply(base, from_mapping(row)), run).planned_model() for name, row in ROWS.items()}
    return {name: costs.active_parameters(model) for name, model in models.items()}


def test_models_of_one_size_differ_by_at_most_five_percent() -> None:
    by_row = counted()
    for size in SIZES:
        counts = [by_row[f"{architecture}-{size}"] for architecture in WIDTHS]
        assert max(counts) <= 1.05 * min(counts), size
        assert all(abs(count / 1e6 / float(size) - 1) < 0.15 for count in counts), size


@pytest.mark.parametrize(
    "model",
    [
        LSTMLanguageModel(LSTMConfig(vocab=11, width=8)),
        ConvolutionalLanguageModel(ConvolutionConfig(vocab=11, width=8)),
    ],
)
def test_no_position_reads_a_later_one(model: Any) -> None:
    model = model.double().eval()
    tokens = torch.randint(11, (2, 20))
    changed = tokens.clone()
    changed[:, 12:] = (changed[:, 12:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert (before[:, 12:] != after[:, 12:]).any(-1).all()
    model(tokens).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_convolutions_equal_those_of_pytorch_and_read_127_characters() -> None:
    model = ConvolutionalLanguageModel(ConvolutionConfig(vocab=11, width=6)).double()
    x = torch.randn(2, 40, 6, dtype=torch.float64)
    layer: Any = model.layers[2]
    weight = layer.convolution.weight.view(12, 3, 6).transpose(1, 2)  # (outputs, inputs, positions)
    normed = torch.nn.functional.pad(layer.norm(x).transpose(1, 2), (8, 0))
    convolved = torch.nn.functional.conv1d(normed, weight, layer.convolution.bias, dilation=4)
    torch.testing.assert_close(layer(x), x + torch.nn.functional.glu(convolved, 1).transpose(1, 2))

    embedded = torch.randn(1, 200, 6, dtype=torch.float64, requires_grad=True)
    model.layers(embedded)[0, -1].square().sum().backward()
    assert embedded.grad is not None
    read = embedded.grad.abs().sum(-1)[0] > 0
    assert read.nonzero().flatten().tolist() == list(range(200 - 127, 200))


def test_the_transformer_starts_from_glorots_weights() -> None:
    task = _task(apply(_row_config(CapacityConfig()), from_mapping(ROWS["transformer-2"])), Run("capacity", Path()))
    model: Any = task.new_model(5000, None)
    assert model.embedding.weight.std().item() == pytest.approx(208**-0.5, rel=0.02)
    assert model.positions.table.std().item() == pytest.approx(208**-0.5, rel=0.02)
    block = model.decoder.blocks[0]
    glorot = (2 / (208 + 208)) ** 0.5
    assert block.attention.query.weight.std().item() == pytest.approx(glorot, rel=0.02)
    assert block.attention.output.weight.std().item() == pytest.approx(glorot / 8**0.5, rel=0.02)  # 8 sublayers
    assert block.feed_forward.contract.weight.std().item() == pytest.approx((2 / (5 * 208)) ** 0.5 / 8**0.5, rel=0.02)


def test_a_resumed_row_equals_one_that_was_not_stopped(text: Path, tmp_path: Path) -> None:
    table = train(settings(text), out=tmp_path / "whole")
    stop = [lambda entry: entry["step"] != 4]
    train(settings(text, **{"training.log_every": 1}), out=tmp_path / "parts", callbacks=stop)
    assert not (tmp_path / "parts" / "table.txt").exists()
    assert train(settings(text, **{"training.log_every": 1}), out=tmp_path / "parts", resume=True)
    lines = str(table).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ROWS_0
    tokens = set()
    for name in ROWS_0:
        whole, parts = (
            read_json(tmp_path / run / name.replace(".", "-") / "result.json", "") for run in ("whole", "parts")
        )
        assert whole["metrics"] == parts["metrics"]
        assert whole["curve"] == parts["curve"]
        assert [entry["step"] for entry in whole["curve"]] == [3, 6]
        assert whole["curve"][-1]["loss"] == pytest.approx(whole["metrics"]["loss"]["value"])
        assert 0 < whole["non_embedding"] < whole["parameters"]
        assert whole["flops"] > 5.9 * whole["non_embedding"] * whole["target_tokens"]
        assert whole["overrides"]["rows"] == name
        assert not {"row", "model.width", "training.learning_rate"} & {*whole["overrides"]}
        tokens.add((whole["target_tokens"], whole["steps"], str(whole["data"]["fingerprints"])))
    assert len(tokens) == 1


def test_only_the_transformer_is_saved_as_a_model(text: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    train(settings(text), out=tmp_path / "run")
    assert log.text.count("no model directory can represent this model") == 2
    assert manyheads.load(tmp_path / "run" / "transformer-0-1").model.config.width == 48
    with pytest.raises(ValueError, match=r"no config\.json: this is not a model directory"):
        manyheads.load(tmp_path / "run" / "lstm-0-1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": ["rnn-1"]}, r"rows: no model rnn-1: expected some of lstm-0\.1"),
        ({"training.minutes": 1}, "training.minutes: all models read the same text: set training.steps"),
        ({"training.keep_steps": 1}, "training.keep_steps: only the Transformer can be saved"),
        ({"scored": "test"}, "scored: the validation split is scored"),
        ({"block": 2000}, "block is 2000: expected an integer from 2 to 1024"),
    ],
)
def test_a_wrong_setting_is_reported(text: Path, tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train(settings(text, **wrong), out=tmp_path / "a")


def test_a_dry_run_lists_the_sizes(text: Path, tmp_path: Path) -> None:
    plan: Any = train(settings(text), out=tmp_path / "a", dry_run=True)
    assert list(plan["rows"]) == ROWS_0
    assert plan["rows"]["lstm-0.1"]["non_embedding"] == 114_240  # two layers of 8 * 84 * 84 weights and 8 * 84 biases
