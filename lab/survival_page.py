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
    rows = [["family", "killed at once (SIGKILL)", "asked to end (SIGTERM)", "runs", "with the same weights"]]
    rows += [["---", "--:", "--:", "--:", "--:"]]
    for family, figures in record["families"].items():
        counts = [figures["kills"].get(signal, 0) for signal in ("SIGKILL", "SIGTERM")]
        rows.append([family, *map(str, [*counts, figures["runs"], figures["equal"]])])
    total = [record["kills"]["SIGKILL"], record["kills"]["SIGTERM"], record["runs"], record["equal"]]
    rows.append(["all", *map(str, total)])
    doing = ", ".join(f"{count} {what}" for what, count in record["doing"].items())
    return f"{_markdown(rows)}\n\nWhat the runs were at when they were killed: {doing}."


def faults() -> str:
    rows = [["fault", "where", "what is told", "the same weights after it"], ["---", "---", "---", "---"]]
    for fault in _of("faults")["faults"]:
        told = (fault["told"] or "").replace("|", "\\|")
        rows.append([fault["kind"], fault["fault"], told, "yes" if fault["same_weights"] else "no"])
    return _markdown(rows)


def fuzzing() -> str:
    """Return the attempts on each target, their duration, and their results."""
    record = _of("fuzzing")
    rows = [["what is read", "inputs tried", "minutes", "accepted", "refused cleanly", "branches of ours", "findings"]]
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
    return _markdown(rows)


def checkpoints() -> str:
    """Return the cost of a model's checkpoint in its training."""
    record = next(bench for bench in records("bench") if bench.get("bench") == "checkpoints")
    rows = [["a checkpoint of " + f"{record['parameters']:,} parameters", "seconds (least to most)"], ["---", "--:"]]
    words = {"still": "the training pauses", "computed": "its thread computes", "written": "until it is on disk",
             "read": "verified and read again"}  # fmt: skip
    for name, what in words.items():
        seconds = record["seconds"][name]
        rows.append([what, f"{seconds['median']:.2f} ({seconds['min']:.2f} to {seconds['max']:.2f})"])
    shares = record["share_still_at_one_a_minute"], record["share_at_one_a_minute"]
    return (
        f"{_markdown(rows)}\n\nAt one a minute the training loses {shares[0]:.1%} of its time if a core is free for "
        f"the thread, otherwise {shares[1]:.1%} ({record['hardware']['cpu']}, one thread)."
    )


def ranks() -> str:
    """Return the losses of several processes compared with one process, and the result of a run with a killed
    process.
    """
    record = next((record for record in records("survival") if record["survival"] == "ranks"), None)
    if record is None:
        return ""
    columns = [(dtype, world) for dtype, by_world in record["differences"].items() for world in by_world]
    rows = [["losses of 50 steps, the largest relative difference", *(f"{dtype}, {world}" for dtype, world in columns)]]
    rows += [["---", *["--:"] * len(columns)]]
    families = list(dict.fromkeys(name for dtype, world in columns for name in record["differences"][dtype][world]))
    for name in families:
        apart = [record["differences"][dtype][world].get(name) for dtype, world in columns]
        rows.append([name, *("" if difference is None else f"{difference:.0e}" for difference in apart)])
    table = _markdown(rows)
    if (killed := record["killed"]) is None:
        return table
    victims, seconds = killed["kills"], sorted(killed["seconds_to_the_next_step"])
    ends = "identical weights" if killed["equal"] else "other weights"
    middle, least, most = seconds[len(seconds) // 2], seconds[0], seconds[-1]
    return (
        f"{table}\n\nOf two processes, rank 0 was killed {victims['0']} times and rank 1 {victims['1']} times, by "
        f"SIGKILL; `torchrun --max-restarts` restarted both each time, and the run ended with {ends}. From a kill "
        f"to the next step it took {middle:.0f} s ({least:.0f} to {most:.0f}), on two cores with other work on them."
    )


def throughput() -> str:
    """Return the speedup by more processes with one thread each."""
    record = next((record for record in records("survival") if record["survival"] == "ranks"), {})
    if "tokens_per_second" not in record:
        return ""
    alone = median(record["tokens_per_second"]["1"])
    rows = [["processes of one thread each", "tokens/s, median of 5 (least to most)", "of one"], ["---", "--:", "--:"]]
    for name, speeds in record["tokens_per_second"].items():
        middle, least, most = (round(measure(speeds)) for measure in (median, min, max))
        rows.append([name.replace(" ", ", "), f"{middle:,} ({least:,} to {most:,})", f"{middle / alone:.2f}"])
    return f"{_markdown(rows)}\n\nA GPT of 4 layers of 256, in float32, on {record['hardware']['cpu']}."


def large_corpus() -> str:
    """A corpus larger than memory may be: what its training holds, and how soon it goes on."""
    record = next((bench for bench in records("bench") if bench.get("bench") == ["large-corpus"]), None)
    if record is None:
        return ""
    rows = [["place in the epoch", "first batch after", "of which importing"], ["---", "--:", "--:"]]
    for restart in record["restarts"]:
        place = f"batch {restart['batch']:,} of {restart['batches']:,}"
        whole = restart["seconds"] + restart["import_seconds"]
        rows.append([place, f"{whole:.1f} s", f"{restart['import_seconds']:.1f} s"])
    resumed, peak = record["resumed"], record["peak_mib"]["VmHWM"] / 1024
    return (
        f"{_markdown(rows)}\n\nA corpus of {record['disk_bytes'] / 1e9:.1f} GB on disk, "
        f"{record['text_bytes'] / 1e9:.1f} GB of text, {record['tokens'] / 1e9:.2f} billion tokens: reading, "
        f"tokenizing and training held {peak:.2f} GiB at most. `--resume` after step {resumed['after_step']} reported "
        f"the next step {resumed['seconds_to_the_next_step']:.1f} s after it was started.\n\n"
        "![Resident memory over time](../images/corpus-memory.png)"
    )


def image_data() -> str:
    """Return the fraction of time that a training waits for images."""
    record = next((bench for bench in records("bench") if bench.get("bench") == "image-data"), None)
    if record is None:
        return ""
    cases, counts = record["cases"], sorted({case["workers"] for case in record["cases"]})
    rows = [["waits for images, share of its time (images/s)", *(f"`workers={count}`" for count in counts)]]
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
        f"{_markdown(rows)}\n\nPhotographs of {width} x {height} pixels augmented as DeiT's, one thread trains "
        f"({record['hardware']['cpu']}, {record['hardware']['cores']} cores)."
    )


def plans() -> str:
    """Return the results of `manyheads plan` with measurements."""
    rows = [[
        "a step of each process", "processes", "GiB planned", "needed", "", "held", f"planned x {CPU_MEMORY_FACTOR}",
        "seconds planned", "measured", "",
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
    return _markdown(rows)


def _apart(figures: dict[str, float]) -> str:
    return f"{figures['planned'] / figures['measured'] - 1:+.0%}"


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


PARTS = (kills, ranks, throughput, faults, fuzzing, checkpoints, image_data, large_corpus, plans)
