"""Telling what is in an image: ViT and DeiT, ResNet, and the nets that attend between or instead of convolutions.

Each recipe is a function whose default `config` is the recipe; `_classify` is the run that all of them share. All on
one data set have one budget, so that what is compared are the models.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch

from manyheads import directory
from manyheads.analysis import accounting
from manyheads.analysis.token_similarity import token_similarity
from manyheads.core.runtime import prepare
from manyheads.data.augmentation import CLASSIC, DEIT, Augmentation
from manyheads.data.image_loader import ImageLoader
from manyheads.data.image_report import image_report
from manyheads.data.images import ImageData, Preprocessing, digits, read_image_splits
from manyheads.data.splits import SplitData
from manyheads.data.store import fingerprint
from manyheads.models.adapt import adapt
from manyheads.models.presets import FAMILIES, IMAGES, build, preset
from manyheads.recipes.run import Run, carry_out, identity, plan, tell_splits
from manyheads.tasks.evaluation import LabelOutcome, Metrics
from manyheads.tasks.images.distillation import Teacher
from manyheads.tasks.images.predictor import ImageClassifier, preprocessing_of
from manyheads.tasks.images.task import SCORED, ImageClassificationTask
from manyheads.training import Summary, TrainingConfig, claim


@dataclass(frozen=True)
class ImageConfig:
    """What a run is made of.

    data          images in any form of `data/image_files.py`, a directory of splits; None: scikit-learn's digits
    names         what the labels 0, 1, ... of the data are called
    items         how many of the training images are used, drawn at random by the seed; None: all
    preset        such as vit/ti16 or resnet/18-small; `model` overrides its fields
    mean, std     of the channels (one number serves all), where the model does not start from another one
    crop          share of an image's shorter side that is shown; resample: how it is made to fit
    augmentation  what is done to training images (`data/augmentation.py`)
    smoothing     share of the labels that is spread evenly
    teacher       a run, or a model directory, to learn from (Touvron 2021, section 4); its labels must be the same
    distillation  "hard": the teacher's label; "soft": its probabilities, at a `temperature`
    share         weight of what the teacher says; with model.distilled=true a token of its own learns it. None: the
                  paper's, 0.5 where that is hard, 0.1 where it is soft
    batch_items   images of a micro-batch
    workers       processes that decode and change images; 0: the training process does it. A script that calls
                  `manyheads.train` with them needs `if __name__ == "__main__":`, as each of them reads the script
    scored        which data are classified and scored at the end
    """

    data: str | None = None
    validation: str | None = None
    test: str | None = None
    names: tuple[str, ...] = ()
    items: int | None = None
    preset: str = "vit/ti16"
    model: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    crop: float = 1.0
    resample: Literal["bilinear", "bicubic"] = "bicubic"
    augmentation: Augmentation = field(default_factory=Augmentation)
    smoothing: float = 0.0
    teacher: str | None = None
    distillation: Literal["hard", "soft"] = "hard"
    share: float | None = None
    temperature: float = 3.0
    batch_items: int = 64
    workers: int = 0
    scored: Literal["test", "validation"] = "test"
    threads: int | None = None
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=1, schedule="constant"))

    def __post_init__(self) -> None:
        for name in ("names", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing is {self.smoothing}: expected a share, from 0 to below 1")
        for name in ("items", "batch_items"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} is {value}: expected 1 or more")
        if self.workers < 0:
            raise ValueError(f"workers is {self.workers}: expected 0 or more")


def _adamw(epochs: int, learning_rate: float, warmup: int, **more: Any) -> TrainingConfig:
    settings: dict[str, Any] = {
        "epochs": epochs, "optimiser": "adamw", "schedule": "cosine", "learning_rate": learning_rate, "warmup": warmup,
        "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05, "log_every": 20,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **more})


DIGITS = ImageConfig(preset="vit/2-8", training=_adamw(50, 2e-3, 100, clip=1.0, validate_every=210))
MNIST = ImageConfig(
    preset="vit/7-28", augmentation=Augmentation(crop="padded", padding=2), batch_items=100,
    training=_adamw(30, 2e-3, 100, clip=1.0),
)  # fmt: skip
# 12 epochs of 45,000 images are about an hour on one core, for the ViTs, too; on part of them (items=10000), minutes
CIFAR = ImageConfig(
    preset="resnet/20-small", mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262), augmentation=CLASSIC,
    batch_items=128, training=_adamw(12, 3e-3, 200),
)  # fmt: skip
CIFAR_VIT = replace(
    CIFAR, preset="vit/ti4-32", training=_adamw(12, 1e-3, 200, clip=1.0),
    model={"width": 96, "layers": 6, "heads": 4, "feed_forward": 192},
)  # fmt: skip
CIFAR_DEIT = replace(CIFAR_VIT, model={**CIFAR_VIT.model, "distilled": True})
CIFAR_SE = replace(CIFAR, preset="resnet/20-small-se", model={"squeeze": 4})
CIFAR_NONLOCAL = replace(CIFAR, preset="nonlocal/20-small")
CIFAR_LOCAL = replace(
    CIFAR, preset="local-attention/18-small",
    model={"depths": (3, 3, 3), "widths": (16, 32, 64), "stem_width": 16, "heads": 4, "window": 5},
)  # fmt: skip
CIFAR_CONV = replace(CIFAR_VIT, preset="conv-attention/quadratic-small", model={})
# Touvron 2021, table 9: batches of 1,024 images; learning rate 0.0005 * batch / 512
PAPER = ImageConfig(
    preset="deit/s16", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875, augmentation=DEIT,
    smoothing=0.1, batch_items=256, workers=8,
    training=_adamw(300, 1e-3, 6255, accumulate=4, floor=1e-2, weight_decay=0.05, checkpoint_every=1000),
)  # fmt: skip


def image_classification(config: ImageConfig = DIGITS, *, run: Run) -> dict[str, Any] | None:
    """manyheads train image-classification [data=DIR] [preset=vit/7-28] [--init MODEL]

    Without data: a small ViT on the handwritten digits that scikit-learn has, in less than two minutes.
    """
    return _classify(config, run)


def mnist_vit(config: ImageConfig = MNIST, *, run: Run) -> dict[str, Any] | None:
    """manyheads train mnist/vit data=DIR

    A ViT with patches of 7 x 7 pixels on MNIST, moved by up to two pixels.
    """
    return _on(config, run, "train and test files of MNIST")


def cifar10_resnet(config: ImageConfig = CIFAR, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/resnet data=DIR: ResNet-20 (He 2015, section 4.2: 91.25% after 164 epochs)"""
    return _on(config, run, _CIFAR)


def cifar10_vit(config: ImageConfig = CIFAR_VIT, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/vit data=DIR [teacher=RUN]

    A ViT with patches of 4 x 4 pixels; with a teacher its class token learns from both (the formula without a token).
    """
    return _on(config, run, _CIFAR)


def cifar10_deit(config: ImageConfig = CIFAR_DEIT, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/deit data=DIR teacher=RUN [distillation=soft]

    The same ViT with a distillation token, which learns what the teacher says (Touvron 2021, section 4).
    """
    if config.teacher is None and not run.dry_run:
        raise ValueError(f"{run.recipe} learns from a teacher: teacher=RUN, such as a run of cifar10/resnet")
    return _on(config, run, _CIFAR)


def cifar10_se(config: ImageConfig = CIFAR_SE, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/se data=DIR: the ResNet with squeeze-and-excitation (Hu 2017)"""
    return _on(config, run, _CIFAR)


def cifar10_nonlocal(config: ImageConfig = CIFAR_NONLOCAL, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/nonlocal data=DIR: the ResNet with non-local blocks (Wang 2018)"""
    return _on(config, run, _CIFAR)


def cifar10_local(config: ImageConfig = CIFAR_LOCAL, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/local-attention data=DIR: local self-attention instead of 3 x 3 convolutions"""
    return _on(config, run, _CIFAR)


def cifar10_conv(config: ImageConfig = CIFAR_CONV, *, run: Run) -> dict[str, Any] | None:
    """manyheads train cifar10/conv-attention data=DIR [preset=conv-attention/content-small]

    Attention that can be a convolution (Cordonnier 2020), by quadratic positions, learned ones, or those and content.
    """
    return _on(config, run, _CIFAR)


def deit(config: ImageConfig = PAPER, *, run: Run) -> dict[str, Any] | None:
    """manyheads train deit data=DIR [teacher=MODEL] [augmentation.randaugment=0]

    The whole recipe of Touvron 2021 (table 9) for ImageNet: 300 epochs, RandAugment, mixup, cutmix, erasing, repeated
    augmentation, stochastic depth; each part can be switched off. Published: DeiT-S 79.9, with distillation 81.2.
    """
    return _on(config, run, "train and val folders of ImageNet, one folder a class")


_CIFAR = "train and test files of CIFAR-10"


def planned_model(config: ImageConfig) -> Any:
    """The model, without memory."""
    with torch.device("meta"):
        return model_of(config, config.names)


def _on(config: ImageConfig, run: Run, expected: str) -> dict[str, Any] | None:
    if config.data is None and not run.dry_run:
        raise ValueError(f"{run.recipe} needs its data: data=DIR with {expected}")
    return _classify(config, run)


def _classify(config: ImageConfig, run: Run) -> dict[str, Any] | None:
    """Images -> report -> model (and teacher) -> training -> test -> result.json."""
    if run.dry_run:
        model = planned_model(config) if run.init is None else _started(config, run)[0]
        return plan(run, config, model, config.batch_items, unit="image", items=config.items)
    if config.teacher is None and (idle := {"distillation", "share", "temperature"} & run.overrides.keys()):
        raise ValueError(f"{', '.join(sorted(idle))}: without effect, as there is no teacher: give teacher=RUN")
    claim(run.out, resume=run.resume, resume_command=run.resume_command)
    if run.init is None:
        planned_model(config)  # so that a wrong setting is told before anything is read
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    corpora = _read(config, run)
    print(image_report(corpora.train, corpora.validation, corpora.test), file=sys.stderr)
    torch.manual_seed(config.training.seed)
    labels = corpora.train.names
    model, preprocessing = _started(config, run, labels) if run.init else _new(config, labels)
    teacher = _teacher(config, model, preprocessing)
    task = ImageClassificationTask(
        model, preprocessing, corpora.train, corpora.validation, route=route, batch_items=config.batch_items,
        augmentation=config.augmentation, smoothing=config.smoothing,
        teacher=teacher, workers=config.workers, seed=config.training.seed,
    )  # fmt: skip
    described = _described(config, run, corpora)
    distilled: dict[str, Any] = {}  # for result.json, where there is a teacher

    def evaluate() -> Metrics:
        held = corpora.validation if config.scored == "validation" else corpora.test
        if held is None:
            return {}
        classifier = ImageClassifier(directory.load(run.out), route)
        outcome = classifier.evaluate(held)
        if config.teacher is not None:
            teacher = ImageClassifier(directory.load(config.teacher), route)
            distilled.update(_beside(teacher.evaluate(held), outcome), **_tokens(classifier, held))
        return outcome.metrics

    def flops(summary: Summary) -> float:
        return accounting.flops(model)["training"] * summary.tokens

    try:
        return carry_out(
            run, task, config.training, route=route, data=described, evaluate=evaluate, flops=flops,
            settings={
                **identity(config, run, described["fingerprints"], use=("workers",)), "labels": list(labels),
                **({"teacher_weights": _digest(teacher.model)} if teacher else {}),
            },
            **({"distillation": distilled} if config.teacher else {}),
        )  # fmt: skip
    finally:
        task.close()


def _read(config: ImageConfig, run: Run) -> SplitData[ImageData]:
    if config.data is None:
        if given := [name for name in ("names", "validation", "test") if getattr(config, name)]:
            raise ValueError(f"{', '.join(given)}: of the data, which are not given: name them with data=PATH")
        corpora = digits(config.training.seed)
    else:
        corpora = read_image_splits(
            config.data, names=config.names, validation=config.validation, test=config.test,
            skip_bad_lines=run.skip_bad_lines,
        )  # fmt: skip
        tell_splits(corpora, "images")
    return corpora.sampled(config.items, config.training.seed)


def _described(config: ImageConfig, run: Run, corpora: SplitData[ImageData]) -> dict[str, Any]:
    """For result.json: enough to find the test data again, and to see whether they are the same."""
    return {
        "paths": {name: str(data.file) for name, data in corpora.known.items() if data.file},
        "test": list(corpora.test_paths),
        **({"digits": config.training.seed} if config.data is None else {}),
        **({"names": list(config.names)} if config.names else {}),
        "skipped": run.skip_bad_lines,
        "fingerprints": {name: fingerprint([*d.keys, *d.labels])[:16] for name, d in corpora.known.items()},
        "items": {name: len(data) for name, data in corpora.known.items()},
    }


def model_of(config: ImageConfig, labels: tuple[str, ...]) -> Any:
    return build(preset(config.preset, *IMAGES, **{**({"labels": labels} if labels else {}), **config.model}))


def _new(config: ImageConfig, labels: tuple[str, ...]) -> tuple[Any, Preprocessing]:
    model = model_of(config, labels)
    c = model.config
    mean, std = (_per_channel(each, c.channels) for each in (config.mean, config.std))
    return model, Preprocessing(c.image_size, config.crop, mean, std, config.resample, c.channels)


def _per_channel(given: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One number serves all channels."""
    return given * channels if len(given) == 1 else given


def _started(config: ImageConfig, run: Run, labels: tuple[str, ...] | None = None) -> tuple[Any, Preprocessing]:
    """The network of `--init` for these labels, or for its own, a ViT at the resolution that is asked for."""
    assert run.init is not None
    given = {key.removeprefix("model."): value for key, value in run.overrides.items() if key.startswith("model.")}
    if "preset" in run.overrides:
        raise ValueError(f"preset: given by the model to start from, {run.init}; leave it out")
    loaded = directory.load(run.init)
    if not isinstance(loaded.model, tuple(FAMILIES[family].model_class() for family in IMAGES)):
        raise ValueError(f"{run.init}: a {loaded.family} model; {run.recipe} starts from a model of images")
    old: Any = loaded.model
    known = [f.name for f in fields(old.config) if f.name != "labels"]
    if unknown := set(given) - set(known):
        raise ValueError(f"model.{', model.'.join(sorted(unknown))}: valid are {', '.join(known)}")
    try:
        model, new = adapt(old, labels=old.config.labels if labels is None else labels, **given)
    except ValueError as error:
        told = f"model.{', model.'.join(given)}: " if given else ""
        raise ValueError(f"{told}{run.init} cannot be changed so: {error}") from None
    print(f"starting from {run.init}: new: {', '.join(new) or 'none'}", file=sys.stderr)
    channels, own = model.config.channels, preprocessing_of(loaded)
    changed: dict[str, Any] = {
        name: _per_channel(getattr(config, name), channels) if name in ("mean", "std") else getattr(config, name)
        for name in ("crop", "mean", "std", "resample")
        if name in run.overrides
    }
    return model, replace(own, size=model.config.image_size, **changed)


def _teacher(config: ImageConfig, model: Any, given: Preprocessing) -> Teacher | None:
    if config.teacher is None:
        return None
    if getattr(model.config, "distilled", False) and model.config.fused == "none":
        raise ValueError("model.fused=none: the distillation token has no head that could learn from a teacher")
    loaded, labels = directory.load(config.teacher), model.config.labels
    known = getattr(loaded.model.config, "labels", ())
    if known != labels:
        raise ValueError(
            f"{config.teacher}: the teacher tells apart {_few(known)}, the data have {_few(labels)}: a teacher needs "
            "the same labels in the same order"
        )
    share = {"hard": 0.5, "soft": 0.1}[config.distillation] if config.share is None else config.share
    return Teacher(loaded.model, preprocessing_of(loaded), given, config.distillation, share, config.temperature)


def _few(labels: tuple[str, ...]) -> str:
    return f"{len(labels)} labels ({', '.join(labels[:5])}{', ...' * (len(labels) > 5)})" if labels else "no labels"


def _digest(model: torch.nn.Module) -> str:
    """Of the weights: whether a model is still the same one."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


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
    print(similarity, file=sys.stderr)
    return {"token_similarity": asdict(similarity)}
