"""Parity of DETR with transformers: values with and without padding, names of timm, and saved directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as untyped_transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from manyheads import directory
from manyheads.errors import UserError
from manyheads.models.detr import Detr, DetrConfig, grid_positions
from manyheads.models.presets import preset
from tests.support.timm_stub import load_timm

transformers: Any = untyped_transformers  # whose configurations take more arguments than their types say

SIZES: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "num_queries": 5, "num_labels": 3,
}  # fmt: skip
OURS: dict[str, Any] = {
    "labels": ("cat", "dog", "owl"), "depths": (1, 1), "widths": (16, 32), "stem_width": 8, "width": 32, "queries": 5,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_heads": 2, "decoder_heads": 4, "encoder_feed_forward": 48,
    "decoder_feed_forward": 40,
}  # fmt: skip


def theirs(**backbone: Any) -> Any:
    settings = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], **backbone}
    resnet = transformers.ResNetConfig(out_features=["stage2"], **settings)
    torch.manual_seed(0)
    model = transformers.DetrForObjectDetection(transformers.DetrConfig(backbone_config=resnet, **SIZES)).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(torch.rand_like(tensor) * 0.1)
    return model


def images() -> Tensor:
    return torch.randn(2, 3, 70, 100, generator=torch.Generator().manual_seed(1))


def assert_equal(found: Any, expected: Any) -> None:
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    assert torch.allclose(found.boxes, expected.pred_boxes, atol=1e-5)


@pytest.mark.parametrize("backbone", [{}, {"layer_type": "basic"}, {"downsample_in_bottleneck": True}])
def test_detr_computes_as_transformers(backbone: dict[str, Any], tmp_path: Path) -> None:
    other = theirs(**backbone)
    other.save_pretrained(tmp_path / "theirs")
    loaded = directory.load(tmp_path / "theirs")
    assert loaded.family == "detr"
    assert_equal(loaded.model(images()), other(images()))
    sizes = torch.tensor([[70, 60], [41, 100]])
    padded = torch.zeros(2, 70, 100, dtype=torch.long)
    for row, (height, width) in enumerate(sizes.tolist()):
        padded[row, :height, :width] = 1
    assert_equal(loaded.model(images(), sizes), other(images(), pixel_mask=padded))
    loaded.save(tmp_path / "ours")
    again = transformers.DetrForObjectDetection.from_pretrained(tmp_path / "ours").eval()
    assert torch.equal(again(images()).logits, other(images()).logits)


def test_the_published_models_have_a_backbone_of_timm(tmp_path: Path) -> None:
    resnet = load_timm().create_model("resnet18").eval()
    wide: dict[str, Any] = {"layer_type": "basic", "hidden_sizes": [16, 512]}
    theirs(**wide).save_pretrained(tmp_path)
    weights = {name: w for name, w in load_file(tmp_path / "model.safetensors").items() if "conv_encoder" not in name}
    prefix = "model.backbone.conv_encoder.model."
    for name, tensor in resnet.state_dict().items():
        if not name.startswith("fc.") and ("downsample" in name or "num_batches" not in name):  # as in published files
            weights[prefix + name] = tensor
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    settings = json.loads((tmp_path / "config.json").read_text())
    del settings["backbone_config"]
    settings |= {"backbone": "resnet18", "use_timm_backbone": True}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    x, expected = images(), resnet.forward_features(images())
    net = directory.load(tmp_path).model.backbone
    x = net.stem(x)
    for stage in net.stages:
        x = stage(x)
    assert torch.allclose(x, expected, atol=1e-5)


def test_trained_norms_stay_trained_in_a_directory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Detr(DetrConfig(**OURS)).train()
    model(images())  # moves the running statistics
    model.eval()
    assert directory.save(tmp_path, model) == "detr"
    again = directory.load(tmp_path).model
    assert again.config == model.config
    assert torch.equal(again(images()).boxes, model(images()).boxes)
    other = transformers.DetrForObjectDetection.from_pretrained(tmp_path).eval()
    assert_equal(model(images()), other(images()))


@pytest.mark.parametrize(
    "settings", [{"attends": (2,), "heads": 2}, {"stem": "3x3"}, {"groups": 3}, {"anchors": True}, {"dense": True}]
)
def test_what_transformers_lacks_is_saved_in_our_format(settings: dict[str, Any], tmp_path: Path) -> None:
    model = Detr(DetrConfig(**OURS, **settings)).eval()
    assert directory.save(tmp_path, model) == "manyheads-detr"
    assert torch.equal(directory.load(tmp_path).model(images()).logits, model(images()).logits)


def test_published_counts() -> None:
    with torch.device("meta"):
        counts = [
            sum(p.numel() for p in Detr(preset("detr/r50", frozen_norms=True, **labels)).parameters())
            for labels in ({}, {"labels": ("cat", "dog")})
        ]
    assert counts == [41_524_768, 41_501_895]


@pytest.mark.parametrize("settings", [{}, {"stem": "3x3", "halve_first": True}, {"depths": (1,), "widths": (16,)}])
def test_the_stride_gives_the_number_of_cells(settings: dict[str, Any]) -> None:
    model = Detr(DetrConfig(**{**OURS, **settings})).eval()
    rows, columns = model.cells(images()).shape[2:]
    assert (rows, columns) == tuple(-(-side // model.config.stride) for side in (70, 100))


def test_groups_of_queries_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = Detr(DetrConfig(**OURS, groups=3, dropout=0.0)).eval()
    alone = model.decode(images()).states
    for norm in model.modules():
        norm.training = norm is model  # all groups, with the norms of evaluation
    grouped = model.decode(images()).states
    assert grouped.shape == (2, 2, 15, 32)
    assert torch.allclose(grouped[:, :, :5], alone, atol=1e-6)


def test_positions_are_those_of_transformers() -> None:
    from transformers.models.detr.modeling_detr import DetrSinePositionEmbedding

    valid = torch.zeros(2, 4, 6, dtype=torch.bool)
    valid[0, :3, :5] = valid[1] = True
    expected = DetrSinePositionEmbedding(8, normalize=True)(
        shape=torch.Size((2, 1, 4, 6)), device="cpu", dtype=torch.float32, mask=valid
    )
    assert torch.allclose(grid_positions(valid, 16), expected.flatten(2).transpose(1, 2), atol=1e-6)


def test_another_backbone_is_refused_by_name(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["backbone_config"]["model_type"] = "swin"
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="the backbone is 'swin'; expected a ResNet"):
        directory.load(tmp_path)
