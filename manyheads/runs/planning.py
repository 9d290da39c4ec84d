"""What a training takes on so many devices, replicated (DDP) or sharded (FSDP2): memory of each, and time of a step.

A step of one device is simulated (`simulation.py`); what the devices tell each other follows from the sizes of weights.
Adam is assumed: weights, gradients and two moments are float32, 16 bytes a parameter (Rajbhandari 2020, section 3.1,
counts them alike). DDP keeps another copy of the gradients, in the buckets that it sums up. FSDP2 shares all of them
out and gathers what is outside of the blocks for a whole pass, and of the blocks the one that is computed and the next;
what it gathers and hands round goes through buffers, out of which and into which it is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from manyheads.core.block import Stack
from manyheads.runs.simulation import Machine, Step, simulate

FLOAT32 = 4  # bytes
MOMENTS = 2
UPDATE = 7  # numbers that an update of one weight reads and writes: weight, gradient, moments; all but one back
KEPT = 1.15  # times what is needed `train` holds on a processor, for the next step; 1.04 to 1.32 were measured
COPIES = 6  # numbers that sharding one weight reads and writes: gathered forward, gathered backward, its gradient


@dataclass(frozen=True)
class Hardware:
    """devices       how many, alike; `machine`: what one of them does
    memory        bytes of one
    interconnect  bytes/s that one can send while it receives as much; None: what they say takes no time
    taken         bytes of the memory that are taken before anything is trained
    gpu           attention never keeps a map, and what is sent goes out while it computes; a processor sends itself
    """

    devices: int
    machine: Machine
    memory: float
    interconnect: float | None = None
    taken: int = 0
    gpu: bool = True


@dataclass(frozen=True)
class Sizes:
    """Bytes of weights in float32: of all, of what is outside of blocks, and of the largest block."""

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


def plan(
    model: nn.Module, rows: int, lengths: tuple[int, ...], hardware: Hardware, *, precision: str = "float32",
    accumulate: int = 1, checkpointing: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Such a model, trained on so many texts (of so many tokens, of source and target) or images by each device.

    Plain data: parameters, and for "ddp" and "fsdp" the bytes that a device needs by what they are for, whether they
    fit, what is held then, the seconds of a step by what they are for, and what bounds it. One device needs neither:
    it is "alone".
    Raises UserError where a step depends on the data.
    """
    weights, narrow = sizes(model), precision == "bf16"

    def step(narrow_blocks: bool) -> Step:
        return simulate(
            model, rows, lengths, hardware.machine, precision=precision, fused=hardware.gpu,
            checkpointing=checkpointing, narrow_blocks=narrow_blocks,
        )  # fmt: skip

    whole = step(False)
    steps = {"alone": whole} if hardware.devices == 1 else {"ddp": whole, "fsdp": step(True) if narrow else whole}
    return {
        "parameters": weights.all // FLOAT32,
        "devices": hardware.devices,
        "rows": rows,
        "lengths": list(lengths),
        "precision": precision,
        "accumulate": accumulate,
        "flops": accumulate * whole.flops * hardware.devices,
        **{way: _way(way, weights, step, hardware, narrow, accumulate) for way, step in steps.items()},
    }


def _way(way: str, weights: Sizes, step: Step, hardware: Hardware, narrow: bool, accumulate: int) -> dict[str, Any]:
    sharded = way == "fsdp"
    share = hardware.devices if sharded else 1
    gathered = 0.5 if narrow else 1.0  # of the bytes of a block
    purposes = {
        "weights": weights.all / share,
        "moments": MOMENTS * weights.all / share,
        "gradients": weights.all / share,
        "buckets": weights.all if way == "ddp" else 0,
        "gathered": weights.outside + 2 * weights.block * gathered if sharded else 0,
        "activations": step.activations,
        "taken before": hardware.taken,
    }
    needed = sum(purposes.values())
    waiting = _waiting(way, weights, gathered, step, hardware, accumulate)
    parts = {
        "forward": accumulate * step.forward,
        "backward": accumulate * step.backward,
        "update": UPDATE * weights.all / share / hardware.machine.bandwidth,
        "copies": accumulate * COPIES * weights.all / hardware.machine.bandwidth if sharded else 0.0,
        "waiting for others": waiting,
    }
    products, whole = accumulate * step.products, sum(parts.values())
    bounds = {"products": products, "memory's bandwidth": whole - products - waiting, "interconnect": waiting}
    return {
        "bytes": {name: round(size) for name, size in purposes.items() if size},
        "needed": round(needed),
        "held": round(needed if hardware.gpu else KEPT * needed),
        "fits": needed <= hardware.memory,
        "seconds": {name: seconds for name, seconds in parts.items() if seconds},
        "step": whole,
        "bound by": max(bounds, key=lambda name: bounds[name]),
    }


def _waiting(way: str, weights: Sizes, gathered: float, step: Step, hardware: Hardware, accumulate: int) -> float:
    """Seconds for which a device waits for others: what a GPU sends while it computes costs none."""
    if way == "alone" or hardware.interconnect is None:
        return 0.0
    pass_on = (hardware.devices - 1) / hardware.devices / hardware.interconnect  # seconds a byte, all around a ring
    hidden_forward, hidden_backward = (step.forward, step.backward) if hardware.gpu else (0.0, 0.0)
    if way == "ddp":  # gradients are summed up and handed round, of the last micro-batch, while it goes backward
        return max(0.0, 2 * pass_on * weights.all - hidden_backward)
    gather = pass_on * (weights.all - weights.outside) * gathered
    forward = pass_on * weights.outside + max(0.0, gather - hidden_forward)  # nothing is computed without the first
    backward = max(0.0, gather + pass_on * weights.all - hidden_backward)
    return accumulate * (forward + backward)
