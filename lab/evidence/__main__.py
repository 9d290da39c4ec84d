"""Continue the runs that support the documented claims, for some minutes: `python -m lab.evidence`.

`runs.toml` lists them. Each is a training in a directory below `--runs`, so that a run that starts from
another one can name it as the list does. At the end of the time, the run is stopped, writes its checkpoint, and the
next call resumes it. Finished runs are recorded in `lab/results/runs/`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.evidence.listed import LIST, read_list
from lab.evidence.session import ROOT, SIGNALS, Stopped, carry_on, side_by_side, stop
from lab.evidence.standing import Standing, say, table
from manyheads.cli.parser import POSITIVE, whole
from manyheads.cli.reporting import BROKEN_PIPE


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.evidence", description="continue the listed runs")
    parser.add_argument("--minutes", type=POSITIVE, default=9, metavar="M",
                        help="how long (default: 9)")  # fmt: skip
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "runs" / "evidence", metavar="FOLDER", help="where they lie"
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("MANYHEADS_DATA"), metavar="FOLDER",
                        help="has a folder for each data set (default: MANYHEADS_DATA)")  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: what needs a GPU comes first")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these names or claims")
    parser.add_argument("--at-once", type=whole(1, 64), default=1, metavar="N", help="runs side by side (default: 1)")
    parser.add_argument("--anew", nargs="+", default=[], metavar="NAME", help="delete these runs and restart them")
    parser.add_argument("--list", action="store_true", help="print what is listed and how it stands; train nothing")
    parser.add_argument("--file", type=Path, default=LIST, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        with _stopping_by_signals():
            status = _carry_out(options)
            sys.stdout.flush()
            return status
    except Stopped as stopped:
        say(f"{stopped}: the same command goes on")
        return 130
    except BrokenPipeError:  # the reader of the list closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (ValueError, OSError) as error:
        say(str(error))
        return 2


def _carry_out(options: argparse.Namespace) -> int:
    claims, listed = read_list(options.file)
    names = {name for run in listed for name in (run.name, run.entry)}
    unknown = [word for word in options.only if word not in {*names, *claims}]
    unknown += [word for word in options.anew if word not in names]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: no run of {options.file.name}")
    chosen = [run for run in listed if not options.only or {run.name, run.entry, run.claim} & {*options.only}]
    data = None if options.data is None else options.data.resolve()
    standing = Standing(chosen, options.runs.resolve(), data, options.device)
    if options.list:
        print(table(claims, standing))
        return 0
    if options.device == "cuda":
        import torch  # which the others need not wait for

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here")
    for run in listed:
        if {run.name, run.entry} & {*options.anew}:
            standing.anew(run)
    if options.at_once > 1:
        words = ["--minutes", options.minutes, "--runs", standing.runs, "--device", options.device]
        words += ["--data", data] * (data is not None) + ["--file", options.file.resolve()]
        words += ["--only", *options.only] * bool(options.only)
        return side_by_side(options.at_once, [str(word) for word in words])
    kept = carry_on(standing, options.minutes)
    left = sum(standing.state(run) != "kept" for run in listed)
    say(f"{kept} kept, {left} left" + (": `make results` shows them on the pages" if kept else ""))
    return 0


@contextmanager
def _stopping_by_signals() -> Iterator[None]:
    """Convert the first signal to `Stopped` and ignore others, so that the current operation ends normally."""
    former = {signum: signal.getsignal(signum) for signum in SIGNALS}
    for signum, handler in former.items():
        if handler != signal.SIG_IGN:  # as nohup has it
            signal.signal(signum, stop)
    try:
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, handler)


if __name__ == "__main__":
    raise SystemExit(main())
