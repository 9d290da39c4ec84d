"""SKNet and ResNeSt, compared with timm, and their weights, compared with loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.models.presets import preset
from manyheads.models.resnet import ResNet
from manyheads.models.selective_kernel import BranchAttention, SelectiveKernel, SKNet, SKNetConfig
from manyheads.models.split_attention import ResNeSt, ResNeStConfig, SplitAttention
from tests.support.timm_stub import load_timm

# Eight input channels of each stage of timm's nets are 32 outputs of a bottleneck, and 8 of a basic block.
WIDTHS: dict[str, Any] = {"widths": (32, 64, 48, 32), "labels": ("a", "b", "c"), "image_size": 64}
THEIRS: dict[str, Any] = {"channels": (8, 16, 12, 8), "num_classes": 3}


def copied(ours: nn.Module, theirs: nn.Module) -> None:
    """Copy timm's tensors, moved away from their initial values, in their order, which is the order of ours."""
    torch.manual_seed(0)
    target = ours.state_dict()
    source = {
        name: t + 0.3 * torch.rand_like(t) if t.is_floating_point() else t for name, t in theirs.state_dict().items()
    }
    theirs.load_state_dict(source)
    pairs = zip(target.items(), source.values(), strict=True)
    ours.load_state_dict({name: given.view_as(tensor) for (name, tensor), given in pairs})


def assert_equal_to_timm(ours: nn.Module, theirs: nn.Module) -> None:
    """Compare logits in both modes, and after a step of training gradients and running statistics."""
    copied(ours, theirs)
    images = torch.randn(3, 3, 64, 59, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(images), theirs.eval()(images), atol=1e-5, rtol=1e-5)
    ours, theirs, images = ours.double().train(), theirs.double().train(), images.double()
    for model in (ours, theirs):
        model(images).square().sum().backward()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad.view_as(mine), atol=1e-8, rtol=1e-8)
    for ours_after, theirs_after in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(ours_after, theirs_after)


@pytest.mark.parametrize("split", [True, False])
def test_sknet_equals_timm(split: bool) -> None:
    timm = load_timm()
    theirs = timm.create_model(
        "skresnet50", layers=(2, 1, 1, 1), block_args={"sk_kwargs": {"split_input": split}}, **THEIRS
    )
    assert_equal_to_timm(SKNet(SKNetConfig(depths=(2, 1, 1, 1), split=split, **WIDTHS)), theirs)


def test_resnest_equals_timm() -> None:
    theirs = load_timm().create_model("resnest50d", layers=(2, 1, 1, 1), stem_width=5, **THEIRS)
    assert_equal_to_timm(ResNeSt(ResNeStConfig(depths=(2, 1, 1, 1), stem_width=10, **WIDTHS)), theirs)


@pytest.mark.parametrize(
    ("name", "family", "parameters"),
    [
        ("sknet/50", SKNet, 25_803_160), ("resnest/50", ResNeSt, 27_483_240), ("resnest/101", ResNeSt, 48_275_016),
    ],
)  # fmt: skip
def test_presets_have_the_parameters_of_timm(name: str, family: type[ResNet[Any]], parameters: int) -> None:
    timm_name = {"sknet/50": "skresnet50", "resnest/50": "resnest50d", "resnest/101": "resnest101e"}[name]
    with torch.device("meta"):
        models = family(preset(name)), load_timm().create_model(timm_name)
    assert [sum(p.numel() for p in model.parameters()) for model in models] == [parameters] * 2


def by_loop(gate: Any, branches: Tensor) -> Tensor:
    """Return the weights of a single image's branches (N, C, Y, X), (N, C), computed channel by channel."""
    means = torch.stack([sum(branch[channel].mean() for branch in branches) for channel in range(branches.shape[1])])
    norm, hidden = gate.norm, []
    for unit, row in enumerate(gate.reduce.weight):
        bias = 0.0 if gate.reduce.bias is None else gate.reduce.bias[unit]
        value = (row @ means + bias - norm.running_mean[unit]) / (norm.running_var[unit] + norm.eps).sqrt()
        hidden.append((value * norm.weight[unit] + norm.bias[unit]).clamp(min=0))
    scores = gate.select.weight @ torch.stack(hidden)
    scores = (scores if gate.select.bias is None else scores + gate.select.bias).view(len(branches), -1)
    return scores.exp() / scores.exp().sum(0)


@pytest.mark.parametrize("bias", [True, False])
def test_the_weights_of_branches_sum_to_one_for_each_channel(bias: bool) -> None:
    torch.manual_seed(0)
    gate: Any = BranchAttention(6, 3, 4, bias=bias).eval()
    nn.init.uniform_(gate.norm.running_mean, -1, 1)
    nn.init.uniform_(gate.norm.running_var, 0.5, 2)
    x = torch.randn(2, 3, 6, 5, 4)
    weights = gate.weights(*x.unbind(1))
    assert weights.shape == (2, 3, 6)
    expected = torch.stack([by_loop(gate, branches) for branches in x])
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gate(*x.unbind(1)), (expected[..., None, None] * x).sum(1), atol=1e-6, rtol=1e-6)


def test_a_batch_of_one_image_is_trained_with_the_running_statistics() -> None:
    gate = BranchAttention(6, 2, 4, bias=True)
    branches = torch.randn(2, 1, 6, 5, 4)
    torch.testing.assert_close(gate(*branches), gate.eval()(*branches))
    model = SKNet(SKNetConfig(depths=(1,), widths=(16,), stem_width=8, labels=("a", "b"), stem="3x3"))
    model(torch.randn(1, 3, 8, 8)).sum().backward()


def test_the_branches_of_a_selective_kernel_have_two_sizes() -> None:
    """A pixel changes the outputs of the second branch at a distance of two."""
    layer = SelectiveKernel(4, 4).eval()
    for branch, reach in zip(layer.branches, (1, 2), strict=True):
        x = torch.zeros(1, 2, 7, 7)
        x[0, :, 3, 3] = 1.0
        changed = (branch(x) != branch(torch.zeros_like(x)))[0].any(0).nonzero()
        assert changed.min() == 3 - reach
        assert changed.max() == 3 + reach


def test_basic_blocks_have_attention_in_their_first_layer() -> None:
    sizes: dict[str, Any] = {"depths": (1, 2), "widths": (8, 16), "stem_width": 8, "stem": "3x3", "labels": ("a", "b")}
    for model, kind in (
        (SKNet(SKNetConfig(block="basic", **sizes)), SelectiveKernel),
        (ResNeSt(ResNeStConfig(block="basic", **sizes)), SplitAttention),
    ):
        names = [name for name, module in model.named_modules() if isinstance(module, kind)]
        assert names == [f"stages.{at}.layers.0" for at in ("0.blocks.0", "1.blocks.0", "1.blocks.1")]
        new = model.get_submodule("stages.1.blocks.1")
        x = torch.rand(2, 16, 5, 5)
        assert torch.equal(new(x), x)  # the norm at the end of a new branch has the scale zero
        assert model(torch.randn(2, 3, 9, 11)).shape == (2, 2)


def test_channels_that_do_not_split_are_reported() -> None:
    with pytest.raises(ValueError, match="7 input channels: expected an even number for split=true"):
        SelectiveKernel(7, 8)
    assert SelectiveKernel(7, 8, split=False)(torch.randn(2, 7, 4, 4)).shape == (2, 8, 4, 4)
    with pytest.raises(ValueError, match="8 input channels: expected a multiple of radix, 3"):
        SplitAttention(8, 8, radix=3)
