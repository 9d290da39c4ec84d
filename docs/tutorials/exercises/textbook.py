"""Checks of the exercises in the tutorial about the textbook."""

from __future__ import annotations

from math import e, log
from unittest.mock import patch

import torch
from torch import Tensor

import manyheads
import manyheads.core.attention
from manyheads.core.attention import Attention, attend
from manyheads.core.masks import Mask
from manyheads.models.text_classifier import TextClassifier

from .checking import Mistake, Operations, call, compare, compare_numbers, exercise, kind, numbers


@exercise
def weights(answer: object) -> str:
    """Weights of one word with the scores 0, 0, 0 and log 3."""
    total = 3 + log(3)
    mistakes: dict[str, tuple[float | None, ...]] = {
        "these are the exponentials. Divide them by their sum.": (1, 1, 1, 3),
        "these are the scores divided by their sum. Take the exponentials first.": (0, 0, 0, 1),
        "this is a maximum. A softmax gives the other words a weight, too.": (0, 0, 0, 1.0 - 1e-9),
        "these weights are all equal, but the scores are not.": (0.25, 0.25, 0.25, 0.25),
        "e to the power of log 3 is 3, not log 3.": (1 / total, 1 / total, 1 / total, log(3) / total),
        "these are e to the power of 1, not of the scores.": (e / 3, e / 3, e / 3, e),
        "the exponential of 0 is 1, not 0.": (0, 0, 0, None),
    }
    found = numbers(answer, 4)
    if abs(sum(found) - 1) > 0.02:  # more than the rounding of four weights
        mistakes[f"these numbers add up to {sum(found):.3g}. The weights of a word add up to 1."] = found
    compare_numbers(answer, (1 / 6, 1 / 6, 1 / 6, 1 / 2), mistakes, tolerance=5e-3)
    return "a word with a score that is higher by log 3 has three times the weight."


@exercise
def attention(answer: object) -> str:
    """Softmax attention from its formula, for matrices Q (5, 8), K (7, 8) and V (7, 3)."""
    Q, K, V = torch.randn(5, 8), torch.randn(7, 8), torch.randn(7, 3)
    scores = Q @ K.T
    mistakes = {
        "the scores are not divided by the root of d.": scores.softmax(-1) @ V,
        "the scores are divided by d. Divide them by its root.": (scores / 8).softmax(-1) @ V,
        "the scores are multiplied by the root of d. Divide them by it.": (scores * 8**0.5).softmax(-1) @ V,
        "the scores are divided by the root of a number of words. The root of the width d belongs there.": (
            scores / 7**0.5
        ).softmax(-1)
        @ V,
        "the root of 5, the number of queries, belongs nowhere. Use the width d.": (scores / 5**0.5).softmax(-1) @ V,
        "the softmax runs over the queries. The weights of each query must add up to 1.": (
            (scores / 8**0.5).softmax(0) @ V
        ),
        "all weights together add up to 1. The weights of each query must add up to 1.": (
            (scores / 8**0.5).flatten().softmax(0).view(5, 7) @ V
        ),
        "these are the weights. Multiply them by the values.": (scores / 8**0.5).softmax(-1),
        "there is no softmax.": scores / 8**0.5 @ V,
        "the division by the root comes after the softmax. It belongs to the scores.": scores.softmax(-1) @ V / 8**0.5,
    }
    one = (x[None, None] for x in (Q, K, V))  # one text, one head
    expected = attend(*one)[0, 0]
    called = Mistake("your function calls attend. Write the formula with a product and a softmax.")
    with Operations() as used, patch.object(manyheads.core.attention, "_AttentionMap", side_effect=called):
        found = call(answer, Q, K, V)
    if "scaled_dot_product_attention" in used.names:
        raise Mistake(
            "your function calls scaled_dot_product_attention. Write the formula with a product and a softmax."
        )
    compare(found, expected, mistakes, tolerance=1e-6, nan=used.nan)
    return "the result equals attend to 1e-6."


@exercise
def without_padding(answer: object) -> str:
    """Attention that ignores the padding: the keys from position `length` on."""
    Q, K, V, length = torch.randn(6, 8), torch.randn(6, 8), torch.randn(6, 3), 4
    scores, hidden = Q @ K.T / 8**0.5, torch.arange(6) >= length
    weights, zeros = scores.softmax(-1), scores.masked_fill(hidden, 0)
    one, mask = [x[None, None] for x in (Q, K, V)], Mask(key_lengths=torch.tensor([length]))
    mistakes = {
        "the padding still gets a part of the weight. It is not hidden at all.": weights @ V,
        "the weights of the words do not add up to 1: the softmax gives a part to the padding, and the result lacks it."
        " Hide the scores of the padding before the softmax.": weights.masked_fill(hidden, 0) @ V,
        "the scores of the padding are 0; a key of zeros has such scores, too. A score of 0 still gets a weight, "
        "because its exponential is 1.": zeros.softmax(-1) @ V,
        "the scores and the values of the padding are 0. A score of 0 still gets a weight, so the weights of the words "
        "do not add up to 1.": zeros.softmax(-1).masked_fill(hidden, 0) @ V,
        "the rows of the padding are missing. The result needs a row for each row of Q.": attend(*one, mask=mask)[
            0, 0, :length
        ],
        "the mask hides the words and keeps the padding.": scores.masked_fill(~hidden, -1e9).softmax(-1) @ V,
        "the mask hides the queries of the padding. It must hide their keys, the columns of the scores.": (
            scores.masked_fill(hidden[:, None], -1e9).softmax(-1) @ V
        ),
        "the softmax runs over the queries.": scores.masked_fill(hidden, -1e9).softmax(0) @ V,
        "the scores are not divided by the root of d.": (Q @ K.T).masked_fill(hidden, -1e9).softmax(-1) @ V,
        "one position too many is hidden. The words have the positions 0 to length - 1.": (
            scores.masked_fill(torch.arange(6) >= length - 1, -1e9).softmax(-1) @ V
        ),
        "the first position of the padding is still visible. Positions are counted from 0.": (
            scores.masked_fill(torch.arange(6) > length, -1e9).softmax(-1) @ V
        ),
    }
    with Operations() as used:
        found = call(answer, Q, K, V, length)
    nan = used.nan
    if "product" in nan:
        nan += " Replace the scores of the padding instead of multiplying by infinity."
    elif (
        "minus infinity" in nan
        and isinstance(found, Tensor)
        and found.shape == V.shape
        and torch.equal(found.isnan().all(-1), hidden)
    ):
        nan += " These are the rows of the padding. Hide columns, not rows."
    compare(found, attend(*one, mask=mask)[0, 0], mistakes, nan=nan)
    return "the padding has no influence, and the weights of the words add up to 1."


@exercise
def heads(answer: object) -> str:
    """Multi-head attention of x (5, 8) with H = 2 heads of width 4."""
    N, d, H = 5, 8, 2
    layer, x = Attention(d, H, bias=False), torch.randn(N, d)
    matrices = [part.weight.detach().T.clone() for part in (layer.query, layer.key, layer.value, layer.output)]

    def split(part: Tensor, how: str) -> Tensor:
        """Split rows of width d into heads."""
        if how == "columns":
            return part.view(N, H, d // H).transpose(0, 1)
        if how == "rows":
            return part.reshape(H, N, d // H)
        if how == "alternate":
            return part.view(N, d // H, H).permute(2, 0, 1)
        return part.view(N, H, d // H) if how == "words" else part[None]

    def result(
        how: str = "columns",
        width: float = d / H,
        join: str = "transpose",
        transposed: tuple[int, ...] = (),
        order: tuple[int, ...] = (0, 1, 2),
        softmax: int = -1,
    ) -> Tensor:
        """Return the result of a way to split and to join the heads."""
        W = [matrix.T if i in transposed else matrix for i, matrix in enumerate(matrices)]
        Q, K, V = (split(x @ W[i], how) for i in order)
        Z = (Q @ K.mT / width**0.5).softmax(softmax) @ V
        Z = Z.flip(0) if join == "reversed" else Z
        joined = Z.reshape(N, d) if join == "reshape" else Z.transpose(0, 1).reshape(N, d)
        return joined if join == "only" else joined @ W[3]

    several_words = "a head got parts of several words. Split each row into H parts first, then put the heads in front"
    mistakes = {
        "the scores of a head are divided by the root of d. Use the root of d / H, the width of a head.": result(
            width=d
        ),
        "the scores are not divided by the root of d / H.": result(width=1),
        "the output matrix W_O is missing.": result(join="only"),
        "this is one head of full width. Split the queries, keys and values first.": result("none", d),
        "this is one head of full width, with the root of another width.": result("none"),
        f"{several_words}.": result("rows"),
        f"{several_words}. After the product with V, put the words in front again.": result("rows", join="reshape"),
        "the heads are joined in the wrong order: a row got parts of several words. Exchange heads and words with "
        "transpose(0, 1) before the last reshape.": result(join="reshape"),
        "the heads of one word look at each other. Exchange words and heads with transpose(0, 1), so that in each head "
        "words look at words.": result("words", join="reshape"),
        "the heads of one word look at each other. Exchange words and heads before the scores.": result("words"),
        "head h gets every H-th column. It gets d / H neighboring columns.": result("alternate"),
        "the heads are joined in reversed order. Begin each row with head 1.": result(join="reversed"),
        "all four matrices are transposed. The product is x @ W.": result(transposed=(0, 1, 2, 3)),
        "the matrices W_Q, W_K and W_V are transposed. The product is x @ W.": result(transposed=(0, 1, 2)),
        "the matrix W_O is transposed. The product is the joined heads @ W_O.": result(transposed=(3,)),
        "queries and keys are exchanged. The rows of the scores belong to the queries.": result(order=(1, 0, 2)),
        "the softmax runs over the queries. The weights of each query must add up to 1.": result(softmax=-2),
    }
    compare(call(answer, x, *matrices, H), layer(x[None])[0].detach(), mistakes)
    return "the result equals the class Attention."


@exercise
def parameters(answer: object) -> str:
    """Number of parameters of the chapter's encoder layer, as in Keras, for any sizes."""
    for d, dense, H, head in ((48, 80, 3, 20), (32, 32, 2, 32)):
        wide = H * head
        matrices, biases = 4 * d * wide, 3 * wide + d
        feed_forward, hidden = 2 * d * dense, dense + d
        right = matrices + biases + feed_forward + hidden + 4 * d
        mistakes: dict[str, tuple[float]] = {
            "the biases of the six linear layers are missing.": (right - biases - hidden,),
            "the biases of the attention are missing.": (right - biases,),
            "the biases of the feed-forward network are missing.": (right - hidden,),
            "the biases of the linear layers are counted twice.": (right + biases + hidden,),
            "one of the two norms is missing. A norm has a factor and a bias for each number.": (right - 2 * d,),
            "both norms are missing.": (right - 4 * d,),
            "the output matrix of the attention is missing.": (right - d * wide - d,),
            "each head is head_width wide here, so all heads are H * head_width wide and not d.": (
                right - matrices - biases + 4 * d * d + 4 * d,
            ),
            "the matrices of one head are counted. There are H of them.": (
                right - matrices - biases + 4 * d * head + 3 * head + d,
            ),
            "the output matrix has d biases and not one for each number of the heads.": (right - d + wide,),
            "the output matrix has d biases for all heads together, and not for each head.": (right + (H - 1) * d,),
            "there are three matrices before the heads, for queries, keys and values. One is missing.": (
                right - d * wide - wide,
            ),
            "the feed-forward network has two linear layers. The second, from dense to d numbers, is missing.": (
                right - dense * d - d,
            ),
            "the feed-forward network has two linear layers. The first, from d to dense numbers, is missing.": (
                right - d * dense - dense,
            ),
            "one of the four matrices of the attention is missing.": (right - d * wide,),
            "one of the two matrices of the feed-forward network is missing.": (right - d * dense,),
            "the feed-forward network is missing.": (right - feed_forward - hidden,),
            "the matrices of the feed-forward network have the size d x dense, and not d x d.": (
                right - feed_forward + 2 * d * d,
            ),
            "the layers of the feed-forward network lead from d to dense numbers and back, and not from d to d.": (
                right - feed_forward - hidden + 2 * d * d + 2 * d,
            ),
        }
        expected, sizes = (float(right),), f"d = {d}, dense = {dense}, H = {H}, head_width = {head}"
        found = call(answer, d, dense, H, head)
        compare_numbers(found, expected, mistakes, [f"the number for {sizes}"])
    return "the chapter's layer has 10,656 parameters."


@exercise
def padding_proof_model(answer: object) -> str:
    """A model like the chapter's, with 650,689 parameters, whose answer does not depend on padding."""
    if not isinstance(answer, TextClassifier):
        raise Mistake(f"expected a TextClassifier, found {kind(answer)}. Build the model from its preset.")
    c = answer.config
    if c.positions != "none":
        raise Mistake("the model has position embeddings, too. Change only what the padding needs.")
    if c.pooling != "max":
        raise Mistake(f"the model takes the {c.pooling} over the words. The chapter takes the maximum; keep it.")
    if (count := sum(p.numel() for p in answer.parameters())) != 650_689:
        raise Mistake(f"the model has {count:,} parameters, expected 650,689. Change no sizes.")
    if not all(p.isfinite().all() for p in answer.parameters()):
        raise Mistake("the weights of the model contain NaN or infinite numbers. Change only the setting.")
    if any(part.training for part in answer.modules()):
        what = "the model" if answer.training else "a part of the model"
        raise Mistake(f"{what} is in training mode, so dropout changes its answer. Call eval().")
    words, length = torch.randint(1, 20_000, (1, 7)), torch.tensor([7])
    with torch.no_grad(), manyheads.record(answer) as maps:
        answer(words, length)
    weights = maps["encoder.blocks.0.attention"][0]
    if weights.isnan().any():
        raise Mistake("the attention contains NaN, because the weights of the model are too large.")
    padding = float(weights[..., 7:].sum(-1).mean())
    if padding > 0:
        raise Mistake(f"in a text of 7 words, {padding:.0%} of the attention goes to padding. Which setting hides it?")
    return "the model reads only words, with the chapter's 650,689 parameters."
