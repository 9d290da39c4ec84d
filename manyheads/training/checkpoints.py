"""Checkpoints on disk: whole or not at all, written while the training goes on.

    state/checkpoint-00000500.safetensors   model.*, optimiser.*, rng.*, loop.*
    state/checkpoint-00000500.json          counters, config and the SHA-256 of every file it needs; written last
    state/weights-00000500.safetensors      weights to average at the end, or the best by validation

Every file is replaced whole; a checkpoint exists once its JSON does. The last two that are whole are kept, with the
weights they name, the best among them; what is older is removed once there is a newer one. No pickle.

A thread writes them, from copies that are made when the step is done: the loop stands still for a copy in memory.
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
    """The checkpoints of one run. Those that cannot be used are logged as warnings.

    At most one checkpoint and the weights of one step wait to be written: who brings another waits. A write that failed
    is the error of the next call; nothing is written after it. Leaving the context waits for what is being written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._good: dict[int, set[str]] = {}  # step -> the files its checkpoint needs
        self._digests: dict[str, str] = {}  # of the weights
        self._saved = -1  # the last step with a checkpoint, which may wait to be written
        self._copies: dict[str, dict[str, Tensor]] = {"checkpoint": {}, "weights": {}}  # kept: new memory is slow
        self._writing: dict[str, Future[None]] = {}
        self._thread = ThreadPoolExecutor(1, "checkpoints")  # one after the other, in their order
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def snapshot(self, step: int, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the weights of a step beside the checkpoints; the result goes into the content of the next one."""
        file = f"weights-{step:08d}.safetensors"

        def write(copies: Mapping[str, Tensor]) -> None:
            self._digests[file] = _write(self.directory / file, copies)

        self._in_background("weights", weights, write)
        return {"step": step, "file": file}

    def save(
        self, step: int, tensors: Mapping[str, Tensor], content: Mapping[str, Any], snapshots: list[Any],
        synced: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Commit the checkpoint of a step, then remove those it makes superfluous.

        A step has one checkpoint: what is committed is never written again. `synced` is called before the commit.
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
        """Until all is written; the error of a write that failed."""
        for writing in self._writing.values():
            writing.result()

    def check(self) -> None:
        """The error of a write that failed, if one did so far."""
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
            if self._failed:  # what needs a file that is not there must not be committed
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
        """Content and tensors of the last checkpoint that is whole; None if there never was one.

        Where none is whole, the last one that lacks but weights beside it: `files` of its content is without them.
        """
        paths = sorted(self.directory.glob("checkpoint-*.json"), reverse=True)
        whole: list[tuple[Path, dict[str, Any]]] = []
        lacking: list[tuple[Path, dict[str, Any]]] = []
        for path in paths:
            try:
                content, lost = self._verified(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning(f"{path} cannot be used: {error}")
                continue
            for reason in lost:
                logger.warning(f"{path} cannot be used as it is: {reason}")
            (lacking if lost else whole).append((path, content))
        if not paths:
            return None
        usable = whole or lacking
        if not usable:
            raise UserError(f"{self.directory}: no checkpoint can be used; start again in another directory (--out)")
        for path, content in usable:
            self._good[content["step"]] = {path.name, *content["files"]}
            self._digests |= content["files"]
        path, content = usable[0]
        self._saved = content["step"]
        if not whole:
            logger.warning(f"no checkpoint is whole: using that of step {self._saved} without what it lacks")
        elif path != paths[0]:
            logger.warning(f"using the previous good checkpoint, of step {self._saved}")
        try:
            return content, load_file(path.with_suffix(".safetensors"))
        except SafetensorError as error:  # its SHA-256 is right: nobody's accident
            raise UserError(f"{path.with_suffix('.safetensors')}: no safetensors file ({error})") from error

    def _verified(self, path: Path) -> tuple[dict[str, Any], list[Exception]]:
        """Its content, and what is wrong with the weights beside it, which `files` of the content then lacks."""
        saved = parse_json(regular(path).read_bytes())
        content: dict[str, Any] = saved["content"]
        if _digest(content) != saved["sha256"]:
            raise UserError("its content does not match its SHA-256")
        if type(content["step"]) is not int or not all(file == Path(file).name != "" for file in content["files"]):
            raise UserError("its step is no number, or its files are not in its own directory")
        if path.with_suffix(".safetensors").name not in content["files"]:
            raise UserError("it does not name its own tensors")
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
    """The tensor in memory of its own, that of an earlier copy if it fits."""
    if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def mean_tensors(files: list[Path], last: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean of `last` and the weights in `files`, summed in float64, tensor by tensor; integers are those of
    `last`."""
    loaded = [load_file(file) for file in files]  # memory-mapped
    return {
        name: torch.stack([*(w[name].to(tensor.device).double() for w in loaded), tensor.double()]).mean(0).to(tensor)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in last.items()
    }
