"""Checkpoints on disk: whole or not at all.

    state/checkpoint-00000500.safetensors   model.*, optimiser.*, rng.*, loop.*
    state/checkpoint-00000500.json          counters, config and the SHA-256 of every file it needs; written last
    state/weights-00000500.safetensors      weights to average at the end, or the best by validation

Every file is replaced whole; a checkpoint exists once its JSON does. The last two are kept, with the weights they name.
No pickle.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from manyheads.core.tensor_file import write_tensors
from manyheads.files import replacing, write_json

KEPT = 2


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    with replacing(path) as temporary, temporary.open("wb") as file:
        return write_tensors(file, tensors)


class Checkpoints:
    """The checkpoints of one run. `say` tells the user about one that cannot be used."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.say = say
        self._good: dict[int, set[str]] = {}  # step -> the files its checkpoint needs

    def snapshot(self, step: int, weights: Mapping[str, Tensor]) -> dict[str, Any]:
        """Write the weights of a step beside the checkpoints; the result goes into the content of the next one."""
        file = f"weights-{step:08d}.safetensors"
        return {"step": step, "file": file, "sha256": _write(self.directory / file, weights)}

    def save(self, step: int, tensors: Mapping[str, Tensor], content: Mapping[str, Any], snapshots: list[Any]) -> None:
        """Commit the checkpoint of a step, then remove those it makes superfluous.

        A step has one checkpoint: what is committed is never written again.
        """
        if step in self._good:
            return
        name = f"checkpoint-{step:08d}"
        files = {s["file"]: s["sha256"] for s in snapshots}
        files[f"{name}.safetensors"] = _write(self.directory / f"{name}.safetensors", tensors)
        body = {"step": step, "files": files, **content}
        write_json(self.directory / f"{name}.json", {"sha256": _digest(body), "content": body})
        self._good[step] = {f"{name}.json", *files}
        self._good = dict(sorted(self._good.items())[-KEPT:])
        needed = set().union(*self._good.values())
        for pattern in ("checkpoint-*", "weights-*"):
            for path in self.directory.glob(pattern):
                if path.name not in needed:
                    path.unlink()

    def latest(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Content and tensors of the last checkpoint that is whole; None if there never was one."""
        paths = sorted(self.directory.glob("checkpoint-*.json"), reverse=True)
        last: tuple[dict[str, Any], dict[str, Tensor]] | None = None
        for path in paths:
            try:
                content = self._verified(path)
                tensors = load_file(path.with_suffix(".safetensors")) if last is None else {}
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                self.say(f"warning: {path} cannot be used: {error}")
                continue
            self._good[content["step"]] = {path.name, *content["files"]}
            last = last or (content, tensors)
        if paths and last is None:
            raise ValueError(f"{self.directory}: no checkpoint can be used; start again in another directory (--out)")
        if last and not paths[0].name.endswith(f"-{last[0]['step']:08d}.json"):
            self.say(f"warning: using the previous good checkpoint, of step {last[0]['step']}")
        return last

    def _verified(self, path: Path) -> dict[str, Any]:
        saved = json.loads(path.read_bytes())
        content: dict[str, Any] = saved["content"]
        if _digest(content) != saved["sha256"]:
            raise ValueError("its content does not match its SHA-256")
        for file, expected in content["files"].items():
            with open(self.directory / file, "rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != expected:
                    raise ValueError(f"{file} is truncated or altered: its SHA-256 does not match")
        return content


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
