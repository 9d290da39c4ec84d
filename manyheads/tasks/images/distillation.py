"""Knowledge distillation from a teacher, with soft or hard labels (Touvron 2021, section 4).

With true labels y, student logits Zs, teacher logits Zt, the softmax psi, the cross-entropy CE, the weight w and the
temperature tau, the losses are:

    soft            (1 - w) CE(psi(Zs), y) + w tau^2 KL(psi(Zt / tau), psi(Zs / tau))        equation 2
    hard            (1 - w) CE(psi(Zs), y) + w CE(psi(Zs), argmax Zt)                        equation 3, w = 1/2
    with a token    the first term uses the class token's logits, the second the distillation token's

Equation 2 as printed has the student first in the divergence KL. The authors' code computes the cross-entropy from the
teacher's distribution instead (Hinton 2015), as is done here. Teacher and student see the same image, after
augmentation and mixing. The hard label is the argmax of the teacher's logits.
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
    """Trained image model that is the teacher in knowledge distillation.

    model        image model of the teacher
    expected     preprocessing with which the teacher was trained
    given        preprocessing of the student's images. For the teacher, the images are shifted and scaled to the
                 expected preprocessing
    kind         "hard" to learn the teacher's label, "soft" to learn its probabilities
    share        weight w of the distillation loss. In the paper, it is 0.5 for hard and 0.1 for soft distillation
    temperature  temperature tau of soft distillation. In the paper, it is 3
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
                f"the teacher takes images with {self.expected.channels} channels, "
                f"the student with {self.given.channels}: use a teacher with the student's number of channels"
            )
        if not 0 <= self.share <= 1 or not 0 < self.temperature < math.inf:
            raise UserError(
                f"share is {self.share} and temperature {self.temperature}: expected 0 to 1, and a positive number"
            )
        size, device = self.given.size, next(self.model.parameters()).device
        # Run the teacher on an empty image to check whether it accepts the size of the student's images.
        try:
            self.logits(torch.zeros(1, self.given.channels, size, size, device=device))
        except UserError as error:
            raise UserError(
                f"the teacher cannot read the student's images: {error}. "
                f"Fine-tune it at their size first (--init with model.image_size={size})"
            ) from None
        if size != self.expected.size:
            warnings.warn(
                f"the teacher was trained on images of {self.expected.size} x {self.expected.size} pixels, "
                f"but the student's have {size} x {size}, so its accuracy may be lower. "
                f"Fine-tune it at their size (--init with model.image_size={size}), "
                f"or set model.image_size={self.expected.size} for the student.",
                stacklevel=2,
            )

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the teacher's logits (B, L) for images (B, C, Y, X) that have the student's preprocessing."""
        self.model.eval()
        given, own = self.given, self.expected
        if (given.mean, given.std) != (own.mean, own.std):
            # mean and standard deviation of each color channel, for the teacher and for the student, (4, C, 1, 1)
            channels = images.new_tensor([given.mean, given.std, own.mean, own.std])[:, :, None, None]
            images = (images * channels[1] + channels[0] - channels[2]) / channels[3]
        return self.model(images).float()

    def loss(self, student: Tensor, images: Tensor) -> Tensor:
        """Return the distillation loss, summed over the batch.

        student  (B, L) logits of the student
        images   (B, C, Y, X) images from which the student has computed these logits
        """
        teacher_logits = self.logits(images)
        if self.kind == "hard":
            return F.cross_entropy(student, teacher_logits.argmax(-1), reduction="sum")
        tau = self.temperature
        log_student, log_teacher = ((student / tau).log_softmax(-1), (teacher_logits / tau).log_softmax(-1))
        return tau**2 * F.kl_div(log_student, log_teacher, log_target=True, reduction="sum")
