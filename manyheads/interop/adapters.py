"""Reader and writer of low-rank adapters (LoRA) in the format of peft: adapter_config.json, adapter_model.safetensors.

Layers have the names of the model in transformers. Several layers of a Manyheads model may be one matrix in
transformers, such as query, key and value of GPT-2. Their low-rank matrices then form a pair of matrices of higher rank
with the same product. Based on peft 0.21.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.low_rank import PREFIX, LowRankLinear
from manyheads.core.tensor_file import checksum
from manyheads.errors import UserError, shown
from manyheads.files import JsonMapping, JsonObject, read_json
from manyheads.interop.family import AnyFamily
from manyheads.interop.table import identity, slots, weights_to_theirs
from manyheads.interop.weights import read_file

SETTINGS, WEIGHTS, PICKLED_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
_START, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# task type in peft -> head of a Manyheads model
_TASKS = {"SEQ_CLS": "sequence", "TOKEN_CLS": "token", "QUESTION_ANS": "question"}
_HEAD = ("head", "labels", "target")  # settings of a model that its adapter determines
# Keys of adapter_config.json that are read, or that only affect training or saving. Other keys are an error if set.
_KNOWN = """
    peft_type task_type auto_mapping peft_version base_model_name_or_path revision inference_mode r lora_alpha
    lora_dropout rank_pattern alpha_pattern target_modules exclude_modules modules_to_save layers_to_transform
    layers_pattern fan_in_fan_out use_rslora megatron_core qalora_group_size runtime_config eva_config bias
    init_lora_weights
"""
_DEFAULTS: dict[str, list[Any]] = {"bias": ["none"], "init_lora_weights": [True, "gaussian", "orthogonal", "eva"]}
_SOME_LAYERS = ("exclude_modules", "layers_to_transform")  # settings that leave out layers of the target modules
# endings of the names of a classifier's weight in transformers
_CLASSIFIERS = (".classifier.weight", ".out_proj.weight", ".score.weight")


def adapter_files(model: Model[Config], family: AnyFamily, label_type: str = "str") -> JsonObject:
    """Return the contents of the adapter files of a model with low-rank layers, by file name.

    The result is empty for a model without low-rank layers, and for a model that transformers cannot open.
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
        outputs = [
            layer.lora_b if isinstance(layer, LowRankLinear) else first.lora_b.new_zeros(layer.out_features, 0)
            for layer in group if isinstance(layer, nn.Linear)
        ]  # fmt: skip
        tensors[_START + target + _A] = torch.cat(inputs).detach()
        tensors[_START + target + _B] = torch.block_diag(*outputs).detach()
        ranks[target] = sum(map(len, inputs))
        transposed |= row.to_theirs is not identity
    rank, scale, task = len(first.lora_a), float(first.lora_scale), {head: task for task, head in _TASKS.items()}
    saved = {"classifier" if name.startswith("classifier.") else name.rpartition(".")[0] for name in whole}
    other = {target: own for target, own in ranks.items() if own != rank}
    base, revision = model.origin, None
    if base and base.startswith("hub:"):
        base, _, revision = base.removeprefix("hub:").partition("@")
    elif base:
        base = os.path.abspath(base)
    labels = {name: value for name, value in asdict(model.config).items() if name in _HEAD}
    labels |= {} if label_type == "str" else {"label_type": label_type}
    about = {**labels, "base_crc32": frozen_checksum(model, family, whole)}
    settings = {
        "peft_type": "LORA", "task_type": task.get(model.head_name or ""), "bias": "none",
        # The library peft reads "auto_mapping" only if there is no task type, and ignores the key "manyheads" in it.
        "auto_mapping": {"parent_library": "transformers", "base_model_class": family.architecture(model.config),
                         "manyheads": about},
        "base_model_name_or_path": base, "revision": revision, "inference_mode": True, "fan_in_fan_out": transposed,
        "r": rank, "lora_alpha": scale * rank, "lora_dropout": first.rate,
        "rank_pattern": other, "alpha_pattern": {target: scale * own for target, own in other.items()},
        "target_modules": list(ranks), "modules_to_save": sorted(saved) or None,
    }  # fmt: skip
    return {WEIGHTS: tensors, SETTINGS: json.dumps(settings, indent=2) + "\n"}


def frozen_checksum(model: Model[Config], family: AnyFamily, brought: Iterable[str]) -> str:
    """Return the checksum of the tensors of a base model, to verify that an adapter was trained with this model.

    The low-rank matrices and the tensors in the adapter are left out.

    brought  names of the tensors in the adapter, such as a new head
    """
    ours = {name: tensor for name, tensor in model.named_parameters() if f".{PREFIX}" not in name}
    theirs = weights_to_theirs(family.weights(model.config, ours), ours)
    return checksum({name: tensor for name, tensor in theirs.items() if name not in set(brought)})


def is_adapter(path: Path) -> bool:
    """Return True if a directory contains a LoRA adapter and no complete model."""
    return (path / SETTINGS).is_file() and not (path / "config.json").is_file()


@dataclass(frozen=True)
class Adapter:
    """LoRA adapter that peft or `adapter_files` has written.

    path      directory of the adapter
    settings  content of adapter_config.json
    tensors   content of adapter_model.safetensors, with the tensor names of transformers
    """

    path: Path
    settings: JsonMapping
    tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> Adapter:
        settings = read_json(path / SETTINGS, "copy or save the adapter again")
        if not isinstance(settings, dict) or settings.get("peft_type") != "LORA":
            raise UserError(f"{path / SETTINGS}: expected an adapter with the 'peft_type' LORA")
        odd = [name for name, value in settings.items() if value and name not in _KNOWN.split()]
        odd += [name for name, known in _DEFAULTS.items() if (settings.get(name) or known[0]) not in known]
        if odd:
            raise UserError(
                f"{path / SETTINGS}: {odd[0]!r} is {settings[odd[0]]!r}, which is not supported. Merge the adapter into"
                " its base with merge_and_unload() of peft, and open the merged model"
            )
        if not (path / WEIGHTS).is_file():
            remedy = f"{PICKLED_WEIGHTS} is a pickle. Make a safe copy with 'manyheads convert {path} OUT'"
            raise UserError(f"{path}: found no {WEIGHTS}" + f"; {remedy}" * (path / PICKLED_WEIGHTS).is_file())
        tensors = read_file(path / WEIGHTS)
        return cls(path, settings, {name.removeprefix(_START): tensor for name, tensor in tensors.items()})

    def new_head(self, model: Model[Config]) -> JsonObject:
        """Return the settings of the head that the adapter adds to its base model.

        An adapter of peft does not name its labels. They get the names of the base model's labels, or numbers.
        """
        if stated := self._stated:
            return {name: tuple(stated[name]) if name == "labels" else stated[name] for name in _HEAD if name in stated}
        head = _TASKS.get(str(self.settings.get("task_type")))
        settings: JsonObject = {"head": head} if head and model.head_name not in (None, head) else {}
        classifiers = [len(tensor) for name, tensor in self.tensors.items() if f".{name}".endswith(_CLASSIFIERS)]
        if classifiers and (settings or classifiers[0] != len(model.labels)):
            settings["labels"] = tuple(f"LABEL_{index}" for index in range(classifiers[0]))
        return settings

    def apply(self, model: Model[Config], family: AnyFamily, new: Iterable[str]) -> dict[str, Tensor]:
        """Return the tensors of the base model with the adapter added to them, by their names in files.

        model  base model, with the head that the adapter adds
        new    names of the tensors of `model` that the base model does not have

        Raises UserError if the adapter does not fit the base model.
        """
        with torch.no_grad():
            for name in new:
                model.state_dict()[name].fill_(torch.nan)
        tensors = {name: tensor.clone() for name, tensor in family.tensors_of(model).items()}
        files = {reduce(lambda text, pair: text.replace(*pair), family.modules, name): name for name in tensors}
        base, whole = self.settings.get("base_model_name_or_path"), []
        try:
            for name, tensor in self.tensors.items():
                layer = name.removesuffix(_A)
                if layer != name:
                    addition = self._scale(layer, len(tensor)) * (self.tensors[layer + _B] @ tensor)
                    tensors[files[f"{layer}.weight"]] += (
                        addition.t() if self.settings.get("fan_in_fan_out") else addition
                    )
                elif name.endswith(_B):
                    self.tensors[name.removesuffix(_B) + _A]
                else:
                    whole.append(files[name])
                    tensors[files[name]] = tensor.reshape(tensors[files[name]].shape)
        except (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{self.path}: the adapter does not fit the model in {base}: {error}") from None
        lacking = [name for name in files if self._names(name, tensors[files[name]]) and not self._brings(name)]
        lacking += [name for name, tensor in tensors.items() if name not in whole and tensor.isnan().any()]
        if lacking:
            raise UserError(
                f"{self.path}: neither the adapter nor its base model has {shown(lacking)}: the adapter is"
                " incomplete. Train it with these layers in 'modules_to_save', or copy it again"
            )
        expected = self._stated.get("base_crc32")
        if expected and expected != frozen_checksum(model, family, whole):
            raise UserError(
                f"{self.path}: the model in {base} has other weights than the base model with which the adapter was"
                " trained. Restore that model, or train the adapter again"
            )
        return tensors

    @property
    def label_type(self) -> str | None:
        """Type of the labels in the training data; None for an adapter that peft has written."""
        return self._stated.get("label_type")

    @property
    def _stated(self) -> JsonMapping:
        """Description of the model that `adapter_files` has written; empty for an adapter that peft has written."""
        return (self.settings.get("auto_mapping") or {}).get("manyheads") or {}

    def _names(self, name: str, tensor: Tensor) -> bool:
        """Return True if the adapter must contain a tensor, because adapter_config.json names its layer."""
        module, _, leaf = name.rpartition(".")
        if any(f".{saved}." in f".{name}" for saved in self.settings.get("modules_to_save") or ()):
            return True
        targets = self.settings.get("target_modules") or ()
        if leaf != "weight" or tensor.dim() != 2 or any(self.settings.get(key) for key in _SOME_LAYERS):
            return False
        if isinstance(targets, str):
            return re.fullmatch(targets, module) is not None
        return any(f".{module}".endswith(f".{target}") for target in targets)

    def _brings(self, name: str) -> bool:
        return name in self.tensors or name.removesuffix(".weight") + _A in self.tensors

    def _scale(self, target: str, rank: int) -> float:
        patterns = self.settings.get("alpha_pattern") or {}
        matching = [value for key, value in patterns.items() if re.fullmatch(rf"(.*\.)?({key})", target)]
        alpha = float([*matching, self.settings["lora_alpha"]][0])
        return alpha / (math.sqrt(rank) if self.settings.get("use_rslora") else rank)
