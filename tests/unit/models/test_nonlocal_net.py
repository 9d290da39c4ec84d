"""Non-local blocks, compared with the core's attention, with the paper's sums, and with timm."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.attention import Attention
from manyheads.core.recording import record
from manyheads.models.nonlocal_net import ClipConvolution, Kind, NonLocalBlock, NonLocalConfig, NonLocalNet
from manyheads.models.presets import preset
from tests.support.timm_stub import load_timm

KINDS: tuple[Kind, ...] = ("gaussian", "embedded", "dot", "concatenation")
TINY: dict[str, Any] = {
    "block": "basic", "depths": (2, 2), "widths": (8, 12), "stem_width": 8, "stem": "3x3", "labels": ("a", "b"),
    "stages": (1, 2),
}  # fmt: skip


def awake(model: Any) -> Any:
    """Move every parameter away from its initial value."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.mark.parametrize(
    ("kind", "bias", "expected"),
    [("embedded", False, 2_097_152), ("embedded", True, 2_099_712), ("dot", True, 2_099_712),
     ("gaussian", True, 1_050_112), ("concatenation", True, 2_099_712 + 2 * 512)],
)  # fmt: skip
def test_parameters_of_a_block_match_the_paper(kind: Kind, bias: bool, expected: int) -> None:
    with torch.device("meta"):
        block = NonLocalBlock(1024, kind, identity="convolution")
    assert sum(p.numel() for name, p in block.named_parameters() if bias or not name.endswith("bias")) == expected


@pytest.mark.parametrize("identity", ["norm", "convolution"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_block_is_the_identity(kind: Kind, identity: str) -> None:
    torch.manual_seed(1)
    block = NonLocalBlock(6, kind, identity=identity)  # type: ignore[arg-type]
    for x in (torch.randn(2, 6, 5, 4), torch.randn(2, 6, 3, 5, 4)):
        assert torch.equal(block(x), x)
        assert torch.equal(block.eval()(x), x)


@pytest.mark.parametrize("shape", [(3, 6, 5, 4), (2, 6, 3, 2, 5)])
def test_embedded_gaussian_equals_one_attention_head(shape: tuple[int, ...]) -> None:
    block = awake(NonLocalBlock(6, inner=4, scaled=True, pooled=False, identity="convolution")).double()
    head = Attention(6, 1, head_width=4).double()
    names = {"query": block.theta, "key": block.phi, "value": block.g, "output": block.output}
    for name, layer in names.items():
        getattr(head, name).load_state_dict(layer.state_dict())
    x = torch.randn(*shape, dtype=torch.float64)
    positions = x.flatten(2).transpose(1, 2)
    expected = x + head(positions).transpose(1, 2).reshape(shape)
    assert torch.allclose(block(x), expected, atol=1e-12)


def sums(block: NonLocalBlock, x: Tensor) -> Tensor:
    """Equation 1 and the four pairwise functions of section 3.2, position by position."""
    positions = x.flatten(2)  # (B, C, N)
    batch, _, count = positions.shape
    y = torch.zeros(batch, block.g.out_features, count, dtype=x.dtype)
    for b in range(batch):
        for i in range(count):
            total, weights = torch.zeros(block.g.out_features, dtype=x.dtype), []
            values = []
            for j in range(count):
                x_i, x_j = positions[b, :, i], positions[b, :, j]
                if block.kind == "gaussian":
                    weights.append(torch.exp(x_i @ x_j))
                else:
                    assert block.theta is not None
                    assert block.phi is not None
                    theta, phi = block.theta(x_i), block.phi(x_j)
                    if block.kind == "embedded":
                        weights.append(torch.exp(theta @ phi))
                    elif block.kind == "dot":
                        weights.append(theta @ phi)
                    else:
                        assert block.pair is not None
                        weights.append(F.relu(block.pair(torch.cat([theta, phi])))[0])
                values.append(block.g(x_j))
            normalizer = sum(weights) if block.kind in ("gaussian", "embedded") else count
            for weight, value in zip(weights, values, strict=True):
                total = total + weight * value / normalizer
            y[b, :, i] = total
    return x + block.output(y.transpose(1, 2)).transpose(1, 2).reshape(x.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_all_score_kinds_equal_the_papers_sums(kind: Kind) -> None:
    block = awake(NonLocalBlock(4, kind, pooled=False, identity="convolution")).double()
    assert isinstance(block, NonLocalBlock)
    x = torch.randn(2, 4, 3, 2, dtype=torch.float64)
    assert torch.allclose(block(x), sums(block, x), atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_pooled_keys_equal_max_pooling(kind: Kind) -> None:
    """With keys constant in every 2 x 2, pooling changes nothing but their number; and frames are not pooled."""
    block = awake(NonLocalBlock(4, kind)).eval()
    every = NonLocalBlock(4, kind, pooled=False).eval()
    every.load_state_dict(block.state_dict())
    x = torch.randn(2, 4, 3, 3, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
    assert torch.allclose(block(x), every(x), atol=1e-5)
    with record(block) as maps:
        block(torch.randn(1, 4, 3, 5, 4))
        block(torch.randn(1, 4, 1, 4))
    assert [tuple(each.shape) for each in maps[""]] == [(1, 1, 60, 12), (1, 1, 4, 2)]


@pytest.mark.parametrize("training", [True, False])
def test_squeeze_excitation_equals_timm_in_values_and_gradients(training: bool) -> None:
    load_timm()
    from timm.layers.non_local_attn import NonLocalAttn  # type: ignore[import-untyped, unused-ignore]

    theirs = awake(NonLocalAttn(12, rd_channels=5)).train(training)
    ours = NonLocalBlock(12, inner=5, pooled=False).train(training)
    ours.scale = 12**-0.5  # theirs scales by the width of x
    pairs = {"theta": theirs.t, "phi": theirs.p, "g": theirs.g, "output": theirs.z, "norm": theirs.norm}
    for name, layer in pairs.items():
        state = {key: value.flatten(1) if value.dim() == 4 else value for key, value in layer.state_dict().items()}
        getattr(ours, name).load_state_dict(state)
    x = torch.randn(3, 12, 5, 7)
    found, expected = ours(x), theirs(x)
    assert torch.allclose(found, expected, atol=1e-5)
    direction = torch.randn_like(x)
    (found * direction).sum().backward()
    (expected * direction).sum().backward()
    for name, layer in pairs.items():
        for leaf, parameter in layer.named_parameters():
            gradient = getattr(ours, name).get_parameter(leaf).grad
            assert torch.allclose(
                gradient, parameter.grad.flatten(1) if parameter.dim() == 4 else parameter.grad, atol=2e-5
            )


def test_a_resnet_50_has_five_blocks_where_the_paper_has_them() -> None:
    with torch.device("meta"):
        model = NonLocalNet(preset("nonlocal/50"))
    blocks = [name for name, module in model.named_modules() if isinstance(module, NonLocalBlock)]
    assert blocks == ["stages.1.blocks.2", "stages.1.blocks.5", "stages.2.blocks.2", "stages.2.blocks.5",
                      "stages.2.blocks.8"]  # fmt: skip
    expected = 25_557_032 + sum(n * (2 * c * c + 5 * c // 2 + 2 * c) for n, c in ((2, 512), (3, 1024)))
    assert sum(p.numel() for p in model.parameters()) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_takes_images_and_clips_and_trains_all_parameters(kind: Kind) -> None:
    model = awake(NonLocalNet(NonLocalConfig(kind=kind, **TINY)))
    model(torch.randn(4, 3, 9, 10)).square().sum().backward()
    # a bias of the keys shifts all scores of a query alike, which a softmax does not see; a norm takes shifts out, such
    # as the bias of values whose weights sum to one
    softmax = {"embedded": ("phi.bias", "g.bias"), "gaussian": ("g.bias",)}.get(kind, ())
    unseen = ("output.bias", *softmax)
    dead = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-7]
    assert [name for name in dead if not name.endswith(unseen)] == []
    model.eval()
    clip = torch.randn(2, 3, 3, 9, 10)
    assert model(clip).shape == (2, 2)
    one = clip[:, :, :1]
    assert torch.allclose(model(one), model(one[:, :, 0]), atol=1e-5)
    assert not torch.allclose(model(clip), torch.stack([model(clip[:, :, t]) for t in range(3)]).mean(0), atol=1e-4)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="expected stages from 1 to 4"):
        preset("nonlocal/50", stages=(5,))
    with pytest.raises(ValueError, match="none is non-local"):
        preset("nonlocal/50", every=7)


@pytest.mark.parametrize("temporal", [(), (1, 2)])
def test_only_kernels_over_frames_know_the_order(temporal: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = awake(NonLocalNet(NonLocalConfig(**TINY, temporal=temporal))).double().eval()
    clips = torch.randn(2, 3, 4, 8, 8, dtype=torch.float64)
    assert torch.allclose(model(clips), model(clips.flip(2))) == (not temporal)
    assert torch.allclose(model(clips[:, :, :1]), model(clips[:, :, 0])), "an image is a clip of one frame"


def test_a_kernel_over_frames_is_a_convolution_over_frames_rows_and_columns() -> None:
    layer = ClipConvolution(3, 5, 2, 1).double()
    clips = torch.randn(2, 3, 4, 7, 6, dtype=torch.float64)
    layer.frames = 4
    expected = torch.zeros(2, 5, 4, 4, 3, dtype=torch.float64)
    for frame in range(4):
        for shift in range(3):
            if 0 <= (at := frame + shift - 1) < 4:
                expected[:, :, frame] += F.conv2d(clips[:, :, at], layer.weight[:, :, shift], stride=2, padding=1)
    found = layer(clips.transpose(1, 2).flatten(0, 1)).unflatten(0, (2, 4)).transpose(1, 2)
    assert torch.allclose(found, expected)
