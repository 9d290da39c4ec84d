"""Training of a language model on a corpus larger than memory: resident memory, and the time to resume.

    python -m benchmarks large_corpus FOLDER [--gigabytes 10] [--threads 2] [--out FILE.json]

The corpus is generated in FOLDER: half as JSONL, three eighths as text, one eighth as JSONL compressed by zstd, which
expands to more than twice its size. It consists of random words with frequencies by Zipf's law. A run reads it, trains
a vocabulary, tokenizes, trains a few steps, is stopped, and resumes. A new process then opens the same run and loads a
batch from the beginning, the middle and the end of the epoch. Memory is VmHWM and RssAnon of /proc/PID/status, sampled
ten times a second. After an interruption, run the same command again; an existing corpus is reused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import tell
from manyheads.training.record import commit, hardware
from manyheads.training.run_log import read_metrics

SHARD = 250_000_000  # bytes
FORMS = (*["jsonl", "txt"] * 3, "jsonl", "jsonl.zst")
STEPS = 20
MEMORY = ("VmHWM", "RssAnon", "RssFile", "RssShmem")
RECIPE = [
    "language-modeling",
    "tokenizer=byte-bpe",
    "vocabulary=512",
    "share=0.00001",
    f"training.steps={STEPS}",
    "training.log_every=1",
]

FIRST_BATCH = """
import json, sys, time
began = time.perf_counter()
from dataclasses import replace
from pathlib import Path
from manyheads.core.runtime import prepare
from manyheads.data.sources.running_text import TextSource
from manyheads.runs.run import Run
from manyheads.tasks.language.recipes import LanguageModelingConfig
from manyheads.tasks.language.task import _objective
imported, used = time.perf_counter(), time.process_time()
out = Path(sys.argv[2])
config = LanguageModelingConfig(vocabulary=512, share=0.00001)
kept = out / "state" / "tokens"
splits = TextSource(data=sys.argv[1], share=config.share, cache_folder=kept, seed=config.training.seed).read()
task = _objective(config, Run("language-modeling", out), splits, prepare(threads=1))
batches = task.batches(0)
place = int(float(sys.argv[3]) * (len(batches) - 1))
batches[place]
ready = time.perf_counter()
print(json.dumps({"batch": place, "batches": len(batches), "import_seconds": imported - began,
                  "seconds": ready - imported,
                  "cpu_seconds": time.process_time() - used, "tokens": len(task.train)}))
"""


def generate(folder: Path, size: float) -> None:
    """Shards of a block of text that comes in another order in each, every row with its number."""
    import pyarrow

    folder.mkdir(parents=True, exist_ok=True)
    block = list(_rows(20_000_000))
    for shard in range(round(size / SHARD)):
        form = FORMS[shard % len(FORMS)]
        file = folder / f"part-{shard:05}.{form}"
        if file.exists():
            continue
        temporary = file.with_name(f".{file.name}")
        out = pyarrow.CompressedOutputStream(str(temporary), "zstd") if form.endswith("zst") else temporary.open("wb")
        dice, number = np.random.default_rng(shard), 0
        with out:
            while temporary.stat().st_size < SHARD:
                for row in dice.permutation(len(block)):
                    text = f"{shard} {number} {block[row]}"
                    out.write((f"{text}\n" if form == "txt" else json.dumps({"text": text}) + "\n").encode())
                    number += 1
                    if number % 1000 == 0 and temporary.stat().st_size >= SHARD:
                        break
        temporary.rename(file)


def _rows(size: int) -> Iterator[str]:
    """Texts of 50 to 800 words, of 20,000 different ones."""
    dice = np.random.default_rng(0)
    letters = list("etaoinshrdlucmfwypvbgkjqxz")
    words = np.array(["".join(dice.choice(letters, size=n)) for n in dice.integers(2, 11, 20_000)], dtype=object)
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    while size > 0:
        places = np.searchsorted(chances, dice.random(int(dice.integers(50, 800))) * chances[-1])
        text = " ".join(words[np.minimum(places, len(words) - 1)])
        size -= len(text)
        yield text


def watched(command: list[str], log: Path, out: Path, step: int) -> float:
    """Run until training reports `step`, then stop. Return the seconds from the start to the first reported step.

    Every ten seconds, the maximum memory since the last entry is appended to `log`, in MiB.
    """
    began, peaks, told = time.perf_counter(), dict.fromkeys(MEMORY, 0.0), 0.0
    first, before = 0.0, at(out)
    with log.open("a", encoding="utf-8") as lines, subprocess.Popen(command) as process:
        while True:
            ended, seconds = process.poll() is not None, time.perf_counter() - began
            for name, held in _held(process.pid).items():
                peaks[name] = max(peaks[name], held)
            if ended or seconds - told >= 10:
                lines.write(json.dumps({"seconds": round(seconds, 1), **peaks}) + "\n")
                lines.flush()
                peaks, told = dict.fromkeys(MEMORY, 0.0), seconds
            if ended:
                break
            first = first or (seconds if at(out) > before else 0.0)
            if at(out) >= step:
                process.terminate()
                process.wait()
            time.sleep(0.1)
    if process.returncode not in (0, 130):
        raise SystemExit(f"{' '.join(command)}: {process.returncode}")
    return first


def at(out: Path) -> int:
    """The last step that a run has told."""
    return max((entry.get("step", 0) for entry in read_metrics(out / "metrics.jsonl")), default=0)


def _held(process: int) -> dict[str, float]:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return {}
    return {
        name: round(int(match[1]) / 1024, 1) for name in MEMORY if (match := re.search(rf"{name}:\s+(\d+)", status))
    }


def timeline(log: Path) -> list[dict[str, float]]:
    """Return the lines of `log`, with seconds that continue from one run to the next."""
    before, last, lines = 0.0, 0.0, []
    for line in map(json.loads, log.read_text().splitlines()):
        if line["seconds"] < last:
            before += last
        last = line["seconds"]
        lines.append({**line, "seconds": round(before + last, 1)})
    return lines


def measure(folder: Path, gigabytes: float, threads: int) -> dict[str, Any]:
    data, out = folder / "corpus", folder / "run"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    generate(data, gigabytes * 1e9)
    files = list(data.iterdir())
    train = [sys.executable, "-m", "manyheads", "train", *RECIPE, f"data={data}", "threads=1", "--out", str(out)]
    log = folder / "memory.jsonl"
    resume = [*train, "--resume"]
    if at(out) < STEPS // 2:
        watched(resume if (out / "state").exists() else train, log, out, STEPS // 2)
    resumed_after = at(out)
    to_a_step = watched(resume, log, out, STEPS)
    restarts = []
    for place in (0, 0.5, 1):
        command = [sys.executable, "-c", FIRST_BATCH, str(data), str(out), str(place)]
        restarts.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    tokens, held = restarts[0]["tokens"], timeline(log)
    return {
        "bench": ["large-corpus"],
        "disk_bytes": sum(file.stat().st_size for file in files), "files": len(files),
        "text_bytes": sum(
            facts["bytes"]
            for file in (out / "state" / "tokens").glob("*.facts")
            for facts in json.loads(file.read_text())
        ),
        "tokens": tokens, "peak_mib": {name: max(line[name] for line in held) for name in MEMORY}, "memory": held,
        "seconds": held[-1]["seconds"], "tokenizer_threads": threads,
        "resumed": {"after_step": resumed_after, "seconds_to_the_next_step": to_a_step},
        "recipe": RECIPE, "restarts": restarts, "hardware": hardware(), "commit": commit(),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tell(measure(options.folder, options.gigabytes, options.threads), options.out)
