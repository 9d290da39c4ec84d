"""Strongest arrows of a constructed attention map, on an image and on a clip."""

import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from manyheads.core.editing import edit
from manyheads.core.recording import record
from manyheads.models.local_attention import LocalAttention
from manyheads.models.nonlocal_net import NonLocalBlock, NonLocalConfig, NonLocalNet
from papers.nonlocal_net.arrows import Arrows, draw, strongest_arrows

NET = NonLocalConfig(
    labels=("a", "b"), block="basic", depths=(2, 2), widths=(8, 8), stem="3x3", stem_width=8, stages=(1, 2),
)  # fmt: skip


def gaussian(pooled: bool = False) -> NonLocalBlock:
    """Return a block whose map follows from its input: similar pixels attend to each other."""
    return NonLocalBlock(2, "gaussian", pooled=pooled).eval()


def test_arrows_end_at_similar_pixels() -> None:
    image = torch.zeros(1, 2, 5, 7)
    alike = {(1, 2): 3.0, (4, 6): 2.0, (0, 5): 1.0}
    for (y, x), value in alike.items():
        image[0, :, y, x] = value
    arrows = strongest_arrows(gaussian(), image, (1, 2), count=3)
    assert arrows.start == (0, 1.5, 2.5)
    assert arrows.ends.tolist() == [[0, 1.5, 2.5], [0, 4.5, 6.5], [0, 0.5, 5.5]]
    scores = torch.exp(2 * 3.0 * image[0, 0])
    assert torch.allclose(arrows.weights, torch.tensor([scores[at] for at in alike]) / scores.sum(), atol=1e-6)


@pytest.mark.parametrize("pooled", [False, True])
def test_arrows_connect_frames(tmp_path: Path, pooled: bool) -> None:
    clip = torch.zeros(1, 2, 3, 4, 6)
    clip[0, :, 0, 1, 1], clip[0, :, 2, 3, 4] = 2.0, 3.0
    arrows = strongest_arrows(gaussian(pooled), clip, (0, 1, 1), count=2, out=tmp_path / "arrows.png")
    ends = [[2, 3.0, 5.0], [0, 1.0, 1.0]] if pooled else [[2, 3.5, 4.5], [0, 1.5, 1.5]]
    assert arrows.ends.tolist() == ends
    assert arrows.frames.shape == (3, 2, 4, 6)
    with Image.open(tmp_path / "arrows.png") as picture:
        assert picture.width > 2 * picture.height


def test_pixels_map_to_cells_of_the_layers_grid(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = NonLocalNet(NET)
    clip = torch.randn(1, 3, 2, 12, 8)
    seen: list[Tensor] = []

    def look(maps: Tensor) -> Tensor:
        """Frame 1, row 2 and column 0 of keys 2 x (3 x 2): the middle of rows 8 to 11 and columns 0 to 3."""
        seen.append(maps)
        changed = torch.zeros_like(maps)
        changed[..., (1 * 3 + 2) * 2 + 0] = 1.0
        return changed

    with edit(model) as change:
        change.map("stages.1.blocks.2", None, look)
        arrows = strongest_arrows(model, clip, (1, 5, 7), count=1, out=tmp_path / "clip.png")
    assert (arrows.layer, arrows.start) == ("stages.1.blocks.2", (1, 5.0, 7.0))
    assert arrows.ends.tolist() == [[1, 10.0, 2.0]]
    assert seen[0].shape == (1, 1, 2 * 6 * 4, 2 * 3 * 2)
    assert model.training
    twenty = strongest_arrows(model, clip, (1, 5, 7), layer=0)
    with torch.no_grad(), record(model.eval(), layers=0, queries=[(1 * 12 + 5) * 8 + 7]) as maps:
        model(clip)
    (whole,) = maps["stages.0.blocks.2"]
    assert torch.equal(twenty.weights, whole.flatten().sort(descending=True).values[:20])


@pytest.mark.parametrize(("shape", "at", "message"), [
    ((1, 2, 5, 7), (5, 0), "\\(5, 0\\) is outside"),
    ((1, 2, 5, 7), (0, 1, 1), "expected one image and \\(y, x\\)"),
    ((2, 2, 5, 7), (1, 1), "expected one image"),
    ((1, 2, 3, 5, 7), (1, -1, 1), "is outside"),
])  # fmt: skip
def test_positions_outside_are_reported(shape: tuple[int, ...], at: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strongest_arrows(gaussian(), torch.zeros(shape), at)


def test_a_layer_of_another_kind_is_reported() -> None:
    with pytest.raises(ValueError, match="keys, expected one for each cell"):
        strongest_arrows(LocalAttention(2, 8, 2, 3), torch.zeros(1, 2, 8, 8), (1, 1))
    with pytest.raises(ValueError, match="no attention layer 'x'; valid are stages.0.blocks.2, "):
        strongest_arrows(NonLocalNet(NET), torch.zeros(1, 3, 8, 8), (1, 1), layer="x")


def test_arrow_width_grows_with_weight(tmp_path: Path) -> None:
    """Weights as close as 6.6% and 5.6% must look different, and the title says what they are."""
    ends, frames = torch.tensor([[0.0, 1.0, 1.0], [0.0, 3.0, 3.0]]), torch.zeros(1, 3, 5, 5)
    draw(Arrows("a.layer", (0, 2.0, 2.0), ends, torch.tensor([0.066, 0.056]), True, frames), tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    widths = {float(width) for width in re.findall(r"stroke: #d55e00[^\"]*stroke-width: ([\d.]+)", text)}
    assert max(widths) > 3 * min(widths)
    for words in ("the 2 strongest weights of the blue position, ", "5.60%", "6.60%"):
        assert words in text
