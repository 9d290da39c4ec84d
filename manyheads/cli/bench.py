"""`manyheads bench`."""

from __future__ import annotations

import argparse
from typing import Any

from manyheads.bench.table import PEERS, WORKS, bench
from manyheads.cli.output import document, table
from manyheads.cli.parser import Verbs, whole


def add(verbs: Verbs) -> None:
    verb = verbs.add("bench", _bench, "measure the speed of ours and of others again, in one run", as_json=True)
    verb.add_argument("rest", nargs="*", metavar="NAME",
                      help=f"what is measured: {', '.join(WORKS)} (all unless named)")  # fmt: skip
    verb.add_argument("--against", nargs="*", metavar="PEER",
                      help=f"{', '.join(PEERS)} (all that are installed unless named)")  # fmt: skip
    verb.add_argument("--repeats", type=whole(1, 1000), metavar="N",
                      help="rounds (5, or as many as fit in 3 minutes for each NAME)")  # fmt: skip
    verb.add_argument("--threads", type=whole(1, 1024), metavar="N", help="of every side (as many as PyTorch takes)")


def _bench(options: argparse.Namespace) -> None:
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


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from manyheads.bench.work import three_digits

    pick = min if row["unit"] == "seconds" else max
    best = pick(row["peers"], key=row["peers"].__getitem__, default="")
    ours = map(three_digits, (row["ours"], *row["spread"]))
    others = (row["peers"].get(best), row["ratio"], row["limit"], row["share_of_limit"])
    theirs, *shares = map(three_digits, others)
    return (row["case"], *ours, best, theirs, *shares)
