"""Inference on a GPU: weight matrices in bf16, and a decoding step that is recorded as a CUDA graph and replayed.

A decoding step for one token per row is many small kernels, and starting them from Python takes longer than running
them. A CUDA graph starts all of them at once. It needs fixed shapes: the recorded step reads all positions of the
key-value cache, and a mask hides those beyond the length of each row.
"""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.core.block import Stack
from manyheads.core.cache import KVCache
from manyheads.core.experts import expert_layers
from manyheads.core.interface import HasOutputWeights, OutputProjection
from manyheads.core.positions import PositionTable
from manyheads.core.runtime import ComputeConfig
from manyheads.core.tap import Tap
from manyheads.inference.conversion import convert
from manyheads.inference.model import CompiledModel, M

logger = logging.getLogger(__name__)

# A decoding step is recorded after this number of steps with the same cache memory. A recording takes as long as
# several dozen steps.
PATIENCE = 32


def compile_for_gpu(model: M, compute: ComputeConfig) -> CompiledModel[M]:
    """Return a model for inference on a GPU. The precision `auto` becomes bf16.

    The results equal those of `model` in autocast. It is faster, because the weights need not be converted in each
    call.
    """
    compute = replace(compute, precision="bf16") if compute.precision == "auto" else compute
    module = convert(model, _in_bf16) if compute.precision == "bf16" else model
    parts = dict(module.named_children())
    positions = parts.get("positions")
    # A graph is recorded on the current GPU. The shapes of the tensors of experts depend on the tokens, so no graph can
    # be recorded for them.
    number = torch.device(compute.device).index
    elsewhere = number is not None and number != torch.cuda.current_device()
    if elsewhere or expert_layers(module):
        return CompiledModel(module, compute)
    if type(parts.get("decoder")) is Stack and isinstance(positions, PositionTable):
        return RecordedModel(module, compute, positions.length)
    return CompiledModel(module, compute)


class _ProjectionInBf16(nn.Module):
    """Output projection that converts the output matrix to bf16 in its first call and stores the result."""

    def __init__(self, plain: OutputProjection) -> None:
        super().__init__()
        self.tap = plain.tap
        self._weight: Tensor | None = None

    def forward(self, hidden: Tensor, model: HasOutputWeights) -> Tensor:
        if self._weight is None:
            with torch.inference_mode(False):
                self._weight = model.output_weight.detach().bfloat16()
        return self.tap.on("logits", F.linear(hidden, self._weight, model.output_bias))


def _in_bf16(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module | None:
    """Return a float32 linear layer or an output projection with its weights in bf16, or None for any other module."""
    if isinstance(module, OutputProjection):
        return _ProjectionInBf16(module)
    if type(module) is not nn.Linear or module.weight.dtype != torch.float32:
        return None
    result = copy.copy(module)
    result._parameters = {
        name: None if tensor is None else nn.Parameter(tensor.detach().bfloat16(), requires_grad=False)
        for name, tensor in module._parameters.items()
    }
    return result


class RecordedModel(CompiledModel[M]):
    """Decoder whose step for one token per row is recorded as a CUDA graph.

    A recording works only for the memory of one key-value cache. The step is recorded after `PATIENCE` steps with the
    same memory. A later cache of the same size takes over this memory, so that the recording can be used again.

    positions  number of position embeddings
    """

    def __init__(self, module: M, compute: ComputeConfig, positions: int) -> None:
        super().__init__(module, compute)
        self._positions = positions
        self._taps = [part for part in module.modules() if isinstance(part, Tap)]
        self._recording: _Recording | None = None
        self._memory, self._count, self._works = (0, 0), 0, True

    def step(self, tokens: Tensor, cache: KVCache, at: Tensor | None = None) -> Tensor:
        if at is None and self._can_record(tokens, cache):
            recording = self._recording
            if recording is not None and recording.accepts(cache):
                return recording.replay(tokens, cache)
            memory = memory_of(cache)
            self._count = self._count + 1 if memory == self._memory else 0
            self._memory = memory
            if self._count >= PATIENCE:
                self._record(cache)
        return super().step(tokens, cache, at)

    def _can_record(self, tokens: Tensor, cache: KVCache) -> bool:
        return (
            self._works and type(cache) is KVCache and tokens.shape[1] == 1 and torch.is_inference_mode_enabled()
            and cache.batch > 0 and cache.keys(1) <= min(cache.capacity, self._positions)
            and not any(tap.is_active for tap in self._taps)
        )  # fmt: skip

    def _record(self, cache: KVCache) -> None:
        try:
            self._recording = _Recording(self._model.step, self.compute, cache)
        except RuntimeError as error:
            self._works = False
            logger.warning(f"the decoding step cannot be recorded as a CUDA graph and runs slower: {error}")


class _Recording:
    """Recorded decoding step for the memory of one cache.

    Without a GPU, as in tests, the step is not recorded, but runs with the same fixed shapes.
    """

    def __init__(self, step: Callable[[Tensor, KVCache], Tensor], compute: ComputeConfig, cache: KVCache) -> None:
        self._fixed, self._owner = FixedCache(cache), weakref.ref(cache)
        self._tokens = torch.zeros(len(self._fixed.lengths), 1, dtype=torch.long, device=cache.lengths.device)
        self._graph: torch.cuda.CUDAGraph | None = None

        def run() -> Tensor:
            # Disable the cache of converted weights in autocast: the recording would use its memory after it is freed.
            bf16 = compute.precision == "bf16"
            with torch.autocast(compute.device_type, torch.bfloat16, enabled=bf16, cache_enabled=False):
                return step(self._tokens, copy.copy(self._fixed))

        self._run = run
        if compute.device_type == "cuda":
            self._fixed.follow(cache)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run()  # This run loads the GPU kernels, because they cannot be loaded during a recording.
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._logits = run()

    def accepts(self, cache: KVCache) -> bool:
        """Return True if the cache has the memory of this recording, or takes it over from a cache that is gone."""
        if self._owner() is not cache:
            if self._owner() is not None or not self._fixed.take_over(cache):
                return False
            self._owner = weakref.ref(cache)
        return memory_of(cache) == memory_of(self._fixed)

    def replay(self, tokens: Tensor, cache: KVCache) -> Tensor:
        self._fixed.follow(cache)
        self._tokens[: cache.batch] = tokens
        if self._graph is None:
            logits = self._run()
        else:
            self._graph.replay()
            logits = self._logits.clone()  # Copy the result, because the next replay overwrites its memory.
        cache.advance(1)
        return logits[: cache.batch]


class FixedCache(KVCache):
    """Key-value cache for a recorded step: the memory of another cache, in shapes that do not depend on the lengths.

    It has one row for each slot of the memory, and `append` returns the keys and values of all positions. The method
    `follow` copies the lengths from the other cache.
    """

    def __init__(self, cache: KVCache) -> None:
        layers, _, slots, heads, capacity, width = cache._entries.shape
        super().__init__(layers, 0, heads, capacity, width, dtype=cache._dtype, device=cache._device)
        self._entries, self._cross = cache._entries, cache._cross
        self.lengths = torch.zeros(slots, dtype=torch.long, device=self._device)
        self._longest, self._equal_lengths = capacity - 1, False
        self._followed: list[tuple[Tensor, Tensor]] | None = None  # cross-attention entries that `follow` copied last
        if self._cross[0] is not None:
            entries = self._cross_entries()
            self._expanded = [(k.new_zeros(slots, *k.shape[1:]), v.new_zeros(slots, *v.shape[1:])) for k, v in entries]
            self._sources = torch.arange(slots, device=self._device)
            self._cross_lengths = torch.full((slots,), entries[0][0].shape[2], device=self._device)

    def follow(self, cache: KVCache) -> None:
        """Copy the lengths of the cache with the same memory, and its keys for cross-attention if they have changed."""
        self.lengths[: cache.batch] = cache.lengths
        if self._cross[0] is None:
            return
        cache.cross(0)
        if self._followed is not cache._expanded:
            self._followed = cache._expanded
            for layer, pair in enumerate(self._expanded or ()):
                for buffer, entry in zip(pair, cache.cross(layer), strict=True):
                    buffer[: cache.batch] = entry
            if cache._cross_lengths is not None:
                assert self._cross_lengths is not None
                self._cross_lengths[: cache.batch] = cache._cross_lengths[cache._sources]

    def take_over(self, cache: KVCache) -> bool:
        """Move the keys and values of another cache to this memory. Return False if the sizes of the caches differ."""
        if _sizes(cache) != _sizes(self):
            return False
        used = cache.keys(0)
        self._entries[:, :, :, :, :used] = cache._entries[:, :, :, :, :used]
        cache._entries, self._followed = self._entries, None
        return True


def memory_of(cache: KVCache) -> tuple[int, int]:
    """Return the address and the size of a cache's memory. Both remain the same while steps append to the same rows."""
    return cache._entries.data_ptr(), cache._entries.numel()


def _sizes(cache: KVCache) -> list[object]:
    crossed = [] if cache._cross[0] is None else [entry.shape[1:] for entry in cache._cross_entries()[0]]
    return [cache._entries.shape, cache._entries.dtype, *crossed]
