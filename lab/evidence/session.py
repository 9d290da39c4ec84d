"""Continue the listed runs for some minutes, each as a `manyheads train`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from lab import results_keep
from lab.evidence.listed import Listed
from lab.evidence.standing import MINILM, Standing, say, step
from lab.records import run_of
from manyheads.training.run_log import read_metrics

ROOT = Path(__file__).parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 45  # seconds to write the checkpoint after the first signal; the second one aborts
WORTH = 0.1  # of the minutes: with less time left no other run is begun, as it would not reach its first step


class Stopped(KeyboardInterrupt):
    """A signal has asked this process to stop."""


def carry_on(standing: Standing, minutes: float) -> int:
    """Go down the list until the time is over; returns how many records were kept."""
    standing.runs.mkdir(parents=True, exist_ok=True)
    end, kept = time.monotonic() + 60 * minutes, 0
    left_out: dict[str, list[str]] = {}
    for run in standing.listed:
        if end - time.monotonic() < WORTH * 60 * minutes:
            break
        if standing.state(run) == "kept":
            continue
        reason = standing.about(run) if standing.state(run) == "changed" else standing.obstacle(run)
        if reason is not None:
            left_out.setdefault(reason, []).append(run.name)
            continue
        with standing.alone(run) as lock:
            if lock is not None and (standing.state(run) == "finished" or _session(standing, run, end, lock)):
                kept += _keep(standing, run)
    for reason, names in left_out.items():
        say(f"left out: {', '.join(names)}: {reason}")
    return kept


def side_by_side(count: int, words: Sequence[str]) -> int:
    """Start this command several times, each of which takes other runs; returns the highest exit status."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command, processes = [sys.executable, "-m", "lab.evidence", *words], list[subprocess.Popen[bytes]]()
    try:
        processes += [subprocess.Popen(command, env=environment, start_new_session=True) for _ in range(count)]
        return max(process.wait() for process in processes)
    except Stopped:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        raise


def _session(standing: Standing, run: Listed, end: float, lock: int) -> bool:
    """Train until the end of the time; whether the run is finished."""
    standing.write(run)
    if MINILM in run.train:
        standing.link_minilm()
    words = [word.replace("$DATA", str(standing.data)) for word in run.train]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if standing.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    before, began = step(standing.runs / run.name), _spent(standing.device)
    say(f"{run.name}: {standing.about(run)}, {standing.note(run)['seconds'] / 60:.0f} of about {run.minutes:g} min")
    resume = ["--resume"] if (standing.runs / run.name / "state").is_dir() else []
    process: subprocess.Popen[bytes] | None = None
    asked = False
    try:
        with _deferring_signals():  # a signal that comes now finds the process known
            process = subprocess.Popen(
                [sys.executable, "-m", *run.program, *words, "--out", run.name, *resume],
                cwd=standing.runs, env=environment, start_new_session=True,  # Ctrl-C reaches it once, by us
                pass_fds=[lock],
            )  # fmt: skip
        process.wait(max(0.0, end - time.monotonic()))
    except (subprocess.TimeoutExpired, Stopped) as reason:
        asked = True
        if process is not None:
            _end(process)
        if isinstance(reason, Stopped):
            raise
    finally:
        standing.write(run, seconds=standing.note(run)["seconds"] + _spent(standing.device) - began)
    assert process is not None
    if process.returncode == 0:
        standing.write(run, status="finished")
        return True
    after = step(standing.runs / run.name)
    say(f"{run.name}: {after if asked else f'failed with status {process.returncode}; the next one'}")
    if asked and after == before:
        say(f"{run.name}: no further than before: it needs more MINUTES at once")
    return False


def _spent(device: str) -> float:
    """Seconds: on a GPU by the clock, else those of a core that the trainings so far have had."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() if device == "cuda" else usage.ru_utime + usage.ru_stime


def _keep(standing: Standing, run: Listed) -> bool:
    """Its record; of a run that consists of several, theirs. Whether there is one."""
    folder = standing.runs / run.name
    parts = [folder] if (folder / "result.json").exists() else sorted(p.parent for p in folder.glob("*/result.json"))
    if not parts:
        say(f"{folder}: finished without a result.json: --anew {run.name}")
        return False
    note = standing.note(run)
    about = {"claim": run.claim, "run": run.name, "settings": run.settings, "seconds": round(note["seconds"], 1)}
    about |= {"started": note["started"]} if "started" in note else {}
    files = []
    for part in parts:
        name = run.name if part == folder or run.entry.endswith(f"-{part.name}") else f"{run.name}-{part.name}"
        entries = read_metrics(part / "metrics.jsonl")
        curve = [{"step": entry["step"], **entry["validation"]} for entry in entries if "validation" in entry]
        files.append(results_keep.keep(part, name, evidence=about, curve=curve))
        say(f"kept {files[-1]}")
    for name, record in results_keep.kept().items():
        path = results_keep.place(name)
        if run_of(record) == run.name and path not in files:
            path.unlink()
            say(f"removed {path}: no part of {run.name} any more")
    standing.records = [*(r for r in standing.records if r["run"] != run.name), about]
    standing.write(run, status="kept")
    return True


@contextmanager
def _deferring_signals() -> Iterator[None]:
    """Signals wait until the end. By their handlers: a mask is a thread's, and another one would take them."""
    came: list[int] = []
    handlers = {signum: handler for signum in SIGNALS if callable(handler := signal.getsignal(signum))}
    for signum in handlers:
        signal.signal(signum, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for number in came:
            signal.raise_signal(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    _ignore_signals()  # it ends as it is
    for signaled, patience in ((signal.SIGTERM, GRACE), (signal.SIGTERM, 10), (signal.SIGKILL, None)):
        process.send_signal(signaled)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue


def _ignore_signals() -> None:
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def stop(number: int, _: FrameType | None) -> None:
    _ignore_signals()
    raise Stopped(signal.Signals(number).name)
