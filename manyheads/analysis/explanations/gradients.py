"""The score that an explanation divides among the parts of the input, and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.analysis.readout import Readout
from manyheads.errors import UserError


@dataclass(frozen=True)
class Score:
    """Number that an explanation is about: the logit of one output, the target.

    If a model predicts one of two labels, it is the target's logit minus the other logit. The probability depends on
    this difference alone, and some models fix one of the two logits at zero.

    target  index of the output
    """

    readout: Readout
    target: int

    def gradients(self, logits: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the scores (B,) for logits (B, V), and the gradients of their sum with respect to states of the model.

        Raises UserError if the logits do not depend on the states through differentiable operations.
        """
        scores = logits[:, self.target]
        if self.readout.kind == "classes" and logits.shape[1] == 2:
            scores = scores - logits[:, 1 - self.target]
        usable = states and scores.requires_grad
        slopes = torch.autograd.grad(scores.sum(), states, allow_unused=True) if usable else []
        found = [slope for slope in slopes if slope is not None]
        if not found or len(found) < len(states):
            raise UserError(
                f"{self.readout.source}: no gradient reaches the input, because the model is compiled or partly frozen"
            )
        return scores.detach(), found


def reads_vectors(readout: Readout) -> bool:
    """Return True if the input has gradients: the pixels of an image, or the embeddings of tokens."""
    return readout.picture is not None or readout.embedding is not None


def input_gradients(
    score: Score, count: int = 1, change: Callable[[Tensor], Tensor] = torch.clone
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the input (B, T, D) or (B, C, Y, X), the gradient of the score at the changed input, and the scores (B,).

    The input of a text is the embeddings of its tokens, and the input of an image is its pixels.

    count   batch size B: the number of copies of the input
    change  function from the input to the changed input
    """
    readout, inputs = score.readout, score.readout.repeated(count)
    original, changed = list[Tensor](), list[Tensor]()

    def replace(whole: Tensor) -> Tensor:
        original.append(whole.detach())
        changed.append(change(whole.detach()).requires_grad_())
        return changed[0]

    with ExitStack() as undo:
        if readout.embedding is None:
            assert inputs[0] is not None
            inputs = (replace(inputs[0]), *inputs[1:])
        else:
            hook = readout.embedding.register_forward_hook(lambda module, given, output: replace(output))
            undo.callback(hook.remove)
            undo.enter_context(torch.backends.cudnn.flags(enabled=False))  # cuDNN has no gradients of RNNs in eval mode
        scores, (gradient,) = score.gradients(readout.logits(*inputs), changed)
    return original[0], gradient, scores
