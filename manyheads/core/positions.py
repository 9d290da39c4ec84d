"""Position encodings: sinusoidal tables in several layouts, and learned tables, also for image grids.

A position encoding is the part of a model that encodes the order of its tokens. There are two types. The first adds
a vector to each embedding, as `PositionTable` does. The second returns a bias (B or 1, H, Tq, Tk) of the attention
scores; the model passes it to its stack of blocks as `bias` and builds that stack with `biased=True`. Both types have
a maximum length and call `check_length`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import UserError

Layout = Literal["interleaved", "concatenated", "lecture", "tensor2tensor"]


def sinusoidal(length: int, width: int, layout: Layout = "interleaved") -> Tensor:
    """Return the sinusoidal position table, (length, width), float64.

    interleaved    PE(t, 2i) = sin(t / 10000^(2i/width)), PE(t, 2i+1) = cos of this angle (Vaswani 2017, section 3.5)
    concatenated   the same values, all sines first, as in the original code and in Marian
    lecture        a common error in lectures: the exponent of the cosine is (2i+1)/width. The rows no longer have a
                   constant norm, and a shift is no longer a rotation of each pair.
    tensor2tensor  all sines first, frequencies 10000^(-i/(n-1)) with n = width / 2 (code of tensor2tensor)
    """
    if layout not in get_args(Layout):
        raise UserError(f"unknown position layout {layout!r}: expected one of {', '.join(get_args(Layout))}")
    table = torch.empty(length, width, dtype=torch.float64)
    # Do not compute the table on the meta device, where models are built only to count their parameters: PyTorch would
    # import its compiler, which takes a second.
    if table.is_meta:
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
    """Raise UserError if a text of `end` positions exceeds the maximum `length`.

    cached  True if some of the positions were read in earlier decoding steps
    """
    if end > length:
        found = f"position {end} is needed" if cached else f"the input has {end} tokens"
        raise UserError(f"{found}, but the model takes at most {length}: split or truncate the text")


class PositionTable(nn.Module):
    """Position table that adds a vector to each position of x (B, T, D).

    Row b of the batch starts at position offset[b], which is 0 except when decoding with a cache.

    layout  layout of a constant sinusoidal table, or "learned" for a parameter drawn from N(0, 0.02^2)
    length  number of positions. A longer input raises UserError.
    before  number of unused rows of a learned table before its first position, as in RoBERTa
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
            # The table is computed when the model is built, so it is not saved with the weights.
            self.register_buffer("table", sinusoidal(length, width, layout).float(), persistent=False)

    def forward(self, x: Tensor, offset: int | Tensor | None = None) -> Tensor:
        # An int offset is known on the CPU, so no synchronization with the device is needed.
        if not isinstance(offset, Tensor):
            first, end = self.before + (offset or 0), (offset or 0) + x.shape[1]
            check_length(end, self.length, cached=offset is not None)
            return x + self.table[first : self.before + end].to(x.dtype)
        at = offset[:, None] + torch.arange(x.shape[1], device=x.device)  # (B, T)
        # While a CUDA graph is recorded, no value can be read. The length is then checked before each replay.
        if not (at.is_cuda and torch.cuda.is_current_stream_capturing()):
            check_length(int(at.max()) + 1, self.length, cached=True)
        return x + self.table[self.before + at].to(x.dtype)


def resize_positions(table: Tensor, old: tuple[int, int], new: tuple[int, int], *, antialias: bool = False) -> Tensor:
    """Resize learned position embeddings to another image grid: (K + Yo * Xo, D) -> (K + Yn * Xn, D).

    Follows Dosovitskiy 2020, section 3.2. The grid sizes are `old` = (Yo, Xo) and `new` = (Yn, Xn), in row-major order.
    The first K rows (class token and similar) do not change. The interpolation is bicubic, because bilinear
    interpolation shortens the vectors (Touvron 2021, section 6). With `antialias`, PyTorch uses another cubic kernel
    and averages over neighboring cells when the grid shrinks.
    """
    special = len(table) - old[0] * old[1]
    assert special >= 0, f"expected at least {old[0]} x {old[1]} positions for the grid, found {len(table)}"
    if old == new:
        return table
    grid = table[special:].T.reshape(1, -1, *old)  # embeddings as an image, (1, D, Yo, Xo)
    grid = F.interpolate(grid, size=new, mode="bicubic", align_corners=False, antialias=antialias)
    return torch.cat([table[:special], grid[0].flatten(1).T])
