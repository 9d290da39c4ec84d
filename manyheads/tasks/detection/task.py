"""Task of object detection: the images, the DETR and its scores."""

from __future__ import annotations

from pathlib import Path

import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.checking import warn_of_lost_colors
from manyheads.data.images.object_preprocessing import ObjectPreprocessing
from manyheads.data.images.object_source import ObjectSource
from manyheads.data.images.objects import ObjectData
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.models.detr import Detr
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import model_settings, start
from manyheads.runs.options import Run
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.detection.objective import DetectionObjective
from manyheads.tasks.detection.predictor import Detector, preprocessing_of
from manyheads.tasks.detection.recipes import DetectionConfig
from manyheads.training.record import Metrics

SAMPLE = 20  # number of training images that are searched for colors


class Detection(DataTask[DetectionConfig, ObjectData]):
    """Task of a detector."""

    def check(self) -> None:
        if self.config.data is not None:
            self.run.refuse(("scenes",), "only without data, for the built-in scenes: leave it out")

    def planned_model(self) -> Detr:
        with torch.device("meta"):
            return _new_model(self.config, ())[0]

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else _initial_model(self.config, self.run)[0]
        return Plan(model, self.config.batch_items, "image")

    def data(self) -> ObjectSource:
        return ObjectSource(**self.located, scenes=self.config.scenes)

    def build(self, splits: SplitData[ObjectData], compute: ComputeConfig) -> Job:
        config, run, labels = self.config, self.run, splits.train.names
        model, preprocessing = _initial_model(config, run, labels) if run.init else _new_model(config, labels)
        _check_queries(splits.train, model.config.queries)
        if run.own_data and model.channels == 1:
            seen = splits.train.scenes[:SAMPLE]
            warn_of_lost_colors(sum(scene.image().mode == "RGB" for scene in seen), len(seen))
        objective = DetectionObjective(
            model, preprocessing, splits.train, splits.validation, compute=compute, batch_items=config.batch_items,
            flip=config.flip, seed=config.training.seed,
        )  # fmt: skip
        flops = costs.training_flops(model) * len(splits.train) / splits.train.objects
        return Job(model, config.training, objective, flops=flops, identity={"labels": list(labels)})

    def score(self, held: ObjectData, compute: ComputeConfig) -> Metrics:
        return Detector(directory.load(self.run.out), compute).evaluate(held).metrics

    def example(self, held: ObjectData) -> list[str]:
        source = held.scenes[0].source
        return ["detect", str(source) if isinstance(source, Path) else "IMAGE.png"]


def _check_queries(train: ObjectData, queries: int) -> None:
    """Raise UserError if an image has more objects than the model has object queries."""
    counts = [len(scene.labels) for scene in train.scenes]
    if max(counts) > queries:
        place = train.place(counts.index(max(counts)))
        raise UserError(f"{place}: {max(counts):,} objects, but the model has {queries:,} object queries: raise"
                        " model.queries")  # fmt: skip


def _new_model(config: DetectionConfig, labels: tuple[str, ...]) -> tuple[Detr, ObjectPreprocessing]:
    model: Detr = build(preset_for_data(config.preset, ("detr",), config.model, {"labels": labels} if labels else {}))
    channels = model.channels
    mean, std = (values * channels if len(values) == 1 else values for values in (config.mean, config.std))
    shortest = config.shortest or model.image_size
    return model, ObjectPreprocessing(shortest, model.image_size, mean, std, channels)  # type: ignore[arg-type]  # 1 or 3, or an error


def _initial_model(
    config: DetectionConfig, run: Run, labels: tuple[str, ...] | None = None
) -> tuple[Detr, ObjectPreprocessing]:
    """Return the DETR that `--init` names, with a new head for other labels, and its preprocessing."""
    hint = f"determined by the initial model, {run.init}; omit it"
    run.refuse(("preset", "shortest", "mean", "std"), hint)
    settings = {**model_settings(run), **({} if labels is None else {"labels": labels})}
    model, loaded = start(run, Detr, "a detector", **settings)
    return model, preprocessing_of(loaded)
