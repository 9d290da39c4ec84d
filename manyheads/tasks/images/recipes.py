"""Recipes that tell what is in an image: ViT and DeiT, ResNet, and the nets that attend between convolutions.

All on one data set have one budget, so that what is compared are the models.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Positive, Range, Rate
from manyheads.data.images.augmentation import CLASSIC, DEIT, DEIT_SMALL, Augmentation
from manyheads.data.images.files import Columns
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe, Threads
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.images.run"


@dataclass(frozen=True)
class ImageConfig(DataConfig):
    """What a run is made of.

    data          images in any form of `data/images/files.py`, a directory of splits; None: scikit-learn's digits
    columns       of a table, where they are not called `image` and `label`
    names         what the labels 0, 1, ... of the data are called
    items         how many of the training images are used, drawn at random by the seed; None: all
    preset        such as vit/ti16 or resnet/18-small; `model` overrides its fields
    mean, std     of the channels (one number serves all), where the model does not start from another one
    crop          share of an image's shorter side that is shown; resample: how it is made to fit
    augmentation  what is done to training images (`data/images/augmentation.py`)
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

    columns: Columns = field(default_factory=Columns)
    names: tuple[str, ...] = ()
    items: Count | None = None
    preset: str = "vit/ti16"
    model: dict[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = (0.5,)
    std: tuple[Positive, ...] = (0.5,)
    crop: Annotated[float, Range(0, 1, above=True)] = 1.0
    resample: Literal["bilinear", "bicubic"] = "bicubic"
    augmentation: Augmentation = field(default_factory=Augmentation)
    smoothing: Annotated[float, Range(0, 1, below=True)] = 0.0
    teacher: str | None = None
    distillation: Literal["hard", "soft"] = "hard"
    share: Rate | None = None
    temperature: Positive = 3.0
    batch_items: Annotated[int, Range(1, 100_000)] = 64
    workers: Annotated[int, Range(0, 256)] = 0
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(epochs=1, schedule="constant"))


@dataclass(frozen=True)
class TheoremConfig(Config):
    """Random `kernels` x `kernels` convolutions of `images` random images, each alpha in turn.

    alphas  how sharp attention is; its error falls with exp(-alpha)
    size    pixels of an image in both directions, of `channels` channels
    """

    kernels: tuple[Annotated[int, Range(1, 99)], ...] = (3, 5, 7)
    alphas: tuple[Annotated[float, Range(0, 10**6)], ...] = (
        1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 46.0, 60.0, 100.0,
    )  # fmt: skip
    size: Annotated[int, Range(1, 1024)] = 16
    channels: Annotated[int, Range(1, 1024)] = 4
    images: Annotated[int, Range(1, 10_000)] = 2
    seed: int = 1


@dataclass(frozen=True)
class ClipConfig(Config):
    """What a run on clips is made of.

    size, tested  clips to train on; to validate with, and to test
    frames        of a clip; each shows `slit` columns of a digit's 8
    side          pixels of a frame's height and width
    model         overrides fields of the non-local net; model.stages=[] leaves out its blocks
    batch_items   clips of a micro-batch
    """

    size: Count = 10_000
    tested: Count = 1000
    frames: Annotated[int, Range(1, 1000)] = 8
    side: Annotated[int, Range(8, 1000)] = 16
    slit: Annotated[int, Range(1, 8)] = 3
    model: dict[str, Any] = field(default_factory=dict)
    batch_items: Annotated[int, Range(1, 100_000)] = 32
    threads: Threads | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=1200, optimiser="adamw", schedule="cosine", learning_rate=3e-3, warmup=100, betas=(0.9, 0.999),
            eps=1e-8, weight_decay=0.05, clip=1.0, log_every=50, validate_every=400,
        )
    )  # fmt: skip


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
# Touvron 2021, table 9: batches of 1,024 images; learning rate 0.0005 * batch / 512
PAPER = ImageConfig(
    preset="deit/s16", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop=0.875, augmentation=DEIT,
    smoothing=0.1, batch_items=256, workers=8,
    training=_adamw(300, 1e-3, 6255, accumulate=4, floor=1e-2, weight_decay=0.05, checkpoint_every=1000),
)  # fmt: skip
# the same on CIFAR-10, where it is taken apart: 4 epochs are some 25 minutes on one core
ABLATE = replace(
    CIFAR_VIT, augmentation=DEIT_SMALL, smoothing=PAPER.smoothing, model={**CIFAR_VIT.model, "stochastic_depth": 0.1},
    training=replace(CIFAR_VIT.training, epochs=4, clip=None),
    scored="validation",  # the test data stay unseen
)  # fmt: skip


CIFAR_DATA = {"data": "DIR with train and test of CIFAR-10, with the columns image and label"}


def _on_cifar10(
    summary: str, paper: str, config: ImageConfig, about: str = "", options: str = "", **more: str
) -> Recipe:
    return Recipe(summary, paper, config, RUN, about, options, requires={**CIFAR_DATA, **more}, init="may")


RECIPES = {
    "conv-attention/theorem": Recipe(
        "nothing: how exactly attention computes 3 x 3, 5 x 5 and 7 x 7 convolutions, by its sharpness",
        "Cordonnier et al. 2020", TheoremConfig(), "manyheads.tasks.images.theorem",
        """Writes convolutions as attention with the paper's construction and measures in float64 how far the two are
        apart inside the image, the largest error over alpha. Writes table.txt, error.png and result.json, whose metrics
        are the decimal logarithms of the errors at the highest alpha. Seconds.""",
        options="[kernels=3,5,7 alphas=5,20,46]", spreads=False,
    ),
    "image-classification": Recipe(
        "a small ViT of handwritten digits, or of your images", "Dosovitskiy et al. 2020", DIGITS, RUN,
        "Without data, the handwritten digits that scikit-learn has, in less than two minutes.",
        options="[data=DIR] [preset=vit/7-28] [--init MODEL]", init="may",
        with_init=replace(DIGITS, training=FINE_TUNING),
    ),
    "mnist/vit": Recipe(
        "a small ViT on MNIST", "Dosovitskiy et al. 2020", MNIST, RUN,
        "Patches of 7 x 7 pixels; images are moved by up to two pixels.",
        requires={"data": "DIR with train and test of MNIST, with the columns image and label, or as IDX files"},
        init="may",
    ),
    "cifar10/resnet": _on_cifar10(
        "a small ResNet, also as a teacher", "He et al. 2015", CIFAR,
        "ResNet-20 (section 4.2: 91.25% after 164 epochs).",
    ),
    "cifar10/vit": _on_cifar10(
        "a small ViT", "Dosovitskiy et al. 2020", CIFAR_VIT,
        """Patches of 4 x 4 pixels; with teacher=RUN its class token learns from both (Touvron's formula without a
        distillation token).""",
    ),
    "cifar10/deit": _on_cifar10(
        "the small ViT with a distillation token, which learns what a teacher says", "Touvron et al. 2021",
        replace(CIFAR_VIT, model={**CIFAR_VIT.model, "distilled": True}),
        options="[distillation=soft]", teacher="RUN, such as a run of cifar10/resnet",
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
    "cifar10/conv-attention": _on_cifar10(
        "a ViT whose attention can be a convolution", "Cordonnier et al. 2020",
        replace(CIFAR_VIT, preset="conv-attention/quadratic-small", model={}),
        "By quadratic positions; or by learned ones (relative-small), or those and content (content-small).",
        "[preset=conv-attention/content-small]",
    ),
    "deit": Recipe(
        "the paper's whole recipe, for ImageNet", "Touvron et al. 2021", PAPER, RUN,
        """Table 9: 300 epochs, RandAugment, mixup, cutmix, erasing, repeated augmentation, stochastic depth; each part
        can be switched off. Published: DeiT-S 79.9, with distillation 81.2.""",
        options="[teacher=MODEL] [augmentation.randaugment=0]",
        requires={"data": "DIR with train and val of ImageNet, a folder for each class"}, init="may",
    ),
    "deit/ablate": Recipe(
        "the rows of DeiT's table 8 at a small budget: its recipe with each part off", "Touvron et al. 2021", ABLATE,
        "manyheads.tasks.images.ablation",
        """A small run for every row, each resumable in a directory of its own below --out, and the table of validation
        loss and top1. Published, of 81.8 with all parts (table 8): SGD 74.5, no RandAugment 79.6. The paper trains
        300 epochs: what keeps a long training from learning by heart need not pay in a short one.""",
        options="[training.epochs=N] [items=N]", requires=CIFAR_DATA,
    ),
    "moving-digits": Recipe(
        "which number it is that moves through a clip and is seen through a slit", "Wang et al. 2018",
        ClipConfig(model={
            "depths": (1, 2, 1), "widths": (8, 16, 32), "stem_width": 8, "stages": (2,), "every": 1,
        }),
        "manyheads.tasks.images.clips",
        """The clips are made here. Convolutions see each frame by itself, which shows a part of the digit; non-local
        blocks see all frames. Without them (model.stages=[]) the parts meet in the last mean alone. Some minutes on one
        core.""",
        options="[model.stages=[]] [model.kind=dot]",
    ),
}  # fmt: skip
