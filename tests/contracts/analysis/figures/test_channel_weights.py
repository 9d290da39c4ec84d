"""Channel weights of squeeze-and-excitation blocks, and their means by class."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from manyheads.analysis.figures.channel_weights import ChannelWeights, channel_weights, recorded_weights
from manyheads.models.resnet import ResNet, ResNetConfig
from manyheads.models.selective_kernel import SKNet, SKNetConfig
from manyheads.models.squeeze_excitation import SqueezeExcitation

NET = ResNetConfig(
    labels=("a", "b"), block="basic", depths=(2, 1), widths=(8, 16), stem="3x3", stem_width=8, squeeze=2,
)  # fmt: skip
BLOCKS = ("stages.0.blocks.0.squeeze", "stages.0.blocks.1.squeeze", "stages.1.blocks.0.squeeze")


def network() -> ResNet:
    """Return a ResNet whose norm weights do not start at zero, so that the squeezed channels depend on the image."""
    torch.manual_seed(0)
    model = ResNet(NET)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def images(count: int) -> Tensor:
    return 3 * torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def test_recorded_weights_equal_the_applied_ones() -> None:
    torch.manual_seed(0)
    block, x = SqueezeExcitation(24, 4), torch.rand(3, 24, 5, 5) + 0.5
    with recorded_weights(block) as seen:
        out = block(x)
    ((weights,),) = seen.values()
    torch.testing.assert_close(weights, (out / x)[:, :, 2, 3], atol=1e-6, rtol=0)
    squeezed = x.numpy().mean((2, 3)) @ block.squeeze.weight.detach().numpy().T + block.squeeze.bias.detach().numpy()
    scores = np.maximum(squeezed, 0) @ block.excite.weight.detach().numpy().T + block.excite.bias.detach().numpy()
    np.testing.assert_allclose(weights.numpy(), 1 / (1 + np.exp(-scores)), atol=1e-6)
    assert not block._forward_pre_hooks


def test_branches_have_separate_weights() -> None:
    torch.manual_seed(0)
    model = SKNet(SKNetConfig(labels=("a", "b"), block="basic", depths=(1, 2), widths=(8, 16), stem_width=8))
    weights = channel_weights(model, [3 * torch.randn(2, 3, 32, 32)], ["one", "two"])
    gates = [f"stages.{at}.layers.0.gate" for at in ("0.blocks.0", "1.blocks.0", "1.blocks.1")]
    assert weights.layers == tuple(f"{gate}.{branch}" for gate in gates for branch in (0, 1))
    for first, second in zip(weights.weights[::2], weights.weights[1::2], strict=True):
        np.testing.assert_allclose(first + second, 1, atol=1e-6)
    assert weights.last_of_stages().layers == (f"{gates[0]}.1", f"{gates[2]}.1")


def test_class_means_equal_single_images() -> None:
    model, x, classes = network(), images(7), [1, 0, 1, 1, 2, 0, 1]
    weights = channel_weights(model, x.split(3), ["cat", "dog", "bird"], classes, name="m", title="t")
    assert model.training
    assert (weights.layers, weights.rows, weights.images.tolist()) == (BLOCKS, ("cat", "dog", "bird"), [2, 4, 1])
    model.eval()
    for number, layer in enumerate(BLOCKS):
        given: list[Tensor] = []
        excite = model.get_submodule(f"{layer}.excite")
        handle = excite.register_forward_hook(lambda module, inputs, output, given=given: given.append(output))
        with torch.no_grad():
            for image in x:
                model(image[None])
        handle.remove()
        alone = torch.cat(given).sigmoid().numpy()  # (7, C)
        means = [np.mean([alone[i] for i in range(7) if classes[i] == row], axis=0) for row in range(3)]
        np.testing.assert_allclose(weights.weights[number], means, atol=1e-6)
        assert np.std(means, axis=0).max() > 1e-3  # or it would not matter which class is which
    assert repr(weights) == "ChannelWeights of 't' (3 rows; channels of the blocks: 8, 8, 16)"


def test_blocks_are_selected_and_saved_as_arrays(tmp_path: Path) -> None:
    weights = channel_weights(network(), [images(1)], ["one"], name="runs/m", title="one")
    assert weights.last_of_stages().layers == (BLOCKS[1], BLOCKS[2])
    assert weights.of([-1, 0]).layers == (BLOCKS[2], BLOCKS[0])
    np.testing.assert_array_equal(weights.of([-1]).weights[0], weights.weights[2])
    with pytest.raises(ValueError, match="block 3 does not exist: valid are 0 to 2"):
        weights.of([3])
    weights.save(tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as found:
        assert found["channels/2"].shape == (1, 16)
        assert (str(found["channels/2/name"]), found["rows"].tolist(), int(found["images"][0])) == (
            BLOCKS[2],
            ["one"],
            1,
        )


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_pictures_have_titles(tmp_path: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    parts = tuple(random.random((rows, width), dtype=np.float32) for width in (8, 8, 16))
    names = tuple(f"class {row}" for row in range(rows))
    picture = np.zeros((4, 4, 3), np.uint8) if rows == 1 else None
    weights = ChannelWeights(BLOCKS, parts, names, np.ones(rows, np.int64), "/a/long/path/of/mine", "title", picture)
    weights.draw(tmp_path / "w.svg")
    texts = re.findall("<!-- (.*?) -->", (tmp_path / "w.svg").read_text())
    assert {"channel weights of mine", "title"} <= set(texts)
    last = next(text for text in texts if text.startswith("stage 2, block 1: 16 channels"))
    if rows == 1:
        assert f"mean {parts[2].mean():.2f}" in last
    else:
        assert f"differ by {parts[2].std(0).mean():.3f}" in last
        assert ("class 0" in texts, "all" in texts) == (rows < 40, True)


def test_a_model_without_channel_weights_is_reported() -> None:
    plain = ResNet(ResNetConfig(labels=("a", "b"), depths=(1,), widths=(8,)))
    with pytest.raises(ValueError, match="m has no channel weights"):
        channel_weights(plain, [images(1)], ["one"], name="m")
    with pytest.raises(ValueError, match="no image of dog"):
        channel_weights(network(), [images(2)], ["cat", "dog"], [0, 0])
