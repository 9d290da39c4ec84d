"""Effect of each part of DeiT's training recipe on CIFAR-10: table 8 of Touvron 2021 with a small training budget."""

from __future__ import annotations

from manyheads.files import JsonObject
from manyheads.runs.ablation import Rows, ablate
from manyheads.runs.options import Run
from manyheads.runs.run import carry_out
from manyheads.tasks.images.recipes import ImageConfig
from manyheads.tasks.images.task import ImageClassification

# The rows are those of the paper's table 8. The last two rows are additions.
ROWS: Rows = {
    "base": {},
    "SGD": {"training.optimizer": "sgd", "training.learning_rate": 0.1, "training.weight_decay": 1e-4},
    "no RandAugment": {"augmentation.randaugment": 0},
    "AutoAugment": {"augmentation.randaugment": 0, "augmentation.autoaugment": True},
    "no mixup": {"augmentation.mixup": 0.0},
    "no cutmix": {"augmentation.cutmix": 0.0},
    "no mixup, no cutmix": {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0},
    "no erasing": {"augmentation.erasing": 0.0},
    "no stochastic depth": {"model.stochastic_depth": 0.0},
    "no repeated augmentation": {"augmentation.repeats": 1},
    "dropout": {"model.dropout": 0.1},
    "moving average": {"training.ema": 0.999},
}


def train(config: ImageConfig, run: Run) -> str | JsonObject | None:
    """Train a small model for every row of the table, and return the table of results."""
    return ablate(
        ROWS, config, run, lambda row, run: carry_out(ImageClassification(row, run)), {"loss": "loss", "top1": "top1"}
    )
