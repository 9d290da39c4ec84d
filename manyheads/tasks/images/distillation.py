"""Learning from a teacher: knowledge distillation, soft and hard (Touvron 2021, section 4).

y true labels, Zs and Zt the logits of student and teacher, psi softmax:

    soft               (1 - w) CE(psi(Zs), y) + w tau^2 KL(psi(Zt / tau), psi(Zs / tau))        equation 2
    hard               (1 - w) CE(psi(Zs), y) + w CE(psi(Zs), argmax Zt)                        equation 3, w = 1/2
    with a token       the first term is of the class token's logits, the second of the distillation token's

Equation 2 as printed has the student first in KL; what is meant, and what the authors' code computes, is the cross-
entropy from the teacher's distribution (Hinton 2015).

The teacher sees the very image that the student sees, changed and mixed; the label it gives to that is its argmax.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError


@dataclass(frozen=True)
class Teacher:
    """A trained image model, what images it expects, and how much its word weighs.

    given        what the student is given; images are shifted and scaled to what the teacher expects
    share        w: 0.5 for hard distillation in the paper, 0.1 for soft
    temperature  tau of soft distillation: 3 in the paper
    """

    model: nn.Module
    expected: Preprocessing
    given: Preprocessing
    kind: Literal["hard", "soft"] = "hard"
    share: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        if self.expected.channels != self.given.channels:
            raise UserError(
                f"the teacher takes images with {self.expected.channels} channels, the student with "
                f"{self.given.channels}: choose a teacher for such images"
            )
        if not 0 <= self.share <= 1 or not 0 < self.temperature < math.inf:
            raise UserError(
                f"share is {self.share} and temperature {self.temperature}: expected 0 to 1, and a positive number"
            )
        size, device = self.given.size, next(self.model.parameters()).device
        try:  # networks of convolutions see any size
            self.logits(torch.zeros(1, self.given.channels, size, size, device=device))
        except UserError as error:
            raise UserError(
                f"the teacher cannot see the student's images: {error}; fine-tune it at their size first (--init with "
                f"model.image_size={size})"
            ) from None
        if size != self.expected.size:
            warnings.warn(
                f"the teacher learnt from images of {self.expected.size} x {self.expected.size} and is shown the "
                f"student's, {size} x {size}: it may know them worse; fine-tune it at their size (--init with "
                f"model.image_size={size}), or give the student model.image_size={self.expected.size}",
                stacklevel=2,
            )

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """images (B, C, Y, X) as the student is given them -> (B, L)."""
        self.model.eval()
        given, own = self.given, self.expected
        if (given.mean, given.std) != (own.mean, own.std):
            channels = images.new_tensor([given.mean, given.std, own.mean, own.std])[:, :, None, None]  # (4, C, 1, 1)
            images = (images * channels[1] + channels[0] - channels[2]) / channels[3]
        return self.model(images).float()

    def loss(self, student: Tensor, images: Tensor) -> Tensor:
        """What the student's logits (B, L) lose against the teacher's on the same images, summed over them."""
        taught = self.logits(images)
        if self.kind == "hard":
            return F.cross_entropy(student, taught.argmax(-1), reduction="sum")
        tau = self.temperature
        learnt, expected = (student / tau).log_softmax(-1), (taught / tau).log_softmax(-1)
        return tau**2 * F.kl_div(learnt, expected, log_target=True, reduction="sum")
