"""Task of the image classifiers, with or without a teacher for distillation."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean

import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.analysis.figures.token_similarity import token_similarity
from manyheads.core.config import Config
from manyheads.core.interface import ReadsImages
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.checking import COLOR, warn_of_lost_colors
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.labeled import REGRESSION_LABELS
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.presets import FAMILIES, IMAGES, PRESETS, build, full_name, preset, preset_for_data
from manyheads.models.vit import ViT
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import model_settings, start
from manyheads.runs.options import Run
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.distillation import (
    Distillation,
    check_labels,
    compare_with_teacher,
    refuse_without_teacher,
    warn_of_equal_labels,
    weights_hash,
)
from manyheads.tasks.images.loading import preprocessing_of
from manyheads.tasks.images.objective import EVALUATION_BATCH, TOP, ImageClassificationObjective, image_metric_names
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.tasks.images.recipes import ImageConfig
from manyheads.tasks.images.teacher import Teacher
from manyheads.tasks.targets import Target, build_target
from manyheads.training.distributed import distributed_context
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)


class ImageClassification(DataTask[ImageConfig, ImageData]):
    """Task of an image classifier."""

    may_change = ("workers", "columns")
    _objective: ImageClassificationObjective | None = None

    def check(self) -> None:
        config, run = self.config, self.run
        refuse_without_teacher(config, run)
        if config.data is None:
            hint = "only for your own data: give them with data=PATH, or leave it out"
            run.refuse(("names", "validation", "test"), hint)
        self._teacher = None if config.teacher is None else directory.load(config.teacher)
        _check_metric(config, tuple(map(str, range(TOP + 1))))

    def planned_model(self) -> ReadsImages[Config]:
        with torch.device("meta"):
            return _build_model(self.config, self.config.names)[0]

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else _initial_model(self.config, self.run)[0]
        return Plan(model, self.config.batch_items, "image")

    def data(self) -> ImageSource:
        config = self.config
        return ImageSource(
            **self.located, names=config.names, columns=config.columns, sample=config.items, target=config.target,
            cache_folder=self.run.out / "state" / "images", follows=not distributed_context().first,
        )  # fmt: skip

    def build(self, splits: SplitData[ImageData], compute: ComputeConfig) -> Job:
        config, run, labels = self.config, self.run, splits.train.names
        _check_metric(config, labels)
        self._target = build_target(config, labels, splits.train, config.smoothing)
        model, preprocessing = _initial_model(config, run, labels) if run.init else _build_model(config, labels)
        _warn_of_small_input(splits.train, model.image_size, config, run)
        if run.own_data and model.channels == 1:
            warn_of_lost_colors(sum(item.mode in COLOR for item in splits.train.items), len(splits.train))
        teacher = None if self._teacher is None else _teacher(config, self._teacher, model, preprocessing)
        self._objective = objective = ImageClassificationObjective(
            model, preprocessing, splits.train, splits.validation, compute=compute, batch_items=config.batch_items,
            augmentation=config.augmentation, target=self._target, balanced=config.sampling is not None,
            teacher=teacher, workers=config.workers, seed=config.training.seed,
        )  # fmt: skip
        self._distillation: JsonObject = {}
        if teacher is not None:
            self._distillation["differing_labels"] = objective.differing_labels()
            if not config.augmentation.mixes:
                hint = " or stronger augmentation, such as augmentation.mixup=0.8"
                warn_of_equal_labels(self._distillation["differing_labels"], config, "images", hint)
        flops = costs.training_flops(model)
        identity = {"labels": list(labels), **({"teacher_weights": weights_hash(teacher.model)} if teacher else {})}
        record = {**config.target_record, **({"distillation": self._distillation} if teacher else {})}
        return Job(model, config.training, objective, flops=flops, identity=identity, record=record)

    def _classifier(self, compute: ComputeConfig) -> ImageClassifier:
        classifier = ImageClassifier(directory.load(self.run.out), compute)
        classifier.target = replace(self._target, weights=None, smoothing=0.0)
        return classifier

    def calibrate(self, validation: ImageData, compute: ComputeConfig) -> JsonObject:
        if not self._target.calibrates:
            return {}
        self._target = self._target.calibrated_by(self._classifier(compute).evaluate(validation))
        return {"threshold": self._target.threshold}

    def score(self, held: ImageData, compute: ComputeConfig) -> Metrics:
        classifier = self._classifier(compute)
        result = classifier.evaluate(held)
        if self.config.teacher is not None:
            taught = ImageClassifier(directory.load(self.config.teacher), compute).evaluate(held)
            self._distillation.update(compare_with_teacher(taught, result, "top1"), **_similarity(classifier, held))
        return result.metrics

    def example(self, held: ImageData) -> list[str]:
        source = held.items[0].source
        return ["classify", str(source) if isinstance(source, Path) else "IMAGE.png"]

    def close(self) -> None:
        if self._objective is not None:
            self._objective.close()


def _warn_of_small_input(train: ImageData, size: int, config: ImageConfig, run: Run) -> None:
    """Log a warning if the model's input is much smaller than the training images.

    size  height and width of the model's input in pixels
    """
    sides = sorted(min(item.size) for item in train.items)
    side = sides[len(sides) // 2]
    if not run.own_data or side < 2 * size or "model.image_size" in run.given:
        return
    family = "vit" if run.init is not None else full_name(config.preset, *IMAGES).partition("/")[0]
    larger = {preset(name).image_size: name for name in reversed(PRESETS) if name.startswith(f"{family}/")}
    fitting = [pixels for pixels in larger if size < pixels <= 1.5 * side]
    hint = f"preset={larger[max(fitting)]}" if fitting and run.init is None else "model.image_size=N"
    count = sum(other >= side for other in sides)
    logger.warning(
        f"{count:,} of {len(sides):,} training images have {side} x {side} pixels or more, but the model sees "
        f"{size} x {size}; to use more, set {hint}"
    )


def _check_metric(config: ImageConfig, labels: tuple[str, ...]) -> None:
    """Raise UserError if the setting training.metric names a metric that does not exist for these labels."""
    metric, names = config.training.metric, image_metric_names(Target(config.target, labels))
    if metric not in (None, *names):
        reason = f" (the data have {len(labels)} labels)" if metric == "top5" else ""
        raise UserError(f"training.metric is {metric}: expected {' or '.join(names)}{reason}")


def _build_model(config: ImageConfig, labels: tuple[str, ...]) -> tuple[ReadsImages[Config], Preprocessing]:
    labels = REGRESSION_LABELS if config.target == "regression" else labels
    decided = {"target": config.target, **({"labels": labels} if labels else {})}
    model: ReadsImages[Config] = build(preset_for_data(config.preset, IMAGES, config.model, decided))
    if config.target != "classes" and isinstance(model, ViT) and model.config.distilled:
        raise UserError("model.distilled=true: only for target=classes")
    return model, Preprocessing.of_channels(
        model.image_size, model.channels, mean=config.mean, std=config.std, crop=config.crop,
        resample=config.resample,
    )  # fmt: skip


def _initial_model(
    config: ImageConfig, run: Run, labels: tuple[str, ...] | None = None
) -> tuple[ReadsImages[Config], Preprocessing]:
    """Return the model that `--init` names, and its image preprocessing.

    The settings can change the labels of the model and the image size of a ViT.
    """
    run.refuse(("preset",), f"determined by the initial model, {run.init}; omit it")
    labels = REGRESSION_LABELS if config.target == "regression" else labels
    settings = {**model_settings(run), **({} if labels is None else {"labels": labels, "target": config.target})}
    model_classes = tuple(FAMILIES[family].model_class() for family in IMAGES)
    model, loaded = start(run, model_classes, "an image model", **settings)
    names = ("mean", "std", "crop", "resample")
    if run.given.get("training.lora_rank") is not None:
        run.refuse(names, "an adapter has the preprocessing of its base model; omit it, or omit lora_rank")
    preprocessing = preprocessing_of(loaded)
    loaded_settings = {name: vars(preprocessing)[name] for name in (*names, "squash")}
    if model.channels != preprocessing.channels:
        loaded_settings |= {name: (fmean(loaded_settings[name]),) for name in ("mean", "std")}
    expected = {**loaded_settings, **{name: vars(config)[name] for name in names if name in run.given}}
    return model, Preprocessing.of_channels(model.image_size, model.channels, **expected)


def _teacher(
    config: ImageConfig, loaded: directory.Loaded, model: ReadsImages[Config], expected: Preprocessing
) -> Teacher:
    if isinstance(model, ViT) and model.config.distilled and model.config.fused == "none":
        raise UserError("model.fused=none: the distillation token has no head to learn from a teacher")
    if isinstance(model, ViT) and model.config.distilled and model.config.fused == "softmax":
        logger.info("transformers averages the logits of the two heads, not their softmaxes as this model: for equal "
                    "probabilities, set model.fused=logits")  # fmt: skip
    check_labels(config, loaded.model.labels, model.labels)
    return Teacher(loaded.model, preprocessing_of(loaded), expected, Distillation.of(config))


def _similarity(classifier: ImageClassifier, data: ImageData) -> JsonObject:
    """Return the cosine similarity of a DeiT's class token and distillation token.

    The result is empty for a model without these two tokens.
    """
    if not isinstance(classifier.model, ViT) or classifier.model.distillation_token is None:
        return {}
    loader = ImageLoader(data, classifier.target.labels, classifier.preprocessing, batch_items=EVALUATION_BATCH)
    similarity = token_similarity(classifier.model, (torch.from_numpy(batch.images) for batch in loader.epoch()))
    logger.info(similarity)
    return {"token_similarity": asdict(similarity)}
