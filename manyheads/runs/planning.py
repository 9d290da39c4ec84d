"""Estimates of memory per device and time per step for training on several devices, with DDP or FSDP2.

The training step of one device is simulated (`simulation.py`). The time of communication follows from the sizes of
the weights. Weights, gradients and optimizer state are float32; with Adam's two moments, these are 16 bytes per
parameter (Rajbhandari 2020, section 3.1, has the same count). DDP keeps another copy of the gradients in its all-reduce
buckets. FSDP2 shards weights, gradients and optimizer state. During a pass, it gathers the weights of the current model
block and of the next block; weights outside of blocks are gathered for the whole pass. All data that are sent or
received are copied into and out of buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from manyheads.analysis.costs import LENGTH
from manyheads.core.block import Stack
from manyheads.core.config import Config
from manyheads.core.interface import Model, ReadsImages
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.encoder_decoder import EncoderDecoder
from manyheads.runs.recipe import RunConfig
from manyheads.runs.simulation import Machine, Step, simulate

FLOAT32 = 4  # bytes
ADAM = 2  # number of state values that Adam stores for each weight: its two moments
# On a CPU, `train` holds more memory than a training step needs. This is the ratio of both; measured ratios are 1.04 to
# 1.32.
CPU_MEMORY_FACTOR = 1.15
# FSDP2 copies each weight three times per micro-batch: when it gathers the weight in the forward pass and in the
# backward pass, and when it distributes the gradient. Each copy reads and writes one number.
COPY_NUMBERS = 6


@dataclass(frozen=True)
class Hardware:
    """Devices on which a model would be trained, for the estimate.

    devices       number of identical devices; `machine` describes one of them
    memory        bytes of memory per device
    interconnect  bytes/s that a device can send while it receives at the same rate. If None, the estimate assumes that
                  communication takes no time
    taken         bytes of memory per device that are in use before training
    gpu           True for GPUs, on which attention does not store its weights, and communication overlaps with
                  computation; False for CPUs
    """

    devices: int
    machine: Machine
    memory: float
    interconnect: float | None = None
    taken: int = 0
    gpu: bool = True


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model's float32 weights in bytes.

    all      all weights
    outside  weights outside of the model's blocks, such as embeddings
    block    weights of the largest block
    """

    all: int
    outside: int
    block: int


def sizes(model: nn.Module) -> Sizes:
    blocks = [
        sum(p.numel() for p in block.parameters())
        for module in model.modules() if isinstance(module, Stack) for block in module.blocks
    ]  # fmt: skip
    total = sum(p.numel() for p in model.parameters())
    return Sizes(FLOAT32 * total, FLOAT32 * (total - sum(blocks)), FLOAT32 * max(blocks, default=0))


def batch_shape(
    model: Model[Config], config: RunConfig | None, batch: int | None = None, length: int | None = None
) -> tuple[int, tuple[int, ...]]:
    """Return the number of texts or images in a micro-batch, and the number of tokens in each source and target text.

    For images, the tuple of text lengths is empty.

    batch   number of texts or images that the user has requested. By default, the recipe's configuration decides
    length  number of tokens per text that the user has requested. By default, the recipe's configuration decides
    """
    longest, given = model.max_positions, {} if config is None else vars(config)
    length = length or given.get("block") or min(LENGTH, longest or LENGTH)
    if longest and length > longest:
        raise UserError(f"a length of {length} tokens: the maximum length of the model is {longest}")
    if batch is None and "batch_tokens" in given:
        batch = max(1, given["batch_tokens"] // length)
        batch = min(batch, given.get("batch_items") or batch)
    batch = batch or given.get("batch_items") or given.get("rows")
    if batch is None:
        raise UserError("expected --batch N, since only recipes define a batch size")
    if isinstance(model, ReadsImages):
        return batch, ()
    return batch, (length, length) if isinstance(model, EncoderDecoder) else (length,)


def plan(
    model: Model[Config], rows: int, lengths: tuple[int, ...], hardware: Hardware, *, precision: str = "float32",
    accumulate: int = 1, checkpointing: bool = False, state: int = ADAM,
) -> JsonObject:  # fmt: skip
    """Estimate memory and time for training a model on `rows` texts or images per device.

    lengths  number of tokens per source text, and per target text
    state    number of values that the optimizer stores for each weight

    Returns a dictionary with the number of parameters, and with the costs under the keys "ddp" and "fsdp", or under
    "alone" for a single device. The costs are the bytes per device by purpose, whether they fit into memory, the memory
    held, the seconds per step by purpose, and the bottleneck. Raises UserError if the cost of a step depends on the
    data.
    """
    weights, is_bf16 = sizes(model), precision == "bf16"

    def step(narrow_blocks: bool) -> Step:
        return simulate(
            model, rows, lengths, hardware.machine, precision=precision, fused=hardware.gpu,
            checkpointing=checkpointing, narrow_blocks=narrow_blocks,
        )  # fmt: skip

    whole = step(False)
    steps = {"alone": whole} if hardware.devices == 1 else {"ddp": whole, "fsdp": step(True) if is_bf16 else whole}
    return {
        "parameters": weights.all // FLOAT32,
        "devices": hardware.devices,
        "rows": rows,
        "lengths": list(lengths),
        "precision": precision,
        "accumulate": accumulate,
        "flops": accumulate * whole.flops * hardware.devices,
        **{
            strategy: _strategy_plan(strategy, weights, step, hardware, is_bf16, accumulate, state)
            for strategy, step in steps.items()
        },
    }


def _strategy_plan(
    strategy: str, weights: Sizes, step: Step, hardware: Hardware, is_bf16: bool, accumulate: int, state: int
) -> JsonObject:
    sharded = strategy == "fsdp"
    shards = hardware.devices if sharded else 1
    gathered_fraction = 0.5 if is_bf16 else 1.0  # size of a gathered weight, as a fraction of its size in float32
    purposes = {
        "weights": weights.all / shards,
        "moments": state * weights.all / shards,
        "gradients": weights.all / shards,
        "buckets": weights.all if strategy == "ddp" else 0,
        "gathered": weights.outside + 2 * weights.block * gathered_fraction if sharded else 0,
        "activations": step.activations,
        "taken before": hardware.taken,
    }
    needed = sum(purposes.values())
    waiting = _communication_wait(strategy, weights, gathered_fraction, step, hardware, accumulate)
    parts = {
        "forward": accumulate * step.forward,
        "backward": accumulate * step.backward,
        # The update reads weights, gradients and optimizer state, and writes weights and state.
        "update": (3 + 2 * state) * weights.all / shards / hardware.machine.bandwidth,
        "copies": accumulate * COPY_NUMBERS * weights.all / hardware.machine.bandwidth if sharded else 0.0,
        "waiting for others": waiting,
    }
    products, whole = accumulate * step.products, sum(parts.values())
    bounds = {"products": products, "memory's bandwidth": whole - products - waiting, "interconnect": waiting}
    return {
        "bytes": {name: round(size) for name, size in purposes.items() if size},
        "needed": round(needed),
        "held": round(needed if hardware.gpu else CPU_MEMORY_FACTOR * needed),
        "fits": needed <= hardware.memory,
        "seconds": {name: seconds for name, seconds in parts.items() if seconds},
        "step": whole,
        "bound by": max(bounds, key=lambda name: bounds[name]),
    }


def _communication_wait(
    strategy: str, weights: Sizes, gathered_fraction: float, step: Step, hardware: Hardware, accumulate: int
) -> float:
    """Return the seconds per step for which a device waits for communication.

    On a GPU, communication that overlaps with computation costs no time.
    """
    if strategy == "alone" or hardware.interconnect is None:
        return 0.0
    # seconds per byte to send data once around the ring of devices
    pass_on = (hardware.devices - 1) / hardware.devices / hardware.interconnect
    hidden_forward, hidden_backward = (step.forward, step.backward) if hardware.gpu else (0.0, 0.0)
    if strategy == "ddp":  # DDP all-reduces the gradients once per step, in the backward pass of the last micro-batch.
        return max(0.0, 2 * pass_on * weights.all - hidden_backward)
    gather = pass_on * (weights.all - weights.outside) * gathered_fraction
    # The forward pass starts after the weights outside of blocks are gathered. The weights of blocks are gathered while
    # it computes.
    forward = pass_on * weights.outside + max(0.0, gather - hidden_forward)
    backward = max(0.0, gather + pass_on * weights.all - hidden_backward)
    return accumulate * (forward + backward)
