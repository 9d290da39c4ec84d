"""The tables of docs/measured/survival.md: kills, faults, fuzzing, cost of a checkpoint, plans and measurements."""

from __future__ import annotations

from statistics import median
from typing import Any

from lab.records import records
from manyheads.runs.planning import CPU_MEMORY_FACTOR


def _of(kind: str) -> dict[str, Any]:
    return next(record for record in records("survival") if record["survival"] == kind)


def kills() -> str:
    record = _of("kills")
    rows = [["family", "SIGKILL", "SIGTERM", "runs", "runs with identical weights"]]
    rows += [["---", "--:", "--:", "--:", "--:"]]
    for family, figures in record["families"].items():
        counts = [figures["kills"].get(signal, 0) for signal in ("SIGKILL", "SIGTERM")]
        rows.append([family, *map(str, [*counts, figures["runs"], figures["equal"]])])
    total = [record["kills"]["SIGKILL"], record["kills"]["SIGTERM"], record["runs"], record["equal"]]
    rows.append(["all", *map(str, total)])
    doing = ", ".join(f"{count} {what}" for what, count in record["doing"].items())
    return f"## Kills\n\n{_markdown(rows)}\n\nActivity of the runs when they were killed: {doing}."


def faults() -> str:
    """Return the faults with the number of files or cases, and of those after which the weights are identical."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for fault in _of("faults")["faults"]:
        groups.setdefault(fault["kind"], []).append(fault)
    rows = [["fault", "cases", "identical weights afterwards"], ["---", "---", "--:"]]
    for kind, cases in groups.items():
        same = sum(case["same_weights"] for case in cases)
        rows.append([kind, _listed([case["fault"] for case in cases]), f"{same} of {len(cases)}"])
    return f"## Faults\n\n{_markdown(rows)}"


def _listed(cases: list[str]) -> str:
    return "; ".join(cases) if len(cases) <= 3 else f"{len(cases)} files of a run"


def fuzzing() -> str:
    """Return the attempts on each target, their duration, and their results."""
    record = _of("fuzzing")
    rows = [["input", "tried", "minutes", "accepted", "refused", "branches reached", "findings"]]
    rows += [["---", *["--:"] * 6]]
    for name, row in record["targets"].items():
        counts = [f"{row[key]:,}" for key in ("accepted", "refused")]
        branches = "" if row["branches"] is None else f"{row['branches']:,}"
        minutes = f"{row['seconds'] / 60:.1f}"
        rows.append([name, f"{row['inputs']:,}", minutes, *counts, branches, str(len(row["findings"]))])
    whole = [
        sum(row[key] for row in record["targets"].values()) for key in ("inputs", "seconds", "accepted", "refused")
    ]
    findings = sum(len(row["findings"]) for row in record["targets"].values())
    minutes = f"{whole[1] / 60:.1f}"
    rows.append(["all", f"{whole[0]:,}", minutes, f"{whole[2]:,}", f"{whole[3]:,}", "", str(findings)])
    return f"## Fuzzing\n\n{_markdown(rows)}"


def checkpoints() -> str:
    """Return the cost of a model's checkpoint in its training."""
    record = next(bench for bench in records("bench") if bench.get("bench") == "checkpoints")
    rows = [
        ["a checkpoint of " + f"{record['parameters']:,} parameters", "seconds (minimum to maximum)"],
        ["---", "--:"],
    ]
    words = {"still": "pause of the training", "computed": "computing time of the thread",
             "written": "until the file is on disk", "read": "verify and read"}  # fmt: skip
    for name, what in words.items():
        seconds = record["seconds"][name]
        rows.append([what, f"{seconds['median']:.2f} ({seconds['min']:.2f} to {seconds['max']:.2f})"])
    shares = record["share_still_at_one_a_minute"], record["share_at_one_a_minute"]
    return (
        f"## Cost of checkpoints\n\n{_markdown(rows)}\n\nWith one checkpoint a minute, training takes "
        f"{shares[0]:.1%} longer if a core is free for the thread, otherwise {shares[1]:.1%} "
        f"({record['hardware']['cpu']}, one thread)."
    )


def ranks() -> str:
    """Return the losses of several processes compared with one process, and the result of a run with a killed
    process.
    """
    record = next((record for record in records("survival") if record["survival"] == "ranks"), None)
    if record is None:
        return ""
    rows = [["processes", "float32", "float64"], ["---", "--:", "--:"]]
    for world in record["differences"]["float32"]:
        largest = [max(record["differences"][dtype][world].values()) for dtype in ("float32", "float64")]
        rows.append([world.replace(" ", ", "), *(f"{difference:.0e}" for difference in largest)])
    families = len(record["differences"]["float32"]["2 replicated"])
    table = (
        f"## Several processes\n\nLargest relative difference of the losses of 50 steps from those of one process, "
        "over "
        f"{families} model families:\n\n{_markdown(rows)}"
    )
    if (killed := record["killed"]) is None:
        return table
    victims, seconds = killed["kills"], sorted(killed["seconds_to_the_next_step"])
    ends = "identical weights" if killed["equal"] else "other weights"
    middle, least, most = seconds[len(seconds) // 2], seconds[0], seconds[-1]
    return (
        f"{table}\n\nIn a run with two processes, rank 0 was killed {victims['0']} times and rank 1 {victims['1']} "
        "times "
        f"by SIGKILL. `torchrun --max-restarts` restarted both each time, and the run ended with {ends}. The time from "
        f"a kill to the next step was {middle:.0f} s ({least:.0f} to {most:.0f}) on two busy cores."
    )


def throughput() -> str:
    """Return the speedup by more processes with one thread each."""
    record = next((record for record in records("survival") if record["survival"] == "ranks"), {})
    if "tokens_per_second" not in record:
        return ""
    alone = median(record["tokens_per_second"]["1"])
    rows = [
        ["processes of one thread each", "tokens/s, median of 5 (minimum to maximum)", "speedup"],
        ["---", "--:", "--:"],
    ]
    for name, speeds in record["tokens_per_second"].items():
        middle, least, most = (round(measure(speeds)) for measure in (median, min, max))
        rows.append([name.replace(" ", ", "), f"{middle:,} ({least:,} to {most:,})", f"{middle / alone:.2f}"])
    model = f"The model is a GPT with 4 layers of width 256, in float32, on {record['hardware']['cpu']}."
    return f"{_markdown(rows)}\n\n{model}"


def large_corpus() -> str:
    """Return memory and time of a training on a large corpus, and the time of a restart."""
    record = next((bench for bench in records("bench") if bench.get("bench") == ["large-corpus"]), None)
    if record is None:
        return ""
    rows = [["position in the epoch", "first batch after"], ["---", "--:"]]
    for restart in record["restarts"]:
        seconds = restart["seconds"] + restart["import_seconds"]
        rows.append([f"batch {restart['batch']:,} of {restart['batches']:,}", f"{seconds:.1f} s"])
    peak, resumed = record["peak_mib"]["VmHWM"], record["resumed"]["seconds_to_the_next_step"]
    return (
        f"## Large corpora\n\nThe compressed corpus has {record['disk_bytes'] / 1e9:.1f} GB on disk, with "
        f"{record['text_bytes'] / 1e9:.1f} GB of text and {record['tokens'] / 1e9:.2f} billion tokens. Reading, "
        f"tokenizing and 20 training steps took {record['seconds']:,.0f} s with {record['tokenizer_threads']} thread "
        "and "
        f"at most {peak:,.0f} MiB of memory ({record['hardware']['cpu']}). After a kill, `--resume` reached the next "
        "step "
        f"in {resumed:.1f} s.\n\n{_markdown(rows)}\n\n![Resident memory over time](../images/corpus-memory.png)"
    )


def image_data() -> str:
    """Return the fraction of time that a training waits for images."""
    record = next((bench for bench in records("bench") if bench.get("bench") == "image-data"), None)
    if record is None:
        return ""
    cases, counts = record["cases"], sorted({case["workers"] for case in record["cases"]})
    rows = [["fraction of time spent waiting (images/s)", *(f"`workers={count}`" for count in counts)]]
    rows += [["---", *["--:"] * len(counts)]]
    for model, data in dict.fromkeys((case["model"], case["data"]) for case in cases):
        row = [case for case in cases if (case["model"], case["data"]) == (model, data)]
        figures = (
            f"{case['waiting']['median']:.1%} ({case['images_per_second']['median']:,.0f})"
            for case in sorted(row, key=lambda case: case["workers"])
        )
        rows.append([f"{model}, {data}", *figures])
    width, height = record["size"]
    return (
        f"## Image loading\n\n{_markdown(rows)}\n\nThe images are photographs of {width} x {height} pixels with DeiT's "
        f"augmentation. One thread trains ({record['hardware']['cpu']}, {record['hardware']['cores']} cores)."
    )


def plans() -> str:
    """Return the results of `manyheads plan` with measurements."""
    rows = [[
        "step of a process", "processes", "GiB planned", "needed", "error", "held",
        f"planned x {CPU_MEMORY_FACTOR}", "seconds planned", "measured", "error",
    ]]  # fmt: skip
    rows += [["---", "---", *["--:"] * 8]]
    for record in records("planning"):
        for row in record["rows"]:
            case, spread = row["case"], "sharded" if row["case"]["shard"] else "replicated"
            items = f"{case['rows']} x {' -> '.join(map(str, case['lengths']))} tokens" if case["lengths"] else (
                f"{case['rows']} images"
            )  # fmt: skip
            size, seconds = row["bytes"], row["seconds"]
            rows.append([
                f"`{case['preset']}`, {items}, {case['precision']}",
                "1" if case["processes"] == 1 else f"{case['processes']}, {spread}",
                f"{size['planned'] / 2**30:.2f}", f"{size['measured'] / 2**30:.2f}", _apart(size),
                f"{size['held'] / 2**30:.2f}", f"{CPU_MEMORY_FACTOR * size['planned'] / size['held'] - 1:+.0%}",
                f"{seconds['planned']:.2f}", f"{seconds['measured']:.2f}", _apart(seconds),
            ])  # fmt: skip
    return f"## Plans\n\n{_markdown(rows)}"


def _apart(figures: dict[str, float]) -> str:
    return f"{figures['planned'] / figures['measured'] - 1:+.0%}"


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PARTS = (kills, ranks, throughput, faults, fuzzing, checkpoints, image_data, large_corpus, plans)
