"""Compare `manyheads plan` with trainings on this machine: python -m lab.plan_check FILE.json

Models train in one process of two threads, and in two processes of one thread; their inputs are zeros. Each runs
twice in a separate process: as `train` does, for the median step and the reserved memory; and without reuse of freed
memory, for the required memory.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from manyheads.analysis import costs
from manyheads.core.runtime import CACHED, bytes_per_second, prepare, processor, resident_memory, retain_memory
from manyheads.models.presets import build, preset
from manyheads.runs.planning import Hardware, plan
from manyheads.runs.simulation import Machine, step_loss
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.optimizers import optimizer_for
from manyheads.training.parallel import parallelize

STEPS = 5  # the first two make room and the moments
HANDED_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}  # glibc returns freed blocks of this size to the system at once
SENT = 2**26  # numbers


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


def join(case: Case, rank: int) -> None:
    os.environ |= {} if case.processes == 1 else {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.processes),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29917",
    }  # fmt: skip


def train(case: Case, rank: int, pipe: Any) -> None:
    """Some steps, as the loop takes them; sends the bytes that the process has held at most, and its median step."""
    join(case, rank)
    compute = prepare(case.precision, 2 // case.processes, device="cpu")  # type: ignore[arg-type]
    handing_back = HANDED_BACK.keys() <= os.environ.keys()
    with contextlib.nullcontext() if handing_back else retain_memory(low_memory=case.shard), compute.settings():
        small = build(preset("gpt2/nano"))  # loads what a first step loads
        step_loss(small, costs.example(small, 8)).backward()
        before = resident_memory()
        model = case.model().train()
        over = parallelize(model, distributed_context(), compute, shard=case.shard)
        update = optimizer_for(model, TrainingConfig(optimizer="adamw", schedule="constant", steps=1))
        inputs = costs.example(model, *case.lengths, rows=case.rows)
        seconds = []
        for _ in range(STEPS):
            began = time.perf_counter()
            with over.accumulation(True):
                with compute.autocast():
                    loss = over.compute(lambda: step_loss(model, inputs))
                loss.backward()
            update.step()
            update.zero_grad()
            seconds.append(time.perf_counter() - began)
    held = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send((before, held, statistics.median(seconds[2:])))


def send(case: Case, rank: int, pipe: Any) -> None:
    """Sends the bytes per second that reach each process where all gather what the others have."""
    join(case, rank)
    distributed_context()
    share = torch.ones(SENT // case.processes)
    gathered = torch.empty(SENT)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        distributed.all_gather_into_tensor(gathered, share)
        seconds.append(time.perf_counter() - began)
    others = (case.processes - 1) / case.processes
    pipe.send((others * 4 * SENT / statistics.median(seconds[2:]),))


def measured(work: Callable[[Case, int, Any], None], case: Case, environment: dict[str, str]) -> tuple[float, ...]:
    """Return the maximum over processes of each figure."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(case.processes)]
    started = [context.Process(target=work, args=(case, rank, pipe[1])) for rank, pipe in enumerate(pipes)]
    os.environ |= environment
    for process, (_, end) in zip(started, pipes, strict=True):
        process.start()
        end.close()  # so that one that fails ends the reading
    for name in environment:
        del os.environ[name]
    results = [pipe[0].recv() for pipe in pipes]
    for process in started:
        process.join()
    return tuple(max(values) for values in zip(*results, strict=True))


def main() -> None:
    out, rows = Path(sys.argv[1]), []
    for case in CASES:
        before, held, seconds = measured(train, case, {})
        _, needed, _ = measured(train, case, HANDED_BACK)
        threads = 2 // case.processes
        interconnect = measured(send, case, {})[0] if case.processes > 1 else None
        rates = {name: prepare(name, threads, device="cpu").products_per_second() for name in ("float32", "bf16")}
        machine = Machine(rates, bytes_per_second(threads), bytes_per_second(threads, CACHED))
        with torch.device("meta"):
            model = case.model()
        hardware = Hardware(case.processes, machine, 2.0**40, interconnect, int(before), gpu=False)
        planned = plan(model, case.rows, case.lengths, hardware, precision=case.precision)
        way = planned["alone" if case.processes == 1 else "fsdp" if case.shard else "ddp"]
        rows.append({
            "case": asdict(case), "bytes": {"planned": way["needed"], "measured": needed, "held": held},
            "seconds": {"planned": way["step"], "measured": seconds},
            "machine": asdict(machine) | {"interconnect": interconnect},
        })  # fmt: skip
        memory, time_ = way["needed"] / needed - 1, way["step"] / seconds - 1
        print(
            f"{case}: memory {needed / 2**30:.2f} GiB, planned {memory:+.0%}, held {held / 2**30:.2f} GiB; "
            f"step {seconds:.2f} s, planned {time_:+.0%}"
        )
    out.write_text(json.dumps({"processor": processor(), "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
