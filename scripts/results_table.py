"""`python -m scripts.results_table`: put the tables of what was measured between the markers of the pages."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from manyheads.results import describe, duration, groups, records, scores
from scripts import complexity_page
from scripts.results_plot import forward_flops

FREQUENT = 200  # words of a relation that is shown; rarer ones are in the record
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table() -> str:
    """The measured runs in Markdown: a table for each set of metrics, a row for each way that a recipe was run."""
    by_metrics: dict[tuple[str, ...], list[list[dict[str, Any]]]] = {}
    for group in groups(records()):
        by_metrics.setdefault(tuple(group[0]["metrics"]), []).append(group)
    return "\n\n".join(_table(list(metrics), runs) for metrics, runs in by_metrics.items())


def _table(metrics: list[str], runs: list[list[dict[str, Any]]]) -> str:
    images = "top1" in metrics
    sizes = ["parameters", *(["MFLOP an image"] if images else [])]
    rows = [["recipe", "run", *sizes, *metrics, "time", "processor"]]
    for group in runs:
        score, first = scores(group), group[0]
        hardware = first["hardware"]
        machine = hardware.get("gpu") or _processor(hardware)
        rows.append([
            f"`{first['recipe']}`", describe(group), f"{first['parameters']:,}",
            *([f"{forward_flops(first) / 1e6:,.1f}"] if images else []), *(score.get(m, "") for m in metrics),
            duration(mean(record["wall_seconds"] for record in group)), machine,
        ])  # fmt: skip
    rows.insert(1, ["---", "---", *["--:"] * len(sizes + metrics), "--:", "---"])
    return _markdown(rows)


def bench_table() -> str:
    """The side-by-side measurements, with the physical limit beside them; empty where there are none."""
    rows = [["bench", "ours", "peer", "ratio (min to max)", "limit", "processor"], ["---", *["--:"] * 4, "---"]]
    for record in (bench for bench in records("bench") if "ratio" in bench):
        rates, ratio, hardware = record["target_tokens_per_second"], record["ratio"], record["hardware"]
        rows.append([
            f"`{record['bench']}`, {record['model']}, {record['precision']}: target tokens/s",
            f"{rates['ours']['median']:,.0f}", f"{rates['peer']['median']:,.0f}",
            f"{ratio['median']:.1f} ({ratio['min']:.1f} to {ratio['max']:.1f})",
            f"{record['limit']['target_tokens_per_second']:,}", _processor(hardware),
        ])  # fmt: skip
    return _markdown(rows) if len(rows) > 2 else ""


def models_table() -> str:
    """What models cost beside each other: their training throughput, and what the products alone would allow."""
    tables = []
    for record in (bench for bench in records("bench") if "rows" in bench and "ceilings" not in bench):
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
        tables.append(_markdown(rows))
    return "\n\n".join(tables)


def costs_table() -> str:
    """What recording maps adds to the time of a model, as ratios of runs that followed one another."""
    rows: list[list[str]] = []
    for record in (bench for bench in records("bench") if "cost" in bench):
        head = [f"`{record['model']}`, {record['batch']} x {record['tokens']} tokens", *record["cost"], "processor"]
        ratios = (f"{r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f})" for r in record["cost"].values())
        rows += [head, ["---", *["--:"] * len(record["cost"]), "---"],
                 ["time of recording", *ratios, _processor(record["hardware"])]]  # fmt: skip
    return _markdown(rows)


def speed_table() -> str:
    """What `manyheads bench NAME --json` has found: ours beside each peer at its best, and the limit."""
    tables = []
    for record in (bench for bench in records("bench") if "ceilings" in bench):
        for name in record["bench"]:
            found = [row for row in record["rows"] if row["work"] == name]
            rows = [
                [f"`{name}`, {found[0]['unit']}", "ours (least to most)", "peers", "ratio", "limit", "share"],
                ["---", "--:", "---", "--:", "--:", "--:"],
                *([r["case"], f"{_figure(r['ours'])} ({' to '.join(map(_figure, r['spread']))})", _best_of_each(r),
                   *map(_figure, (r["ratio"], r["limit"], r["share_of_limit"]))] for r in found),
            ]  # fmt: skip
            tables.append(_markdown(rows))
        rates = ", ".join(
            f"{kind} {rate:,.0f}" for kind, rate in record["ceilings"]["products_gflop_per_second"].items()
        )
        memory = record["ceilings"]["memory_gb_per_second"]
        versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
        where = _processor(record["hardware"])
        tables.append(f"{where}: {memory:.0f} GB/s, products of {rates} GFLOP/s; {versions}")
    return "\n\n".join(tables) or "Nothing is recorded yet."


def _best_of_each(row: dict[str, Any]) -> str:
    """`openvino int8 94.2; transformers bf16 28.1`: of every peer the setting that is fastest here."""
    best: dict[str, tuple[str, float]] = {}
    for setting, figure in row["peers"].items():
        peer = setting.split()[0]
        if peer not in best or (figure < best[peer][1]) == (row["unit"] == "seconds"):
            best[peer] = setting, figure
    return "; ".join(f"{setting} {_figure(figure)}" for setting, figure in best.values())


def _figure(value: float | None) -> str:
    """Three digits, and all of a larger number; nothing for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _processor(hardware: dict[str, Any]) -> str:
    return f"{hardware['threads']} thread{'s' * (hardware['threads'] > 1)}, {hardware['cpu']}"


def probe_table() -> str:
    """Which head follows which relation, beside the best fixed offset, and which finds what a mention refers to."""
    parts = []
    for record in records("probes"):
        parts.append(f"### {record['model']} on {record['treebank']}")
        frequent = [row for row in record["relations"] if row["items"] >= FREQUENT]
        parts.append(_best_heads("relation", frequent))
        if record["coreference"]:
            parts.append(_best_heads("mention of an entity", record["coreference"]))
        if record["parsers"]:
            rows = [(name, f"{s['value']:.3f} ({s['low']:.3f} to {s['high']:.3f})")
                    for name, s in record["parsers"].items()]  # fmt: skip
            parts.append(_markdown([["a parser that sees", "UAS (95%)"], ["---", "--:"], *map(list, rows)]))
    return "\n\n".join(parts)


def _best_heads(of: str, heads: list[dict[str, Any]]) -> str:
    rows = [[of, "count", "head", "looks", "accuracy (95%)", "held out", "best baseline"],
            ["---", "--:", "--:", "---", "--:", "--:", "--:"]]  # fmt: skip
    for row in heads:
        held = row["held_out"]
        rows.append([
            row["group"], f"{row['items']:,}", f"{row['layer']}-{row['head']}", row["direction"],
            f"{row['accuracy']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            "" if held is None else f"{held:.3f}", f"{row['base']:.3f} ({row['baseline']})",
        ])  # fmt: skip
    return _markdown(rows)


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (table, bench_table, models_table, costs_table),
    "docs/inside.md": (probe_table,),
    "docs/speed.md": (speed_table,),
    "docs/complexity.md": complexity_page.PARTS,
}


def filled(text: str, parts: tuple[Callable[[], str], ...]) -> str:
    """`text` with the present tables between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    tables = "\n\n".join(filter(None, (part() for part in parts)))
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"


def main(root: Path = Path()) -> int:
    for page, parts in PAGES.items():
        try:
            file = root / page
            file.write_text(filled(file.read_text(encoding="utf-8"), parts), encoding="utf-8")
        except (ValueError, OSError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
    return 0


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())
