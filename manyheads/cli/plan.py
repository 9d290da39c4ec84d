"""The command `manyheads plan`: estimate memory and time of a training run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli.loading import named
from manyheads.cli.output import document, table
from manyheads.cli.parser import JSON, POSITIVE, Flag, Option, Positional, Verbs, whole
from manyheads.core.config import TRAINING_PRECISIONS
from manyheads.errors import UserError
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.runs.planning import Hardware

GIB = 2**30


def add(verbs: Verbs) -> None:
    verbs.add(
        "plan", _plan, "estimate memory and time of a training on N devices",
        Positional("MODEL", "a recipe, a preset or a model directory"), JSON,
        Positional("key=value", "settings of the recipe", "rest", nargs="*"),
        Option("--devices", "N", "number of equal devices (default: 1)", whole(1, 2**20), default=1),
        Option("--memory", "GIB", "memory of each device (default: this machine's memory)", POSITIVE),
        Option("--interconnect", "GB/S", "speed at which a device sends and receives at once (default: unlimited)",
               POSITIVE),
        Option("--tflops", "T", "speed of a GPU (default: this machine's processor, measured)", POSITIVE),
        Option("--bandwidth", "GB/S", "memory bandwidth of a GPU, with --tflops", POSITIVE),
        Option("--batch", "N", "texts or images of a micro-batch over all devices (default: the recipe's)",
               whole(1, 2**40)),
        Option("--length", "T", "tokens per text, for source and target (default: 32, or the recipe's block)",
               whole(1, 2**24)),
        Option("--precision", "P", f"{' or '.join(TRAINING_PRECISIONS)} (default: float32)",
               choices=TRAINING_PRECISIONS, default="float32"),
        Flag("--checkpointing", "recompute blocks in the backward pass to save memory"),
        example="manyheads plan translation/wmt14-base --devices 8 --memory 80 --tflops 99 --bandwidth 2e3",
    )  # fmt: skip


def _plan(options: argparse.Namespace) -> None:
    from manyheads.core.interface import ReadsImages
    from manyheads.runs.planning import ADAM, batch_shape, plan
    from manyheads.training.optimizers import state_numbers

    if options.interconnect and options.devices == 1:
        raise UserError("--interconnect applies to several devices: add --devices N, or leave it out")
    model, config = named(options.model, options.rest)
    if isinstance(model, ReadsImages) and options.length:
        raise UserError(f"--length applies to texts, but {options.model} reads images: leave it out")
    try:
        rows, lengths = batch_shape(model, config, options.batch, options.length)
    except UserError as error:
        raise UserError(f"{options.model}: {error}") from None
    training = None if config is None else config.training
    figures = plan(
        model, -(-rows // options.devices), lengths, _hardware(options, None if config is None else config.threads),
        precision=options.precision, accumulate=1 if training is None else training.accumulate,
        checkpointing=options.checkpointing or (training is not None and training.checkpointing),
        state=ADAM if training is None else state_numbers(training),
    )  # fmt: skip
    figures = {"name": options.model, **figures}
    return document(figures) if options.json else _show(figures, measured=not options.tflops)


def _hardware(options: argparse.Namespace, threads: int | None) -> Hardware:
    from manyheads.core.runtime import CACHED, bytes_per_second, physical_memory, prepare, resident_memory
    from manyheads.runs.planning import Hardware
    from manyheads.runs.simulation import Machine

    if (options.tflops is None) != (options.bandwidth is None):
        raise UserError("--tflops and --bandwidth describe the same GPU: give both")
    interconnect = options.interconnect and options.interconnect * 1e9
    if options.tflops:
        if options.memory is None:
            raise UserError("--memory is missing: give the GiB of each device")
        rates = dict.fromkeys(TRAINING_PRECISIONS, options.tflops * 1e12)
        machine = Machine(rates, options.bandwidth * 1e9)
        return Hardware(options.devices, machine, options.memory * GIB, interconnect)
    rates = {
        precision: prepare(precision, threads, device="cpu").products_per_second()
        for precision in dict.fromkeys(("float32", options.precision))
    }
    return Hardware(
        options.devices, Machine(rates, bytes_per_second(threads), bytes_per_second(threads, CACHED)),
        options.memory * GIB if options.memory else physical_memory(), interconnect, resident_memory(), gpu=False,
    )  # fmt: skip


def _show(figures: JsonObject, *, measured: bool) -> None:
    """Print a plan. `measured` is True if the speed was measured on this machine, not given."""
    ways = {"alone": "one process", "ddp": "replicated (DDP)", "fsdp": "sharded (FSDP2)"}
    shown = {way: figures[way] for way in ways if way in figures}
    unit = " -> ".join(map(str, figures["lengths"]))
    what = f"texts of {unit} tokens" if unit else "images"
    print(f"{figures['name']}: {figures['parameters']:,} parameters, {figures['devices']} x {figures['rows']} {what}, "
          f"{figures['precision']}")  # fmt: skip
    if figures["accumulate"] > 1:
        print(f"each step has {figures['accumulate']} micro-batches")
    print()
    sizes = dict.fromkeys(name for way in shown.values() for name in way["bytes"])
    times = dict.fromkeys(name for way in shown.values() for name in way["seconds"])
    keeps = any(way["held"] > way["needed"] for way in shown.values())
    table([
        ("", *(ways[way] for way in shown)),
        *((name, *(_size(way["bytes"].get(name)) for way in shown.values())) for name in sizes),
        ("GiB per device", *(_size(way["needed"]) for way in shown.values())),
        *([("GiB with reserved memory", *(_size(way["held"]) for way in shown.values()))] if keeps else []),
        ("fits", *("yes" if way["fits"] else "NO" for way in shown.values())),
        *((name, *(_time(way["seconds"].get(name)) for way in shown.values())) for name in times),
        ("seconds per step", *(_time(way["step"]) for way in shown.values())),
        ("bound by", *(way["bound by"] for way in shown.values())),
    ])  # fmt: skip
    if measured:
        print("\nOther programs on this machine change the estimated time by half and more. A process needs up to 20% "
              "more memory.")  # fmt: skip


def _size(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:.3f}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3g}"
