"""Measurement of the speed of the routes that can run a stack of blocks (`routes.py`), and of precision errors."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.core.block import Block, Stack
from manyheads.core.config import Precision
from manyheads.core.interface import Generates
from manyheads.core.runtime import ComputeConfig
from manyheads.files import JsonObject
from manyheads.inference.kernels.compiled import cache_directory, source_version
from manyheads.inference.kernels.packed import get_team
from manyheads.inference.onednn import is_available
from manyheads.inference.routes import WORKS, Route, Routes, forced, key, store, stored
from manyheads.inference.stack import MIN_WORKER_ROWS, FusedStack, is_fusible

# Whole sequences are measured with this number of sequences (at least one for each thread) of this number of tokens.
SEQUENCES, LENGTH = 4, 128
ROWS, CACHED = 16, 32  # Cached steps are measured with this number of rows and of cached positions.
# Each route is measured at least ROUNDS times. After MAX_SECONDS, it is not measured again.
ROUNDS, MAX_SECONDS = 5, 0.2
STEADY = 1.3  # A measurement is undisturbed if the median time is at most this multiple of the minimum.
KERNELS = Routes({"kernels": 1.0}, {"kernels": 1.0})
MAX_TRIES = 3  # number of processes that repeat a disturbed measurement


def measured_routes(stack: Stack, compute: ComputeConfig, *, steps: bool) -> Routes:
    """Return the times of one block of a stack by route. They are read from a file, or measured and stored there.

    steps  if True, also measure steps with cached keys and values
    """
    precision, threads = compute.precision, get_team(compute.threads).size
    has_onednn = precision != "int8" and is_available(torch.bfloat16 if precision == "bf16" else torch.float32)
    if (chosen := forced()) is not None:
        return chosen if has_onednn or "onednn" not in chosen.sequences else KERNELS
    file = cache_directory() / f"routes-{source_version()}.json"
    name = key(stack, precision, threads, steps=steps)
    before, missing = stored(file, name) or (None, MAX_TRIES)
    if before is not None and not missing:
        return before
    seconds = partial(_seconds, stack, compute)
    candidates: list[Route] = ["plain", "onednn", "kernels"] if has_onednn else ["plain", "kernels"]
    width = _first(stack).attention.output.out_features
    generator = torch.Generator().manual_seed(0)  # The user's random numbers must not depend on a measurement.
    x = torch.randn(max(SEQUENCES, threads), LENGTH, width, generator=generator)
    step = torch.randn(ROWS, CACHED, width, generator=generator)
    with torch.inference_mode():
        none: tuple[dict[Route, float], bool] = {}, True
        read, is_steady = none if _first(stack).cross else seconds(candidates, lambda fused: partial(fused, x))
        steps_read, steps_steady = seconds(["plain", "kernels"], partial(_step, step)) if steps else none
    found = Routes(read, steps_read)
    found = found if before is None else found.merge(before)
    # If other programs have disturbed the measurement, the next processes repeat it, up to MAX_TRIES times.
    store(file, name, found, 0 if is_steady and steps_steady else missing - 1)
    return found


def stack_speeds(model: nn.Module, compute: ComputeConfig, precisions: Sequence[Precision]) -> list[JsonObject]:
    """Return the measured times of each stack in each precision, with the chosen routes, as a list of dictionaries.

    For a stack whose blocks the kernels do not support, the dictionary contains the reason instead. A model on the meta
    device is measured with random weights.
    """
    rows: list[JsonObject] = []
    steps = isinstance(model, Generates)
    for name, stack in model.named_modules():
        if not isinstance(stack, Stack):
            continue
        first: Any = copy.deepcopy(stack.blocks[0]).to_empty(device=compute.device).eval()
        for parameter in first.parameters():
            nn.init.normal_(parameter, std=0.02, generator=torch.Generator(parameter.device).manual_seed(0))
        one = Stack([first], biased=stack.biased) if type(stack) is Stack else stack
        for precision in precisions:
            if not is_fusible(one, precision):
                reason = "attention has a bias" if stack.biased else "other blocks than those of the kernels"
                rows.append({"stack": name, "precision": precision, "reason": reason})
                continue
            found = measured_routes(one, replace(compute, precision=precision), steps=steps)
            for work, seconds, route in zip(WORKS, (found.sequences, found.steps), found.best(), strict=True):
                if seconds:
                    rows.append(
                        {"stack": name, "precision": precision, "work": work, "route": route}
                        | {str(way): time for way, time in seconds.items()}
                    )
    return rows


def _seconds(
    stack: Stack, compute: ComputeConfig, candidates: Sequence[Route],
    work: Callable[[FusedStack], Callable[[], object]],
) -> tuple[dict[Route, float], bool]:  # fmt: skip
    """Measure the first block of a stack with each route. Return the shortest times, and whether they are reliable.

    The routes alternate, so that a disturbance affects all of them. A measured call always follows a call with the same
    settings that is not measured, because PyTorch starts threads when their number changes.

    work  function that prepares the work of a stack with one block and returns a function that runs it
    """
    runs = {}
    for route in candidates:
        block = Stack([_first(stack)])
        fused = FusedStack(block, block.blocks, compute, Routes({route: 1.0}, {route: 1.0}))
        runs[route] = (compute if route == "plain" else replace(compute, threads=1), work(fused))
    times: dict[Route, list[float]] = {route: [] for route in candidates}
    start = time.perf_counter()
    while True:
        for route, (settings, call) in runs.items():
            with settings.settings():
                call()
                begin = time.perf_counter()
                call()
                times[route].append(time.perf_counter() - begin)
        is_steady = all(sorted(taken)[len(taken) // 2] < STEADY * min(taken) for taken in times.values())
        rounds, elapsed = len(times["kernels"]), time.perf_counter() - start
        if rounds >= ROUNDS and (is_steady or elapsed > MAX_SECONDS):
            return {route: min(taken) for route, taken in times.items()}, is_steady


def _step(x: Tensor, fused: FusedStack) -> Callable[[], object]:
    """Run a stack on x (B, T, D) with a key-value cache. Return a function that runs one step after these positions."""
    inputs = _cached(fused, fused.blocks, x, 2 * x.shape[1])
    fused(x, **inputs)
    inputs["cache"].advance(x.shape[1])
    return partial(fused, x[:, :1], **{**inputs, "mask": inputs["cache"].mask(1)})


@torch.no_grad()
def relative_error(model: nn.Module, lowered: nn.Module) -> float:
    """Return the maximum relative error of the fused stacks compared with float32.

    The input is a few embeddings of the model, or random numbers if no embedding has the width of the stack.

    lowered  model with fused stacks
    """
    generator, worst = torch.Generator().manual_seed(0), 0.0
    for module in lowered.modules():
        if not isinstance(module, FusedStack):
            continue
        first = _first(module.plain)
        width = first.attention.output.out_features
        x = torch.randn(2, MIN_WORKER_ROWS // 2, width, generator=generator)  # (B, T, D)
        for embedding in model.modules():
            if isinstance(embedding, nn.Embedding) and embedding.embedding_dim == width:
                x = embedding(torch.randint(embedding.num_embeddings, x.shape[:2], generator=generator)).float()
                break
        plain, fused = (
            stack(x, **(_cached(stack, module.plain.blocks, x, x.shape[1]) if first.cross else {}))
            for stack in (module.plain, module)
        )
        worst = max(
            worst, float((fused - plain).norm() / plain.norm()), key=lambda error: (error != error, error)
        )  # Treat an error that is NaN as infinite.
    return worst


def _cached(stack: Stack, blocks: nn.ModuleList, x: Tensor, capacity: int) -> JsonObject:
    """Return the keyword arguments of a stack for the input x: an empty cache and masks.

    If a block has cross-attention, x is also the encoder output.
    """
    cache, has_cross = stack.new_cache(len(x), capacity, x), False
    for layer, block in enumerate(blocks):
        assert isinstance(block, Block)
        if block.cross is not None:
            cache.set_cross(layer, *block.cross.project_keys_values(x), None)
            has_cross = True
    return {
        "cache": cache, "mask": cache.mask(x.shape[1]), "memory_mask": cache.cross_mask() if has_cross else None,
    }  # fmt: skip


def _first(stack: Stack) -> Block:
    first = stack.blocks[0]
    assert isinstance(first, Block)
    return first
