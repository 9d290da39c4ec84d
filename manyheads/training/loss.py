"""Cross-entropy over a vocabulary, computed in chunks so that the logits of a whole batch are never in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from manyheads.training.state import as_sharded
from manyheads.training.tensor_parallel import split_vocabulary_loss

# Number of token positions per chunk. The logits of 512 positions x 10,000 tokens are 20 MB in float32 and fit into the
# cache of a CPU.
CHUNK = 512
# Number of token positions per chunk on a GPU. It is larger, because each chunk reads and writes the gradient of the
# whole output matrix.
GPU_CHUNK = 8192


def upcast(x: Tensor) -> Tensor:
    """Convert a tensor to the precision in which losses are computed: float64 remains, other types become float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def smoothed_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, smoothing: float, pad: int | None
) -> Tensor:
    """Return the sum over N positions of the label-smoothed cross-entropy, a float32 scalar.

    Source: Szegedy 2016; Vaswani 2017, section 5.4.

    hidden     (N, D) hidden states
    weight     (V, D) output matrix
    bias       (V,) output bias
    target     (N,) token ids; negative targets are ignored
    smoothing  probability that is spread over the tokens other than the true one
    pad        id of the padding token; None if the vocabulary has none

    The true token gets probability 1 - smoothing; the rest is spread evenly over the other V - 1 tokens without
    padding. The padding token has probability zero: it is never a target, and its row of `weight` gets no gradient
    here. If the vocabulary has no padding token (pad=None), smoothing must be 0.

    Logits are computed chunk by chunk and freed after their loss and gradients are computed. In a small model they
    would take most of the memory and half of the time. Under autocast the products run in low precision, but all sums
    over the vocabulary and over chunks are float32.
    """
    real = target >= 0 if pad is None else (target >= 0) & (target != pad)
    return vocabulary_loss(hidden[real], weight, bias, target[real], smoothing=smoothing, pad=pad)


def vocabulary_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *, smoothing: float, pad: int | None
) -> Tensor:
    """Return the sum of the label-smoothed cross-entropy over N positions, none of which is ignored.

    The arguments are those of `smoothed_cross_entropy`, but no target may be padding or negative.
    """
    assert pad is not None or smoothing == 0.0, "label smoothing needs a padding token"
    if (split := as_sharded(weight)) is not None:
        return split_vocabulary_loss(hidden, split, bias, target, smoothing=smoothing, pad=pad)
    # Without detach, PyTorch would compute the gradient of a parameter even in inference.
    if not torch.is_grad_enabled():
        hidden, weight, bias = hidden.detach(), weight.detach(), None if bias is None else bias.detach()
    total = _SmoothedCrossEntropy.apply(hidden, weight, bias, target, smoothing, pad)
    assert isinstance(total, Tensor)
    return total


def _logits(
    rows: Tensor, table: Tensor, bias: Tensor | None, pad: int | None, buffer: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return the logits (n, V) of n rows, computed in a buffer. The logit of the padding token is minus infinity."""
    logits = torch.mm(rows, table.T, out=buffer[: len(rows)]).to(dtype)
    if bias is not None:
        logits += bias
    if pad is not None:
        logits[:, pad] = -torch.inf
    return logits


def _add_product(total: Tensor | None, p: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `total` + p^T rows: a gradient of the output matrix with the part of one chunk added in place.

    total  gradient so far; None for the first chunk
    """
    if total is None:
        return (p.T @ rows).to(dtype)
    if p.dtype == dtype:
        return total.addmm_(p.T, rows)
    total += p.T @ rows
    return total


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Autograd function for label-smoothed cross-entropy with a hand-written gradient.

    With logits z, model probabilities p, the smoothing probability e of every token, and the one-hot vector of the true
    token:

        loss      = logsumexp(z) - (1 - smoothing) * z_true - e * sum(z)
        dloss/dz  = p - (1 - smoothing) * onehot - e

    The terms with e need no pass over the logits: sum(z) = hidden . sum of the rows of weight (+ sum of bias).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, pad: int | None
    ) -> Tensor:
        device = hidden.device.type
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        # Autocast does not convert float64 to lower precision.
        autocasts = torch.is_autocast_enabled(device) and dtype == torch.float32
        product_dtype = torch.get_autocast_dtype(device) if autocasts else dtype
        rows, table = hidden.to(dtype), weight.to(dtype)
        product_rows, product_table = rows.to(product_dtype), table.to(product_dtype)
        confidence, spread = 1.0 - smoothing, smoothing / (weight.shape[0] - 1)
        excluded = [] if pad is None else [pad]
        # Without smoothing, the terms with e are skipped: they read the whole weight several times.
        weight_sum = table.sum(0) - table[excluded].sum(0) if spread else None  # (D,)
        bias_sum = 0.0 if bias is None or not spread else bias.sum() - bias[excluded].sum()
        grad_hidden = torch.empty_like(rows)
        grad_weight = None
        grad_bias = None if bias is None else torch.zeros_like(bias)
        total = rows.new_zeros(())
        with torch.autocast(device, enabled=False):
            chunk = GPU_CHUNK if device == "cuda" else CHUNK
            buffer = product_rows.new_empty(min(chunk, len(rows)), len(table))
            for h, n, t, grad in zip(
                *(tensor.split(chunk) for tensor in (rows, product_rows, target, grad_hidden)), strict=True
            ):
                logits = _logits(n, product_table, bias, pad, buffer, dtype)
                log_p = logits.log_softmax(-1)
                at = torch.arange(len(t), device=t.device)
                true_log_p, true_logit = log_p[at, t], logits[at, t]
                total -= confidence * true_log_p.sum()
                if weight_sum is not None:
                    smooth = h @ weight_sum + bias_sum - (len(table) - 1) * (true_logit - true_log_p)
                    total -= spread * smooth.sum()
                if not any(ctx.needs_input_grad):
                    continue  # Without gradients, as in validation, only the loss is computed.
                probability = log_p.exp_()
                probability[at, t] -= confidence
                if grad_bias is not None:
                    grad_bias += probability.sum(0)
                p = probability.to(product_dtype)
                grad.copy_(p @ product_table)
                if weight_sum is not None:
                    grad.sub_(weight_sum, alpha=spread)
                grad_weight = _add_product(grad_weight, p, n, dtype)
            if not any(ctx.needs_input_grad):
                return total
            if grad_weight is None:  # The batch has no target, so no chunk was computed.
                grad_weight = torch.zeros_like(table)
            if spread:
                grad_weight -= spread * rows.sum(0)
            grad_weight[excluded] = 0.0
            if grad_bias is not None:
                grad_bias -= spread * len(rows)
                grad_bias[excluded] = 0.0
        ctx.save_for_backward(grad_hidden.to(hidden.dtype), grad_weight.to(weight.dtype), grad_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (factor,) = gradients
        saved = ctx.saved_tensors
        if torch._C._autograd._get_current_graph_task_keep_graph():  # another backward pass may follow
            saved = [None if gradient is None else gradient.clone() for gradient in saved]
        return (*(None if gradient is None else gradient.mul_(factor) for gradient in saved), None, None, None)
