"""The training loop: one straight line from batches to a model directory."""

import errno
import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from manyheads.core.block import trained_stacks
from manyheads.core.runtime import Route, keeping_memory
from manyheads.errors import UserError
from manyheads.files import WriteError, read_json, write_json
from manyheads.training.checkpoints import Checkpoints
from manyheads.training.config import TrainingConfig
from manyheads.training.faults import first_bad, skipped, told_memory
from manyheads.training.feeding import Group, feed
from manyheads.training.interrupt import Interrupted, Signals
from manyheads.training.loss import in_tokens
from manyheads.training.optimisers import optimiser as make_optimiser
from manyheads.training.progress import Display, Metrics, draw_losses, say
from manyheads.training.ranks import Ranks, here
from manyheads.training.run_directory import COMMAND, FINISHED, GO_ON, KEPT, claimed, remove_leftovers
from manyheads.training.run_directory import resume_command as own_command
from manyheads.training.schedules import schedule, too_long_warmup
from manyheads.training.selection import final_weights, judge, snapshot, validated, watched
from manyheads.training.spread import Spread, spread, unsharded
from manyheads.training.state import Counters, capture, follow, restore, seed_all, seed_step, weights
from manyheads.training.task import Task


@dataclass(frozen=True)
class Summary:
    """How a run, or a session of it, ended. `metrics` are those of `Task.validate` on the final weights."""

    status: Literal["finished", "stopped"]
    reason: str
    step: int
    epoch: int
    tokens: int  # target tokens seen, in all sessions
    seconds: float  # wall time, in all sessions
    weights: str  # which weights the model directory holds
    metrics: dict[str, float]
    skipped: int = 0  # steps that were left out, as they were not finite

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_json(path, GO_ON)
        if not isinstance(values, dict) or {"skipped", *values} != {f.name for f in fields(cls)}:
            raise UserError(f"{path}: not how a run ended; {GO_ON}")
        return cls(**values)


def train(
    task: Task,
    config: TrainingConfig,
    out: Path,
    *,
    route: Route,
    resume: bool = False,
    max_minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    resume_command: str | None = None,
    flops: float | None = None,
) -> Summary:
    """Train `task.model` until a budget of `config` is reached, then write the model directory into `out`.

    A session ends early, with a checkpoint, after `max_minutes` (status "stopped") or on Ctrl-C (`Interrupted`). A
    resumed run computes bit for bit what an uninterrupted one would (same machine, torch, threads and route).
    `settings` is what else defines the run (JSON); a resume with other settings or another config is refused.
    `flops` are those of training on one of what the task counts; with them, progress tells the share of the peak.

    The final weights: the mean of the last `average` snapshots, or the moving average by `ema`; if `config.metric` is
    given, the best weights by validation instead, unless the mean does better. Without any of these, the last ones.

    Under `torchrun` the rows of every micro-batch are spread over the processes (`ranks.py`), and what is computed is
    what one process computes, but for dropout, of which each has its own. Any number of them may go on with the run.
    """
    batches = len(task.batches(0))
    if not batches:
        raise UserError("there are no training batches: the training data are empty")
    resume_command = resume_command or f"the same command with --out {out} --resume"
    ranks = here()
    claim = claimed(out, resume=resume) if ranks.first else nullcontext()
    with claim, _lost_disk_as_one_line(out), route.settings(), keeping_memory(sparing=config.shard) as tidy:
        if ranks.first:
            remove_leftovers(out)
        identity: dict[str, Any] = {
            "config": config.as_dict(),
            "settings": json.loads(json.dumps(dict(settings or {}))),
            "batches": batches,
            "environment": {**route.describe(), **ranks.shown},
        }
        return _train(task, config, out, route, ranks, resume, max_minutes, identity, resume_command, flops, tidy)


def _train(
    task: Task, config: TrainingConfig, out: Path, route: Route, ranks: Ranks, resume: bool,
    max_minutes: float | None, identity: dict[str, Any], resume_command: str, flops: float | None,
    tidy: Callable[[], None],
) -> Summary:  # fmt: skip
    """`train` in a directory that is this run's. `identity`: what another session must have in common with it."""
    checkpoints = Checkpoints(out / "state", say)
    model = task.model
    _checkpoint(model, config.checkpointing)
    over = spread(model, ranks, route, shard=config.shard)
    optimiser = make_optimiser(model, config)
    parameters = [p for p in model.parameters() if p.requires_grad]
    device = parameters[0].device
    wide = torch.float32 if device.type == "mps" else torch.float64
    window = torch.zeros(2, dtype=wide, device=device)  # loss, and how many are right, since the last log entry
    steps_per_epoch = math.ceil(identity["batches"] / config.accumulate)
    learning_rate = schedule(config, steps_per_epoch)
    moving = {} if config.ema is None else {name: tensor.clone() for name, tensor in weights(model).items()}
    counters = Counters()
    checkpoint = checkpoints.latest() if resume else None
    _refuse_other_files(out, checkpoint, ranks)
    if checkpoint:
        _refuse_another_run(out, config, identity, checkpoint[0])
    done = out / "state" / FINISHED
    if done.exists() and (checkpoint is None or checkpoint[0]["config"] == identity["config"]):
        say(f"{out}: this run is finished; nothing to resume")
        return Summary.read(done)
    ranks.wait()
    if ranks.first:
        write_json(out / "state" / COMMAND, resume_command)  # only now: one that is refused leaves what was there
        done.unlink(missing_ok=True)  # a budget was raised: the run goes on
    if checkpoint:
        content, tensors = checkpoint
        counters = restore(model, optimiser, window, moving, tensors, content)
        for lost in counters.forget_lost(content["files"]):
            say(f"warning: {lost}; the run may end with other weights than without this damage")
        _warn_of_another_environment(content["environment"], identity["environment"])
        say(f"{out}: resuming after step {counters.step:,}")
    else:
        if resume:
            say(f"{out}: nothing to resume, starting from the beginning")
        if ranks.first and (outlasting := too_long_warmup(config, steps_per_epoch)):
            say(f"warning: {outlasting}")
        if config.metric is not None:
            watched(config, validated(task, over, ranks))  # an unknown metric is an error now, not after an epoch
        seed_all(config.seed)

    started, seconds_before = time.monotonic(), counters.seconds
    peak = (lambda: ranks.world * route.products_per_second() / flops) if flops else None
    groups = feed(task, counters.epoch, counters.index, config.accumulate, ranks)
    with (
        Signals() as signals,
        Metrics(out, counters.step, counters.validated) if ranks.first else nullcontext() as metrics,
        checkpoints,
        Display(task.unit, peak) as display,
        closing(groups),
    ):

        def log(entry: dict[str, Any]) -> None:
            if metrics is not None:
                metrics.log(counters.step, entry)

        def save() -> None:
            tensors, content = capture(model, optimiser, counters, window, moving)
            tensors = over.whole(tensors)
            if metrics is not None:
                needed = counters.needed_files()
                checkpoints.save(counters.step, tensors, {**identity, **content}, needed, metrics.sync)

        def save_for_good() -> None:
            save()
            checkpoints.wait()
            ranks.wait()

        save()
        model.train()
        logged_at, logged_tokens, waited = time.monotonic(), counters.tokens, 0.0
        while True:
            session, received = ranks.largest(time.monotonic() - started, signals.received or 0)
            counters.seconds = seconds_before + session
            checkpoints.check()
            if received or (max_minutes is not None and session >= max_minutes * 60):
                save_for_good()
                if received:
                    name = signal.Signals(int(received)).name
                    raise Interrupted(
                        f"{name} after step {counters.step:,}; the checkpoint is written; resume with: {resume_command}"
                    )
                reason = f"the time of --max-minutes is over; resume with: {resume_command}"
                return _summary("stopped", reason, counters, "last", {})
            if counters.validated < counters.step and _due(config.validate_every, counters):
                values = validated(task, over, ranks)
                judge(task, config, counters, values, checkpoints, over, ranks)
                log({"epoch": counters.epoch, "validation": values})
                display.note(f"step {counters.step:,}  validation  " + _line(values))
            if config.keep_every is not None and not counters.index and counters.epoch % config.keep_every == 0:
                over.save(partial(task.save, out / KEPT / f"epoch-{counters.epoch}"))
            if ended := _end(config, counters):
                break

            asked = time.monotonic()
            group = next(groups)
            waited += time.monotonic() - asked
            counts = group.counts(ranks)
            if ranks.world > 1:
                seed_step(config.seed, counters.step, ranks.rank)
            buffers = [buffer.clone() for buffer in model.buffers()] if config.skip_nonfinite else []
            losses, seen = _backward(task, group, counts, window, counters.step, over, route, ranks)
            seen = ranks.add_up(seen)
            total_norm = get_total_norm([p.grad for p in parameters if p.grad is not None])
            gradient_norm = unsharded(total_norm)
            finite = math.isfinite((gradient_norm + seen[0]).item())  # the one synchronisation of a step
            if finite:
                if config.clip is not None:
                    clip_grads_with_norm_(parameters, config.clip, total_norm)
                for parameter_group in optimiser.param_groups:
                    parameter_group["lr"] = learning_rate(counters.step + 1)
                optimiser.step()
                if config.ema is not None:
                    follow(moving, model, min(config.ema, (1 + counters.step) / (10 + counters.step)))
                window += seen
                counters.window_tokens += counts[0]
            else:
                if ranks.world > 1:  # once more, to see which rank it comes from
                    optimiser.zero_grad()
                    seed_step(config.seed, counters.step, ranks.rank)
                    losses, _ = _backward(task, group, counts, window, counters.step, over, route, ranks, alone=True)
                bad_tensor = first_bad(model, group.batches, losses, over, ranks)
                display.note(skipped(bad_tensor, counters, config.skip_nonfinite, gradient_norm.item()))
                for buffer, before in zip(model.buffers(), buffers, strict=True):
                    buffer.copy_(before)  # what batch normalisation has seen
            optimiser.zero_grad()
            tidy()

            counters.step += 1
            counters.epoch, counters.index = group.epoch, group.index
            counters.tokens += counts[0]
            if not finite:
                log({"epoch": group.epoch, "skipped": counters.skipped})
            display.step(counters.step, counts[0], _fraction(config, counters, identity["batches"]))
            if finite and counters.step % config.log_every == 0:
                now = time.monotonic()
                display.loss, right = (total / counters.window_tokens for total in window.tolist())
                display.waiting = waited / (now - logged_at)
                log(
                    {
                        "epoch": group.epoch, "loss": display.loss,
                        **({"accuracy": right} if hasattr(task, "right") else {}),
                        "learning_rate": learning_rate(counters.step),
                        "gradient_norm": gradient_norm.item(), "tokens": counters.tokens,
                        "tokens_per_second": round((counters.tokens - logged_tokens) / (now - logged_at), 1),
                        "waiting": round(display.waiting, 4), "seconds": round(seconds_before + now - started, 2),
                    },
                )  # fmt: skip
                window.zero_()
                counters.window_tokens, logged_at, logged_tokens, waited = 0, now, counters.tokens, 0.0
            if config.average > 1 and counters.step % (config.average_every or config.checkpoint_every) == 0:
                counters.snapshots.append(snapshot(task, counters.step, checkpoints, over, ranks))
                del counters.snapshots[: -config.average]
            if counters.step % config.checkpoint_every == 0:
                save()

        save_for_good()
        held, values = final_weights(task, config, counters, moving, out / "state", over, ranks)
        display.note(f"finished ({ended}); {held} weights: " + _line(values))
        display.note(f"saved as {over.save(partial(task.save, out))} in {out}")
        summary = _summary("finished", ended, counters, held, values)
        if ranks.first:
            draw_losses(out, by_epoch=config.validate_every is None)
            write_json(done, asdict(summary))
        if max(ranks.largest(signals.received or 0)):
            raise Interrupted(
                f"interrupted at its end; the model in {out} is complete, this scores it: {resume_command}"
            )
        return summary


def _backward(
    task: Task, group: Group, counts: list[int], window: Tensor, step: int, over: Spread, route: Route, ranks: Ranks,
    alone: bool = False,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """The gradients of a step; the losses of its micro-batches, and what they add to the window. `alone`: those of this
    process's rows only, where the model is not sharded."""
    losses, seen = [], torch.zeros_like(window)
    for batch, counted in zip(group.batches, group.counted, strict=True):
        last = batch is group.batches[-1] and not alone
        with told_memory(step + 1, batch, task.model, ranks), over.accumulating(last=last):
            with route.computing():
                loss = in_tokens(over.compute(task.loss, batch, counted=counted), counts)
            # gradients are means over the ranks
            ((loss if counted else 0.0 * loss) / (counts[0] / ranks.world)).backward()
        losses.append(loss.detach())
        if counted:
            seen[0] += losses[-1]
            seen[1] += getattr(task, "right", 0)
    return losses, seen


def _checkpoint(model: nn.Module, checkpointing: bool) -> None:
    stacks = trained_stacks(model)
    if checkpointing and not stacks:
        raise UserError(
            f"checkpointing=true, but {type(model).__name__} trains no stack of blocks to compute twice: leave it out"
        )
    for stack in stacks:
        stack.checkpointing = checkpointing


@contextmanager
def _lost_disk_as_one_line(out: Path) -> Iterator[None]:
    """Turns the error of a disk that is full or gone, wherever it occurs, into a UserError for the user."""
    full = errno.ENOSPC, errno.EDQUOT
    try:
        yield
    except (WriteError, OSError) as error:
        number = getattr(error.__cause__ or error, "errno", None)
        lost = number in (*full, errno.EIO, errno.ESTALE, errno.EROFS) or not (out / "state").is_dir()
        named = getattr(error, "filename", None)
        elsewhere = isinstance(named, (str, bytes)) and not Path(os.fsdecode(named)).resolve().is_relative_to(
            out.resolve()
        )
        if elsewhere or not (lost or isinstance(error, WriteError)):
            raise
        told = error if isinstance(error, WriteError) else f"{out}: {error.strerror}; what was there is intact"
        remedy = "make room" if number in full else "bring the directory back"
        raise UserError(f"{told}: {remedy} and --resume") from error


def _due(every: int | None, counters: Counters) -> bool:
    return counters.index == 0 if every is None else counters.step % every == 0


def _fraction(config: TrainingConfig, counters: Counters, batches: int) -> float:
    """Of the run that is done, by the budget that is nearest."""
    done = (
        (counters.step, config.steps),
        (counters.epoch + counters.index / batches, config.epochs),
        (counters.seconds / 60, config.minutes),
    )
    return min(1.0, max(amount / budget for amount, budget in done if budget is not None))


def _end(config: TrainingConfig, counters: Counters) -> str | None:
    """Why the run is over, if it is."""
    if config.patience is not None and counters.without_best >= config.patience:
        return f"no better {config.metric} in {_count(config.patience, 'validation')}"
    if config.steps is not None and counters.step >= config.steps:
        return _count(config.steps, "step")
    if config.epochs is not None and counters.epoch >= config.epochs:
        return _count(config.epochs, "epoch")
    if config.minutes is not None and counters.seconds >= config.minutes * 60:
        return _count(config.minutes, "minute")
    return None


def _count(number: float, unit: str) -> str:
    return f"{number:,}".removesuffix(".0") + f" {unit}{'s' * (number != 1)}"


def _summary(
    status: Literal["finished", "stopped"], reason: str, counters: Counters, held: str, values: dict[str, float]
) -> Summary:
    done = counters.step, counters.epoch, counters.tokens, counters.seconds
    return Summary(status, reason, *done, held, values, counters.skipped)


def _line(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _refuse_another_run(out: Path, config: TrainingConfig, now: dict[str, Any], saved: dict[str, Any]) -> None:
    differences = config.differs_from(saved["config"])
    old, new = saved["settings"], now["settings"]
    differences += [f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in {**old, **new} if old.get(k) != new.get(k)]
    if differences:
        raise UserError(
            f"{out} was started with other settings, so this is no resume; its own command is: {own_command(out)}; "
            f"what differs: {'; '.join(differences)}"
        )
    if saved["batches"] != now["batches"]:
        raise UserError(f"{out}: the data have changed: {saved['batches']} batches an epoch, now {now['batches']}")


def _refuse_other_files(out: Path, checkpoint: tuple[dict[str, Any], Any] | None, ranks: Ranks) -> None:
    step = -1 if checkpoint is None else checkpoint[0]["step"]
    least, most = ranks.largest(-step, step)
    if -least != most:
        raise UserError(f"{out}: the processes find different checkpoints there: expected a directory that all share")


def _warn_of_another_environment(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [f"{k}: {saved.get(k)} -> {now.get(k)}" for k in {**saved, **now} if saved.get(k) != now.get(k)]
    if changed:
        say(f"warning: this resume will NOT be bit-exact, the run has been computed otherwise: {'; '.join(changed)}")
