"""Checkpoints on disk, written atomically in the background.

    state/checkpoint-00000500.safetensors   model.*, optimizer.*, rng.*, loop.*
    state/checkpoint-00000500.json          counters, config and the SHA-256 of every required file; written last
    state/weights-00000500.safetensors      weights that are averaged at the end, or the best weights by validation

Every file is replaced atomically. A checkpoint is valid once its JSON file exists. The last two complete checkpoints
are kept, together with the weights files that they name; older files are removed. No file contains pickled data.

A thread writes the files from copies of the tensors. The training loop waits only until the tensors are copied in
memory.

The model of an unfinished run can be used, too: it has the best or the last weights of the run's last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyheads.core.low_rank import merged
from manyheads.core.tensor_file import write_tensors
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject, parse_json, regular, replacing, write_json
from manyheads.training.run_directory import MODEL, resume_command, run_status
from manyheads.versions import upgrade

logger = logging.getLogger(__name__)

MAX_CHECKPOINTS = 2


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    with replacing(path) as temporary, temporary.open("wb") as file:
        return write_tensors(file, tensors)


class Checkpoints:
    """Reader and writer of the checkpoints of one run. Logs a warning for each checkpoint that cannot be used.

    At most one checkpoint and one set of weights wait in the queue: `save` and `snapshot` block until the previous one
    is written. On exit, the context manager waits for all pending writes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files_by_step: dict[int, set[str]] = {}  # names of the files that the checkpoint of each step needs
        self._digests: dict[str, str] = {}  # SHA-256 of each weights file, by file name
        self._last_step = -1  # step of the last checkpoint, whose files may not be on disk yet
        # The CPU copies of the tensors are reused for every checkpoint, because allocating memory is slow.
        self._copies: dict[str, dict[str, Tensor]] = {"checkpoint": {}, "weights": {}}
        self._writing: dict[str, Future[None]] = {}
        # There is one thread, so that files are written in the order of the calls.
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def snapshot(self, step: int, weights: Mapping[str, Tensor]) -> JsonObject:
        """Write the weights of a step into a separate file, and return the step and the name of the file.

        The caller must pass the result to the next call of `save`, so that the file is not removed.
        """
        file = f"weights-{step:08d}.safetensors"

        def write(copies: Mapping[str, Tensor]) -> None:
            self._digests[file] = _write(self.directory / file, copies)

        self._in_background("weights", weights, write)
        return {"step": step, "file": file}

    def save(
        self, step: int, tensors: Mapping[str, Tensor], content: JsonMapping, snapshots: list[JsonObject],
        sync_log: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Write the checkpoint of a step, then remove older files that no remaining checkpoint needs.

        A step that already has a checkpoint is not written again. `sync_log` is called before the JSON file is written.
        """
        if step == self._last_step:
            return

        def write(copies: Mapping[str, Tensor]) -> None:
            name = f"checkpoint-{step:08d}"
            files = {s["file"]: self._digests[s["file"]] for s in snapshots}
            files[f"{name}.safetensors"] = _write(self.directory / f"{name}.safetensors", copies)
            sync_log()
            body = {"step": step, "files": files, **content}
            write_json(self.directory / f"{name}.json", {"sha256": _digest(body), "content": body})
            self._files_by_step[step] = {f"{name}.json", *files}
            self._remove_superfluous()

        self._in_background("checkpoint", tensors, write)
        self._last_step = step

    def wait(self) -> None:
        """Wait until all pending files are written. Raises the error of a failed write."""
        for writing in self._writing.values():
            writing.result()

    def check(self) -> None:
        """Raise the error of a failed write, if there is one. Does not wait for pending writes."""
        for writing in self._writing.values():
            if writing.done():
                writing.result()

    def _in_background(
        self, kind: str, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], None]
    ) -> None:
        if kind in self._writing:
            self._writing[kind].result()
        copies = self._copies[kind] = {name: _cpu_copy(t, self._copies[kind].get(name)) for name, t in tensors.items()}

        def run() -> None:
            # After a failed write, write nothing more: a checkpoint must not become valid if one of its files is
            # missing.
            if self._failed:
                return
            self._failed = True
            write(copies)
            self._failed = False

        self._writing[kind] = self._thread.submit(run)

    def _remove_superfluous(self) -> None:
        self._files_by_step = dict(sorted(self._files_by_step.items())[-MAX_CHECKPOINTS:])
        needed = set().union(*self._files_by_step.values())
        for pattern in ("checkpoint-*", "weights-*"):
            for path in self.directory.glob(pattern):
                if path.name not in needed:
                    path.unlink()

    def latest(self) -> tuple[JsonObject, dict[str, Tensor]] | None:
        """Return the JSON content and the tensors of the last complete checkpoint, or None if there is no checkpoint.

        If every checkpoint lacks some weights files, the last checkpoint whose other files are intact is returned. The
        list `files` in its JSON content then omits the missing files.
        """
        paths = sorted(self.directory.glob("checkpoint-*.json"), reverse=True)
        complete: list[tuple[Path, JsonObject]] = []
        incomplete: list[tuple[Path, JsonObject]] = []
        for path in paths:
            try:
                content, errors = self._verify(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning(f"{path}: cannot use this checkpoint: {error}")
                continue
            for reason in errors:
                logger.warning(f"{path}: this checkpoint is incomplete: {reason}")
            (incomplete if errors else complete).append((path, content))
        if not paths:
            return None
        usable = complete or incomplete
        if not usable:
            raise UserError(f"{self.directory}: no usable checkpoint found; start again in another directory (--out)")
        for path, content in usable:
            self._files_by_step[content["step"]] = {path.name, *content["files"]}
            self._digests |= content["files"]
        path, content = usable[0]
        self._last_step = content["step"]
        if not complete:
            logger.warning(f"no complete checkpoint found: using step {self._last_step} without the missing weights")
        elif path != paths[0]:
            logger.warning(f"using the previous good checkpoint of step {self._last_step}")
        try:
            return content, load_file(path.with_suffix(".safetensors"))
        # The file has the expected SHA-256, so it was not damaged after it was written.
        except SafetensorError as error:
            raise UserError(f"{path.with_suffix('.safetensors')}: not a safetensors file ({error})") from error

    def _verify(self, path: Path) -> tuple[JsonObject, list[Exception]]:
        """Return the JSON content of a checkpoint, and a list of the errors in its weights files.

        The list `files` in the content omits weights files that are missing or damaged. Raises an error if another
        part of the checkpoint is damaged.
        """
        saved = parse_json(regular(path).read_bytes())
        content: JsonObject = saved["content"]
        if _digest(content) != saved["sha256"]:
            raise UserError("the content does not match its SHA-256")
        if type(content["step"]) is not int or not all(file == Path(file).name != "" for file in content["files"]):
            raise UserError("the step is not an integer, or a file lies outside the directory")
        if path.with_suffix(".safetensors").name not in content["files"]:
            raise UserError("the list of files does not contain the file with the tensors of this checkpoint")
        errors: list[Exception] = []
        for file, expected in list(content["files"].items()):
            try:
                with open(regular(self.directory / file), "rb") as opened:
                    if hashlib.file_digest(opened, "sha256").hexdigest() != expected:
                        raise UserError(f"{file} is truncated or altered: its SHA-256 does not match")
            except (OSError, ValueError) as error:
                if file == path.with_suffix(".safetensors").name:
                    raise
                del content["files"][file]
                errors.append(error)
        return upgrade(content), errors


@torch.no_grad()
def _cpu_copy(tensor: Tensor, copy: Tensor | None) -> Tensor:
    """Return a copy of the tensor on the CPU. An earlier copy with the same shape and dtype is overwritten."""
    if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor)


def _digest(content: JsonMapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def mean_tensors(files: list[Path], last: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of several sets of weights.

    The mean is computed in float64. Integer tensors, such as counters, are taken from `last`.

    files  safetensors files with one set of weights each
    last   last set of weights, which is part of the mean
    """
    loaded = [load_file(file) for file in files]  # memory-mapped
    return {
        name: torch.stack([*(w[name].to(tensor.device).double() for w in loaded), tensor.double()]).mean(0).to(tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in last.items()
    }


def model_files(path: Path) -> Path:
    """Return the model directory of a run in `path`: `state/model` if the run is unfinished, otherwise `path`."""
    files = path / "state" / MODEL
    return files if (files / "config.json").is_file() and run_status(path) == "unfinished" else path


def read_unfinished(path: Path) -> tuple[Path, dict[str, Tensor], str] | None:
    """Return the model directory of an unfinished run, its weights by name, and a description of these weights.

    The weights are the best ones by `training.metric`. If the run has no metric, they are the moving average, or the
    last weights if the run has no moving average. Returns None if `path` is not an unfinished run.
    """
    files = model_files(path)
    checkpoint = None if files == path else Checkpoints(path / "state").latest()
    if checkpoint is None:
        return None
    content, tensors = checkpoint
    try:  # The checkpoint may come from an untrusted source.
        step, best = content["step"], content["counters"]["best"]
        if best and best["file"] in content["files"]:
            name, step, weights = "best", int(best["step"]), load_file(path / "state" / best["file"])
        else:
            prefix = "ema." if any(key.startswith("ema.") for key in tensors) else "model."
            name = {"ema.": "averaged", "model.": "last"}[prefix]
            weights = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        total = _total_steps(content)
    except (OSError, SafetensorError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path}: cannot use the checkpoint: {error}; resume with: {resume_command(path)}") from None
    return files, merged(weights), (
        f"{path}: using the {name} weights, step {step:,}{f' of {total:,}' if total else ''}; the run is unfinished: "
        f"resume with: {resume_command(path)}"
    )  # fmt: skip


def _total_steps(content: JsonObject) -> int | None:
    config = content["config"]
    epochs = config["epochs"] and config["epochs"] * math.ceil(content["batches"] / config["accumulate"])
    return min((steps for steps in (config["steps"], epochs) if steps), default=None)
