"""Training throughput of the vision recipes on CIFAR-10 images, in turn, in one process.

    python -m benchmarks image_training [--repeats 5] [--threads 1] [--out FILE.json]

A step is forward, backward and update on a batch of 128 random, decoded images. The limit is the time of the matrix
products and convolutions at the rate of a 1024-wide product. No other library is measured; the models are compared
with one another.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.output import command
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.models.presets import IMAGES, build, preset
from manyheads.tasks.images.recipes import RECIPES, ImageConfig
from manyheads.training.optimizers import optimizer_for
from manyheads.training.record import hardware

BATCH = 128
NAMES = tuple(map(str, range(10)))


def _thin(config: ImageConfig, width: int) -> ImageConfig:
    sizes = {"depths": (1, 1, 1), "widths": (width, 2 * width, 4 * width), "stem_width": width}
    return replace(config, model={**config.model, **sizes})


CONFIGS = {name: recipe.config for name, recipe in RECIPES.items() if isinstance(recipe.config, ImageConfig)}
PLAIN, LOCAL = (CONFIGS[f"cifar10/{name}"] for name in ("resnet", "local-attention"))
MODELS: dict[str, ImageConfig] = {
    **{f"cifar10/{name}": CONFIGS[f"cifar10/{name}"] for name in ("resnet", "se", "nonlocal", "local-attention")},
    "cifar10/conv-attention, downsample=4": replace(CONFIGS["cifar10/conv-attention"], model={"downsample": 4}),
    **{f"cifar10/{name}": CONFIGS[f"cifar10/{name}"] for name in ("vit", "deit")},
    **{f"cifar10/resnet, 3 blocks, {w} wide": _thin(PLAIN, w) for w in (8, 16, 24)},
    **{f"cifar10/local-attention, 3 blocks, {w} wide": _thin(LOCAL, w) for w in (8, 16, 24)},
}


def measure(repeats: int, threads: int | None) -> dict[str, Any]:
    compute = prepare(threads=threads)
    with compute.settings():
        return _measured(compute, repeats)


def _measured(compute: ComputeConfig, repeats: int) -> dict[str, Any]:
    torch.manual_seed(1)
    runs, rates = {}, {name: [] for name in MODELS}  # type: dict[str, Any], dict[str, list[float]]
    for name, config in MODELS.items():
        model = build(preset(config.preset, *IMAGES, **{"labels": NAMES, **config.model})).train()
        runs[name] = model, optimizer_for(model, config.training)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,))
    for repeat in range(repeats + 1):  # the first is a warm-up
        for name, (model, update) in runs.items():
            began = time.perf_counter()
            given = model(images)
            heads = given if isinstance(given, tuple) else (given,)
            sum(F.cross_entropy(logits, labels) for logits in heads).backward()  # type: ignore[union-attr]
            update.step()
            update.zero_grad()
            if repeat:
                rates[name].append(BATCH / (time.perf_counter() - began))
    products, rows = compute.products_per_second(), []
    for name, (model, _) in runs.items():
        flops = costs.flops(model)
        rows.append({
            "model": name, "parameters": sum(p.numel() for p in model.parameters()),
            "forward_flops": flops["forward"], "training_flops": flops["training"],
            "images_per_second": {
                "median": round(statistics.median(rates[name]), 1), "min": round(min(rates[name]), 1),
                "max": round(max(rates[name]), 1), "runs": repeats,
            },
            "limit_images_per_second": round(products / flops["training"], 1),
        })  # fmt: skip
    return {
        "bench": "image-training", "batch": BATCH, "image": [3, 32, 32], "rows": rows,
        "products_gflop_per_second": round(products / 1e9, 1), "hardware": hardware(), "route": compute.describe(),
    }  # fmt: skip


if __name__ == "__main__":
    command(__doc__, 5, measure)
