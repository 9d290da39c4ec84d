"""Checkpoints on disk, written atomically in the background.

    state/checkpoint-00000500.safetensors   model.*, optimiser.*, rng.*, loop.*
    state/checkpoint-00000500.json          counters, config and the SHA-256 of every required file; written last
    state/weights-00000500.safetensors      weights for the final mean, or the best weights by validation

Every file is replaced atomically. A checkpoint is valid once its JSON file exists. The last two complete checkpoints
are kept, together with the weights that they name; older files are removed. No file contains pickled data.

A thread writes the files from copies of the tensors. The training loop waits only for the copy in memory.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyheads.core.tensor_file import write_tensors
from manyheads.errors import UserError
from manyheads.files import parse_json, regular, replacing, write_json

logger = logging.getLogger(__name__)

KEPT = 2


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    with replacing(path) as temporary, temporary.open("wb") as file:
        return write_tensors(file, tensors)


class Checkpoints:
    """Checkpoints of one run. Unusable checkpoints are logged as warnings.

    At most one checkpoint and one set of weights wait in the queue; `save` and `snapshot` block while the previous
    write is pending. After a failed write, the next call raises its error, and nothing more is written. On exit, the
    context manager waits for pending writes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._good: dict[int, set[str]] = {}  # step -> files that its checkpoint needs
        self._digests: dict[str, str] = {}  # SHA-256 of each weights file
        self._saved = -1  # last step with a checkpoint, which may still wait in the queue
        # reused, because allocating new memory is slow
        self._copies: dict[str, dict[str, Tensor]] = {"checkpoint": {}, "weights": {}}
        self._writing: dict[str, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # one thread, so that files are written in order
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def snapshot(self, step: int, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the weights of a step next to the checkpoints. The next checkpoint must contain the returned entry."""
        file = f"weights-{step:08d}.safetensors"

        def write(copies: Mapping[str, Tensor]) -> None:
            self._digests[file] = _write(self.directory / file, copies)

        self._in_background("weights", weights, write)
        return {"step": step, "file": file}

    def save(
        self, step: int, tensors: Mapping[str, Tensor], content: Mapping[str, Any], snapshots: list[Any],
        synced: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Write the checkpoint of a step, then remove superfluous files.

        A checkpoint that is already written for this step is not written again. `synced` is called before the JSON file
        is written.
        """
        if step == self._saved:
            return

        def write(copies: Mapping[str, Tensor]) -> None:
            name = f"checkpoint-{step:08d}"
            files = {s["file"]: self._digests[s["file"]] for s in snapshots}
            files[f"{name}.safetensors"] = _write(self.directory / f"{name}.safetensors", copies)
            synced()
            body = {"step": step, "files": files, **content}
            write_json(self.directory / f"{name}.json", {"sha256": _digest(body), "content": body})
            self._good[step] = {f"{name}.json", *files}
            self._remove_superfluous()

        self._in_background("checkpoint", tensors, write)
        self._saved = step

    def wait(self) -> None:
        """Wait until everything is written. Raises the error of a failed write."""
        for writing in self._writing.values():
            writing.result()

    def check(self) -> None:
        """Raise the error of a failed write, if there is one. Does not wait."""
        for writing in self._writing.values():
            if writing.done():
                writing.result()

    def _in_background(
        self, kind: str, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], None]
    ) -> None:
        if kind in self._writing:
            self._writing[kind].result()
        copies = self._copies[kind] = {name: _copied(t, self._copies[kind].get(name)) for name, t in tensors.items()}

        def run() -> None:
            if self._failed:  # a checkpoint must not be written if one of its files is missing
                return
            self._failed = True
            write(copies)
            self._failed = False

        self._writing[kind] = self._thread.submit(run)

    def _remove_superfluous(self) -> None:
        self._good = dict(sorted(self._good.items())[-KEPT:])
        needed = set().union(*self._good.values())
        for pattern in ("checkpoint-*", "weights-*"):
            for path in self.directory.glob(pattern):
                if path.name not in needed:
                    path.unlink()

    def latest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return content and tensors of the last complete checkpoint, or None if the run has no checkpoint.

        If no checkpoint is complete, returns the last one that lacks only weights files; `files` of its content omits
        them.
        """
        paths = sorted(self.directory.glob("checkpoint-*.json"), reverse=True)
        whole: list[tuple[Path, dict[str, Any]]] = []
        lacking: list[tuple[Path, dict[str, Any]]] = []
        for path in paths:
            try:
                content, lost = self._verified(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning(f"{path}: cannot use this checkpoint: {error}")
                continue
            for reason in lost:
                logger.warning(f"{path}: this checkpoint is incomplete: {reason}")
            (lacking if lost else whole).append((path, content))
        if not paths:
            return None
        usable = whole or lacking
        if not usable:
            raise UserError(f"{self.directory}: no usable checkpoint found; start again in another directory (--out)")
        for path, content in usable:
            self._good[content["step"]] = {path.name, *content["files"]}
            self._digests |= content["files"]
        path, content = usable[0]
        self._saved = content["step"]
        if not whole:
            logger.warning(f"no complete checkpoint found: using step {self._saved} without the missing weights")
        elif path != paths[0]:
            logger.warning(f"using the previous good checkpoint of step {self._saved}")
        try:
            return content, load_file(path.with_suffix(".safetensors"))
        except SafetensorError as error:  # its SHA-256 matches, so the file is not damaged by accident
            raise UserError(f"{path.with_suffix('.safetensors')}: not a safetensors file ({error})") from error

    def _verified(self, path: Path) -> tuple[dict[str, Any], list[Exception]]:
        """Return the content of a checkpoint, and the errors of its weights files.

        `files` of the content omits weights files that are missing or damaged. Raises an error if another part is
        damaged.
        """
        saved = parse_json(regular(path).read_bytes())
        content: dict[str, Any] = saved["content"]
        if _digest(content) != saved["sha256"]:
            raise UserError("the content does not match its SHA-256")
        if type(content["step"]) is not int or not all(file == Path(file).name != "" for file in content["files"]):
            raise UserError("the step is not an integer, or a file lies outside the directory")
        if path.with_suffix(".safetensors").name not in content["files"]:
            raise UserError("the list of files lacks the tensors of this checkpoint")
        lost: list[Exception] = []
        for file, expected in list(content["files"].items()):
            try:
                with open(regular(self.directory / file), "rb") as opened:
                    if hashlib.file_digest(opened, "sha256").hexdigest() != expected:
                        raise UserError(f"{file} is truncated or altered: its SHA-256 does not match")
            except (OSError, ValueError) as error:
                if file == path.with_suffix(".safetensors").name:
                    raise
                del content["files"][file]
                lost.append(error)
        return content, lost


@torch.no_grad()
def _copied(tensor: Tensor, copy: Tensor | None) -> Tensor:
    """Return a copy of the tensor on the CPU; it reuses the memory of an earlier copy if shape and dtype match."""
    if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def mean_tensors(files: list[Path], last: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of `last` and the weights in `files`, computed in float64. Integers are taken from `last`."""
    loaded = [load_file(file) for file in files]  # memory-mapped
    return {
        name: torch.stack([*(w[name].to(tensor.device).double() for w in loaded), tensor.double()]).mean(0).to(tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in last.items()
    }
