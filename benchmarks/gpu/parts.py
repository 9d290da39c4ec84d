"""Run the parts in turn, each in a separate process that ends when its share of the time is over; record them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import PARTS
from benchmarks.machine import features, kind, today
from benchmarks.table import check_names, versions
from manyheads.errors import UserError
from manyheads.training.record import commit, hardware

MACHINE = "machine"
LEAST = 25.0  # seconds of a part, most of which a cold start may take


def run_parts(
    names: Sequence[str], device: str, *, tiny: bool = False, minutes: float = 9.0, out: Path | None = None
) -> dict[str, Any]:
    """Measure the parts (default: all) within a time in total, and return the record, which is kept after each part.

    A part may take the share of the remaining time that PARTS gives it. The figures that it has measured until then
    count.
    """
    import torch

    valid = [name for name in PARTS if name != MACHINE]
    check_names(names, valid, "NAME")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda needs a GPU, but PyTorch finds none: use --device cpu --tiny to try the code")
    until = time.monotonic() + 60 * minutes
    record: dict[str, Any] = {
        "bench": list(names or valid), "kind": "gpu" if device == "cuda" else kind(), "device": device, "tiny": tiny,
        "date": today(), "commit": commit(), "versions": versions(),
        "hardware": {**hardware(), "features": features()}, "rows": [], "parts": {}, "left_out": [],
    }  # fmt: skip
    waiting = [MACHINE, *(names or valid)]
    rates: tuple[float, dict[str, float]] = (1e9, {"bf16": 1e9, "float32": 1e9})
    while waiting:
        name, shares = waiting[0], [PARTS[other][1] for other in waiting]
        left = max(0.0, until - time.monotonic())
        seconds = min(left, max(LEAST, left * shares[0] / sum(shares)))
        entries, record["parts"][name] = _run(name, device, tiny, seconds, rates)
        waiting.pop(0)
        if name == MACHINE and entries:
            record["machine"], rates = entries[0]["machine"], _rates(entries[0]["machine"])
            record["ceilings"] = {
                "memory_gb_per_second": round(rates[0] / 1e9, 1),
                "products_gflop_per_second": {precision: round(rate / 1e9) for precision, rate in rates[1].items()},
            }
        elif name != MACHINE:
            record["rows"] += rows(entries)
            record["left_out"] += [entry for entry in entries if "left_out" in entry]
        if out is not None:
            out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def _run(
    name: str, device: str, tiny: bool, seconds: float, rates: tuple[float, dict[str, float]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the entries of a part, and how it ended: "done", "cut" at the end of its time, or "failed"."""
    print(f"{name}: at most {seconds:.0f} s", file=sys.stderr, flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "entries")
        command = [sys.executable, "-m", "benchmarks.gpu.part", name, "--device", device, "--seconds", str(seconds - 3),
                   "--rates", json.dumps(rates), "--out", str(out), *(["--tiny"] if tiny else [])]  # fmt: skip
        threads = {"OMP_NUM_THREADS": "1"} if tiny else {}  # which else wait for each other more than they compute
        with subprocess.Popen(command, stdout=2, start_new_session=True, env={**os.environ, **threads}) as process:
            try:
                status = "done" if process.wait(seconds) == 0 else f"failed with status {process.returncode}"
            except subprocess.TimeoutExpired:
                status = "cut: its time was over"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # its group contains its compilers, too
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    took = time.monotonic() - began
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    print(f"{name}: {status}, {took:.0f} s, {len(entries)} figures", file=sys.stderr, flush=True)
    return entries, {"status": status, "seconds": round(took, 1)}


def _rates(machine: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Return bytes and FLOP a second: the published ones, or the measured ones if none are known."""
    products = dict(machine["measured_flop_per_second"])
    if machine["published_flop_per_second"]:
        products["bf16"] = machine["published_flop_per_second"]
    return machine["published_bytes_per_second"] or machine["measured_bytes_per_second"], products


def rows(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every engine of ours and case, next to all engines of the other library."""
    found, cases = [], dict.fromkeys((entry["work"], entry["case"]) for entry in entries)
    for work, case in cases:
        engines = {entry["engine"]: entry for entry in entries
                   if (entry["work"], entry["case"]) == (work, case) and "figures" in entry}  # fmt: skip
        peers = {_named(engine, entry): entry for engine, entry in engines.items() if not engine.startswith("ours")}
        figures = {name: _figure(entry["figures"]) for name, entry in peers.items()}
        best = max(figures.values(), default=None)
        for engine, entry in engines.items():
            if engine.startswith("ours"):
                ours, limit = _figure(entry["figures"]), entry.get("limit")
                found.append({
                    "work": work, "case": ", ".join([case, *_named(engine, entry).split(" ", 1)[1:]]),
                    "unit": entry["unit"], "ours": ours, "peers": figures,
                    "ratio": None if best is None else ours / best, "limit": limit,
                    "share_of_limit": None if not limit else ours / limit,
                    "spread": [_round(min(entry["figures"])), _round(max(entry["figures"]))],
                    "repeats": len(entry["figures"]),
                    "errors": {"ours": entry.get("error"), **{name: e.get("error") for name, e in peers.items()}},
                    "errors_are": entry.get("error_is", ""),
                    "memory_gb": {"ours": entry.get("memory_gb"), **{n: e.get("memory_gb") for n, e in peers.items()}},
                })  # fmt: skip
    return found


def _named(engine: str, entry: dict[str, Any]) -> str:
    """Return the name of an engine, with its batch if it is smaller than the batch of the case."""
    return f"{engine}, batch {entry['batch']}" if "batch" in entry else engine


def _figure(figures: Sequence[float]) -> float:
    return _round(statistics.median(figures))


def _round(value: float) -> float:
    return float(f"{value:.4g}")
