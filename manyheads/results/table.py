"""`python -m manyheads.results.table`: put the table of measured runs between the markers of README.md."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Any

from manyheads.results import describe, duration, groups, records, scores
from manyheads.results.plot import forward_flops

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table() -> str:
    """The measured runs in Markdown: a table for each set of metrics, a row for each way that a recipe was run."""
    by_metrics: dict[tuple[str, ...], list[list[dict[str, Any]]]] = {}
    for group in groups(records()):
        by_metrics.setdefault(tuple(group[0]["metrics"]), []).append(group)
    return "\n\n".join(_table(list(metrics), found) for metrics, found in by_metrics.items())


def _table(metrics: list[str], found: list[list[dict[str, Any]]]) -> str:
    images = "top1" in metrics
    sizes = ["parameters", *(["MFLOP an image"] if images else [])]
    rows = [["recipe", "run", *sizes, *metrics, "time", "processor"]]
    for group in found:
        score, first = scores(group), group[0]
        hardware = first["hardware"]
        machine = hardware.get("gpu") or _processor(hardware)
        rows.append([
            f"`{first['recipe']}`", describe(group), f"{first['parameters']:,}",
            *([f"{forward_flops(first) / 1e6:,.1f}"] if images else []), *(score.get(m, "") for m in metrics),
            duration(mean(record["wall_seconds"] for record in group)), machine,
        ])  # fmt: skip
    rows.insert(1, ["---", "---", *["--:"] * len(sizes + metrics), "--:", "---"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def bench_table() -> str:
    """The side-by-side measurements, with the physical limit beside them; empty where there are none."""
    rows = [["bench", "ours", "peer", "ratio (min to max)", "limit", "processor"], ["---", *["--:"] * 4, "---"]]
    for record in (found for found in records("bench") if "ratio" in found):
        rates, ratio, hardware = record["target_tokens_per_second"], record["ratio"], record["hardware"]
        rows.append([
            f"`{record['bench']}`, {record['model']}, {record['precision']}: target tokens/s",
            f"{rates['ours']['median']:,.0f}", f"{rates['peer']['median']:,.0f}",
            f"{ratio['median']:.1f} ({ratio['min']:.1f} to {ratio['max']:.1f})",
            f"{record['limit']['target_tokens_per_second']:,}", _processor(hardware),
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) if len(rows) > 2 else ""


def models_table() -> str:
    """What models cost beside each other: their training throughput, and what the products alone would allow."""
    tables = []
    for record in (found for found in records("bench") if "rows" in found):
        head = [f"trained on {_processor(record['hardware'])}", "parameters", "MFLOP an image", "images/s", "limit"]
        rows = [head, ["---", *["--:"] * 4]]
        for row in record["rows"]:
            rate, (recipe, comma, settings) = row["images_per_second"], row["model"].partition(", ")
            rows.append([
                f"`{recipe}`{comma}{settings}",
                f"{row['parameters']:,}", f"{row['forward_flops'] / 1e6:,.1f}",
                f"{rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f})",
                f"{row['limit_images_per_second']:,.0f}",
            ])  # fmt: skip
        tables.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return "\n\n".join(tables)


def costs_table() -> str:
    """What recording maps adds to the time of a model, as ratios of runs that followed one another."""
    rows: list[list[str]] = []
    for record in (found for found in records("bench") if "cost" in found):
        head = [f"`{record['model']}`, {record['batch']} x {record['tokens']} tokens", *record["cost"], "processor"]
        ratios = (f"{r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f})" for r in record["cost"].values())
        rows += [head, ["---", *["--:"] * len(record["cost"]), "---"],
                 ["time of recording", *ratios, _processor(record["hardware"])]]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _processor(hardware: dict[str, Any]) -> str:
    return f"{hardware['threads']} thread{'s' * (hardware['threads'] > 1)}, {hardware['cpu']}"


def filled(text: str) -> str:
    """`text` with the present table between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    tables = "\n\n".join(filter(None, (table(), bench_table(), models_table(), costs_table())))
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"


def main(file: Path = Path("README.md")) -> int:
    try:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
    except (ValueError, OSError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
