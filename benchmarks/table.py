"""The works of the bench by name, the peers, and what measuring some of them gives."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from manyheads.errors import UserError

if TYPE_CHECKING:
    from benchmarks.work import Work

# name -> module and what holds the work there: a work imports torch, its name does not
WORKS = {
    "decode-gpt2": ("decode_gpt2", "WORK"),
    "decode-translation": ("decode_translation", "WORK"),
    "encode-bert": ("encode_bert", "WORK"),
    "encode-vit": ("encode_vit", "WORK"),
    "train-translation": ("train_translation", "WORK"),
    "train-gpt2": ("training", "GPT2"),
    "train-bert": ("training", "BERT"),
    "train-vit": ("training", "VIT"),
    "startup": ("startup", "WORK"),
}
# peer -> the modules that it needs, and how to get them
EXTRA = "pip install 'manyheads[bench]'"
PEERS: dict[str, tuple[tuple[str, ...], str]] = {
    "openvino": (("openvino",), EXTRA),
    "ctranslate2": (("ctranslate2", "transformers"), EXTRA),  # its converter reads with transformers
    "llama.cpp": (("llama_cpp", "gguf"), "pip install llama-cpp-python gguf, which builds it with a C++ compiler"),
    "transformers": (("transformers",), EXTRA),
    "tutorial": ((), ""),
}


def work(name: str) -> Work:
    module, attribute = WORKS[name]
    benchmark: Work = getattr(import_module(f"benchmarks.{module}"), attribute)
    return benchmark


def check_names(names: Sequence[str], valid: Sequence[str], what: str) -> None:
    """Raises UserError for a name that is none of the valid ones."""
    for name in names:
        if name not in valid:
            raise UserError(f"unknown {what} {name!r}: valid are {', '.join(valid)}")


def missing(peer: str) -> str | None:
    """Return how to install a library that is missing, or None."""
    modules, hint = PEERS[peer]
    absent = [module for module in modules if find_spec(module) is None]
    return f"{peer} is left out: {' and '.join(absent)} not installed: {hint}" if absent else None


def bench(
    names: Sequence[str] = (), against: Sequence[str] | None = None, repeats: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure works against other libraries and return one document with a row per figure. Default: all of both.

    repeats  rounds per case; default: five, or the number that fits into three minutes per work, at least two
    threads  threads of every side; default: PyTorch's number

    A library that is not installed is reported on stderr. Raises UserError for an unknown name.
    """
    check_names(names, list(WORKS), "NAME")
    check_names(against or (), list(PEERS), "PEER")
    import sys

    import torch

    from benchmarks.ceilings import ceilings
    from benchmarks.machine import features, kind, today
    from benchmarks.measure import measure, rows
    from manyheads.training.record import commit, hardware

    threads = threads or torch.get_num_threads()
    works = {name: work(name) for name in names or WORKS}
    wanted = [peer for peer in (PEERS if against is None else against) if any(peer in w.peers for w in works.values())]
    absent = {peer: told for peer in wanted if (told := missing(peer))}
    for told in absent.values():
        print(told, file=sys.stderr)
    before = ceilings(threads)
    measured = {}
    for name, benchmark in works.items():
        peers = {peer: benchmark.peers[peer] for peer in wanted if peer in benchmark.peers and peer not in absent}
        measured[name] = measure(name, benchmark, peers, threads, repeats)
    limits = before.better(ceilings(threads))
    table_rows = [row for name, taken in measured.items() for row in rows(name, works[name], taken, limits)]
    return {
        "bench": list(works), "rows": table_rows, "ceilings": limits.describe(), "versions": versions(),
        "hardware": {**hardware(), "threads": threads, "features": features()}, "kind": kind(), "date": today(),
        "commit": commit(),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of the peers that are installed, and of what they compute with."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("torch", "openvino", "ctranslate2", "transformers", "llama-cpp-python"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
