"""Checks of the exercises in the tutorial about the lecture's second part, on vision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.models.local_attention import LocalAttention

from .checking import Mistake, call, compare, compare_numbers, exercise, numbers, tensor

WINDOW = torch.arange(1.0, 10.0).view(3, 3)  # gray pixels of the exercise about their order


@exercise
def map_sizes(answer: object) -> str:
    """Weights of a non-local block for a clip of 8 x 14 x 14 positions, without and with pooled keys."""
    positions, pooled = 8 * 14 * 14, 8 * 7 * 7
    mistakes: dict[str, tuple[float | None, ...]] = {
        "each position of the clip looks at each position. Multiply the two numbers.": (positions, pooled),
        "the positions of all frames look at each other, not only those of one frame.": (8 * 196**2, None),
        "this is the map of one frame. The clip has 8 frames.": (196**2, None),
        "the queries are not pooled. Only the keys are.": (positions**2, pooled**2),
        "pooling takes the maximum of 2 x 2 pixels, so a quarter of the keys is left.": (
            positions**2,
            positions * positions // 2,
        ),
        "the pooling does not join frames, only pixels.": (positions**2, positions * (4 * 7 * 7)),
    }
    compare_numbers(answer, (positions**2, positions * pooled), mistakes, ["without pooling", "with pooled keys"])
    return "the pooling saves three quarters of the weights."


@exercise
def non_local(answer: object) -> str:
    """Non-local operation for x (6, 9), a matrix with a column for each of 9 positions."""
    x, (W_theta, W_phi, W_g) = torch.randn(6, 9), torch.randn(3, 4, 6)
    theta, phi, g = W_theta @ x, W_phi @ x, W_g @ x
    scores = theta.T @ phi
    right = scores.softmax(-1) @ g.T
    mistakes = {
        "the result has a column for each position. It needs a row, so omit the last transpose.": right.T,
        "the softmax runs over the queries. Each row of the scores must become weights that add up to 1.": (
            scores.softmax(0) @ g.T
        ),
        "the non-local operation does not divide its scores by a root.": (scores / 2).softmax(-1) @ g.T,
        "theta and phi are exchanged: the rows of the scores belong to theta.": scores.T.softmax(-1) @ g.T,
        "the softmax is missing.": scores @ g.T,
        "the values are x. Multiply x by W_g first.": scores.softmax(-1) @ x.T,
        "this is the matrix of weights. Multiply it by the values.": scores.softmax(-1),
        "the scores compare channels. Compare positions: transpose the first factor.": (theta @ phi.T).softmax(-1) @ g,
    }
    compare(call(answer, x, W_theta, W_phi, W_g), right, mistakes)
    return "this is an attention head without a scale."


@exercise
def layer_parameters(answer: object) -> str:
    """Parameters of a convolution and of a layer with local attention, without biases."""
    for channels, width, window in ((8, 16, 5), (64, 128, 7)):
        convolution, matrix = channels * width * window**2, channels * width
        local = sum(p.numel() for p in LocalAttention(channels, width, 4, window).parameters())
        mistakes: dict[str, tuple[float | None, ...]] = {
            "the order is convolution, local attention.": (local, convolution),
            "a convolution has a matrix for each pixel of the window: window * window of them.": (
                matrix * window,
                None,
            ),
            "the convolution does not depend on the window here. It has a matrix for each of its pixels.": (
                matrix,
                None,
            ),
            "the matrices of local attention are the same for all pixels of the window.": (
                convolution,
                3 * convolution + width * window,
            ),
            "the row and column vectors of local attention are missing.": (convolution, 3 * matrix),
            "queries, keys and values have a matrix each.": (convolution, matrix + width * window),
            "a row vector and a column vector have width / 2 numbers each.": (convolution, local + width * window),
            "there are vectors for the rows and for the columns of the window.": (
                convolution,
                local - width * window / 2,
            ),
            "rows and columns have separate vectors, so there is no vector for each pixel of the window.": (
                convolution,
                3 * matrix + width * window**2,
            ),
            "local attention has no output matrix here.": (convolution, local + width * width),
        }
        names = [f"the number of the {name} for a window of {window}" for name in ("convolution", "local attention")]
        compare_numbers(call(answer, channels, width, window), (convolution, local), mistakes, names)
    return "a larger window costs a convolution many parameters, and local attention almost none."


@exercise
def shifted_scores(answer: object) -> str:
    """Scores (Y * X, Y * X) with which each pixel looks at the pixel that is shifted by (dy, dx)."""
    rows, columns, dy, dx, alpha = 4, 5, 1, -2, 3.0
    pixels = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    away = pixels[None] - pixels[:, None]  # shift from the query to the key
    shift = torch.tensor([dy, dx])

    def gaussian(distance: Tensor, power: int = 2) -> Tensor:
        return -alpha * (distance.abs() ** power).sum(-1)

    right = gaussian(away - shift).softmax(-1)
    mistakes = {
        "the head looks to the opposite side. The shift is the place of the key minus the place of the query.": (
            gaussian(away + shift)
        ),
        "the score grows with the distance, so the head looks far away. The sign is wrong.": -gaussian(away - shift),
        "the distance is not squared.": -alpha * (away - shift).norm(dim=-1),
        "this is the sum of two distances. Use their squares.": gaussian(away - shift, 1),
        "rows and columns are exchanged in the shift.": gaussian(away - shift.flip(0)),
        "the head looks at the pixel itself. The shift is missing.": gaussian(away),
        "the factor alpha is missing.": gaussian(away - shift) / alpha,
        "pixels are numbered row by row. Here they are numbered column by column.": (
            gaussian(away - shift)
            .view(rows, columns, rows, columns)
            .permute(1, 0, 3, 2)
            .reshape(rows * columns, rows * columns)
        ),
        "the square is around the whole product with alpha.": gaussian(away - shift) * alpha,
    }
    hints = {hint: wrong.softmax(-1) for hint, wrong in mistakes.items()}
    found = tensor(call(answer, rows, columns, dy, dx, alpha), tuple(right.shape))
    compare(found.softmax(-1), right, hints)
    return "with a large alpha, each row of the softmax chooses one pixel, as a convolution does."


@exercise
def center(answer: object) -> str:
    """Mean shift (dy, dx) of the attention weights (Y, X, Y, X) of one head."""
    rows, columns = 5, 7
    weights = torch.randn(rows * columns, rows * columns).mul(2).softmax(-1).view(rows, columns, rows, columns)
    y, x = torch.arange(rows).float(), torch.arange(columns).float()
    key = torch.stack([(weights.sum(3) * y).sum(2), (weights.sum(2) * x).sum(2)], -1)  # mean place, (Y, X, 2)
    query = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1)
    mean = (key - query).mean((0, 1))
    largest = weights.flatten(2).argmax(-1)
    chosen = torch.stack([largest // columns, largest % columns], -1) - query
    mistakes = {
        "this is the mean place of the keys. Subtract the place of the query.": key.mean((0, 1)),
        "the sign is wrong: the shift is the place of the key minus the place of the query.": -mean,
        "the order is (dy, dx). Here the columns come first.": mean.flip(0),
        "this uses only the largest weight of each query. Take the mean over all weights.": chosen.mean((0, 1)),
        "this is a sum over the queries. Take the mean over them.": (key - query).sum((0, 1)),
        "this is one shift for each query. Take the mean over them.": key - query,
    }
    found = call(answer, weights)
    if not isinstance(found, Tensor):
        found = torch.tensor(numbers(found, 2, "the shift"))
    compare(found, mean, mistakes, tolerance=1e-4)
    return "for a head of quadratic attention, this is its learned center."


@exercise
def same_attention(answer: object) -> str:
    """Pixels for which a convolution differs from WINDOW, but local attention without relative positions does not."""
    other = tensor(answer, (3, 3)).float()
    if other[1, 1] != WINDOW[1, 1]:
        raise Mistake("the pixel in the center has changed. It is the query, so all scores change.")
    if not torch.equal(other.flatten().sort().values, WINDOW.flatten()):
        raise Mistake("the pixels have other values. Only change their order.")
    if torch.equal(other, WINDOW):
        raise Mistake("these are the same pixels in the same order, so a convolution gives the same result, too.")
    layer, kernel = LocalAttention(1, 4, 1, 3).requires_grad_(False), torch.randn(4, 1, 3, 3)
    layer.relative.rows.zero_(), layer.relative.columns.zero_()
    images = torch.stack([WINDOW, other])[:, None]
    attention = layer(images)[:, :, 1, 1]
    convolved = F.conv2d(images, kernel)[:, :, 0, 0]
    return (
        f"local attention differs by {(attention[0] - attention[1]).abs().max():.0e}, "
        f"and a random convolution by {(convolved[0] - convolved[1]).abs().max():.1f}."
    )
