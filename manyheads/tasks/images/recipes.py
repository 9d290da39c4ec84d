"""Recipes for image classification: ViT, DeiT, ResNet, and networks with both attention and convolutions.

All recipes for one data set have the same training budget, so that their results are comparable.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Count, Positive, Range
from manyheads.data.images.augmentation import CLASSIC, DEIT, DEIT_SMALL, Augmentation
from manyheads.data.images.files import Columns
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, Recipe, TargetConfig
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.images.task:ImageClassification"


@dataclass(frozen=True)
class ImageConfig(TargetConfig):
    """Settings of a training run for image classification.

    data          path of a folder of class folders, of a table, of IDX or tar files, or of a directory of splits. With
                  none, the handwritten digits of scikit-learn are used
    columns       names of the columns of a table: columns.image and columns.label. With columns.folder and
                  columns.suffix, the table may contain parts of file names
    items         number of training images, sampled with the seed. With none, all images are used
    preset        name of the model preset, such as vit/ti16 or resnet/18-small; `model` overrides its fields
    model         overrides fields of the preset, such as model.layers=6
    mean, std     mean and standard deviation of each color channel, or one number for all channels; for models trained
                  from scratch
    crop          fraction of an image's shorter side that the model sees, around the center
    resample      interpolation method for resizing
    augmentation  augmentation of the training images
    smoothing     label smoothing: fraction of the probability that is spread evenly over all labels
    batch_items   number of images in a micro-batch
    workers       number of processes that decode and augment images. With 0, the training process does so. A script
                  that calls `manyheads.train` with workers needs `if __name__ == "__main__":`, because each worker
                  imports the script
    scored        name of the split ("test", for example) that is classified and scored at the end
    """

    columns: Columns = field(default_factory=Columns)
    items: Count | None = None
    preset: str = "vit/ti16"
    model: JsonObject = field(default_factory=dict)
    mean: tuple[float, ...] = (0.5,)
    std: tuple[Positive, ...] = (0.5,)
    crop: Annotated[float, Range(0, 1, above=True)] = 1.0
    resample: Literal["bilinear", "bicubic"] = "bicubic"
    augmentation: Augmentation = field(default_factory=Augmentation)
    smoothing: Annotated[float, Range(0, 1, below=True)] = 0.0
    batch_items: Annotated[int, Range(1, 100_000)] = 64
    workers: Annotated[int, Range(0, 256)] = 0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=1, schedule="constant"))

    def __post_init__(self) -> None:
        super().__post_init__()
        idle = {"smoothing": self.smoothing, "augmentation.mixup": self.augmentation.mixup,
                "augmentation.cutmix": self.augmentation.cutmix}  # fmt: skip
        if self.target != "classes" and (given := [name for name, value in idle.items() if value]):
            raise UserError(f"{', '.join(given)}: only for target=classes; leave it out, or set it to 0")
        if self.sampling and self.augmentation.repeats > 1:
            raise UserError("sampling and augmentation.repeats: expected one of them, because both repeat images")
        if self.class_weights and self.augmentation.mixes:
            raise UserError("class_weights: no effect on mixed images; use sampling=balanced")


def _adamw(epochs: int, learning_rate: float, warmup: int, **more: Any) -> TrainingConfig:
    settings: JsonObject = {
        "epochs": epochs, "optimizer": "adamw", "schedule": "cosine", "learning_rate": learning_rate, "warmup": warmup,
        "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.05, "log_every": 20,
    }  # fmt: skip
    return TrainingConfig(**{**settings, **more})


DIGITS = ImageConfig(preset="vit/2-8", training=_adamw(50, 2e-3, 100, clip=1.0, validate_every=210))
MNIST = ImageConfig(
    preset="vit/7-28", augmentation=Augmentation(crop="padded", padding=2), batch_items=100,
    training=_adamw(30, 2e-3, 100, clip=1.0),
)  # fmt: skip
# 12 epochs of 45,000 images take about an hour on one core, also for the ViTs. A subset (items=10000) takes minutes.
CIFAR = ImageConfig(
    preset="resnet/20-small", mean=(0.491, 0.482, 0.447), std=(0.247, 0.243, 0.262), augmentation=CLASSIC,
    batch_items=128, training=_adamw(12, 3e-3, 200),
)  # fmt: skip
CIFAR_VIT = replace(
    CIFAR, preset="vit/ti4-32", training=_adamw(12, 1e-3, 200, clip=1.0),
    model={"width": 96, "layers": 6, "heads": 4, "feed_forward": 192},
)  # fmt: skip
# These settings are those of Touvron 2021, table 9: batches of 1,024 images, and the learning rate 0.0005 * batch /
# 512.
PAPER = ImageConfig(
    preset="deit/s16", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875, augmentation=DEIT,
    smoothing=0.1, batch_items=256, workers=8,
    training=_adamw(300, 1e-3, 6255, accumulate=4, floor=1e-2, weight_decay=0.05, checkpoint_every=1000),
)  # fmt: skip
# This is DeiT's recipe on CIFAR-10, for the ablation study. A run of 4 epochs takes about 25 minutes on one core.
ABLATE = replace(
    CIFAR_VIT, augmentation=DEIT_SMALL, smoothing=PAPER.smoothing, model={**CIFAR_VIT.model, "stochastic_depth": 0.1},
    training=replace(CIFAR_VIT.training, epochs=4, clip=None),
    scored="validation",  # The recipe reports metrics on the validation data. The test data remain unused.
)  # fmt: skip


CIFAR_DATA = {"data": "DIR with train and test of CIFAR-10, with the columns image and label"}


def _on_cifar10(
    summary: str, paper: str, config: ImageConfig, about: str = "", options: str = "", **more: str
) -> Recipe:
    return Recipe(summary, paper, config, TASK, about, options, requires={**CIFAR_DATA, **more}, init="may")


RECIPES = {
    "image-classification": Recipe(
        "a small ViT on handwritten digits, or on your images", "Dosovitskiy et al. 2020", DIGITS, TASK,
        "Without data, it trains on scikit-learn's handwritten digits, in less than two minutes.",
        options="[data=DIR] [preset=vit/7-28] [--init MODEL]", init="may",
        with_init=replace(DIGITS, training=FINE_TUNING),
    ),
    "mnist/vit": Recipe(
        "a small ViT on MNIST", "Dosovitskiy et al. 2020", MNIST, TASK,
        "It has patches of 7 x 7 pixels. Training images are shifted by up to two pixels.",
        requires={"data": "DIR with train and test of MNIST, with the columns image and label, or as IDX files"},
        init="may",
    ),
    "cifar10/resnet": _on_cifar10(
        "a small ResNet, also for use as a teacher", "He et al. 2015", CIFAR,
        "It trains ResNet-20. Published accuracy (section 4.2): 91.25% after 164 epochs.",
    ),
    "cifar10/vit": _on_cifar10(
        "a small ViT", "Dosovitskiy et al. 2020", CIFAR_VIT,
        """It has patches of 4 x 4 pixels. With teacher=TASK, the class token learns from both the labels and the
        teacher (Touvron's loss without a distillation token).""",
    ),
    "cifar10/deit": _on_cifar10(
        "the small ViT with a distillation token, which learns from a teacher", "Touvron et al. 2021",
        replace(CIFAR_VIT, model={**CIFAR_VIT.model, "distilled": True}),
        options="[distillation=soft]", teacher="TASK, such as a run of cifar10/resnet",
    ),
    "cifar10/se": _on_cifar10(
        "the ResNet with squeeze-and-excitation", "Hu et al. 2017",
        replace(CIFAR, preset="resnet/20-small-se", model={"squeeze": 4}),
    ),
    "cifar10/nonlocal": _on_cifar10(
        "the ResNet with non-local blocks", "Wang et al. 2018", replace(CIFAR, preset="nonlocal/20-small")
    ),
    "cifar10/local-attention": _on_cifar10(
        "a ResNet with local self-attention instead of 3 x 3 convolutions", "Ramachandran et al. 2019",
        replace(
            CIFAR, preset="local-attention/18-small",
            model={"depths": (3, 3, 3), "widths": (16, 32, 64), "stem_width": 16, "heads": 4, "window": 5},
        ),
    ),
    "cifar10/sknet": _on_cifar10(
        "the ResNet with selective kernels", "Li et al. 2019", replace(CIFAR, preset="sknet/20-small"),
    ),
    "cifar10/resnest": _on_cifar10(
        "the ResNet with split attention", "Zhang et al. 2020", replace(CIFAR, preset="resnest/20-small"),
    ),
    "cifar10/gsa": _on_cifar10(
        "a ResNet with global self-attention instead of 3 x 3 convolutions", "Shen et al. 2020",
        replace(CIFAR, preset="gsa/20-small", model={"heads": 4}),
    ),
    "cifar10/conv-attention": _on_cifar10(
        "a ViT whose attention can express a convolution", "Cordonnier et al. 2020",
        replace(CIFAR_VIT, preset="conv-attention/quadratic-small", model={}),
        "Attention uses quadratic positions. "
        "Other presets use learned positions (relative-small), or positions and content (content-small).",
        "[preset=conv-attention/content-small]",
    ),
    "deit": Recipe(
        "the paper's full recipe for ImageNet", "Touvron et al. 2021", PAPER, TASK,
        """As in table 9, it trains for 300 epochs with RandAugment, mixup, cutmix, erasing, repeated
        augmentation and stochastic depth. Each part can be switched off. Published top-1 accuracy: DeiT-S 79.9,
        with distillation 81.2.""",
        options="[teacher=MODEL] [augmentation.randaugment=0]",
        requires={"data": "DIR with train and val of ImageNet, a folder for each class"}, init="may",
    ),
    "deit/ablate": Recipe(
        "the rows of DeiT's table 8 at a small budget, each without one part of the recipe",
        "Touvron et al. 2021", ABLATE,
        "manyheads.tasks.images.ablation:train",
        """It trains a small model for every row and writes the table of validation loss and top1. Each run has
        its own directory below --out and can be resumed. Published top1 (table 8): 81.8 with all parts, 74.5
        with SGD, 79.6 without RandAugment. The paper trains for 300 epochs; regularization that helps a long
        run may not help a short one.""",
        options="[training.epochs=N] [items=N]", requires=CIFAR_DATA,
    ),
}  # fmt: skip
