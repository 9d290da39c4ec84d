"""Compares `manyheads plan` with trainings on this machine: python -m scripts.plan_check FILE.json

Models in one process of two threads, and in two processes of one; their inputs are zeros, so nothing is needed. Each
runs in processes of its own, whose largest resident memory and median step are what the plan is compared with.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from manyheads.analysis import costs
from manyheads.core.runtime import bytes_per_second, keeping_memory, prepare, processor, resident
from manyheads.models.presets import build, preset
from manyheads.recipes.planning import Hardware, plan
from manyheads.recipes.simulation import Machine, step_loss
from manyheads.training.config import TrainingConfig
from manyheads.training.optimisers import optimiser
from manyheads.training.ranks import here
from manyheads.training.spread import spread

STEPS = 5  # the first two make room and the moments


@dataclass(frozen=True)
class Case:
    preset: str
    rows: int  # of each process
    lengths: tuple[int, ...] = ()
    precision: str = "float32"
    processes: int = 1
    shard: bool = False
    head: str | None = None

    def model(self) -> Any:
        return build(preset(self.preset, **({} if self.head is None else {"head": self.head})))


CASES = (
    Case("gpt2/124m", 4, (256,)),
    Case("gpt2/124m", 4, (256,), "bf16"),
    Case("bert/base-uncased", 8, (128,), head="masked_lm"),
    Case("vit/ti16", 16),
    Case("transformer/base", 64, (24, 24)),
    Case("gpt2/124m", 2, (256,), processes=2),
    Case("gpt2/124m", 2, (256,), processes=2, shard=True),
)


def train(case: Case, rank: int, pipe: Any) -> None:
    """Some steps, as the loop takes them; sends the bytes that the process has held at most, and its median step."""
    os.environ |= {} if case.processes == 1 else {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29917",
    }  # fmt: skip
    route = prepare(case.precision, 2 // case.processes, device="cpu")  # type: ignore[arg-type]
    with keeping_memory(sparing=case.shard), route.settings():
        small = build(preset("gpt2/nano"))  # loads what a first step loads
        step_loss(small, costs.example(small, 8)).backward()
        before = resident()
        model = case.model().train()
        over = spread(model, here(), route, shard=case.shard)
        update = optimiser(model, TrainingConfig(optimiser="adamw", schedule="constant", steps=1))
        inputs = costs.example(model, *case.lengths, rows=case.rows)
        seconds = []
        for _ in range(STEPS):
            began = time.perf_counter()
            with over.accumulating(True):
                with route.computing():
                    loss = over.compute(lambda: step_loss(model, inputs))
                loss.backward()
            update.step()
            update.zero_grad()
            seconds.append(time.perf_counter() - began)
    held = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send((before, held, statistics.median(seconds[2:])))


def measured(case: Case) -> tuple[int, int, float]:
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(case.processes)]
    started = [context.Process(target=train, args=(case, rank, pipe[1])) for rank, pipe in enumerate(pipes)]
    for process, (_, end) in zip(started, pipes, strict=True):
        process.start()
        end.close()  # so that one that fails ends the reading
    results = [pipe[0].recv() for pipe in pipes]
    for process in started:
        process.join()
    before, held, seconds = (max(values) for values in zip(*results, strict=True))
    return int(before), int(held), seconds


def main() -> None:
    out, rows = Path(sys.argv[1]), []
    for case in CASES:
        before, held, seconds = measured(case)
        threads = 2 // case.processes
        rates = {name: prepare(name, threads, device="cpu").products_per_second() for name in ("float32", "bf16")}
        machine = Machine(rates, bytes_per_second(threads))
        with torch.device("meta"):
            model = case.model()
        hardware = Hardware(case.processes, machine, 2.0**40, None, before, fused=False)
        planned = plan(model, case.rows, case.lengths, hardware, precision=case.precision)
        way = planned["alone" if case.processes == 1 else "fsdp" if case.shard else "ddp"]
        rows.append({
            "case": asdict(case), "bytes": {"planned": way["needed"], "measured": held},
            "seconds": {"planned": way["step"], "measured": seconds},
            "machine": {"products": rates, "bandwidth": machine.bandwidth},
        })  # fmt: skip
        memory, time_ = way["needed"] / held - 1, way["step"] / seconds - 1
        print(
            f"{case}: memory {held / 2**30:.2f} GiB, planned {memory:+.0%}; step {seconds:.2f} s, planned {time_:+.0%}"
        )
    out.write_text(json.dumps({"processor": processor(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
