"""Simulation of a training step on tensors without memory (meta tensors), which adds up the cost of each operation.

The duration of an operation is the time of its products at the machine's rate, or the time of reading its inputs and
writing its outputs, whichever is longer (roofline model, Williams et al. 2009). Small operands are read from the CPU's
cache. The memory of the step is the maximum total size of all tensors that exist at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count
from torch.utils.weak import WeakIdKeyDictionary

from manyheads.analysis import costs
from manyheads.core.attention import Attention
from manyheads.core.block import Stack
from manyheads.core.config import Config
from manyheads.core.interface import Generates, Model
from manyheads.core.runtime import CACHED
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.bert import Bert
from manyheads.training.loss import upcast, vocabulary_loss

MASKED_FRACTION = 0.15  # fraction of the tokens that BERT predicts in pretraining (Devlin 2018, section 3.1)
ATEN = torch.ops.aten
# PyTorch operations that only allocate memory or create a view, and take no time
IDLE = {ATEN.empty, ATEN.empty_like, ATEN.empty_strided, ATEN.new_empty, ATEN._unsafe_view}


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> int:
    return sdpa_backward_flop_count(gradient.shape, query.shape, key.shape, value.shape)


# FLOP formulas of operations, including operations that PyTorch's FLOP counter lacks
PRODUCTS: dict[OpOverloadPacket, Callable[..., int]] = {
    **flop_registry,
    ATEN.addmm_: flop_registry[ATEN.addmm],
    ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@dataclass(frozen=True)
class Machine:
    """Speed of a machine.

    products   FLOP/s of matrix products by precision ("float32", "bf16")
    bandwidth  bytes/s of the memory
    cached     bytes/s of the cache, for operations that read and write at most `CACHED` bytes. By default, `bandwidth`
    """

    products: Mapping[str, float]
    bandwidth: float
    cached: float | None = None

    def transfer_seconds(self, size: int) -> float:
        """Return the number of seconds of an operation that reads and writes `size` bytes in total."""
        return size / (self.cached if self.cached and size <= CACHED else self.bandwidth)


@dataclass(frozen=True)
class Step:
    """Cost of a training step on one device, without the update of the weights.

    forward, backward  duration of the forward and the backward pass in seconds
    products           seconds in operations whose duration is limited by matrix products, not by memory
    flops              FLOPs of all matrix products
    activations        maximum bytes in use, without weights and gradients. Gradients are counted separately, because
                       they rarely reuse the memory of freed activations
    peak               maximum bytes in use, without weights
    """

    forward: float
    backward: float
    products: float
    flops: float
    activations: int
    peak: int


class _CostCounter(TorchDispatchMode):
    """PyTorch dispatch mode that counts time and memory of all operations in its `with` block.

    known  tensors that exist before the `with` block
    """

    def __init__(self, machine: Machine, known: list[Tensor]) -> None:
        super().__init__()
        self._machine = machine
        self._seen = WeakIdKeyDictionary()
        for tensor in known:
            self._seen[tensor.untyped_storage()] = True
        self.seconds = self.products = self.flops = 0.0
        self.alive = self.gradients = self.activations = self.peak = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: JsonObject | None = None
    ) -> object:
        kwargs = kwargs or {}
        result: object = func(*args, **kwargs)
        if not func.is_view and func.overloadpacket not in IDLE:
            self._take_time(func, args, kwargs, result)
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if storage not in self._seen:
                self._seen[storage] = True
                self._grow(storage.nbytes())
                weakref.finalize(storage, self._grow, -storage.nbytes())
        return result

    def _take_time(self, func: OpOverload, args: tuple[object, ...], kwargs: JsonObject, result: object) -> None:
        touched = _tensors((args, kwargs, result))
        transfer_seconds = self._machine.transfer_seconds(sum(t.numel() * t.element_size() for t in touched))
        count = PRODUCTS.get(func.overloadpacket)
        flops = 0 if count is None else count(*args, **kwargs, out_val=result)
        is_bf16 = any(t.dtype == torch.bfloat16 for t in touched)
        computing = flops / self._machine.products["bf16" if is_bf16 else "float32"]
        self.flops += flops
        self.seconds += max(computing, transfer_seconds)
        self.products += computing if computing > transfer_seconds else 0.0

    def _grow(self, by: int) -> None:
        self.alive += by
        self.peak = max(self.peak, self.alive)
        self.activations = max(self.activations, self.alive - self.gradients)

    def add_gradient(self, parameter: Tensor) -> None:
        """Add the memory of a parameter's gradient, which is kept until the end of the step."""
        self.gradients += parameter.numel() * parameter.element_size()


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def simulate(
    model: Model[Config], rows: int, lengths: tuple[int, ...], machine: Machine, *, precision: str, fused: bool,
    checkpointing: bool = False, narrow_blocks: bool = False,
) -> Step:  # fmt: skip
    """Simulate one training step of a model on `rows` texts or images.

    rows           number of texts or images
    lengths        number of tokens per source text, and per target text
    fused          True if attention does not store its weights, as on a GPU; False if it does, as on a CPU
    checkpointing  True if blocks are computed again in the backward pass (`training.checkpointing`)
    narrow_blocks  True if the weights of blocks are bf16, as FSDP2 gathers them in a bf16 run. No bf16 copies of these
                   weights are then stored

    Raises UserError if the computation depends on the data.
    """
    with torch.device("meta"):
        model = type(model)(model.config).train()
    for module in model.modules():
        if isinstance(module, Attention) and fused:
            # A GPU kernel does not store the dropout mask, a CPU kernel does.
            module.explicit, module.dropout = False, 0.0
        if isinstance(module, Stack):
            module.checkpointing = checkpointing
            module.blocks.to(torch.bfloat16 if narrow_blocks else torch.float32)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            inputs = costs.example(model, *lengths, rows=rows)
            counter = _CostCounter(machine, [*model.parameters(), *model.buffers()])
            for parameter in model.parameters():
                parameter.register_post_accumulate_grad_hook(counter.add_gradient)
            with counter:
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = step_loss(model, inputs)
                forward = counter.seconds
                loss.backward()
    except DataDependentOutputException:
        raise UserError(
            f"a step of {type(model).__name__} depends on its data (for example, its halting time) and cannot "
            "be planned"
        ) from None
    return Step(forward, counter.seconds - forward, counter.products, counter.flops, counter.activations, counter.peak)


def step_loss(model: Model[Config], inputs: tuple[Tensor | None, ...]) -> Tensor:
    """Return the loss of a model, computed with the same operations as the training task of the model.

    The cross-entropy over a vocabulary is computed in chunks, and for BERT only at masked words.
    """
    tokens = inputs[0]
    if isinstance(model, Bert) and model.head_name == "masked_lm" and tokens is not None:
        states = model.encode(tokens).flatten(0, 1)
        words = model.transform_states(states[: max(1, round(MASKED_FRACTION * len(states)))])
        return _of_words(words, model.embedding.weight, model.output_bias)
    if isinstance(model, Generates):
        return _of_words(model.hidden(*inputs).flatten(0, 1), model.output_weight, model.output_bias)
    return torch.stack([upcast(part).sum() for part in _tensors(model(*inputs))]).sum()


def _of_words(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    target = torch.zeros(len(hidden), dtype=torch.int64)
    return vocabulary_loss(hidden, weight, bias, target, smoothing=0.0, pad=None)
