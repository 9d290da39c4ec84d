"""Run benchmarks: `python -m benchmarks [NAME ...]`.

python -m benchmarks                          every benchmark against other libraries, about 3 minutes each
python -m benchmarks decode-gpt2 encode-vit   some of them
python -m benchmarks growth                   how time and memory grow with length, batch, beam and vocabulary
python -m benchmarks lowered                  lowered models against plain PyTorch, about 6 minutes
python -m benchmarks all --device cuda        training and inference on a GPU, within 9 minutes
python -m benchmarks serving --seconds 20     a benchmark of Manyheads alone, with options that its --help lists
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
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
        "names", nargs="*", metavar="NAME", help=f"{', '.join(WORKS)}, all, growth, or lowered (default: all)"
    )
    parser.add_argument("--against", nargs="*", metavar="PEER", help=f"{', '.join(PEERS)} (default: all installed)")
    parser.add_argument("--repeats", type=whole(1, 1000), metavar="N",
                        help="rounds (default: 5, or as many as fit in 3 minutes for each NAME)")  # fmt: skip
    parser.add_argument("--threads", type=whole(1, 1024), metavar="N", help="of each side (default: PyTorch's choice)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON document to a file, too")
    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument("--device", choices=("cuda", "cpu"), help="run the benchmarks for a GPU on this device")
    gpu.add_argument("--tiny", action="store_true", help="models of a few layers, to try the benchmarks for a GPU")
    gpu.add_argument("--minutes", type=float, metavar="N", help="total time (default: 9); the rest is left out")
    return parser


def _bench(options: argparse.Namespace) -> None:
    if options.device:
        return _gpu(options)
    if options.tiny or options.minutes is not None:
        raise UserError("--tiny and --minutes are options of --device: add it, or leave them out")
    if options.names in (["growth"], ["lowered"]):
        return {"growth": _growth, "lowered": _lowered}[options.names[0]](options)
    record = bench([] if options.names == ["all"] else options.names, options.against, options.repeats, options.threads)
    if _kept(record, options):
        return None
    _tables(record)
    rates = record["ceilings"]["products_gflop_per_second"]
    print(f"{record['hardware']['cpu']}, {record['hardware']['threads']} threads: reads"
          f" {record['ceilings']['memory_gb_per_second']} GB/s, products of"
          f" {', '.join(f'{name} {rate}' for name, rate in rates.items())} GFLOP/s")  # fmt: skip


def _tables(record: dict[str, Any]) -> None:
    for name in record["bench"]:
        rows = [row for row in record["rows"] if row["work"] == name]
        if not rows:
            continue
        print(f"{name}, {rows[0]['unit']}\n")
        table([("case", "ours", "least", "most", "error", "best peer", "", "error", "ratio", "limit", "share"),
               *map(_cells, rows)])  # fmt: skip
        print()


def _kept(record: dict[str, Any], options: argparse.Namespace) -> bool:
    """Write the record to the file of --out; with --json, print it and return True."""
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    if options.json:
        document(record)
    return bool(options.json)


def _gpu(options: argparse.Namespace) -> None:
    if options.against is not None or options.repeats is not None or options.threads is not None:
        raise UserError("--device cannot be combined with --against, --repeats or --threads: leave them out")
    from benchmarks.gpu.parts import run_parts

    minutes = 9.0 if options.minutes is None else options.minutes
    record = run_parts([] if options.names == ["all"] else options.names, options.device, tiny=options.tiny,
                       minutes=minutes, out=options.out)  # fmt: skip
    if _kept(record, options):
        return
    _tables(record)
    for name, part in record["parts"].items():
        print(f"{name}: {part['status']}, {part['seconds']:.0f} s")


def _lowered(options: argparse.Namespace) -> None:
    if options.against is not None:
        raise UserError("lowered models are compared with plain PyTorch: leave out --against")
    from benchmarks.lowered import LEAST, lowered, slower
    from benchmarks.work import three_digits

    record = lowered(options.threads, options.repeats)
    if _kept(record, options):
        return
    table([("case", "precision", "route", "against", "ms", "lowered", "ratio", "error"), *(
        (row["case"], row["precision"], row["route"], row["against"], *map(three_digits, (
            1e3 * row["plain_seconds"], 1e3 * row["lowered_seconds"], row["ratio"])), f"{row['error']:.2g}")
        for row in record["rows"])])  # fmt: skip
    found = slower(record["rows"])
    print(f"\nnever slower than plain PyTorch (at least {LEAST}): {'no: ' + '; '.join(found) if found else 'yes'}")


def _growth(options: argparse.Namespace) -> None:
    if options.against is not None or options.repeats is not None:
        raise UserError("growth is measured of ours alone, and chooses its repeats: leave out --against and --repeats")
    from benchmarks.growth import growth

    record = growth(options.threads)
    if _kept(record, options):
        return
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
    theirs, *shares = map(three_digits, (row["peers"].get(best), row["ratio"], row["limit"], row["share_of_limit"]))
    errors = ("" if (error := row["errors"].get(side)) is None else f"{error:.2g}" for side in ("ours", best))
    return (row["case"], *ours, next(errors), best, theirs, next(errors), *shares)


if __name__ == "__main__":
    raise SystemExit(main())
