"""State of a training run at a step: model, optimizer, RNG states and counters, saved and restored bit for bit."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from manyheads.core.config import check_fields
from manyheads.errors import UserError, is_out_of_memory, shown
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


@dataclass
class Counters:
    """Counters of a training run: its position in the data, its totals and its validations.

    A checkpoint stores them in its JSON file.

    step      number of finished steps
    epoch     epoch of the next micro-batch
    index     index of the next micro-batch in this epoch
    tokens    number of targets (tokens, images, ...) in all steps
    window_*  sums over the steps since the last log entry
    """

    step: int = 0
    epoch: int = 0
    index: int = 0
    tokens: int = 0
    seconds: float = 0.0  # wall time of all sessions in seconds
    window_tokens: int = 0
    window_loss: float = 0.0
    window_correct: float = 0.0  # number of correctly predicted targets
    validated: int = 0  # step of the last validation
    metrics: dict[str, float] = field(default_factory=dict)  # metrics of the last validation
    skipped: int = 0  # number of skipped steps, whose loss or gradient was not finite
    without_best: int = 0  # number of validations in a row without a new best value
    best: JsonObject | None = None  # {"value", "metrics", "step", "file"}
    # files with the weights that are averaged at the end, oldest first: {"step": ..., "file": ...}
    snapshots: list[JsonObject] = field(default_factory=list)

    def needed_files(self) -> list[JsonObject]:
        return [*self.snapshots, *([self.best] if self.best else [])]

    def forget_lost(self, files: Collection[str]) -> list[str]:
        """Remove the saved weights whose files are lost from these counters. Return one warning for each of them.

        files  names of the existing files
        """
        messages = [
            f"the weights of step {snapshot['step']:,} are lost and will be missing in the average of weights"
            for snapshot in self.snapshots
            if snapshot["file"] not in files
        ]
        self.snapshots = [snapshot for snapshot in self.snapshots if snapshot["file"] in files]
        if self.best and self.best["file"] not in files:
            messages.append(
                f"the best weights (step {self.best['step']:,}, {self.best['value']:.4g}) are lost: the best weights "
                "of the following validations will be kept instead"
            )
            self.best, self.without_best = None, 0
        return messages


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed the RNG for one training step on one rank.

    Each rank and step has another seed. A resumed run has the same seeds as an uninterrupted run.
    """
    torch.manual_seed(int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1)))


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of the model by name, without copying them.

    A tensor that several modules share appears once, under its first name.
    """
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    return {n: t.detach() for n, t in tensors.items() if first.setdefault(id(t), n) == n}


def load_weights(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy the saved tensors into the model. Raises UserError if names or shapes differ."""
    local = weights(model)
    wrong = [n for n in {**local, **saved} if n not in local or n not in saved or local[n].shape != saved[n].shape]
    if wrong:
        raise UserError(f"the checkpoint belongs to another model; different tensors: {shown(wrong)}")
    for name, tensor in local.items():
        tensor.copy_(_local_shard(tensor, saved[name]))


def as_sharded(tensor: Tensor) -> DTensor | None:
    """Return the tensor if it is sharded over the ranks, else None."""
    if not hasattr(tensor, "placements"):  # Importing DTensor takes 0.5 seconds, so import it only for sharded tensors.
        return None
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    return tensor


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """Return the mesh of ranks over which the tensor is sharded; None if it is not sharded."""
    sharded = as_sharded(tensor)
    return None if sharded is None else sharded.device_mesh


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group tensors by the mesh of ranks over which they are sharded. PyTorch's functions of lists need one mesh."""
    groups: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(mesh_of(tensor), []).append(tensor)
    return list(groups.values())


def _local_shard(tensor: Tensor, saved: Tensor) -> Tensor:
    """Return the part of a saved tensor that belongs to this rank; all of it if `tensor` is not sharded."""
    sharded = as_sharded(tensor)
    if sharded is None or as_sharded(saved) is not None:
        return saved
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(saved.to(tensor.device), sharded.device_mesh, sharded.placements, src_data_rank=None)


@torch.no_grad()
def update_ema(ema_weights: Mapping[str, Tensor], model: nn.Module, decay: float) -> None:
    """Update the moving average in place: ema_weights = decay * ema_weights + (1 - decay) * weights.

    Integer tensors, such as counts, are copied.
    """
    for name, tensor in weights(model).items():
        if tensor.is_floating_point():
            ema_weights[name].lerp_(tensor, 1 - decay)
        else:
            ema_weights[name].copy_(tensor)


def capture(
    model: nn.Module, optimizer: torch.optim.Optimizer, counters: Counters, ema_weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], JsonObject]:
    """Return the current state of a training run as the tensors and the JSON content of a checkpoint."""
    tensors = {f"model.{name}": tensor for name, tensor in weights(model).items()}
    tensors |= {f"ema.{name}": tensor for name, tensor in ema_weights.items()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{key}"] = value
    _, keys, *numpy_rest = np.random.get_state()
    version, words, gauss = random.getstate()
    tensors["rng.torch"] = torch.get_rng_state()
    tensors["rng.numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    tensors["rng.python"] = torch.tensor(words, dtype=torch.int64)
    for device, state in enumerate(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []):
        tensors[f"rng.cuda.{device}"] = state
    return tensors, {"counters": asdict(counters), "rng": {"numpy": numpy_rest, "python": [version, gauss]}}


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema_weights: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    content: JsonObject,
) -> Counters:
    """Restore the training state that `capture` returned.

    Raises UserError if the checkpoint belongs to another model, or if it is damaged.
    """
    load_weights(model, {n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    try:
        return _restore_state(model, optimizer, ema_weights, tensors, content)
    except Exception as error:  # The file may be from an untrusted source, and any part of it may have a wrong type.
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"the checkpoint is damaged or from another version ({type(error).__name__}: {error}): start again in "
            "another directory (--out)"
        ) from error


def _restore_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema_weights: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    content: JsonObject,
) -> Counters:
    for name, tensor in ema_weights.items():
        tensor.copy_(_local_shard(tensor, tensors[f"ema.{name}"]))
    by_name = dict(model.named_parameters())
    for full, value in tensors.items():
        if full.startswith("optimizer."):
            name, key = full.removeprefix("optimizer.").rsplit(".", 1)
            parameter = by_name[name]
            value = value.clone().to(parameter.device)
            optimizer.state[parameter][key] = _local_shard(parameter, value) if value.ndim else value
    version, gauss = content["rng"]["python"]
    random.setstate((version, tuple(tensors["rng.python"].tolist()), gauss))
    position, has_gauss, cached = content["rng"]["numpy"]
    np.random.set_state(("MT19937", tensors["rng.numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["rng.torch"].clone())
    for index in range(torch.cuda.device_count()):
        if f"rng.cuda.{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng.cuda.{index}"].clone(), index)
    counters = Counters(**content["counters"])
    check_fields(counters)
    for needed in counters.needed_files():
        value, metrics = needed.get("value", 0.0), needed.get("metrics", {})
        if not ({"file", "step"} <= needed.keys() and isinstance(value, float | int) and isinstance(metrics, dict)):
            raise UserError("the description of a weights file has no file name, step or value")
    return counters
