"""Knowledge distillation from a teacher, with soft or hard labels (Touvron 2021, section 4).

With true labels y, student logits Zs, teacher logits Zt, the softmax psi, the cross-entropy CE, the weight w and the
temperature tau, the losses are:

    soft            (1 - w) CE(psi(Zs), y) + w tau^2 KL(psi(Zt / tau), psi(Zs / tau))        equation 2
    hard            (1 - w) CE(psi(Zs), y) + w CE(psi(Zs), argmax Zt)                        equation 3, w = 1/2
    with a token    the first term uses the class token's logits, the second the distillation token's

Equation 2 as printed has the student first in the divergence KL. The authors' code computes the cross-entropy from the
teacher's distribution instead (Hinton 2015), as is done here. Teacher and student see the same image, after
augmentation and mixing, or the same text. The hard label is the argmax of the teacher's logits.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.errors import UserError, shown
from manyheads.files import JsonObject
from manyheads.runs.options import Run
from manyheads.runs.recipe import TargetConfig
from manyheads.tasks.evaluation import EvaluationResult

logger = logging.getLogger(__name__)

TEACHER_BATCHES = 8  # number of training batches on which labels of teacher and data are compared


@dataclass(frozen=True)
class Distillation:
    """Loss of a student that learns from a teacher's logits.

    kind         "hard" to learn the teacher's label, "soft" to learn its probabilities
    share        weight w of the distillation loss. In the paper, it is 0.5 for hard and 0.1 for soft distillation
    temperature  temperature tau of soft distillation. In the paper, it is 3
    """

    kind: Literal["hard", "soft"] = "hard"
    share: float = 0.5
    temperature: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or not 0 < self.temperature < math.inf:
            raise UserError(
                f"share is {self.share} and temperature {self.temperature}: expected 0 to 1, and a positive number"
            )

    @classmethod
    def of(cls, config: TargetConfig) -> Distillation:
        """Return the loss for the settings of a run, with the weight of the paper if the settings have none."""
        share = {"hard": 0.5, "soft": 0.1}[config.distillation] if config.share is None else config.share
        return cls(config.distillation, share, config.temperature)

    def loss(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the distillation loss for logits (B, L) of student and teacher, summed over the batch."""
        if self.kind == "hard":
            return F.cross_entropy(student, teacher.argmax(-1), reduction="sum")
        tau = self.temperature
        log_student, log_teacher = (student / tau).log_softmax(-1), (teacher / tau).log_softmax(-1)
        return tau**2 * F.kl_div(log_student, log_teacher, log_target=True, reduction="sum")


def refuse_without_teacher(config: TargetConfig, run: Run) -> None:
    """Raise UserError if the user set an option of distillation, but no teacher."""
    if config.teacher is None:
        settings = ("distillation", "share", "temperature")
        run.refuse(settings, "no effect without a teacher: add teacher=RUN", changed_only=True)


def check_labels(config: TargetConfig, taught: tuple[str, ...], labels: tuple[str, ...]) -> None:
    """Raise UserError if the labels of the teacher, `taught`, are not those of the data in the same order."""
    if taught != labels:
        raise UserError(
            f"{config.teacher}: the teacher has {_labels_text(taught)}, "
            f"but the data have {_labels_text(labels)}. Use a teacher with the same labels in the same order."
        )


def _labels_text(labels: tuple[str, ...]) -> str:
    return f"{len(labels)} labels ({shown(labels)})" if labels else "no labels"


def weights_hash(model: nn.Module) -> str:
    """Return a hash of a model's weights, to detect a changed teacher when a run is resumed."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def differing_labels(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the fraction of training items for which the teacher predicts another label than the data have.

    batches  logits of the teacher (B, L) and labels of the data (B,)
    """
    return float(torch.cat([logits.argmax(-1).cpu() != labels for logits, labels in batches]).double().mean())


def warn_of_equal_labels(differing: float, config: TargetConfig, items: str, hint: str = "") -> None:
    """Log a warning if the teacher only repeats the labels of the data, so that hard distillation has no effect.

    differing  fraction of the training items for which the teacher predicts another label
    """
    if differing == 0 and config.distillation == "hard":
        logger.warning(
            f"the teacher's labels equal those of the first batches of training {items}, so hard distillation has no "
            f"effect on them; use distillation=soft{hint}"
        )


def compare_with_teacher(teacher: EvaluationResult, student: EvaluationResult, metric: str) -> JsonObject:
    """Return the teacher's accuracy on the student's test items, and how often teacher and student agree.

    metric  name of the accuracy, such as top1

    The agreement is the fraction of items for which both predict the same label. The fraction of shared errors is the
    number of items for which both predict the same wrong label, divided by the number that either gets wrong.
    """
    pairs = list(zip(teacher.outputs, student.outputs, student.references, strict=True))
    same = sum(told == found for told, found, _ in pairs)
    wrong = [(told, found) for told, found, truth in pairs if not told == found == truth]
    shared = sum(told == found for told, found in wrong) / len(wrong) if wrong else 0.0
    return {
        f"teacher_{metric}": teacher.metrics[metric]["value"], "agreement": same / len(pairs), "shared_errors": shared,
    }  # fmt: skip
