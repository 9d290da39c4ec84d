"""`manyheads bench`."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.cli.output import document, table
from manyheads.cli.parser import Verbs, whole


def add(verbs: Verbs) -> None:
    verb = verbs.add("bench", _bench, "measure the speed of ours and of others again, in one run", as_json=True)
    verb.add_argument(
        "rest", nargs="*", metavar="NAME",
        help="what is measured: decode-gpt2, decode-translation, encode-bert, encode-vit, train-translation,"
             " train-gpt2, train-bert, train-vit, startup (all unless named); or growth, alone: how time and memory"
             " grow with length, batch, beam and vocabulary",
    )  # fmt: skip
    verb.add_argument(
        "--against", nargs="*", metavar="PEER",
        help="openvino, ctranslate2, llama.cpp, transformers, tutorial (all that are installed unless named)",
    )  # fmt: skip
    verb.add_argument("--repeats", type=whole(1, 1000), metavar="N",
                      help="rounds (5, or as many as fit in 3 minutes for each NAME)")  # fmt: skip
    verb.add_argument("--threads", type=whole(1, 1024), metavar="N", help="of every side (as many as PyTorch takes)")


def _bench(options: argparse.Namespace) -> None:
    if options.rest == ["growth"]:
        return _growth(options)
    from manyheads.bench.table import bench

    found = bench(options.rest, options.against, options.repeats, options.threads)
    if options.json:
        return document(found)
    for name in found["bench"]:
        rows = [row for row in found["rows"] if row["work"] == name]
        print(f"{name}, {rows[0]['unit']}\n")
        table([("case", "ours", "least", "most", "best peer", "", "ratio", "limit", "share"), *map(_cells, rows)])
        print()
    rates = found["ceilings"]["products_gflop_per_second"]
    print(f"{found['hardware']['cpu']}, {found['hardware']['threads']} threads: reads"
          f" {found['ceilings']['memory_gb_per_second']} GB/s, products of"
          f" {', '.join(f'{name} {rate}' for name, rate in rates.items())} GFLOP/s")  # fmt: skip


def _growth(options: argparse.Namespace) -> None:
    if options.against is not None or options.repeats is not None:
        raise ValueError("growth is measured of ours alone, and chooses its repeats: leave out --against and --repeats")
    from manyheads.bench.growth import growth

    found = growth(options.threads)
    if options.json:
        return document(found)
    table([("", "", "grows", "from", "to", "seconds", "", "exponent", "MB", "", "exponent"),
           *map(_grown, found["curves"])])  # fmt: skip
    print("\nexponent: the slope of the logarithms over the upper half of a curve")


def _grown(curve: dict[str, Any]) -> tuple[str, ...]:
    ends = [curve["at"][0], curve["at"][-1]]
    megabytes = [curve["bytes"][0] / 1e6, curve["bytes"][-1] / 1e6]
    seconds = [curve["seconds"][0], curve["seconds"][-1]]
    return (
        curve["part"], curve["name"], curve["against"], *(f"{n:,}" for n in ends),
        *map(_figure, seconds), f"{curve['seconds_exponent']:.2f}", *map(_figure, megabytes),
        f"{curve['bytes_exponent']:.2f}",
    )  # fmt: skip


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    peers = row["peers"]
    assert isinstance(peers, dict)
    pick = min if row["unit"] == "seconds" else max
    best = pick(peers, key=lambda name: float(peers[name]), default="")
    figures = (row["ours"], *row["spread"])  # type: ignore[misc]
    return (
        str(row["case"]), *map(_figure, figures), best, _figure(peers.get(best)), _figure(row["ratio"]),
        _figure(row["limit"]), _figure(row["share_of_limit"]),
    )  # fmt: skip


def _figure(value: object) -> str:
    """Three digits, and all of a larger number; nothing for None."""
    if not isinstance(value, float):
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
