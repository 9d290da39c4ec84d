"""A training step on tensors without memory: PyTorch goes through it operation by operation, and the cost is summed up.

An operation takes as long as its products at the machine's rate, or as reading its inputs and writing its outputs,
whichever is longer (the roofline of Williams et al. 2009); where all of them are small, a processor's cache still has
them. Memory is what is alive at the worst moment.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from manyheads.analysis import costs
from manyheads.core.attention import Attention
from manyheads.core.block import Stack
from manyheads.core.runtime import CACHED
from manyheads.errors import UserError
from manyheads.training.loss import upcast, vocabulary_loss

MASKED = 0.15  # of the tokens, which BERT learns from (Devlin 2018, section 3.1)
ATEN = torch.ops.aten
# they only make room, or another view of what there is
IDLE = {ATEN.empty, ATEN.empty_like, ATEN.empty_strided, ATEN.new_empty, ATEN._unsafe_view}


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


PRODUCTS: dict[Any, Any] = {  # with what PyTorch's counter does not know
    **flop_registry,
    ATEN.addmm_: flop_registry[ATEN.addmm],
    ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@dataclass(frozen=True)
class Machine:
    """products   FLOP/s by precision ("float32", "bf16")
    bandwidth  bytes/s of the memory that it computes in
    cached     bytes/s of what a cache still has, to operations that touch `CACHED` bytes or less; None: `bandwidth`
    """

    products: Mapping[str, float]
    bandwidth: float
    cached: float | None = None

    def reading(self, size: int) -> float:
        """Seconds of an operation that reads and writes so many bytes."""
        return size / (self.cached if self.cached and size <= CACHED else self.bandwidth)


@dataclass(frozen=True)
class Step:
    """What a step takes on one device, without the update of the weights.

    forward, backward  seconds
    products           seconds of them that are bound by products, not by memory
    flops              of all products
    activations        bytes alive at the worst moment beside weights and gradients. Gradients seldom find room where
                       activations were (an allocator cuts what it frees), so both are counted
    peak               bytes alive at the worst moment beside weights
    """

    forward: float
    backward: float
    products: float
    flops: float
    activations: int
    peak: int


class _Counted(TorchDispatchMode):
    """Counts what runs within it. `known`: tensors that are there before."""

    def __init__(self, machine: Machine, known: list[Tensor]) -> None:
        super().__init__()
        self._machine = machine
        self._seen = WeakIdKeyDictionary()
        for tensor in known:
            self._seen[tensor.untyped_storage()] = True
        self.seconds = self.products = self.flops = 0.0
        self.alive = self.gradients = self.activations = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not func.is_view and func.overloadpacket not in IDLE:
            self._take_time(func, args, kwargs, result)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen[storage] = True
                self._grow(storage.nbytes())
                weakref.finalize(storage, self._grow, -storage.nbytes())
        return result

    def _take_time(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        touched = _tensors((args, kwargs, result))
        reading = self._machine.reading(sum(t.numel() * t.element_size() for t in touched))
        count = PRODUCTS.get(func.overloadpacket)
        flops = 0 if count is None else count(*args, **kwargs, out_val=result)
        narrow = any(t.dtype == torch.bfloat16 for t in touched)
        computing = flops / self._machine.products["bf16" if narrow else "float32"]
        self.flops += flops
        self.seconds += max(computing, reading)
        self.products += computing if computing > reading else 0.0

    def _grow(self, by: int) -> None:
        self.alive += by
        self.peak = max(self.peak, self.alive)
        self.activations = max(self.activations, self.alive - self.gradients)

    def learnt(self, parameter: Tensor) -> None:
        """A gradient is there, and stays."""
        self.gradients += parameter.numel() * parameter.element_size()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def simulate(
    model: Any, rows: int, lengths: tuple[int, ...], machine: Machine, *, precision: str, fused: bool,
    checkpointing: bool = False, narrow_blocks: bool = False,
) -> Step:  # fmt: skip
    """A step of such a model on so many texts (of so many tokens, of source and target) or images.

    fused          attention never keeps a map, as on a GPU; else what it does on a processor
    checkpointing  blocks are computed twice, see `training.checkpointing`
    narrow_blocks  the weights of blocks are bf16 already, as FSDP2 gathers them in a bf16 run: none is cast and kept

    Raises UserError where what it computes depends on the data.
    """
    with torch.device("meta"):
        model = type(model)(model.config).train()
    for module in model.modules():
        if isinstance(module, Attention) and fused:
            module.explicit, module.dropout = False, 0.0  # a GPU's kernel drops without keeping what; a CPU's keeps it
        if isinstance(module, Stack):
            module.checkpointing = checkpointing
            module.blocks.to(torch.bfloat16 if narrow_blocks else torch.float32)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            inputs = costs.example(model, *lengths, rows=rows)
            counted = _Counted(machine, [*model.parameters(), *model.buffers()])
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(counted.learnt)
            with counted:
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = step_loss(model, inputs)
                forward = counted.seconds
                loss.backward()
    except DataDependentOutputException:
        raise UserError(
            f"a step of {type(model).__name__} depends on its data (how long it ponders, say): it cannot be planned"
        ) from None
    return Step(forward, counted.seconds - forward, counted.products, counted.flops, counted.activations, counted.peak)


def step_loss(model: Any, inputs: tuple[Any, ...]) -> Tensor:
    """As the model's task computes it: over the vocabulary in chunks, BERT's for the masked words alone."""
    if getattr(model.config, "head", None) == "masked_lm":
        states = model.encode(*inputs).flatten(0, 1)
        words = model.transform_states(states[: max(1, round(MASKED * len(states)))])
        return _of_words(words, model.embedding.weight, model.output_bias)
    if hasattr(model, "hidden"):
        return _of_words(model.hidden(*inputs).flatten(0, 1), model.output_weight, getattr(model, "output_bias", None))
    return torch.stack([upcast(part).sum() for part in _tensors(model(*inputs))]).sum()


def _of_words(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    target = torch.zeros(len(hidden), dtype=torch.int64)
    return vocabulary_loss(hidden, weight, bias, target, smoothing=0.0, pad=None)
