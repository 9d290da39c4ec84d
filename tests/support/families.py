"""Train a tiny run of each family, alone or under torchrun.

    python -m tests.support.families DATA OUT DTYPE PARALLEL [NAME ...]

PARALLEL is "shard", "tensor=N", "shard,tensor=N", or "-". The losses of every step are in OUT/NAME/metrics.jsonl.
"""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import manyheads.runs.run
import papers.directions.run
from manyheads.runs.result import RunResult
from manyheads.tasks.train import train
from manyheads.training import session
from manyheads.training.distributed import distributed_context
from papers.recipes import ALL

STEPS = 50
COMMON = {"steps": STEPS, "log_every": 1, "checkpoint_every": 10_000}
DIGITS = {"size": 300, "longest": 9, "lengths": [9], "tested": 3, "batch_tokens": 150}
BLOCK = {"width": 16, "feed_forward": 32, "heads": 2, "layers": 1}
SMALL = {"channels": 1, "image_size": 8, "widths": [8, 16], "depths": [1, 1], "stem_width": 8}
IMAGES = {"items": 210, "batch_items": 21, "workers": 0}

# recipe, settings; batches of uneven rows, the last of an epoch shorter, and some with several micro-batches in a step
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("translation", {
        "size": 1000, "vocabulary": 400, "batch_tokens": 300, "training.accumulate": 3, "training.average": 1,
        "model": {"norm": "pre", "final_norm": True, "width": 32, "encoder_layers": 2, "decoder_layers": 1},
    }),
    "checkpointing": ("translation", {
        "size": 1000, "vocabulary": 400, "batch_tokens": 300, "training.checkpointing": True, "training.average": 1,
        "model": {"norm": "pre", "final_norm": True, "width": 32, "encoder_layers": 2, "decoder_layers": 1},
    }),
    "batch-normalization": ("translation", {
        "size": 1000, "vocabulary": 400, "batch_tokens": 300, "training.average": 1,
        "model": {"normalization": "batch", "final_norm": True, "width": 32, "encoder_layers": 2, "decoder_layers": 1},
    }),
    "universal": ("universal/copy", {
        **DIGITS, "network": {"width": 16, "heads": 2, "feed_forward": 32, "steps": 3, "halting": "basic"},
    }),
    "seq2seq-rnn": ("universal/copy", {**DIGITS, "model": "lstm", "network": {"width": 16, "layers": 1}}),
    "bert": ("bert/pretraining", {
        "data": "documents.txt", "vocabulary": 200, "length": 32, "batch_tokens": 300, "model": BLOCK,
        "training.accumulate": 2,
    }),
    "gpt2": ("language-modeling", {
        "data": "documents.txt", "vocabulary": 300, "block": 16, "rows": 7, "model": {**BLOCK, "dropout": 0.0},
    }),
    "gpt-classifier": ("sentence-pair", {
        "data": "pairs.tsv", "batch_tokens": 100, "auxiliary": 0.5, "truncate": True, "max_length": 16,
        "init": "gpt2",
    }),
    "text-classifier": ("text-classification", {
        "data": "texts.tsv", "batch_items": 11, "training.ema": 0.9, "training.clip": 0.5,
        "model": {"width": 16, "head_width": 16, "feed_forward": 16, "dropout": 0.0},
    }),
    "sequence-baseline": ("text-classification", {
        "data": "texts.tsv", "batch_items": 11, "preset": "sequence-baseline/lstm", "model": {"dropout": 0.0},
    }),
    "bert-tagger": ("tagging", {"size": 1000, "vocabulary": 300, "batch_tokens": 150, "model": BLOCK}),
    "directions": ("reading", {"size": 1000, "vocabulary": 300, "batch_tokens": 150, "model": BLOCK}),
    "vit": ("image-classification", {**IMAGES, "augmentation.mixup": 0.8, "augmentation.cutmix": 1.0}),
    "resnet": ("image-classification", {
        **IMAGES, "preset": "resnet/18-se", "model": SMALL, "training.optimizer": "sgd",
        "training.learning_rate": 0.01,
    }),
    "conv-attention": ("image-classification", {
        **IMAGES, "preset": "conv-attention/quadratic-small",
        "model": {"channels": 1, "image_size": 8, "width": 16, "feed_forward": 16, "layers": 1, "heads": 4,
                  "dropout": 0.0, "attention_dropout": 0.0},
    }),
    # a sixth of the recipe's rate, at which rounding grew a hundred times in 15 steps on one processor, to 1.1e-5
    "nonlocal": ("image-classification", {
        **IMAGES, "preset": "nonlocal/18-small", "model": {**SMALL, "stages": [2], "every": 1},
        "training.learning_rate": 5e-4,
    }),
    "sknet": ("image-classification", {**IMAGES, "preset": "sknet/18-small", "model": SMALL}),
    "resnest": ("image-classification", {**IMAGES, "preset": "resnest/18-small", "model": SMALL}),
    "gsa": ("image-classification", {**IMAGES, "preset": "gsa/18-small", "model": {**SMALL, "heads": 2}}),
    "local-attention": ("image-classification", {
        **IMAGES, "preset": "local-attention/18-small",
        "model": {**SMALL, "heads": 2, "attends": [1, 2], "window": 3},
    }),
}  # fmt: skip


def write_data(folder: Path) -> None:
    """Texts of a small language."""
    random.seed(1)
    words = ["".join(random.choices("abcdefgh", k=random.randint(2, 6))) for _ in range(80)]

    def text(most: int) -> str:
        return " ".join(random.choices(words, k=random.randint(3, most)))

    documents = ["\n".join(text(12) + "." for _ in range(random.randint(4, 12))) for _ in range(60)]
    (folder / "documents.txt").write_text("\n\n".join(documents) + "\n")
    rows = [f"{text(20)}\t{random.choice('xyz')}" for _ in range(200)]
    (folder / "texts.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    rows = [f"{text(8)}\t{text(8)}\t{random.choice('xyz')}" for _ in range(100)]
    (folder / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")


def run(name: str, data: Path, out: Path, parallel: str = "-", *, resume: bool = False, **rhythm: Any) -> None:
    """`rhythm`: settings of the training in the place of the common ones."""
    recipe, settings = FAMILIES[name]
    shard, tensor = parallel.startswith("shard"), int(parallel.partition("tensor=")[2] or 1)
    settings = {**settings, "threads": 1, "training.shard": shard, "training.tensor_parallel": tensor}
    settings |= {f"training.{key}": value for key, value in {**COMMON, **rhythm}.items()}
    if "data" in settings:
        settings["data"] = str(data / settings["data"])
    init = settings.pop("init", None)
    train(recipe, settings, out=out / name, init=init and str(data / init), resume=resume, recipes=ALL)


def score_nothing() -> None:
    manyheads.runs.run._recorded = lambda *_: RunResult()
    for name in ("probe", "_compare"):
        setattr(papers.directions.run, name, lambda *_, **__: {})


def main() -> None:
    data, out, dtype = Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])
    torch.set_default_dtype(dtype)
    if dtype == torch.float64:  # what no user meets: images and validations in float64
        from_numpy: Any = torch.from_numpy
        setattr(torch, "from_numpy", lambda a: from_numpy(a.astype(np.float64) if a.dtype == np.float32 else a))  # noqa: B010
        setattr(session.TrainingSession, "measure", lambda _: {"loss": 0.0})  # noqa: B010
    score_nothing()
    distributed_context()
    for name in sys.argv[5:] or FAMILIES:
        run(name, data, out, sys.argv[4])


if __name__ == "__main__":
    main()
