"""Global self-attention, compared with a loop over pixels and with the output of gsa-pytorch 0.2.2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyheads.analysis.maps.recording import attention_maps
from manyheads.core.editing import edit
from manyheads.core.recording import record
from manyheads.models.global_attention import GlobalAttention, GSANet, GSANetConfig
from manyheads.models.presets import preset

# Output of `GSA(3, dim_out=4, dim_key=2, heads=2, rel_pos_length=2)` without its output projection, by channel, for the
# weights and the image of the test below.
RECORDED = [
    [-0.131661, 0.075276, 0.412039, -0.774767, -0.504535, 0.001731],
    [0.150568, -0.081585, -0.449627, 0.715595, 0.506353, -0.005855],
    [0.013337, -0.108398, -0.015491, -0.288658, -0.828910, -0.220434],
    [-0.001013, 0.121588, 0.023628, 0.259207, 0.845330, 0.229645],
]


def wave(*shape: int, rate: float = 1.0) -> Tensor:
    return torch.sin(rate * torch.arange(1.0, 1.0 + torch.Size(shape).numel())).view(shape)


def test_the_output_equals_the_recorded_one_of_gsa_pytorch() -> None:
    layer = GlobalAttention(3, 4, heads=2, size=2).eval()
    projections = dict(zip(("query", "key", "value"), wave(12, 3).chunk(3), strict=True))
    shifts = {"along_columns": wave(3, 2, rate=2.0), "along_rows": wave(3, 2, rate=3.0)}
    given = {f"{name}.weight": t for name, t in projections.items()} | {
        f"{name}.shifts": t for name, t in shifts.items()
    }
    layer.load_state_dict({**layer.state_dict(), **given})
    found = layer(wave(1, 3, 2, 3, rate=0.7))
    torch.testing.assert_close(found[0].flatten(1), torch.tensor(RECORDED), atol=1e-5, rtol=0)


def shift(layer: Any, distance: int) -> Tensor:
    """Return the vector of a shift, which is zero beyond the size of the layer."""
    middle = len(layer.shifts) // 2
    return layer.shifts[middle + distance] if abs(distance) <= middle else torch.zeros(layer.shifts.shape[1])


def by_loop(layer: Any, image: Tensor) -> Tensor:
    """Return the output (width, Y, X) for one image (channels, Y, X), in evaluation mode and without a stride."""
    _, height, across = image.shape
    norm, parts = layer.norm, []
    for head in range(layer.heads):
        q, k, v = (
            torch.einsum("dc,cyx->yxd", projection.weight.chunk(layer.heads)[head], image)
            for projection in (layer.query, layer.key, layer.value)
        )
        weights = k.exp() / k.exp().sum((0, 1))  # each channel of the keys is a distribution over the pixels
        of_column, out = torch.zeros_like(v), torch.zeros_like(v)
        for y in range(height):
            for x in range(across):
                total = sum(q[y, x] @ shift(layer.along_columns, below - y) * v[below, x] for below in range(height))
                assert isinstance(total, Tensor)
                scaled = (total - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
                of_column[y, x] = scaled * norm.weight + norm.bias
        for y in range(height):
            for x in range(across):
                for channel in range(q.shape[-1]):
                    out[y, x] += q[y, x, channel] * (weights[..., channel, None] * v).sum((0, 1))
                for right in range(across):
                    out[y, x] += q[y, x] @ shift(layer.along_rows, right - x) * of_column[y, right]
        parts.append(out.permute(2, 0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("size", [5, 2])
def test_the_layer_equals_a_loop_over_pixels(size: int) -> None:
    torch.manual_seed(0)
    layer: Any = GlobalAttention(5, 6, heads=2, size=size).eval().requires_grad_(False)
    nn.init.uniform_(layer.norm.running_mean, -1, 1)
    nn.init.uniform_(layer.norm.running_var, 0.5, 2)
    images = torch.randn(2, 5, 4, 3)
    found, expected = layer(images), torch.stack([by_loop(layer, image) for image in images])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    layer.stride = 2
    halved = layer(images)
    assert halved.shape == (2, 6, 2, 2)
    torch.testing.assert_close(halved[:, :, 0, 0], found[:, :, :2, :2].mean((2, 3)))
    torch.testing.assert_close(halved[:, :, 0, 1], found[:, :, :2, 2].mean(2))


def test_heads_share_the_norm_of_each_channel() -> None:
    layer = GlobalAttention(4, 6, heads=2, size=3)
    seen: list[Tensor] = []
    layer.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    layer(torch.randn(2, 4, 3, 3))
    (normalized,) = seen
    torch.testing.assert_close(normalized.mean((0, 2, 3, 4)), torch.zeros(3), atol=1e-6, rtol=0)


def test_each_layer_records_three_maps_over_the_image() -> None:
    """The maps, times the values, are the outputs of the parts."""
    torch.manual_seed(0)
    model, image = nn.Sequential(GlobalAttention(6, 8, heads=2, size=4)).eval(), torch.randn(1, 6, 3, 4)
    part: dict[str, tuple[Any, Tensor]] = {}
    layer = model[0]
    assert isinstance(layer, GlobalAttention)
    for name in ("along_columns", "along_rows"):
        layer.get_submodule(name).register_forward_hook(
            lambda module, inputs, output, name=name: part.update({name: (inputs, output)})
        )
    content, *axial = attention_maps(model, image)["self"]
    assert content.name == "0.content"
    assert content.queries.tokens == tuple(f"channel {n}" for n in range(4))
    assert content.keys.grid == (3, 4)
    np.testing.assert_allclose(content.weights.sum(-1), 1, atol=1e-5)
    for maps in axial:
        assert (maps.queries.grid, maps.keys.grid) == ((3, 4), (3, 4))
        (_, value), output = part[maps.name.partition(".")[2]]
        mixed = torch.from_numpy(maps.weights) @ value.detach().flatten(2, 3)
        torch.testing.assert_close(mixed, output.detach().flatten(2, 3), atol=1e-5, rtol=1e-5)
    y, x = np.divmod(np.arange(12), 4)
    same_column, same_row = x[:, None] == x, y[:, None] == y
    for maps, same in zip(axial, (same_column, same_row), strict=True):
        assert (maps.weights[0][:, ~same] == 0).all()
        assert (maps.weights[0][:, same] != 0).all()


def test_maps_can_be_edited() -> None:
    layer = GlobalAttention(6, 8, heads=2, size=4).eval()
    x = torch.randn(2, 6, 4, 4)
    with edit(layer) as change:
        for name in ("along_columns", "along_rows"):
            change.zero([name])
        without = layer(x)
    with record(layer, ["content"]) as maps:
        assert not torch.allclose(layer(x), without)
    query, value = (
        projection(x.permute(0, 2, 3, 1)).flatten(1, 2).unflatten(-1, (2, 4)).transpose(1, 2)
        for projection in (layer.query, layer.value)
    )
    expected = query @ maps["content"][0] @ value  # (B, H, Y * X, Dh)
    torch.testing.assert_close(without, expected.transpose(2, 3).reshape(2, 8, 4, 4))


def test_the_sizes_of_a_network_follow_its_image_size() -> None:
    with torch.device("meta"):
        model = GSANet(preset("gsa/50"))
    assert sum(p.numel() for p in model.parameters()) == 18_046_248
    sizes = [
        (len(module.along_rows.shifts) + 1) // 2 for module in model.modules() if isinstance(module, GlobalAttention)
    ]
    # the first layer of a stage sees the resolution of the stage before
    assert sizes == [56] * 3 + [56] + [28] * 3 + [28] + [14] * 5 + [14] + [7] * 2
    seen: list[int] = []
    small = GSANet(GSANetConfig(
        block="basic", depths=(1, 1, 1), widths=(8, 8, 8), stem_width=8, heads=2, image_size=37, labels=("a", "b"),
        stem="3x3", halve_first=True,
    ))  # fmt: skip
    for module in small.modules():
        if isinstance(module, GlobalAttention):
            module.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[2]))
    small(torch.randn(2, 3, 37, 37))
    assert seen == [(len(m.along_rows.shifts) + 1) // 2 for m in small.modules() if isinstance(m, GlobalAttention)]


def test_a_width_that_heads_do_not_divide_is_reported() -> None:
    with pytest.raises(ValueError, match="width 6 is not divisible by 4 heads"):
        GlobalAttention(6, 6, heads=4)
