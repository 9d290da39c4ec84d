"""Sinusoidal layouts, compared with their formulas, their geometry, and transformers' Marian."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.positions import Layout, PositionTable, resize_positions, sinusoidal
from tests.support.timm_stub import load_timm


def by_formula(layout: str, t: int, d: int, width: int) -> float:
    """One element, as the paper, its code, the lecture and tensor2tensor write it."""
    half = width // 2
    if layout in ("interleaved", "lecture"):
        i, odd = divmod(d, 2)
        exponent = (2 * i + odd if layout == "lecture" else 2 * i) / width
        return (math.cos if odd else math.sin)(t / 10000**exponent)
    odd, i = divmod(d, half)
    exponent = 2 * i / width if layout == "concatenated" else i / (half - 1)
    return (math.cos if odd else math.sin)(t / 10000**exponent)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated", "lecture", "tensor2tensor"])
def test_positions_equal_their_formula(layout: Layout) -> None:
    length, width = 40, 12
    expected = [[by_formula(layout, t, d, width) for d in range(width)] for t in range(length)]
    torch.testing.assert_close(sinusoidal(length, width, layout), torch.tensor(expected, dtype=torch.float64))


def test_the_norm_is_constant_except_in_the_lectures_slip() -> None:
    squared = sinusoidal(100, 512).square().sum(1)
    torch.testing.assert_close(squared, torch.full_like(squared, 256.0), rtol=1e-13, atol=0.0)
    squared = sinusoidal(100, 512, "lecture").square().sum(1)
    assert float(squared.min()) == pytest.approx(251.6, abs=0.05)
    assert float(squared.max()) == pytest.approx(261.5, abs=0.05)
    difference = (sinusoidal(100, 512) - sinusoidal(100, 512, "lecture")).abs().max()
    assert float(difference) == pytest.approx(1.479, abs=5e-4)


def residual_of_a_shift(pair: Tensor, shift: int = 5) -> float:
    """Return the error of the best linear map that shifts a (sine, cosine) pair (T, 2) by `shift` positions."""
    before, after = pair[:-shift], pair[shift:]
    return float((before @ torch.linalg.lstsq(before, after).solution - after).abs().max())


def test_the_shift_is_a_rotation_except_in_the_lectures_slip() -> None:
    shift, width = 5, 64
    table, lecture = sinusoidal(100, width), sinusoidal(100, width, "lecture")
    for i in range(width // 2):
        angle = shift / 10000 ** (2 * i / width)
        sine, cosine = math.sin(angle), math.cos(angle)
        turn = torch.tensor([[cosine, -sine], [sine, cosine]], dtype=torch.float64)
        pair = table[:, 2 * i : 2 * i + 2]
        assert (pair[:-shift] @ turn - pair[shift:]).abs().max() < 1e-12
    assert residual_of_a_shift(table[:, 10:12]) < 1e-12
    assert residual_of_a_shift(lecture[:, 10:12]) > 0.1


def test_concatenated_positions_permute_interleaved_ones() -> None:
    width = 10
    order = [*range(0, width, 2), *range(1, width, 2)]
    assert torch.equal(sinusoidal(30, width, "concatenated"), sinusoidal(30, width, "interleaved")[:, order])


def test_concatenated_positions_equal_marian() -> None:
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    theirs = marian.MarianSinusoidalPositionalEmbedding(60, 16)
    if hasattr(theirs, "create_weight"):  # transformers 5 fills the table when a model is initialized
        theirs.weight.data.copy_(theirs.create_weight())
    expected = theirs(torch.Size([1, 60])).detach()
    ours = PositionTable(60, 16, "concatenated")(torch.zeros(1, 60, 16))[0]
    torch.testing.assert_close(ours, expected.view(60, 16), atol=1e-6, rtol=0.0)


def test_rows_may_start_anywhere() -> None:
    positions = PositionTable(20, 8)
    x = torch.randn(3, 4, 8)
    offset = torch.tensor([0, 7, 16])
    out = positions(x, offset)
    for b, first in enumerate(offset.tolist()):
        assert torch.equal(out[b], x[b] + positions.table[first : first + 4])
    assert torch.equal(out[:1], positions(x[:1]))


def test_longer_input_is_refused() -> None:
    positions = PositionTable(6, 8)
    assert positions(torch.zeros(1, 6, 8)).shape == (1, 6, 8)
    with pytest.raises(ValueError, match=r"7 tokens.*takes at most 6"):
        positions(torch.zeros(1, 7, 8))
    with pytest.raises(ValueError, match=r"position 7.*takes at most 6"):
        positions(torch.zeros(2, 1, 8), torch.tensor([2, 6]))


def test_learned_positions_train_and_sinusoidal_ones_do_not() -> None:
    learned = PositionTable(6, 8, "learned")
    assert [name for name, _ in learned.named_parameters()] == ["table"]
    learned(torch.zeros(2, 4, 8)).sum().backward()
    gradient = learned.table.grad
    assert isinstance(gradient, Tensor)
    assert torch.equal(gradient, torch.tensor([2.0] * 4 + [0.0] * 2)[:, None].expand(6, 8))
    fixed = PositionTable(6, 8)
    assert not list(fixed.parameters())
    assert not fixed.state_dict()


def test_unknown_layout_names_the_valid_ones() -> None:
    with pytest.raises(ValueError, match=r"'fancy'.*interleaved.*concatenated.*lecture.*tensor2tensor"):
        sinusoidal(4, 8, "fancy")  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [0, 1, 2])
def test_resized_positions_equal_timm_and_keep_tokens(others: int) -> None:
    load_timm()
    from timm.layers import resample_abs_pos_embed

    table = torch.randn(others + 3 * 4, 8)
    out = resize_positions(table, (3, 4), (5, 9))
    expected = resample_abs_pos_embed(
        table[None], [5, 9], [3, 4], num_prefix_tokens=others, antialias=False, align_corners=False
    )
    torch.testing.assert_close(out, expected[0])
    assert torch.equal(out[:others], table[:others])
    assert resize_positions(table, (3, 4), (3, 4)) is table


def test_bicubic_keeps_more_of_the_norm_than_bilinear() -> None:
    """Why not bilinear: random positions 14 x 14 -> 24 x 24 keep 0.87 of their norm against 0.68 (DeiT, section 6)."""
    table = torch.randn(14 * 14, 192, generator=torch.Generator().manual_seed(0))
    grid = table.T.reshape(1, 192, 14, 14)
    bilinear = F.interpolate(grid, size=(24, 24), mode="bilinear").flatten(2)[0].T
    bicubic = resize_positions(table, (14, 14), (24, 24))
    before = table.norm(dim=1).mean()
    assert float(bicubic.norm(dim=1).mean() / before) == pytest.approx(0.87, abs=0.02)
    assert float(bilinear.norm(dim=1).mean() / before) == pytest.approx(0.68, abs=0.02)
