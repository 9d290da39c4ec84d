"""Position schemes: sinusoidal tables in the layouts of the literature, and learned ones, also of a grid.

A position scheme gives a model the order of its tokens, in one of two ways. It adds a vector to each embedding, as
`Positions` does. Or it returns a bias (B or 1, H, Tq, Tk) of attention scores: the model passes it to its stack as
`bias`, and builds that stack with `biased=True`. Both kinds have a largest length, and call `check_length`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import UserError

Layout = Literal["interleaved", "concatenated", "lecture", "tensor2tensor"]


def sinusoidal(length: int, width: int, layout: Layout = "interleaved") -> Tensor:
    """The table of sines and cosines, (length, width), float64.

    interleaved    PE(t, 2i) = sin(t / 10000^(2i/width)), PE(t, 2i+1) = cos of the same (Vaswani 2017, section 3.5)
    concatenated   the same numbers, all sines first: the original code's order, and Marian's
    lecture        a slip seen in lectures: the cosine's exponent is (2i+1)/width. Its rows no longer have constant
                   norm, and a shift is no longer a rotation of each pair.
    tensor2tensor  all sines first, frequencies 10000^(-i/(n-1)) with n = width / 2 (tensor2tensor's code)
    """
    if layout not in get_args(Layout):
        raise UserError(f"unknown layout {layout!r} of positions: valid are {', '.join(get_args(Layout))}")
    table = torch.empty(length, width, dtype=torch.float64)
    if table.is_meta:  # a model is only sized: PyTorch would import its compiler, a second, to compute nothing
        return table
    t = torch.arange(length, dtype=torch.float64)[:, None]
    sines, cosines = (width + 1) // 2, width // 2
    i = torch.arange(sines, dtype=torch.float64)
    exponent = i / max(sines - 1, 1) if layout == "tensor2tensor" else 2 * i / width
    angle = t * 10000.0**-exponent  # (length, sines)
    sine, cosine = angle.sin(), angle[:, :cosines].cos()
    if layout == "lecture":
        cosine = (t * 10000.0 ** (-(2 * i[:cosines] + 1) / width)).cos()
    if layout in ("concatenated", "tensor2tensor"):
        return torch.cat([sine, cosine], dim=1)
    table[:, 0::2], table[:, 1::2] = sine, cosine
    return table


def check_length(end: int, length: int, *, cached: bool = False) -> None:
    """Raise UserError if `end` positions are more than `length`; `cached`: some of them were read in earlier steps."""
    if end > length:
        found = f"position {end} is needed" if cached else f"the input has {end} tokens"
        raise UserError(f"{found}, the model takes {length}: split or truncate it")


class Positions(nn.Module):
    """Adds to x (B, T, D) the vectors of its positions; row b starts at offset[b] (0 unless decoding with a cache).

    layout  one of the sinusoidal ones (a constant), or "learned" (a parameter, drawn from N(0, 0.02^2))
    length  how many positions there are. A longer input raises UserError.
    before  rows of a learned table before that of the first position; no input uses them (RoBERTa's)
    """

    table: Tensor

    def __init__(
        self, length: int, width: int, layout: Layout | Literal["learned"] = "concatenated", *, before: int = 0
    ) -> None:
        super().__init__()
        self.length, self.before = length, before
        if layout == "learned":
            self.table = nn.Parameter(torch.empty(before + length, width).normal_(std=0.02))
        else:
            # recomputed when a model is built, so it is no part of its weights
            self.register_buffer("table", sinusoidal(length, width, layout).float(), persistent=False)

    def forward(self, x: Tensor, offset: int | Tensor | None = None) -> Tensor:
        if offset is None or isinstance(offset, int):  # no look at the device is needed
            first, end = self.before + (offset or 0), (offset or 0) + x.shape[1]
            check_length(end, self.length, cached=offset is not None)
            return x + self.table[first : self.before + end].to(x.dtype)
        at = offset[:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
        check_length(int(at.max()) + 1, self.length, cached=True)
        return x + self.table[self.before + at].to(x.dtype)


def resize(table: Tensor, old: tuple[int, int], new: tuple[int, int], *, antialias: bool = False) -> Tensor:
    """Learned positions of another number of patches: (K + Yo * Xo, D) -> (K + Yn * Xn, D) (Dosovitskiy 2020, section
    3.2), for a grid `old` = (Yo, Xo) row by row.

    The K first rows, of the class token and its like, stay as they are. Bicubic, because bilinear interpolation makes
    the vectors shorter than those the network was trained with (Touvron 2021, section 6). `antialias` takes
    another cubic, and averages over what lies between the cells of a smaller grid.
    """
    others = len(table) - old[0] * old[1]
    assert others >= 0, f"{len(table)} positions are not a grid of {old[0]} x {old[1]}"
    if old == new:
        return table
    grid = table[others:].T.reshape(1, -1, *old)  # (1, D, Yo, Xo)
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:others], grid[0].flatten(1).T])
