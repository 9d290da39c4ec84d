"""Training of a part of a model: LoRA, frozen parameters, linear probing and layer-wise learning rates."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import manyheads
from manyheads import directory
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.errors import UserError
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.vit import ViT, ViTConfig
from manyheads.tasks.train import train
from manyheads.training.config import TrainingConfig
from manyheads.training.optimizers import optimizer_for
from manyheads.training.parallel import _synchronize_norms
from manyheads.training.tuning import layer_rates, select_trained
from tests.support.pictures import many

TEXTS = [{"text": f"the plot was {('awful', 'great')[i % 2]} in part {i % 9}", "label": "ab"[i % 2]} for i in range(40)]
SETTINGS: dict[str, Any] = {
    "threads": 1, "training.learning_rate": 0.02, "training.epochs": 1, "training.warmup": 0, "batch_items": 10,
}  # fmt: skip
FLAT: dict[str, Any] = {"steps": 1, "schedule": "constant"}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bert"
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"vocab": 60, "width": 16, "layers": 2, "heads": 2, "feed_forward": 32, "max_positions": 40}
    model = Bert(BertConfig(**sizes, dropout=0.1))
    directory.save(path, model, train_wordpiece([row["text"] for row in TEXTS], 60))
    return path


def run(out: Path, init: Path, **options: Any) -> Any:
    settings = {**SETTINGS, **options.pop("settings", {})}
    return train("single-sentence", settings, train=TEXTS, validation=TEXTS[:10], out=out, init=str(init),
                 progress=False, **options)  # fmt: skip


def changed(before: Path, after: Path) -> set[str]:
    """Return the names of the tensors that differ, without the layer number and the new classifier."""
    old, new = (load_file(path / "model.safetensors") for path in (before, after))
    old = {name if name.startswith("bert.") else f"bert.{name}": tensor for name, tensor in old.items()}
    return {name.removeprefix("bert.") for name in old if not torch.equal(old[name], new[name])}


@pytest.mark.parametrize(
    ("settings", "expected", "count"),
    [
        ({"lora_rank": 2}, {f"encoder.layer.{i}.attention.self.{kind}.weight" for i in (0, 1)
                            for kind in ("query", "value")}, 2 * 2 * 2 * 2 * 16 + 16 * 17 + 2 * 17),
        ({"lora_rank": 1, "lora_layers": ["blocks.1.*.expand"], "lora_dropout": 0.5, "freeze": ["pooler"]},
         {"encoder.layer.1.intermediate.dense.weight"}, 16 + 32 + 2 * 17),
        ({"freeze": ["backbone"]}, set(), 16 * 17 + 2 * 17),
        ({"freeze": ["embedding", "positions", "segments", "embedding_norm", "encoder", "pooler.bias"]}, set(),
         16 * 16 + 2 * 17),
    ],
)  # fmt: skip
def test_only_the_selected_parameters_are_trained(
    settings: dict[str, Any], expected: set[str], count: int, bert: Path, tmp_path: Path
) -> None:
    result = run(tmp_path / "run", bert, settings=settings)
    pooler = {"pooler.dense.weight", "pooler.dense.bias"}
    frozen = {"pooler"} & {*settings.get("freeze", ())}
    trained = (
        set() if frozen else pooler if "pooler.bias" not in settings.get("freeze", ()) else {"pooler.dense.weight"}
    )
    assert changed(bert, tmp_path / "run") == expected | trained
    assert result["trained_parameters"] == count
    assert result["parameters"] == sum(t.numel() for t in load_file(tmp_path / "run" / "model.safetensors").values())
    assert (tmp_path / "run" / "adapter").exists() == ("lora_rank" in settings)
    state = load_file(max((tmp_path / "run" / "state").glob("checkpoint-*.safetensors")))
    moments = [tensor for name, tensor in state.items() if name.startswith("optimizer.") and name.endswith("exp_avg")]
    assert sum(tensor.numel() for tensor in moments) == count


def test_a_stopped_run_resumes_identically_and_can_be_used(bert: Path, tmp_path: Path) -> None:
    settings = {"lora_rank": 2, "lora_dropout": 0.3, "layer_decay": 0.7, "log_every": 1, "training.metric": "loss"}
    run(tmp_path / "whole", bert, settings=settings)
    run(tmp_path / "parts", bert, settings=settings, callbacks=[lambda entry: entry.get("step") != 3])
    weights = directory.load(tmp_path / "parts").model.state_dict()
    assert weights.keys() == Bert(directory.load(tmp_path / "whole").model.config).state_dict().keys()
    train(resume=tmp_path / "parts", train=TEXTS, validation=TEXTS[:10], progress=False)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ValueError, match="lora_rank: 2 -> 3"):
        train(resume=tmp_path / "parts", train=TEXTS, validation=TEXTS[:10], lora_rank=3)


def test_an_adapter_is_a_model_for_every_verb(bert: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", bert, settings={"lora_rank": 2})
    adapter = tmp_path / "run" / "adapter"
    texts = [row["text"] for row in TEXTS[:4]]
    whole, low_rank = (manyheads.load(path).classify(texts) for path in (tmp_path / "run", adapter))
    assert [row[0].probability for row in low_rank] == pytest.approx([row[0].probability for row in whole], abs=1e-5)
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == str(bert)
    assert run(tmp_path / "again", adapter, settings={"epochs": 1})["metrics"]


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("single-sentence", {"freeze": ["nope"]}, "training.freeze: nope matches no parameter; the parameters are emb"),
        ("single-sentence", {"freeze": ["*"]}, "training.freeze: nothing is left to train"),
        ("single-sentence", {"lora_rank": 0}, "lora_rank is 0: expected an integer from 1"),
        ("single-sentence", {"lora_rank": 2, "lora_layers": ["quary"]}, "'quary' matches no trained linear layer"),
        ("single-sentence", {"lora_rank": 2, "freeze": ["backbone"]}, "matches no trained linear layer"),
        ("single-sentence", {"lora_alpha": 2.0}, "no effect without lora_rank"),
        ("single-sentence", {"layer_decay": 0}, "layer_decay is 0: expected a number above 0"),
        ("single-sentence", {"lora_rank": 2, "tuned": "last"}, "'query' matches no trained linear layer"),
        ("text-classification", {"lora_rank": 2}, "LoRA needs a model that transformers can open; found manyheads-"),
        ("image-classification", {"layer_decay": 0.5, "preset": "resnet/20-small"}, "ResNet has 0"),
        ("translation", {"layer_decay": 0.5}, "expected a model with one stack of blocks; Transformer has 2"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_before_the_data_are_read(
    recipe: str, settings: dict[str, Any], message: str, bert: Path, tmp_path: Path
) -> None:
    init = str(bert) if recipe == "single-sentence" else None
    with pytest.raises(ValueError, match=message) as caught:
        train(recipe, {"threads": 1, **settings, "data": "no/such/data"}, out=tmp_path / "out", init=init)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("single-sentence", {"lora_rank": 2, "freeze": ["pooler"]}, r"training: pooler.weight, pooler.bias would keep"),
        (
            "single-sentence",
            {"freeze": ["backbone", "*.bias"]},
            r"pooler.bias, classifier.bias .* leave them out of training.freeze",
        ),
        (
            "bert/pretraining",
            {"lora_rank": 2, "length": 16},
            r"output_bias would keep .* New layers must be trained: .* or omit training.lora_rank",
        ),
        (
            "single-sentence",
            {"lora_rank": 2, "scratch": True},
            "found bert, with new weights. Start from a trained model: --init",
        ),
    ],
)
def test_new_layers_must_be_trained(
    recipe: str, settings: dict[str, Any], message: str, tmp_path: Path, headless: Path
) -> None:
    with pytest.raises(UserError, match=message):
        train(recipe, {"threads": 1, **settings, "data": "no/such/data"}, out=tmp_path / "out", init=str(headless))
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def headless(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a BERT without a pooler."""
    path, loaded = tmp_path_factory.mktemp("models") / "headless", directory.load(bert)
    directory.save(path, adapt(loaded.model, head="none")[0], loaded.tokenizer)
    return path


VIT: dict[str, Any] = {"image_size": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "feed_forward": 16}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.image_size": 16}, "this run changes image_size of .*, so the adapter would not fit the base model"),
        ({"model.channels": 1}, "changes channels"),
        ({"model.norm_eps": 0.1}, "changes norm_eps"),
        ({"mean": [0.1]}, "mean: an adapter has the preprocessing of its base model"),
        ({"model.dropout": 0.2, "model.stochastic_depth": 0.1, "freeze": ["head"]}, "no/such/data"),
    ],
)
def test_changes_that_an_adapter_cannot_represent_are_refused(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory.save(tmp_path / "vit", ViT(ViTConfig(**VIT, labels=("a", "b"))))
    with pytest.raises((UserError, FileNotFoundError), match=message):
        train("image-classification", {"lora_rank": 2, **settings, "data": "no/such/data"}, out=tmp_path / "out",
              init=str(tmp_path / "vit"))  # fmt: skip


def test_a_layer_that_is_new_because_of_the_data_must_be_trained(tmp_path: Path) -> None:
    directory.save(tmp_path / "vit", ViT(ViTConfig(**VIT, labels=("cat", "dog"))))
    many(tmp_path / "images", 40)
    with pytest.raises(UserError, match=r"training: head.weight, head.bias would keep initial values"):
        train("image-classification", {"freeze": ["head"], "data": str(tmp_path / "images"), "threads": 1},
              out=tmp_path / "out", init=str(tmp_path / "vit"), progress=False)  # fmt: skip


def test_layer_decay_multiplies_the_rate_of_each_layer() -> None:
    config = BertConfig(vocab=9, width=4, layers=2, heads=1, feed_forward=4, max_positions=5, head="masked_lm")
    model = Bert(config)
    rates = layer_rates(model, 0.5)
    expected = {"embedding.weight": 0.125, "positions.table": 0.125, "encoder.blocks.0.attention.key.bias": 0.25,
                "encoder.blocks.1.attention.key.bias": 0.5, "transform.weight": 1.0, "output_bias": 1.0}  # fmt: skip
    assert {name: rates[name] for name in expected} == expected
    groups = optimizer_for(model, TrainingConfig(**FLAT, layer_decay=0.5, optimizer="adamw")).param_groups
    by_parameter = {id(p): group["rate"] for group in groups for p in group["params"]}
    assert {name: by_parameter[id(p)] for name, p in model.named_parameters()} == rates
    rates = layer_rates(ViT(ViTConfig(image_size=8, patch=4, width=4, layers=1, heads=1, labels=("a", "b"))), 0.5)
    expected = {"class_token": 0.25, "patches.weight": 0.25, "encoder.norm.weight": 1.0, "head.weight": 1.0}
    assert {name: rates[name] for name in expected} == expected


class _OwnNorm(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, _OwnNorm])
@pytest.mark.parametrize("settings", [{"freeze": ("backbone",)}, {"freeze": ("[nq]*",)}, {"lora_rank": 1}])
@pytest.mark.parametrize("affine", [True, False])
def test_a_frozen_norm_of_any_dimension_stays_as_it_is(kind: Any, settings: dict[str, Any], affine: bool) -> None:
    model: Any = nn.Sequential()
    model.norm = kind(4, affine=affine)
    model.query, model.value = nn.Linear(4, 4), nn.Linear(4, 4)
    model.classifier = nn.Linear(4, 2)
    x = torch.rand(3, 4, *[2] * {nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}.get(kind, 0))
    expected = model.eval().norm(x)
    select_trained(model.train(), TrainingConfig(**FLAT, **settings))
    for _ in range(2):
        torch.testing.assert_close(model.norm(x), expected)
        model.train()
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(copy.deepcopy(model).norm(x), expected)


def test_several_ranks_refuse_a_norm_with_another_computation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "new_group", lambda: None)
    assert len(list(_synchronize_norms(nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm3d(4))))) == 2
    for norm in (_OwnNorm(4), nn.BatchNorm1d(4, affine=False)):
        with pytest.raises(UserError, match="expected a plain BatchNorm with weights and statistics"):
            _synchronize_norms(nn.Sequential(norm))


def test_the_statistics_of_frozen_batch_norms_do_not_change() -> None:
    torch.manual_seed(0)
    model = ResNet(ResNetConfig(labels=("a", "b"), depths=(1,), widths=(8,))).eval()
    images = torch.rand(2, 3, 32, 32)
    before = model(images)
    select_trained(model, TrainingConfig(**FLAT, freeze=("backbone",)))
    model.train()
    torch.testing.assert_close(model(images), before)
