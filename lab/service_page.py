"""The tables of docs/measured/serving.md: latency and throughput with many clients; results of attacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from lab.records import records

Record = dict[str, Any]
WORDS = {"left": "client had left", "closed": "connection closed", "none": "no answer"}


def _answers(record: Record) -> str:
    counts: Counter[str] = sum(map(Counter, record["malformed"].values()), Counter())
    return ", ".join(f"{WORDS.get(what, what)}: {count:,}" for what, count in sorted(counts.items()))


def _failures(record: Record) -> str:
    return str(sum(count for status, count in record["by_status"].items() if status[0] == "5"))


def _tried(record: Record) -> str:
    return str(record["schemathesis"]["told"]).splitlines()[-1]


def _good(what: str) -> Callable[[Record], str]:
    def figures(record: Record) -> str:
        good = record["good"][what]
        return f"{good['p50']:,.0f}, {good['p99']:,.0f} ({good['requests']:,} requests)"

    return figures


def _wrong(record: Record) -> str:
    return str(record["good"]["wrong_count"])


def _memory(record: Record) -> str:
    return f"{record['memory_mib'][0]:,.0f}, {record['memory_mib'][-1]:,.0f}"


FIGURES: dict[str, Callable[[Record], str]] = {
    "answers to malformed requests, by status": _answers,
    "schemathesis at the same time": _tried,
    "answers with status 500 or more": _failures,
    "valid requests before the attack: median, p99 in ms": _good("before"),
    "valid requests during the attack: median, p99 in ms": _good("while"),
    "valid requests with a changed answer": _wrong,
    "private memory at the start and at the end, MiB": _memory,
}


def attacks() -> str:
    """Return a table with a column for each recorded attack."""
    runs = sorted(records("service"), key=lambda record: len(record["memory_mib"]))
    if not runs:
        return "Nothing is recorded yet."
    rows = [["", *(record["attack"] for record in runs)], ["---", *["---"] * len(runs)]]
    rows += [[name, *(figure(record) for record in runs)] for name, figure in FIGURES.items()]
    hardware = runs[0]["hardware"]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{table}\n\nThe service and its clients shared {hardware['cores']} cores of an {hardware['cpu']}."


def company() -> str:
    """Return the results of one client and of many clients, for each recorded service."""
    runs = [record for record in records("bench") if record.get("bench") == "serving"]
    if not runs:
        return ""
    clients, hardware = runs[0]["clients"], runs[0]["hardware"]
    rows = [["", "one client", f"{clients} at once", "times", f"p99 with {clients}"], ["---", *["--:"] * 4]]
    for record in runs:
        for key, what, unit in (
            ("translate", "sentences/s, `transformer/tiny`, beam 4", "requests_per_second"),
            ("complete", "tokens/s, `gpt2/124m`", "tokens_per_second"),
            ("complete_llama.cpp", "tokens/s, llama.cpp's server", "tokens_per_second"),
        ):
            if measured := record.get(key):
                one, many = measured["one"][unit], measured["many"][unit]
                seconds = f"{many / one:.1f}", f"{measured['many']['p99_seconds']:.2f} s"
                rows.append([f"{what}, {record['precision']}", f"{one:,.1f}", f"{many:,.1f}", *seconds])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    batches = " and ".join(
        f"{record['translate']['p99_over_batch']:.1f} times ({record['precision']})" for record in runs
    )
    return (
        f"## Throughput\n\n{table}\n\n"
        "The models have random weights. A sentence has ten words, a completion 64 tokens. The p99 latency of a "
        f"sentence is {batches} the time of one request with {clients} sentences. Service and clients share "
        f"{hardware['threads']} threads of an {hardware['cpu']}. "
        "`python -m benchmarks serving` repeats the measurement."
    )


PARTS = (attacks, company)
