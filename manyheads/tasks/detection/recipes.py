"""Recipes for object detection with DETR."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from manyheads.core.config import Count, Positive, Range, Rate
from manyheads.data.images.object_preprocessing import MEAN, STD
from manyheads.files import JsonObject
from manyheads.runs.recipe import DataConfig, Recipe
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.detection.task:Detection"


@dataclass(frozen=True)
class DetectionConfig(DataConfig):
    """Settings of a training run for object detection.

    data         path of a COCO file, of a folder `images` with a folder `labels` (YOLO), or of a directory of splits in
                 one of these forms. With none, scenes of scikit-learn's handwritten digits are used
    scenes       number of training scenes, if no data are given
    preset       name of the model preset; `model` overrides its fields
    model        overrides fields of the preset, such as model.queries=50
    shortest     length of the shorter side of the images in pixels, unless the longer side would exceed
                 model.image_size. With none, it is model.image_size
    mean, std    mean and standard deviation of each color channel
    flip         probability with which a training image is mirrored
    batch_items  number of images in a micro-batch
    """

    scenes: Count = 4000
    preset: str = "detr/r50"
    model: JsonObject = field(default_factory=dict)
    shortest: Annotated[int, Range(1, 10_000)] | None = None
    mean: tuple[float, ...] = MEAN
    std: tuple[Positive, ...] = STD
    flip: Rate = 0.5
    batch_items: Annotated[int, Range(1, 10_000)] = 4
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            epochs=300, optimizer="adamw", schedule="cosine", learning_rate=1e-4, warmup=500, betas=(0.9, 0.999),
            eps=1e-8, weight_decay=1e-4, clip=0.1, metric="ap", log_every=20,
        )
    )  # fmt: skip


DIGITS = DetectionConfig(
    preset="detr/digits", mean=(0.2,), std=(0.3,), flip=0.0, batch_items=32,
    training=TrainingConfig(
        epochs=24, optimizer="adamw", schedule="cosine", learning_rate=1e-3, warmup=200, betas=(0.9, 0.999), eps=1e-8,
        weight_decay=1e-4, clip=1.0, metric="ap50", log_every=20,
    ),
)  # fmt: skip
COCO = DetectionConfig()
TUNED = replace(COCO, training=replace(COCO.training, epochs=50, learning_rate=5e-5, schedule="linear"))

RECIPES = {
    "detection": Recipe(
        "a small DETR on scenes of handwritten digits, or on your images", "Carion et al. 2020", DIGITS, TASK,
        "Without data, it trains on scenes of one to six digits of scikit-learn, which may overlap, in half an hour.",
        options="[data=DIR] [--init MODEL]", init="may", with_init=TUNED,
    ),
    "detection/coco": Recipe(
        "DETR on color photographs in the format of COCO or YOLO", "Carion et al. 2020", COCO, TASK,
        """It has the settings of the paper, but a single learning rate and no pretrained ResNet. Published AP on COCO
        after 500 epochs (table 1): 42.0.""",
        requires={"data": "DIR with annotations/instances_train.json, instances_val.json and the images"}, init="may",
    ),
}  # fmt: skip
