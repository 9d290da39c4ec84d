"""The parts of docs/measured/speed.md: a section for each kind of machine, never mixed, and the scores by precision.

Records of `python -m benchmarks NAME --json` lie in lab/results/bench/KIND/, those of scores in lab/results/bench.
"""

from __future__ import annotations

from typing import Any

from benchmarks.machine import KINDS
from benchmarks.work import three_digits
from lab.complexity_page import markdown
from lab.records import records

Record = dict[str, Any]


def speed_tables() -> str:
    """Return ours, each other library at its best, and the limit, for every kind of machine that has records."""
    sections = []
    for kind, title in KINDS.items():
        found = records(f"bench/{kind}")
        parts = [part for record in found for part in (_tables(record) if "ceilings" in record else [_lowered(record)])]
        if parts:
            sections.append("\n\n".join([f"### {title}", *parts]))
    return "\n\n".join(sections) or "No record exists yet."


def _tables(record: Record) -> list[str]:
    tables = []
    for name in record["bench"]:
        cases = [row for row in record["rows"] if row["work"] == name]
        if not cases:
            continue
        errors = any(row.get("errors") for row in cases)
        head = [f"`{name}`, {cases[0]['unit']}", "manyheads (range)", *(["error"] if errors else []),
                f"peers{' (error)' * errors}", "ratio", "limit", "of limit"]  # fmt: skip
        rows = [head, ["---" if column.startswith(("`", "peers")) else "--:" for column in head]]
        for row in cases:
            ours = row.get("errors", {}).get("ours")
            rows.append([row["case"], _ours(row), *([_error(ours)] if errors else []), _best_of_each(row),
                         *map(three_digits, (row["ratio"], row["limit"], row["share_of_limit"]))])  # fmt: skip
        tables.append(markdown(rows))
        if errors:
            tables.append(f"Error: {cases[0]['errors_are']}.")
    return [*tables, _machine(record)] if tables else []


def _machine(record: Record) -> str:
    hardware, ceilings = record["hardware"], record["ceilings"]
    rates = ", ".join(
        f"{_rate(rate)} GFLOP/s in {kind}" for kind, rate in ceilings["products_gflop_per_second"].items()
    )
    versions = ", ".join(f"{package} {version}" for package, version in record["versions"].items())
    threads = f"{hardware['threads']} thread{'s' * (hardware['threads'] > 1)}, {hardware['cpu']}"
    what = record["hardware"].get("gpu") if record.get("kind") == "gpu" else threads
    if hardware.get("features"):
        what += f" ({', '.join(hardware['features'])})" if record.get("kind") != "gpu" else ""
    when = f" on {record['date']}" if "date" in record else ""
    tables = "these tables" if len(record["bench"]) > 1 else "this table"
    return (
        f"The speeds in {tables} were measured on this hardware{when}: "
        f"{what}. The machine reads memory at "
        f"{_rate(ceilings['memory_gb_per_second'])} GB/s and multiplies matrices at {rates}. We used {versions}."
        + (f" {record['remark']}" if "remark" in record else "")
    )


def _rate(rate: float | list[float]) -> str:
    """A rate, or the least and the greatest of several sessions."""
    return " to ".join(f"{value:,.0f}" for value in (rate if isinstance(rate, list) else [rate]))


def _lowered(record: Record) -> str:
    """Return the speed of lowered models, relative to plain PyTorch at the same precision."""
    rows = [["lowered model", "precision", "runs on", "speed relative to PyTorch", "error"], ["---"] * 3 + ["--:"] * 2]
    rows += [[row["case"], row["precision"], row["route"], f"{row['ratio']:.2f}", _error(row["error"])]
             for row in record["rows"]]  # fmt: skip
    return markdown(rows)


def _ours(row: Record) -> str:
    spread = f" ({' to '.join(map(three_digits, row['spread']))})" if row.get("spread") else ""
    return f"{three_digits(row['ours'])}{spread}"


def _best_of_each(row: Record) -> str:
    """`openvino int8 94.2 (0.012); transformers bf16 28.1`: of every peer the setting that is fastest here."""
    best: dict[str, tuple[str, float]] = {}
    for setting, figure in row["peers"].items():
        peer = setting.split()[0]
        if peer not in best or (figure < best[peer][1]) == (row["unit"] == "seconds"):
            best[peer] = setting, figure
    errors = row.get("errors", {})
    return "; ".join(
        f"{setting} {three_digits(figure)}"
        + (f" ({_error(errors[setting])})" if errors.get(setting) is not None else "")
        for setting, figure in best.values()
    )


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1g}" if error else "0"


def precision_table() -> str:
    """Return the scores of trained models in each precision."""
    rows: list[list[str]] = []
    for record in (bench for bench in records("bench") if "precisions" in bench):
        for run in record["precisions"]:
            kinds = run["metrics"]
            rows = rows or [["trained", "parameters", "metric", *kinds], ["---", "--:", "---", *["--:"] * len(kinds)]]
            for metric in kinds["float32"]:
                figures = (f"{scored[metric]:.4g}" for scored in kinds.values())
                rows.append([f"`{run['recipe']}`", f"{run['parameters']:,}", metric, *figures])
    return "\n\n".join(["### Scores of trained models by precision", markdown(rows)] if rows else [])


PARTS = (speed_tables, precision_table)
