"""`manyheads bench`."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.bench.table import PEERS, WORKS, bench
from manyheads.cli.output import document, table
from manyheads.cli.parser import Verbs, whole
from manyheads.errors import UserError


def add(verbs: Verbs) -> None:
    verb = verbs.add("bench", _bench, "measure the speed of ours and of others again, in one run", as_json=True)
    verb.add_argument("rest", nargs="*", metavar="NAME",
                      help=f"what is measured: {', '.join(WORKS)} (all unless named); or growth, alone: how time"
                      " and memory grow with length, batch, beam and vocabulary")  # fmt: skip
    verb.add_argument("--against", nargs="*", metavar="PEER",
                      help=f"{', '.join(PEERS)} (all that are installed unless named)")  # fmt: skip
    verb.add_argument("--repeats", type=whole(1, 1000), metavar="N",
                      help="rounds (default: 5, or as many as fit in 3 minutes for each NAME)")  # fmt: skip
    verb.add_argument(
        "--threads", type=whole(1, 1024), metavar="N", help="of every side (default: as many as PyTorch takes)"
    )


def _bench(options: argparse.Namespace) -> None:
    if options.rest == ["growth"]:
        return _growth(options)
    record = bench(options.rest, options.against, options.repeats, options.threads)
    if options.json:
        return document(record)
    for name in record["bench"]:
        rows = [row for row in record["rows"] if row["work"] == name]
        print(f"{name}, {rows[0]['unit']}\n")
        table([("case", "ours", "least", "most", "best peer", "", "ratio", "limit", "share"), *map(_cells, rows)])
        print()
    rates = record["ceilings"]["products_gflop_per_second"]
    print(f"{record['hardware']['cpu']}, {record['hardware']['threads']} threads: reads"
          f" {record['ceilings']['memory_gb_per_second']} GB/s, products of"
          f" {', '.join(f'{name} {rate}' for name, rate in rates.items())} GFLOP/s")  # fmt: skip


def _growth(options: argparse.Namespace) -> None:
    if options.against is not None or options.repeats is not None:
        raise UserError("growth is measured of ours alone, and chooses its repeats: leave out --against and --repeats")
    from manyheads.bench.growth import growth

    record = growth(options.threads)
    if options.json:
        return document(record)
    table([("", "", "grows", "from", "to", "seconds", "", "exponent", "MB", "", "exponent"),
           *map(_grown, record["curves"])])  # fmt: skip
    print("\nexponent: the slope of the logarithms over the upper half of a curve")


def _grown(curve: dict[str, Any]) -> tuple[str, ...]:
    from manyheads.bench.work import three_digits

    ends = [curve["at"][0], curve["at"][-1]]
    megabytes = [curve["bytes"][0] / 1e6, curve["bytes"][-1] / 1e6]
    seconds = [curve["seconds"][0], curve["seconds"][-1]]
    return (
        curve["part"], curve["name"], curve["against"], *(f"{n:,}" for n in ends),
        *map(three_digits, seconds), f"{curve['seconds_exponent']:.2f}", *map(three_digits, megabytes),
        f"{curve['bytes_exponent']:.2f}",
    )  # fmt: skip


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from manyheads.bench.work import three_digits

    pick = min if row["unit"] == "seconds" else max
    best = pick(row["peers"], key=row["peers"].__getitem__, default="")
    ours = map(three_digits, (row["ours"], *row["spread"]))
    others = (row["peers"].get(best), row["ratio"], row["limit"], row["share_of_limit"])
    theirs, *shares = map(three_digits, others)
    return (row["case"], *ours, best, theirs, *shares)
