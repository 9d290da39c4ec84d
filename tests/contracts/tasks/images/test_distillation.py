"""The distillation loss of a teacher, compared with the paper's formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from manyheads.data.images.preprocessing import Preprocessing
from manyheads.models.presets import preset
from manyheads.models.resnet import ResNet
from manyheads.models.vit import ViT
from manyheads.tasks.distillation import Distillation
from manyheads.tasks.images.teacher import Teacher

GRAY = Preprocessing(4, mean=(0.5,), std=(0.5,), channels=1)
OTHER = Preprocessing(4, mean=(0.1,), std=(0.3,), channels=1)


class Linear(nn.Module):
    """Model whose logits are products of the image's pixels."""

    def __init__(self, labels: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, labels, generator=torch.Generator().manual_seed(1)))
        self.dropout = nn.Dropout(0.5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.dropout(images.flatten(1)) @ self.weight


def images(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(2))


def test_hard_distillation_equals_cross_entropy_with_the_teachers_label() -> None:
    student = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))
    teacher = Linear()
    teacher.train()
    found = Teacher(teacher, GRAY, GRAY).loss(student, images())
    told = (images().flatten(1) @ teacher.weight).argmax(1)  # without dropout: a teacher is sure of itself
    expected = -sum(math.log(student[i].softmax(0)[told[i]].item()) for i in range(5))
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_soft_distillation_equals_the_divergence_at_a_temperature(tau: float) -> None:
    student = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), requires_grad=True)
    teacher = Linear()
    found = Teacher(teacher, GRAY, GRAY, Distillation("soft", temperature=tau)).loss(student, images())
    p = (images().flatten(1) @ teacher.weight / tau).softmax(1)
    q = (student / tau).softmax(1)
    assert found.item() == pytest.approx(float(tau**2 * (p * (p / q).log()).sum()), rel=1e-4)
    found.backward()
    assert student.grad is not None
    # the derivative of tau^2 KL(p || softmax(z / tau)) by z
    assert torch.allclose(student.grad, tau * (q - p).detach(), atol=1e-5)
    assert teacher.weight.grad is None


def test_a_teacher_gets_its_own_preprocessing() -> None:
    pixels = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(4))  # 0 to 1
    teacher = Linear()
    found = Teacher(teacher, OTHER, GRAY).logits((pixels - 0.5) / 0.5)
    assert torch.allclose(found, ((pixels - 0.1) / 0.3).flatten(1) @ teacher.weight, atol=1e-5)


def test_a_teacher_gets_the_students_resolution_or_is_refused() -> None:
    eight = Preprocessing(8, mean=(0.5,), std=(0.5,), channels=1)
    network = ResNet(preset("resnet/20-small", channels=1, labels=("a", "b")))
    with pytest.warns(UserWarning, match="8 x 8 pixels, but the student's have 4 x 4"):
        assert Teacher(network, eight, GRAY).logits(torch.rand(2, 1, 4, 4)).shape == (2, 2)
    fixed = ViT(preset("vit/2-8", labels=("a", "b")))
    with pytest.raises(ValueError, match=r"images are 4 x 4 pixels, but the model expects 8 x 8.*model.image_size=4"):
        Teacher(fixed, eight, GRAY)
    with pytest.raises(ValueError, match="takes images with 3 channels, the student with 1"):
        Teacher(network, Preprocessing(4, mean=(0.5,) * 3, std=(0.5,) * 3, channels=3), GRAY)
    with pytest.raises(ValueError, match="share is 2"):
        Distillation(share=2)
