"""Estimates of memory per device and time per step for training on several devices, with DDP or FSDP2.

The training step of one device is simulated (`simulation.py`). The time of communication follows from the sizes of
the weights. Weights, gradients and the state of the optimizer are float32, with Adam's two moments 16 bytes per
parameter (Rajbhandari 2020, section 3.1, has the same count). DDP keeps another copy of the gradients in its all-reduce
buckets. FSDP2 shards weights, gradients and state. It gathers the weights outside of the blocks for a whole pass, and
the weights of the current block and the next. Data that are sent or received are copied into and out of buffers.
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
ADAM = 2  # number of moments
# Ratio of the memory that `train` holds on a CPU to the memory that it needs, including the next step. Measured: 1.04
# to 1.32.
CPU_MEMORY_FACTOR = 1.15
# Count of numbers read and written to shard one weight. The weight is gathered in the forward pass and again in the
# backward pass; then its gradient is distributed.
COPY_NUMBERS = 6


@dataclass(frozen=True)
class Hardware:
    """Devices on which a model would be trained, for the estimate.

    devices       number of identical devices; `machine` describes one of them
    memory        bytes of memory per device
    interconnect  bytes/s that a device can send while it receives at the same rate; None: communication takes no time
    taken         bytes of memory in use before training
    gpu           True: attention does not store its weights, and communication overlaps with computation; False: as on
                  a CPU
    """

    devices: int
    machine: Machine
    memory: float
    interconnect: float | None = None
    taken: int = 0
    gpu: bool = True


@dataclass(frozen=True)
class Sizes:
    """Sizes of the float32 weights in bytes: all, those outside of blocks, and those of the largest block."""

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
    """Return the number of texts or images in a micro-batch, and the number of tokens in each text of a source and a
    target. Images have no lengths.

    batch, length  the user's numbers; None: those of the recipe's configuration
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

    lengths  tokens per text, for the source and the target
    state    number of values that the optimizer keeps for each weight

    Returns a dictionary: the number of parameters, and for "ddp" and "fsdp" the bytes per device by purpose, whether
    they fit, the memory held, the seconds per step by purpose, and the bottleneck. A single device uses neither DDP nor
    FSDP2; its key is "alone". Raises UserError if the cost of a step depends on the data.
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
        # Weight, gradient and state are read; all but the gradient are written.
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
    # number of seconds to pass one byte of data once around the ring of devices
    pass_on = (hardware.devices - 1) / hardware.devices / hardware.interconnect
    hidden_forward, hidden_backward = (step.forward, step.backward) if hardware.gpu else (0.0, 0.0)
    if strategy == "ddp":  # Only the gradients of the last micro-batch are all-reduced, during its backward pass.
        return max(0.0, 2 * pass_on * weights.all - hidden_backward)
    gather = pass_on * (weights.all - weights.outside) * gathered_fraction
    # the computation starts after the first block is gathered
    forward = pass_on * weights.outside + max(0.0, gather - hidden_forward)
    backward = max(0.0, gather + pass_on * weights.all - hidden_backward)
    return accumulate * (forward + backward)
