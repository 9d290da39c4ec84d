"""Recipes for iGPT, which completes images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from manyheads.core.config import Count, Range
from manyheads.data.images.files import Columns
from manyheads.files import JsonObject
from manyheads.runs.recipe import DataConfig, Recipe
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.image_writing.task:ImageWriting"


@dataclass(frozen=True)
class ImageWritingConfig(DataConfig):
    """Settings of a training run of an iGPT.

    data         path of a folder of class folders, of a table, of IDX or tar files, or of a directory of splits. With
                 none, the handwritten digits of scikit-learn are used. The model does not see the labels
    columns      names of the columns of a table: columns.image and columns.label
    items        number of training images, sampled with the seed. With none, all images are used
    image_size   height and width to which images are reduced, in pixels
    colors       maximum number of colors, found by k-means in the training images
    preset       name of the model preset, such as igpt/s; `model` overrides its fields
    model        overrides fields of the preset, such as model.layers=6
    batch_items  number of images in a micro-batch
    """

    columns: Columns = field(default_factory=Columns)
    items: Count | None = None
    image_size: Annotated[int, Range(2, 256)] = 8
    colors: Annotated[int, Range(2, 65_536)] = 16
    preset: str = "igpt/digits"
    model: JsonObject = field(default_factory=dict)
    batch_items: Annotated[int, Range(1, 10_000)] = 32
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=40, optimizer="adamw", schedule="cosine", learning_rate=1e-3, warmup=100, betas=(0.9, 0.95),
            eps=1e-8, weight_decay=0.01, clip=1.0, metric="loss", log_every=20,
        )
    )  # fmt: skip


DIGITS = ImageWritingConfig()
MNIST = replace(DIGITS, image_size=16, batch_items=16, training=replace(DIGITS.training, epochs=1))
CIFAR = replace(MNIST, colors=512)

RECIPES = {
    "image-writing": Recipe(
        "a small iGPT on handwritten digits, or on your images", "Chen et al. 2020", DIGITS, TASK,
        "Without data, it trains on scikit-learn's handwritten digits, which takes several minutes.",
        options="[data=DIR image_size=16 colors=512]",
    ),
    "image-writing/mnist": Recipe(
        "a small iGPT on MNIST, reduced to 16 x 16 pixels", "Chen et al. 2020", MNIST, TASK,
        requires={"data": "DIR with train and test of MNIST, with the columns image and label, or as IDX files"},
    ),
    "image-writing/cifar": Recipe(
        "a small iGPT on CIFAR-10, reduced to 16 x 16 pixels and 512 colors", "Chen et al. 2020", CIFAR, TASK,
        requires={"data": "DIR with train and test of CIFAR-10, with the columns image and label"},
    ),
}  # fmt: skip
