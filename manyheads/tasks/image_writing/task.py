"""Task of an iGPT: the images, their colors, the model and its scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.palette import MAX_PIXELS, Palette
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.splits import SplitData
from manyheads.models.igpt import IGPT
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.image_writing.objective import ImageWritingObjective
from manyheads.tasks.image_writing.predictor import ImageWriter, ids_of
from manyheads.tasks.image_writing.recipes import ImageWritingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.record import Metrics


class ImageWriting(DataTask[ImageWritingConfig, ImageData]):
    """Task of an iGPT."""

    may_change = ("columns",)

    def planned_model(self) -> IGPT:
        with torch.device("meta"):
            return _model(self.config, self.config.colors)

    def plan(self) -> Plan:
        return Plan(self.planned_model(), self.config.batch_items * self.config.image_size**2)

    def data(self) -> ImageSource:
        return ImageSource(
            **self.located, columns=self.config.columns, sample=self.config.items,
            cache_folder=self.run.out / "state" / "images", follows=not distributed_context().first,
        )  # fmt: skip

    def build(self, splits: SplitData[ImageData], compute: ComputeConfig) -> Job:
        config, seed, train = self.config, self.config.training.seed, splits.train
        count = min(len(train), -(-MAX_PIXELS // config.image_size**2))
        chosen = np.random.default_rng(seed).choice(len(train), count, replace=False)
        palette = Palette.learned([train.image(int(i)) for i in chosen], config.image_size, config.colors, seed)
        model = _model(config, len(palette.colors))
        ids = (ids_of(palette, images) for images in (train, splits.validation))
        objective = ImageWritingObjective(
            model, palette, *ids, compute=compute, batch_items=config.batch_items, seed=seed
        )
        pixels = config.image_size**2
        return Job(model, config.training, objective, flops=costs.training_flops(model, pixels) / pixels)

    def score(self, held: ImageData, compute: ComputeConfig) -> Metrics:
        return ImageWriter(directory.load(self.run.out), compute).evaluate(held).metrics

    def example(self, held: ImageData) -> list[str]:
        source = held.items[0].source
        return ["generate", str(source) if isinstance(source, Path) else "IMAGE.png"]


def _model(config: ImageWritingConfig, colors: int) -> IGPT:
    decided = {"vocab": colors + 1, "max_positions": config.image_size**2}
    model: IGPT = build(preset_for_data(config.preset, ("igpt",), config.model, decided))
    return model
