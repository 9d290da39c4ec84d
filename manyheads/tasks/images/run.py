"""Training a model that tells what is in an image, alone or from a teacher: images -> model -> task, and its scores."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import asdict
from typing import Any

import torch

from manyheads import directory
from manyheads.analysis import costs
from manyheads.analysis.figures.token_similarity import token_similarity
from manyheads.core.runtime import ComputeConfig
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from manyheads.data.readers.splits import SplitData
from manyheads.errors import UserError
from manyheads.models.presets import FAMILIES, IMAGES, build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import model_settings, start
from manyheads.runs.run import Job, Run, carry_out, located
from manyheads.tasks.evaluation import LabelOutcome
from manyheads.tasks.images.distillation import Teacher
from manyheads.tasks.images.predictor import ImageClassifier, preprocessing_of
from manyheads.tasks.images.recipes import ImageConfig
from manyheads.tasks.images.task import SCORED, TOP, ImageClassificationTask, metric_names
from manyheads.training.distributed import distributed_context
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)


def train(config: ImageConfig, run: Run) -> dict[str, Any] | None:
    if config.teacher is None:
        run.refuse(("distillation", "share", "temperature"), "without effect, as there is no teacher: give teacher=RUN")
    if config.data is None:
        run.refuse(("names", "validation", "test"), "of the data, which are not given: name them with data=PATH")

    teacher_directory = None if config.teacher is None else directory.load(config.teacher)
    _check_metric(config, TOP + 1)

    source = ImageSource(
        **located(config, run),
        names=config.names,
        columns=config.columns,
        sample=config.items,
        kept=run.out / "state" / "images",
        follows=not distributed_context().first,
    )

    def plan() -> Plan:
        items, labels = source.count() if run.dry_run else (config.items, config.names)
        if run.init is not None:
            return Plan(_started(config, run)[0], config.batch_items, "image", items)
        with torch.device("meta"):
            return Plan(_new(config, labels)[0], config.batch_items, "image", items)

    def build(splits: SplitData[ImageData], compute: ComputeConfig) -> Job[ImageData]:
        labels = splits.train.names
        _check_metric(config, len(labels))
        model, preprocessing = _started(config, run, labels) if run.init else _new(config, labels)
        teacher = None if teacher_directory is None else _teacher(config, teacher_directory, model, preprocessing)
        task = ImageClassificationTask(
            model, preprocessing, splits.train, splits.validation, compute=compute, batch_items=config.batch_items,
            augmentation=config.augmentation, smoothing=config.smoothing, teacher=teacher, workers=config.workers,
            seed=config.training.seed,
        )  # fmt: skip
        distillation: dict[str, Any] = {}

        def score(held: ImageData) -> Metrics:
            classifier = ImageClassifier(directory.load(run.out), compute)
            outcome = classifier.evaluate(held)
            if config.teacher is not None:
                taught_by = ImageClassifier(directory.load(config.teacher), compute)
                distillation.update(_beside(taught_by.evaluate(held), outcome), **_tokens(classifier, held))
            return outcome.metrics

        flops = costs.flops(model)["training"]
        identity = {"labels": list(labels), **({"teacher_weights": _digest(teacher.model)} if teacher else {})}
        record = {"distillation": distillation} if teacher else {}
        return Job(model, config.training, score, task, flops=flops, identity=identity, record=record, close=task.close)

    return carry_out(run, config, source, plan, build, beside=("workers", "columns"))


def _check_metric(config: ImageConfig, labels: int) -> None:
    """Raises UserError for a metric that the validation of a model of so many labels does not have."""
    metric, names = config.training.metric, metric_names(labels)
    if metric not in (None, *names):
        reason = f" (the data have {labels} labels)" if metric in metric_names(TOP + 1) else ""
        raise UserError(f"training.metric is {metric}: expected {' or '.join(names)}{reason}")


def planned_model(config: ImageConfig) -> Any:
    """The model, without memory."""
    with torch.device("meta"):
        return _new(config, config.names)[0]


def _new(config: ImageConfig, labels: tuple[str, ...]) -> tuple[Any, Preprocessing]:
    model = build(preset_for_data(config.preset, IMAGES, config.model, {"labels": labels} if labels else {}))
    return model, Preprocessing.of_channels(
        model.config.image_size, model.config.channels, mean=config.mean, std=config.std, crop=config.crop,
        resample=config.resample,
    )  # fmt: skip


def _started(config: ImageConfig, run: Run, labels: tuple[str, ...] | None = None) -> tuple[Any, Preprocessing]:
    """The network of `--init` for these labels, or for its own, a ViT at the resolution that is asked for."""
    run.refuse(("preset",), f"given by the model to start from, {run.init}; leave it out")
    settings = {**model_settings(run), **({} if labels is None else {"labels": labels})}
    kinds = tuple(FAMILIES[family].model_class() for family in IMAGES)
    model, loaded = start(run, kinds, "a model of images", **settings)
    names = ("mean", "std", "crop", "resample")
    preprocessing = preprocessing_of(loaded)
    own = {name: getattr(preprocessing, name) for name in (*names, "squash")}
    expected = {**own, **{name: getattr(config, name) for name in names if name in run.given}}
    return model, Preprocessing.of_channels(model.config.image_size, model.config.channels, **expected)


def _teacher(config: ImageConfig, loaded: directory.Loaded, model: Any, given: Preprocessing) -> Teacher:
    if getattr(model.config, "distilled", False) and model.config.fused == "none":
        raise UserError("model.fused=none: the distillation token has no head that could learn from a teacher")
    labels = model.config.labels
    known = getattr(loaded.model.config, "labels", ())
    if known != labels:
        raise UserError(
            f"{config.teacher}: the teacher tells apart {_few(known)}, the data have {_few(labels)}: a teacher needs "
            "the same labels in the same order"
        )
    share = {"hard": 0.5, "soft": 0.1}[config.distillation] if config.share is None else config.share
    return Teacher(loaded.model, preprocessing_of(loaded), given, config.distillation, share, config.temperature)


def _few(labels: tuple[str, ...]) -> str:
    return f"{len(labels)} labels ({', '.join(labels[:5])}{', ...' * (len(labels) > 5)})" if labels else "no labels"


def _digest(model: torch.nn.Module) -> str:
    """Of the weights: whether a model is still the same one."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _beside(teacher: LabelOutcome, student: LabelOutcome) -> dict[str, Any]:
    """How the teacher does on the same images, and how often both say the same."""
    same = [a == b for a, b in zip(teacher.outputs, student.outputs, strict=True)]
    return {"teacher_top1": teacher.metrics["top1"]["value"], "agreement": sum(same) / len(same)}


def _tokens(classifier: ImageClassifier, held: ImageData) -> dict[str, Any]:
    """How alike the two tokens of a DeiT are on these images; nothing of a model that has but one."""
    if getattr(classifier.model, "distillation_token", None) is None:
        return {}
    loader = ImageLoader(held, classifier.labels, classifier.preprocessing, batch_items=SCORED)
    similarity = token_similarity(classifier.model, (torch.from_numpy(batch.images) for batch in loader.epoch()))
    logger.info(similarity)
    return {"token_similarity": asdict(similarity)}
