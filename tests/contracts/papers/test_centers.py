"""Attention centers and widths: maps give back the values that were set."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from manyheads.core.recording import record
from manyheads.models.conv_attention import ConvAttention
from manyheads.models.presets import preset
from papers.conv_attention.centers import (
    Centers,
    draw_centers,
    draw_maps,
    learned_centers,
    mean_maps,
)


def small(kind: str, **settings: object) -> ConvAttention:
    sizes = {"width": 4, "layers": 2, "heads": 3, "feed_forward": 4, "image_size": 8, "labels": ("a", "b")}
    torch.manual_seed(1)
    return ConvAttention(preset(f"conv-attention/{kind}", **{**sizes, **settings})).double()


def images(count: int, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def test_measured_centers_and_widths_equal_the_parameters() -> None:
    model = small("quadratic")
    centers = torch.tensor([[[0.0, 0.0], [1.0, -2.0], [0.5, 1.25]], [[-1.5, 0.25], [3.0, 2.0], [-0.75, -3.0]]])
    widths = torch.tensor([[1.0, 1.5, 1.25], [1.0, 1.25, 2.0]])
    for layer, center, width in zip(model.layers, centers, widths, strict=True):
        layer.attention.centers.data.copy_(center)  # type: ignore[union-attr, operator]
        layer.attention.sharpness.data.copy_(1 / width)  # type: ignore[union-attr, operator]
    measured = mean_maps(model, images(2, 48)).centers()  # 24 x 24 tokens hold all of every Gaussian
    assert measured.layers == ("layers.0.attention", "layers.1.attention")
    torch.testing.assert_close(measured.centers, centers.double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(measured.widths, widths.double(), atol=1e-4, rtol=0)
    assert "  1   1.00  -2.00   1.50" in str(measured)
    assert len(str(measured).splitlines()) == 7
    model.layers[1].attention.sharpness.data.neg_()  # type: ignore[union-attr, operator]  # its square counts
    learned = learned_centers(model)
    assert learned.layers == measured.layers
    torch.testing.assert_close(learned.centers, centers.double())
    torch.testing.assert_close(learned.widths, widths.double())
    with pytest.raises(ValueError, match="the heads of this ConvAttention have no centers"):
        learned_centers(small("content"))


@pytest.mark.parametrize("kind", ["quadratic", "relative", "content"])
def test_mean_maps_are_independent_of_the_batch_size(kind: str) -> None:
    model = small(kind, dropout=0.5, attention_dropout=0.5).train()
    x = images(5)
    means = mean_maps(model, x, (1, 2), batch=2)
    assert model.training
    assert (means.query, means.images, means.maps.shape) == ((1, 2), 5, (2, 3, 4, 4))
    torch.testing.assert_close(means.maps.sum((-1, -2)), torch.ones(2, 3, dtype=torch.float64))
    model.eval()
    alone = []
    for image in x:
        with torch.no_grad(), record(model) as maps:
            model(image[None])
        alone.append(torch.stack([calls[0][0, :, 1 * 4 + 2].view(3, 4, 4) for calls in maps.values()]))
    torch.testing.assert_close(means.maps, torch.stack(alone).mean(0))
    by_hand = sum(means.maps[1, 2, y, x] * torch.tensor([y - 1, x - 2]) for y in range(4) for x in range(4))
    torch.testing.assert_close(means.centers().centers[1, 2], by_hand)
    assert mean_maps(model, x).query == (2, 2)


def test_impossible_recordings_are_refused() -> None:
    model = small("relative")
    with pytest.raises(ValueError, match="query 4, 0 is outside the grid: expected rows 0 to 3"):
        mean_maps(model, images(1), (4, 0))
    with pytest.raises(ValueError, match="no images"):
        mean_maps(model, images(0))


def test_both_figures_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    model = small("quadratic")
    draw_centers(mean_maps(model, images(2)).centers(), tmp_path / "centers.png")
    draw_maps(mean_maps(model, images(2)), tmp_path / "maps.png")
    widths = torch.tensor([[1.0] * 11 + [torch.inf]])  # the last head looks everywhere
    draw_centers(Centers(("one",), torch.zeros(1, 12, 2), widths), tmp_path / "centers.svg")
    draw_maps(mean_maps(model, images(2)), tmp_path / "maps.svg")
    for name in ("centers", "maps"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        texts = re.findall("<!-- (.*?) -->", (tmp_path / f"{name}.svg").read_text())
        assert {"layer 0", "head 0"} <= set(texts)  # counted as everywhere
    assert "head 11" in (tmp_path / "centers.svg").read_text()
