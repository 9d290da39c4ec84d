"""An exported Hugging Face directory is loaded again, and its outputs are compared with the model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from manyheads import directory
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.vit import ViT, ViTConfig
from tests.support.reference import SHAPES, ours

SIZES: dict[str, Any] = {"vocab": 37, "width": 8, "layers": 1, "heads": 2, "max_positions": 9}
BERT: dict[str, Any] = {**SIZES, "feed_forward": 16}
PIXELS: dict[str, Any] = {"image_size": 8, "patch": 4, "width": 8, "layers": 1, "heads": 2, "feed_forward": 16}
LABELS = ("a", "b", "c")
MODELS: dict[str, Any] = {
    **{f"bert-{head}": Bert(BertConfig(**BERT, head=head, labels=LABELS if head in ("sequence", "token") else ()))
       for head in ("none", "pooler", "masked_lm", "pretraining", "next_sentence", "sequence", "token", "question",
                    "choice")},
    "roberta": Bert(BertConfig(**BERT, segment_types=1, position_offset=4, dropout_below_pooler=True, pad=3,
                               head="sequence", labels=LABELS)),
    "distilbert": Bert(BertConfig(**BERT, segment_types=None, pooler_activation="relu", head="none")),
    "gpt2": GPT(GPTConfig(**SIZES, end=0)),
    "gpt2-sequence": GPT(GPTConfig(**SIZES, end=0, head="sequence", labels=LABELS, pad=1)),
    "vit": ViT(ViTConfig(**PIXELS, labels=LABELS)),
    "vit-pooled": ViT(ViTConfig(**PIXELS, labels=(), representation=5)),
    "deit": ViT(ViTConfig(**PIXELS, labels=LABELS, distilled=True, fused="none")),
    "resnet": ResNet(ResNetConfig(labels=LABELS, depths=(1,), widths=(8,), image_size=16)),
    **{shape: ours(shape, encoder_heads=2) for shape in SHAPES},
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_an_exported_directory_that_differs_from_the_model_is_refused_and_removed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.save(tmp_path / "model", MODELS[kind])
    loaded = directory.load(tmp_path / "model")
    export(loaded, tmp_path / "out", "hf")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]
    write = directory.write_tensors

    def damaged(file: Any, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
        about = {name: value for name, value in about.items() if name == "format"}  # no checksum
        kept = ("num_batches_tracked", "embed_positions.weight")  # Loading refuses other values of these.
        noise = {name: 0.5 * torch.rand(t.shape) for name, t in tensors.items() if not name.endswith(kept)}
        write(file, {name: tensor + noise.get(name, 0) for name, tensor in tensors.items()}, about)

    monkeypatch.setattr(directory, "write_tensors", damaged)
    with pytest.raises(UserError, match=rf"{tmp_path}/model: \w*model: expected an error below .* written directory"):
        export(loaded, tmp_path / "bad", "hf")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "out"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_of_another_precision_in_training_mode_is_exported_without_side_effects(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    directory.save(tmp_path / "model", MODELS["bert-sequence"])
    loaded = directory.load(tmp_path / "model")
    loaded.model.to(dtype).train()
    before = torch.get_rng_state()
    export(loaded, tmp_path / "out", "hf")
    assert torch.equal(torch.get_rng_state(), before)
    assert loaded.model.training
    assert next(loaded.model.parameters()).dtype == dtype


def test_an_empty_current_directory_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.save(tmp_path / "model", MODELS["vit"])
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    export(tmp_path / "model", ".", "hf")
    assert {file.name for file in Path().iterdir()} >= {"config.json"}
    assert not list(Path().glob(".*"))
