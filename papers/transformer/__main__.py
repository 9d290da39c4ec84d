"""Table 2 of Vaswani et al. 2017: published BLEU and training FLOPs, next to FLOPs that are computed here.

python -m papers.transformer [--json]
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from manyheads.cli.output import table
from papers.command import about, run
from papers.transformer import wmt14

PAIRS = ("en-de", "en-fr")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.transformer", description=about(__doc__))
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    comparison = wmt14.compared()
    if parser.parse_args(arguments).json:
        return print(json.dumps(comparison, indent=1))
    head = ("", "BLEU en-de", "en-fr", "FLOPs en-de", "en-fr", "time x speed", "counted")
    table([head, *((row["model"], *_cells(row)) for row in comparison["rows"])])
    print()
    for row in comparison["rows"]:
        if ours := row.get("computed"):
            print(f"{row['model']}: time x speed is {ours['arithmetic']} = {ours['flops']:.3e} FLOPs; 'counted' are the"
                  f" matrix products of {row['steps']:,} steps of {comparison['batch_tokens']:,} target"
                  " tokens")  # fmt: skip
    print(f"source: {comparison['source']}\n{comparison['note']}")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    ours = row.get("computed") or {}
    flops = (*(row["flops"].get(pair) for pair in PAIRS), ours.get("flops"), ours.get("counted"))
    return (
        *(str(row["bleu"].get(pair, "")) for pair in PAIRS),
        *(f"{number:.1e}" if number else "" for number in flops),
    )


if __name__ == "__main__":
    raise SystemExit(run(main))
