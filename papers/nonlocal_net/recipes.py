"""Recipe for clips of moving digits, which a network with non-local blocks classifies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Range
from manyheads.runs.recipe import Recipe, Threads
from manyheads.training.config import TrainingConfig


@dataclass(frozen=True)
class ClipConfig(Config):
    """Settings of a training run on video clips of moving digits.

    predict      label of a clip: the digit, its direction (left or right), or whether all frames show the same digit
    size         number of training clips
    tested       number of validation clips, which is also the number of test clips
    frames       number of frames in a clip; each frame shows `slit` of a digit's 8 columns
    slit         number of a digit's 8 columns that a frame shows
    side         height and width of a frame in pixels
    model        overrides fields of the non-local network; model.stages=[] removes the non-local blocks
    batch_items  number of clips in a micro-batch
    threads      number of CPU threads; None: PyTorch's default
    """

    predict: Literal["digit", "direction", "pair"] = "digit"
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
            steps=1200, optimizer="adamw", schedule="cosine", learning_rate=3e-3, warmup=100, betas=(0.9, 0.999),
            eps=1e-8, weight_decay=0.05, clip=1.0, log_every=50, validate_every=400,
        )
    )  # fmt: skip


_MODEL = {"depths": (1, 2, 1), "widths": (8, 16, 32), "stem_width": 8, "stages": (2,), "every": 1}

RECIPES = {
    "moving-digits": Recipe(
        "a classifier of clips in which a digit moves behind a slit", "Wang et al. 2018",
        ClipConfig(model=_MODEL),
        "papers.nonlocal_net.run:MovingDigits",
        """The clips are generated. A convolution sees a single frame, which shows a part of the digit; a
        non-local block sees all frames. Without these blocks (model.stages=[]), only the final mean combines
        the frames. It takes a few minutes on one core.""",
        options="[model.stages=[]] [model.kind=dot]", program="python -m papers.nonlocal_net",
    ),
    "direction": Recipe(
        "a classifier of the direction in which a digit moves", "Wang et al. 2018",
        replace(ClipConfig(predict="direction", frames=2, model={**_MODEL, "temporal": (1, 2, 3)}, size=4000),
                training=replace(ClipConfig().training, steps=600, validate_every=200)),
        "papers.nonlocal_net.run:MovingDigits",
        """The clips are generated, and have two frames. Kernels over three frames see which frame is first.
        Without them (model.temporal=[]), the network does not know it, with or without non-local blocks.""",
        options="[model.temporal=[]] [model.stages=[]]", program="python -m papers.nonlocal_net",
    ),
    "pair": Recipe(
        "a classifier of clips whose two frames show the same digit, or different digits", "Wang et al. 2018",
        replace(ClipConfig(predict="pair", frames=2, size=4000,
                           model={**_MODEL, "widths": (16, 32, 64), "stages": (1, 2)}),
                training=replace(ClipConfig().training, steps=2500, learning_rate=2e-3, validate_every=500)),
        "papers.nonlocal_net.run:MovingDigits",
        """The clips are generated, and have two frames. A non-local block can compare them. Without the blocks
        (model.stages=[]), the scores of a clip are sums of the scores of its frames.""",
        options="[model.stages=[]]", program="python -m papers.nonlocal_net",
    ),
}  # fmt: skip
