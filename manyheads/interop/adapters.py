"""Low-rank adapters in the format of peft: adapter_config.json and adapter_model.safetensors.

The names are those of the model in transformers. Several of our layers may form one matrix there, such as query, key
and value of GPT-2. Their additions then form one of higher rank, with the same values. Based on peft 0.21.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads.core.low_rank import LowRankLinear
from manyheads.errors import UserError
from manyheads.files import read_json
from manyheads.interop.family import Family
from manyheads.interop.table import identity, slots, weights_to_theirs
from manyheads.interop.weights import read_file

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_START, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_TASKS = {"SEQ_CLS": "sequence", "TOKEN_CLS": "token", "QUESTION_ANS": "question"}  # from peft's tasks to our heads
_CLASSIFIERS = (".classifier.weight", ".out_proj.weight", ".score.weight")  # ends of names in transformers


def adapter_files(model: Any, family: Family) -> dict[str, Any]:
    """Return the files of the adapter of a model with low-rank layers.

    The result is empty for any other model, and for a model that transformers cannot open.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LowRankLinear)}
    if not layers or family.own:
        return {}
    first, rows = next(iter(layers.values())), family.weights(model.config, [])
    by_name = {name: row for row in rows for name in row.names}
    whole = weights_to_theirs(rows, {n: p.detach() for n, p in model.named_parameters() if n in model.trained_heads})
    tensors, ranks, transposed = {_START + name: tensor for name, tensor in whole.items()}, {}, False
    for name in layers:
        pattern, numbers = slots(f"{name}.weight")
        row = by_name[pattern]
        target = row.theirs.format(*numbers).removesuffix(".weight")
        target = reduce(lambda text, pair: text.replace(*pair), family.modules, target)
        group = [model.get_submodule(part.format(*numbers).removesuffix(".weight")) for part in row.names]
        inputs: list[Tensor] = [layer.lora_a for layer in group if isinstance(layer, LowRankLinear)]
        outputs = [getattr(layer, "lora_b", first.lora_b.new_zeros(layer.out_features, 0)) for layer in group]
        tensors[_START + target + _A] = torch.cat(inputs).detach()
        tensors[_START + target + _B] = torch.block_diag(*outputs).detach()
        ranks[target] = sum(map(len, inputs))
        transposed |= row.to_theirs is not identity
    rank, scale, task = len(first.lora_a), float(first.lora_scale), {head: task for task, head in _TASKS.items()}
    saved = {"classifier" if name.startswith("classifier.") else name.rpartition(".")[0] for name in whole}
    other = {target: own for target, own in ranks.items() if own != rank}
    settings = {
        "peft_type": "LORA", "task_type": task.get(getattr(model.config, "head", "")), "bias": "none",
        "base_model_name_or_path": getattr(model, "origin", None), "inference_mode": True, "fan_in_fan_out": transposed,
        "r": rank, "lora_alpha": scale * rank, "lora_dropout": first.rate,
        "rank_pattern": other, "alpha_pattern": {target: scale * own for target, own in other.items()},
        "target_modules": list(ranks), "modules_to_save": sorted(saved) or None,
    }  # fmt: skip
    return {WEIGHTS: tensors, SETTINGS: json.dumps(settings, indent=2) + "\n"}


def is_adapter(path: Path) -> bool:
    """Return True if a directory contains an adapter and no model."""
    return (path / SETTINGS).is_file() and not (path / "config.json").is_file()


@dataclass(frozen=True)
class Adapter:
    """Adapter that peft or `adapter_files` has written. The names of its tensors are those of transformers."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> Adapter:
        settings = read_json(path / SETTINGS, "copy or save the adapter again")
        if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
            raise UserError(f"{path / SETTINGS}: expected an adapter with the 'peft_type' LORA")
        tensors = read_file(path / WEIGHTS)
        return cls(path, settings, {name.removeprefix(_START): tensor for name, tensor in tensors.items()})

    @property
    def base(self) -> Path:
        """Return the directory of the model that the adapter changes."""
        base = Path(str(self.settings.get("base_model_name_or_path")))
        if not base.is_dir() or base.samefile(self.path):
            raise UserError(f"{self.path / SETTINGS}: 'base_model_name_or_path' is {base}: expected a model directory")
        return base

    def new_head(self, config: Any) -> dict[str, Any]:
        """Return the settings of the head that the adapter adds to its base model. The labels have no names."""
        head = _TASKS.get(str(self.settings.get("task_type")))
        settings: dict[str, Any] = {"head": head} if head and getattr(config, "head", head) != head else {}
        classifiers = [len(tensor) for name, tensor in self.tensors.items() if f".{name}".endswith(_CLASSIFIERS)]
        if classifiers and (settings or classifiers[0] != len(config.labels)):
            settings["labels"] = tuple(f"LABEL_{index}" for index in range(classifiers[0]))
        return settings

    def add_to(self, tensors: dict[str, Tensor], family: Family) -> None:
        """Add the adapter to the tensors of its base model in place. Raises UserError if they do not fit."""
        try:
            for name, tensor in self.tensors.items():
                layer = name.removesuffix(_A)
                in_file = reduce(lambda text, pair: text.replace(pair[1], pair[0]), family.modules, layer)
                if layer != name:
                    addition = self._scale(layer, len(tensor)) * (self.tensors[layer + _B] @ tensor)
                    tensors[f"{in_file}.weight"] += addition.t() if self.settings.get("fan_in_fan_out") else addition
                elif not name.endswith(_B):
                    tensors[in_file] = tensor.reshape(tensors[in_file].shape)
        except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{self.path}: the adapter does not fit the model in {self.base}: {error}") from None

    def _scale(self, target: str, rank: int) -> float:
        patterns = self.settings.get("alpha_pattern") or {}
        matching = [value for key, value in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", target)]
        alpha = float([*matching, self.settings["lora_alpha"]][0])
        return alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)
