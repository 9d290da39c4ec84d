"""Image model as a teacher: it sees the student's images with its own preprocessing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from manyheads.data.images.preprocessing import Preprocessing
from manyheads.errors import UserError
from manyheads.tasks.distillation import Distillation


@dataclass(frozen=True)
class Teacher:
    """Trained image model that is the teacher in knowledge distillation.

    model         image model of the teacher
    expected      preprocessing with which the teacher was trained
    given         preprocessing of the student's images. For the teacher, the images are shifted and scaled to the
                  expected preprocessing
    distillation loss of the student
    """

    model: nn.Module
    expected: Preprocessing
    given: Preprocessing
    distillation: Distillation = field(default_factory=Distillation)

    def __post_init__(self) -> None:
        if self.expected.channels != self.given.channels:
            raise UserError(
                f"the teacher takes images with {self.expected.channels} channels, "
                f"the student with {self.given.channels}: use a teacher with the student's number of channels"
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
        return self.distillation.loss(student, self.logits(images))
