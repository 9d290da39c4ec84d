"""Recipes in which a student learns from a teacher with another architecture (Abnar 2020)."""

from __future__ import annotations

from dataclasses import replace

from manyheads.data.images.augmentation import Augmentation
from manyheads.files import JsonObject
from manyheads.runs.recipe import Recipe
from manyheads.tasks.classification.recipes import EMBEDDED
from manyheads.tasks.images.recipes import MNIST
from manyheads.training.config import TrainingConfig

# The student learns only the probabilities of its teacher, so that its labels add no other signal.
TAUGHT: JsonObject = {"distillation": "soft", "share": 1.0}

AGREEMENT = replace(
    EMBEDDED,
    preset="text-classifier/corrected",
    tokens="words",
    size=10_000,
    batch_items=32,
    temperature=2.0,
    model={
        "layers": 2, "width": 64, "heads": 4, "head_width": 16, "feed_forward": 128, "max_positions": 96,
    },
    training=TrainingConfig(
        epochs=10, schedule="cosine", learning_rate=2e-3, warmup=100, betas=(0.9, 0.999), eps=1e-8, clip=1.0,
        metric="loss", log_every=20,
    ),
)  # fmt: skip
MOVED_DIGITS = replace(
    MNIST, items=4000, augmentation=Augmentation(), batch_items=64, temperature=5.0,
    training=replace(MNIST.training, epochs=8),
)  # fmt: skip

LSTM: JsonObject = {
    "preset": "sequence-baseline/lstm", "model": {"width": 64, "hidden": 64, "max_positions": 96},
}  # fmt: skip
RESNET: JsonObject = {
    "preset": "resnet/20-small", "model": {"channels": 1, "depths": (1, 1, 1)}, "training.learning_rate": 3e-3,
}  # fmt: skip
# the row that teaches the student of each row, or None
TEACHERS: dict[str, str | None] = {"teacher": None, "alone": None, "taught": "teacher", "taught by its like": "alone"}

_ABOUT = """It trains a teacher, a student without a teacher, a student of the teacher, and a student of the student
without a teacher. All are also scored on test data that differ from the training data. Each model has its own
directory below --out and can be resumed."""

RECIPES = {
    "agreement": Recipe(
        "a Transformer that learns the agreement of subject and verb from an LSTM", "Abnar et al. 2020",
        AGREEMENT, "papers.biases.run:train_on_sentences", _ABOUT, options="[training.seed=2]",
        program="python -m papers.biases",
    ),
    "moved-digits": Recipe(
        "a ViT that learns digits from a ResNet, with moved and smaller digits as a test", "Abnar et al. 2020",
        MOVED_DIGITS, "papers.biases.run:train_on_digits", _ABOUT, options="[training.seed=2]",
        requires={"data": "DIR with train and test of MNIST, with the columns image and label, or as IDX files"},
        program="python -m papers.biases",
    ),
}  # fmt: skip
