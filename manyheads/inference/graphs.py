"""Inference on a GPU: matrices in bf16, and a decoding step that is recorded as a CUDA graph and replayed.

A decoding step for one token per row is many small kernels, and starting them from Python takes longer than running
them. A CUDA graph starts all of them at once. It needs fixed shapes: the recorded step reads all positions of the
key-value cache, and a mask hides those beyond the length of each row.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.cache import KVCache
from manyheads.core.experts import expert_layers
from manyheads.core.positions import PositionTable
from manyheads.core.runtime import ComputeConfig
from manyheads.core.tap import Tap
from manyheads.inference.conversion import convert

logger = logging.getLogger(__name__)

# Number of steps with the same memory of a cache before the step is recorded. A recording takes as long as some dozens
# of steps.
PATIENCE = 32


def lower_for_gpu(model: Any, compute: ComputeConfig) -> tuple[Any, ComputeConfig]:
    """Return a model for inference on a GPU, and the configuration to run it with. The precision `auto` becomes bf16.

    The results are those of `model` under autocast: only the conversion of the weights in each call is saved.
    """
    compute = replace(compute, precision="bf16") if compute.precision == "auto" else compute
    lowered = convert(model, _in_bf16, {}) if compute.precision == "bf16" else model
    lowered = copy.copy(model) if lowered is model else lowered
    if compute.precision == "bf16" and hasattr(model, "output_weight") and hasattr(model, "project"):
        weight, bias = model.output_weight.detach().bfloat16(), getattr(model, "output_bias", None)
        lowered.__dict__["project"] = lambda hidden: F.linear(hidden, weight, bias)
    if expert_layers(model):
        return lowered, compute  # The shapes of its tensors depend on the tokens, so no graph can be recorded.
    if type(getattr(model, "decoder", None)) is Stack and isinstance(getattr(model, "positions", None), PositionTable):
        lowered.__dict__["step"] = RecordedStep(lowered, compute)
    return lowered, compute


def _in_bf16(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module | None:
    """Return a float32 linear layer with its weights in bf16, or None for any other module."""
    if type(module) is not nn.Linear or module.weight.dtype != torch.float32:
        return None
    result = copy.copy(module)
    result._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().bfloat16(), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    return result


class RecordedStep:
    """Method `step` of a decoder. The step for one token per row is recorded if the memory of the cache stays the same.

    The recording keeps the memory of its cache. A later cache of the same sizes takes over this memory.
    """

    def __init__(self, model: Any, compute: ComputeConfig) -> None:
        self._model, self._plain, self._compute = model, type(model).step, compute
        self._taps = [module for module in model.modules() if isinstance(module, Tap)]
        self._recording: _Recording | None = None
        self._memory, self._count, self._works = (0, 0), 0, True

    def __call__(self, tokens: Tensor, cache: KVCache, at: Tensor | None = None) -> Tensor:
        if at is None and self._can_record(tokens, cache):
            recording = self._recording
            if recording is not None and recording.accepts(cache):
                return recording.replay(tokens, cache)
            memory = cache.memory
            self._count = self._count + 1 if memory == self._memory else 0
            self._memory = memory
            if self._count >= PATIENCE:
                self._record(cache)
        return self._plain(self._model, tokens, cache, *(() if at is None else (at,)))

    def _can_record(self, tokens: Tensor, cache: KVCache) -> bool:
        return (
            self._works and type(cache) is KVCache and tokens.shape[1] == 1 and torch.is_inference_mode_enabled()
            and cache.batch > 0 and cache.keys(1) <= min(cache.capacity, self._model.positions.length)
            and not any(tap.is_active for tap in self._taps)
        )  # fmt: skip

    def _record(self, cache: KVCache) -> None:
        try:
            self._recording = _Recording(self._plain, self._model, self._compute, cache)
        except RuntimeError as error:
            self._works = False
            logger.warning(f"the decoding step cannot be recorded as a CUDA graph and runs slower: {error}")


class _Recording:
    """Recorded step for the memory of a cache. Without a GPU, the step runs with the same fixed shapes."""

    def __init__(self, step: Any, model: Any, compute: ComputeConfig, cache: KVCache) -> None:
        self._fixed, self._owner = cache.fixed(), weakref.ref(cache)
        self._tokens = torch.zeros(len(self._fixed.lengths), 1, dtype=torch.long, device=cache.lengths.device)
        self._graph: Any = None

        def run() -> Tensor:
            # Weights that autocast converts must not stay in its cache, whose memory is freed.
            bf16 = compute.precision == "bf16"
            with torch.autocast(compute.device, torch.bfloat16, enabled=bf16, cache_enabled=False):
                logits: Tensor = step(model, self._tokens, copy.copy(self._fixed))
            return logits

        self._run = run
        if compute.device == "cuda":
            self._fixed.follow(cache)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run()  # loads the kernels, which is not allowed during a recording
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._logits = run()

    def accepts(self, cache: KVCache) -> bool:
        """Return True if the cache has the memory of this recording, or takes it over from a cache that is gone."""
        if self._owner() is not cache:
            if self._owner() is not None or not cache.move_to(self._fixed):
                return False
            self._owner = weakref.ref(cache)
        return cache.memory == self._fixed.memory

    def replay(self, tokens: Tensor, cache: KVCache) -> Tensor:
        self._fixed.follow(cache)
        self._tokens[: cache.batch] = tokens
        if self._graph is None:
            logits = self._run()
        else:
            self._graph.replay()
            logits = self._logits.clone()  # The next replay writes to the same memory.
        cache.advance(1)
        return logits[: cache.batch]
