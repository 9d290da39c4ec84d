"""Training in bf16: our training loop on the product's own tasks, next to a loop around a model of transformers.

Ours is `manyheads.training.loop.train` with ready batches of random data; the speed is read from the log of the run.
The other side has the same weights and batches, autocast, PyTorch's fused AdamW and no wait for the device. Each side
is measured as it is, and compiled.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import train_translation
from benchmarks.ceilings import Ceilings
from benchmarks.gpu import tasks
from benchmarks.gpu.session import Session, smaller
from benchmarks.peers import transformers as hugging_face
from benchmarks.training import LOSS, Batch, least
from manyheads.core.runtime import ComputeConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import train

WINDOW = 5  # steps of a figure
SKIPPED = 2  # figures at the beginning: kernels are chosen and compiled, memory is taken
FIGURES = 6
SHARE = 0.6  # of the time that is left, which one engine may take
COMPILING = 30.0  # seconds that compiling a model for training takes at least


@dataclass(frozen=True)
class Case:
    """A model to train.

    sizes   batches to try: the largest that fits into memory counts
    task    (size, compute) -> the product's task, with the model on the device
    auto    Auto class of transformers
    inputs  batch of the task -> the arguments of the other model
    units   batch of the task -> units that it counts as
    limit   peak rates -> units a second if products alone took time
    """

    work: str
    name: str
    unit: str
    sizes: Sequence[int]
    task: Callable[[int, ComputeConfig], Any]
    auto: str
    inputs: Callable[[Any], Mapping[str, Tensor]]
    units: Callable[[Any], float]
    limit: Callable[[Ceilings], float]


def measure(session: Session, case: Case) -> None:
    where = {"work": case.work, "case": case.name, "unit": case.unit}
    float32 = session.compute("float32")
    reference = _loss(case.task(case.sizes[-1], float32), float32)
    # the last is the first to be left out
    for engine, compiled in (("ours", False), ("ours", True), ("transformers", True), ("transformers", False)):

        def sized(size: int, engine: str = engine, compiled: bool = compiled) -> Mapping[str, Any]:
            side = _ours if engine == "ours" else _theirs
            figures, error = side(session, case, size, compiled, reference)
            return {"figures": figures, "error": error, "error_is": LOSS, "limit": case.limit(session.rates)}

        name, seconds = (f"{engine} bf16 compiled", COMPILING) if compiled else (f"{engine} bf16", 10.0)
        session.attempt(where, name, partial(smaller, case.sizes, sized), seconds)


def _loss(task: Any, compute: ComputeConfig) -> float:
    """The mean loss of the first batch, without dropout."""
    task.model.eval()
    with torch.no_grad(), compute.autocast():
        return float(task.loss(task.batches(0)[0]).mean)


def _ours(session: Session, case: Case, size: int, compiled: bool, reference: float) -> tuple[list[float], float]:
    error = abs(_loss(case.task(case.sizes[-1], session.compute()), session.compute()) - reference)
    compute = session.compute(compile=compiled)
    task = case.task(size, compute)
    batch = task.batches(0)[0]
    figures: list[float] = []
    end = time.monotonic() + SHARE * session.left

    def watch(entry: dict[str, Any]) -> bool:
        if (rate := entry.get(f"{task.unit}_per_second")) is not None:
            figures.append(rate * case.units(batch) / batch.items)
        return not _enough(session, figures, end)

    config = TrainingConfig(
        steps=10**6, optimizer="adamw", schedule="constant", learning_rate=1e-4, warmup=0,
        log_every=2 if session.tiny else WINDOW, checkpoint_every=10**9, validate_every=10**9,
    )  # fmt: skip
    with _folder() as folder:
        train(task, config, Path(folder, "run"), compute=compute, callbacks=[watch])
    return _kept(figures), error


def _theirs(session: Session, case: Case, size: int, compiled: bool, reference: float) -> tuple[list[float], float]:
    cpu = replace(session.compute(), device="cpu")
    task = case.task(case.sizes[-1], cpu)
    other = hugging_face.twin(task.model, case.auto).to(session.device)
    forward = torch.compile(other) if compiled else other

    def loss(batch: Any, model: Any) -> Tensor:
        with session.compute().autocast():
            given = {name: tensor.to(session.device, non_blocking=True) for name, tensor in batch.items()}
            value: Tensor = model(**given).loss
            return value

    other.eval()
    with torch.no_grad():
        error = abs(float(loss(_pinned(session, case, task.batches(0)[0]), other)) - reference)
    other.train()
    batches = case.task(size, cpu).batches(0)
    ready = [(_pinned(session, case, batch), case.units(batch)) for batch in map(batches.__getitem__, range(8))]
    adam = torch.optim.AdamW(other.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    turns, figures, end = count(), list[float](), time.monotonic() + SHARE * session.left
    while not _enough(session, figures, end):
        began, done = time.perf_counter(), 0.0
        for _ in range(2 if session.tiny else WINDOW):
            batch, units = ready[next(turns) % len(ready)]
            loss(batch, forward).backward()
            adam.step()
            adam.zero_grad()
            done += units
        session.wait()
        figures.append(done / (time.perf_counter() - began))
    return _kept(figures), error


def _kept(figures: list[float]) -> list[float]:
    """Return the figures without those at the beginning, which contain compilation."""
    assert len(figures) > SKIPPED, "the time was over before the first figure that counts"
    return figures[SKIPPED:]


def _enough(session: Session, figures: list[float], end: float) -> bool:
    """Return True if there are enough figures, or a few at the end of the time of one engine."""
    some = len(figures) > SKIPPED and time.monotonic() > end
    return some or len(figures) == SKIPPED + FIGURES or session.left < 1


def _pinned(session: Session, case: Case, batch: Any) -> dict[str, Tensor]:
    """The arguments of the other model, in memory from which a GPU copies at full speed."""
    inputs = {name: tensor.contiguous() for name, tensor in case.inputs(batch).items()}
    return {name: tensor.pin_memory() for name, tensor in inputs.items()} if session.device == "cuda" else inputs


def _folder() -> Any:
    """Return a folder for the checkpoints, in memory if it has room."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 2**33
    return tempfile.TemporaryDirectory(dir=memory if roomy else None)


def _peak(case: Batch, rates: Ceilings) -> float:
    return case.items / least(case, "bf16", rates)


def gpt2(session: Session) -> None:
    preset, length, sizes = ("gpt2/nano", 16, [2, 1]) if session.tiny else ("gpt2/124m", 1024, [32, 16, 8])
    measure(session, Case(
        "train-gpt2", f"{sizes[0]} x {length:,}", "tokens/s", sizes, partial(_language, preset, length),
        "AutoModelForCausalLM", lambda b: {"input_ids": b.read, "labels": b.write, "shift_labels": b.write},
        lambda b: b.items, partial(_peak, Batch(preset, 1, length)),
    ))  # fmt: skip


def _language(preset: str, length: int, rows: int, compute: ComputeConfig) -> Any:
    return tasks.language(preset, rows, length, compute)


def bert(session: Session) -> None:
    preset, length, sizes = ("bert/tiny", 16, [2, 1]) if session.tiny else ("bert/base-uncased", 512, [64, 32, 16])

    def inputs(b: Any) -> Mapping[str, Tensor]:
        labels = torch.full((b.ids.numel(),), -100).index_copy(0, b.at, b.answers).view_as(b.ids)
        return {"input_ids": b.ids, "attention_mask": torch.ones_like(b.ids), "labels": labels}

    measure(session, Case(
        "train-bert", f"{sizes[0]} x {length:,}", "tokens/s", sizes, partial(_words, preset, length),
        "AutoModelForMaskedLM", inputs, lambda b: b.ids.numel(), partial(_peak, Batch(preset, 1, length)),
    ))  # fmt: skip


def _words(preset: str, length: int, rows: int, compute: ComputeConfig) -> Any:
    return tasks.words(preset, rows, length, compute)


def vit(session: Session) -> None:
    preset, sizes = ("vit/7-28", [2, 1]) if session.tiny else ("vit/b16", [256, 128, 64])
    measure(session, Case(
        "train-vit", f"{sizes[0]} images", "images/s", sizes, partial(tasks.images, preset),
        "AutoModelForImageClassification",
        lambda b: {"pixel_values": torch.from_numpy(b.images), "labels": torch.from_numpy(b.labels)},
        lambda b: b.items, partial(_peak, Batch(preset, 1)),
    ))  # fmt: skip


def translation(session: Session) -> None:
    of, sizes = ((tasks.sizes("transformer/tiny", 64, 50), [64, 50]) if session.tiny
                 else (tasks.sizes("transformer/base", 2**15, 37_000), [24_576, 12_288]))  # fmt: skip

    def inputs(b: Any) -> Mapping[str, Tensor]:
        seen = torch.arange(b.source.shape[1]) < b.source_lengths[:, None]
        labels = b.write.masked_fill(b.write == tasks.PAD, -100)
        return {"input_ids": b.source, "attention_mask": seen.long(), "decoder_input_ids": b.read, "labels": labels}

    def limit(rates: Ceilings) -> float:
        return train_translation.amount(of) / train_translation.least(of, "bf16", rates)

    measure(session, Case(
        "train-translation", f"batches of {sizes[0]:,} tokens", "tokens/s", sizes, partial(tasks.translation, of),
        "AutoModelForSeq2SeqLM", inputs, lambda b: b.items, limit,
    ))  # fmt: skip
