"""Run benchmarks: `python -m benchmarks [NAME ...]`.

python -m benchmarks                          every benchmark against other libraries, about 3 minutes each
python -m benchmarks decode-gpt2 encode-vit   some of them
python -m benchmarks growth                   how time and memory grow with length, batch, beam and vocabulary
python -m benchmarks serving --seconds 20     a benchmark of Manyheads alone, with options that its --help lists
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.table import PEERS, WORKS, bench
from manyheads.cli.output import document, table
from manyheads.cli.parser import Parser, whole
from manyheads.cli.reporting import exit_status, log_lines
from manyheads.errors import UserError

ALONE = ("checkpoints", "image_data", "image_training", "large_corpus", "recording", "serving")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given and given[0] in ALONE:
        sys.argv = [f"python -m benchmarks {given[0]}", *given[1:]]
        runpy.run_module(f"benchmarks.{given[0]}", run_name="__main__")
        return 0
    try:
        with log_lines():
            _bench(_parser().parse_args(given))
        return 0
    except Exception as error:
        return exit_status(error, debug=False)


def _parser() -> Parser:
    parser = Parser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(WORKS)}, or growth (default: all but growth)"
    )
    parser.add_argument("--against", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)} (default: all installed)")
    parser.add_argument("--repeats", type=whole(1, 1000), metavar="N",
                        help="rounds (default: 5, or as many as fit in 3 minutes for each NAME)")  # fmt: skip
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help="of each side (default: PyTorch's choice)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    return parser


def _bench(options: argparse.Namespace) -> None:
    if options.names == ["growth"]:
        return _growth(options)
    record = bench(options.names, options.against, options.repeats, options.threads)
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
    from benchmarks.growth import growth

    record = growth(options.threads)
    if options.json:
        return document(record)
    table([("", "", "grows", "from", "to", "seconds", "", "exponent", "MB", "", "exponent"),
           *map(_grown, record["curves"])])  # fmt: skip
    print("\nexponent: the slope of the logarithms over the upper half of a curve")


def _grown(curve: dict[str, Any]) -> tuple[str, ...]:
    from benchmarks.work import three_digits

    ends = [curve["at"][0], curve["at"][-1]]
    megabytes = [curve["bytes"][0] / 1e6, curve["bytes"][-1] / 1e6]
    seconds = [curve["seconds"][0], curve["seconds"][-1]]
    return (
        curve["part"], curve["name"], curve["against"], *(f"{n:,}" for n in ends),
        *map(three_digits, seconds), f"{curve['seconds_exponent']:.2f}", *map(three_digits, megabytes),
        f"{curve['bytes_exponent']:.2f}",
    )  # fmt: skip


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    from benchmarks.work import three_digits

    pick = min if row["unit"] == "seconds" else max
    best = pick(row["peers"], key=row["peers"].__getitem__, default="")
    ours = map(three_digits, (row["ours"], *row["spread"]))
    others = (row["peers"].get(best), row["ratio"], row["limit"], row["share_of_limit"])
    theirs, *shares = map(three_digits, others)
    return (row["case"], *ours, best, theirs, *shares)


if __name__ == "__main__":
    raise SystemExit(main())
