"""ResNets: published counts. Parity with other libraries is in tests/contracts/interop/test_resnet.py."""

from typing import Any

import pytest
import torch
from torch import nn

from manyheads.models.presets import PRESETS, preset
from manyheads.models.resnet import FEW_CHANNELS, Convolution, ResNet, ResNetConfig
from manyheads.models.squeeze_excitation import SqueezeExcitation

DIGITS = tuple("0123456789")
TINY = {"depths": (1, 2), "widths": (12, 20), "stem_width": 8, "labels": ("a", "b", "c")}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("18", None, 11_689_512),
        ("34", None, 21_797_672),
        ("50", None, 25_557_032),
        ("101", None, 44_549_160),
        ("152", None, 60_192_808),
        ("18-se", None, 11_779_624),
        ("34-se", None, 21_960_416),
        ("50-se", None, 25_557_032 + 2_530_992),
        ("101-se", None, 49_326_872),
        ("18-small", DIGITS, 11_173_962),
        ("20-small", DIGITS, 272_474),  # the paper's 0.27M, with projections
    ],
)
def test_preset_counts_match_publications(name: str, labels: tuple[str, ...] | None, expected: int) -> None:
    with torch.device("meta"):
        assert count(ResNet(preset(name, "resnet", **({} if labels is None else {"labels": labels})))) == expected


def test_basic_blocks_refuse_the_bottleneck_stride() -> None:
    with pytest.raises(ValueError, match="stride_in_1x1 has no effect in a basic block"):
        preset("resnet/18", stride_in_1x1=True)
    assert preset("resnet/50", stride_in_1x1=True).stride_in_1x1


def test_every_stage_but_the_first_halves_the_resolution() -> None:
    assert {f"resnet/{name}" for name in ("18", "34", "50", "101", "152", "18-small", "50-se")} <= set(PRESETS)
    for stem, size in (("7x7", 8), ("3x3", 32)):
        model = ResNet(ResNetConfig(stem=stem, **TINY))  # type: ignore[arg-type]
        x = model.stem(torch.randn(2, 3, 32, 30))
        assert x.shape == (2, 8, size, 8 if stem == "7x7" else 30)
        x = model.stages[0](x)
        assert x.shape[1:3] == (12, size)
        assert model.stages[1](x).shape[1:3] == (20, size // 2)
    headless = ResNet(ResNetConfig(**{**TINY, "labels": ()}))  # type: ignore[arg-type]
    assert headless(torch.randn(2, 3, 33, 31)).shape == (2, 20)


def test_squeeze_and_excitation_is_two_layers_on_channel_means() -> None:
    block = SqueezeExcitation(32, 4)
    x = torch.randn(3, 32, 5, 7)
    hidden = torch.relu(torch.einsum("oc,bcyx->bo", block.squeeze.weight, x) / 35 + block.squeeze.bias)
    factors = 1 / (1 + torch.exp(-(hidden @ block.excite.weight.T + block.excite.bias)))
    assert hidden.shape == (3, 8)
    assert torch.allclose(block(x), torch.einsum("bcyx,bc->bcyx", x, factors), atol=1e-6)
    with torch.device("meta"):
        assert count(SqueezeExcitation(2048)) == 2 * 2048 * 128 + 2048 + 128


def test_a_new_branch_is_zero_and_all_parameters_train() -> None:
    torch.manual_seed(1)
    model = ResNet(ResNetConfig(squeeze=2, **TINY))  # type: ignore[arg-type]
    inner: Any = model.get_submodule("stages.1.blocks.1")
    x = torch.rand(2, 20, 5, 5)
    assert torch.equal(inner(x), x)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
    model(torch.randn(4, 3, 40, 36)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_sizes_without_a_valid_network_are_reported() -> None:
    with pytest.raises(ValueError, match="expected one of each per stage"):
        ResNetConfig(depths=(1, 2), widths=(8,))
    with pytest.raises(ValueError, match="multiples of 4"):
        ResNetConfig(depths=(1,), widths=(6,))
    with pytest.raises(ValueError, match="unknown preset 'resnet/19': did you mean resnet/18"):
        preset("resnet/19")


@pytest.mark.parametrize("channels", [3, 8, 15, 16])
def test_few_channel_convolutions_are_contiguous_in_training_only(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Convolution(channels, 16, 1, 2, bias=False)
    seen: list[bool] = []
    inner = layer._conv_forward

    def watched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(x.is_contiguous())
        return inner(x, *rest)

    monkeypatch.setattr(layer, "_conv_forward", watched)
    images = torch.randn(2, channels, 8, 8).contiguous(memory_format=torch.channels_last)
    trained = layer(images)
    with torch.no_grad():
        used = layer(images)
    assert seen == [channels < FEW_CHANNELS, False]
    assert trained.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(trained, used)
