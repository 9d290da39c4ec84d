"""How a model is written down: its config.json, its weights and what lies beside them, in both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from manyheads.interop.table import REQUIRED, Setting, Settings, Weight, slots, weights_to_ours, weights_to_theirs


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


def _unstated(_: Mapping[str, Any]) -> None:
    return None


def _no_vocabulary(_: Any) -> tuple[int, int]:
    return 0, 0


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters, tied ones once, and the buffers that belong to the weights (running means of batch norms)."""
    persistent = module.state_dict().keys()
    return dict(module.named_parameters()) | {n: b for n, b in module.named_buffers() if n in persistent}


@dataclass(frozen=True)
class Family:
    """One way to write a model down.

    model_type    of config.json.
    config        our dataclass; `module` is built from it.
    settings      the rows of config.json.
    weights       the rows for a configuration, given the names of its parameters and buffers.
    architecture  what `architectures` says.
    vocabularies  of source and target: the sizes that tokenizers must fit into; 0 for what reads no text.
    tokenizer     tokenizer_config.json; `generation` is generation_config.json, None for what does not generate.
    preprocessing what preprocessor_config.json would say, where config.json says it (timm's).
    renamed       a name in a file as the rows have it, for a library that numbers its layers otherwise; read only.
    infer         fields that config.json tells only through `architectures`, or the weights alone; given both.
    computed      tensors of a file that follow from the configuration (None: of no use here, whatever they hold);
                  `stored` names those that are written, with `{}` for the number of a layer.
    also_written  keys of config.json that are for other tools only: `settings` ignores them.
    own           no other tool knows it; then config.json lists the names of the tokenizers.
    """

    model_type: str
    config: type[Any]
    module: type[nn.Module]
    settings: Settings
    weights: Callable[[Any, Iterable[str]], list[Weight]]
    architecture: Callable[[Any], str]
    vocabularies: Callable[[Any], tuple[int, int]] = _no_vocabulary
    tokenizer: Callable[[Any, Tokenizer], dict[str, Any]] = _nothing
    generation: Callable[[Any], dict[str, Any]] | None = None
    infer: Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[str, Any]] = _nothing
    computed: Callable[[Any], Mapping[str, Tensor | None]] = _nothing
    stored: tuple[str, ...] = ()
    also_written: Callable[[Any], dict[str, Any]] = _nothing
    own: bool = False
    preprocessing: Callable[[Mapping[str, Any]], dict[str, Any] | None] = _unstated
    renamed: Callable[[str], str] = str

    def read(self, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        """Our configuration, parameters and buffers. Raises ValueError on all that is not exactly representable."""
        tensors = {self.renamed(name): tensor for name, tensor in tensors.items()}
        config = self.config(**{**self.infer(settings, tensors), **self.settings.to_ours(settings)})
        with torch.device("meta"):
            expected = saved_tensors(self.module(config))
        rows = self.weights(config, expected)
        return config, weights_to_ours(rows, expected, tensors, self.computed(config))

    def settings_of(self, config: Any) -> dict[str, Any]:
        """config.json of a model, but for its number format. Raises ValueError on what the family has not."""
        fixed = {"architectures": [self.architecture(config)], "model_type": self.model_type}
        return fixed | self.also_written(config) | self.settings.to_theirs(asdict(config))

    def tensors_of(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights of a model under the names of the family, tied ones once."""
        config: Any = model.config
        ours = {name: tensor.detach() for name, tensor in saved_tensors(model).items()}
        like = next(iter(ours.values()))
        theirs = weights_to_theirs(self.weights(config, ours), ours)
        computed = self.computed(config).items()
        stored = {name: each.to(like) for name, each in computed if each is not None and slots(name)[0] in self.stored}
        return stored | theirs


def own_family(
    model_type: str,
    config: type[Any],
    module: type[nn.Module],
    *,
    vocabularies: Callable[[Any], tuple[int, int]] = _no_vocabulary,
    tokenizer: Callable[[Any, Tokenizer], dict[str, Any]] = _nothing,
    generation: Callable[[Any], dict[str, Any]] | None = None,
    most: Mapping[str, float] | None = None,
) -> Family:
    """A family that no other tool knows: every field of the dataclass `config`, every parameter and buffer under our
    name.

    most  the largest value of a field, where a damaged file could fill the memory.
    """
    rows = tuple(
        # what may be None is a number, and may be missing
        Setting(f.name, f.name, _kind(f.default), default=None if f.default is None else REQUIRED,
                most=(most or {}).get(f.name, math.inf))
        for f in fields(config)
    )  # fmt: skip
    ignored = frozenset({"architectures", "model_type", "dtype", "tokenizers"})
    return Family(
        model_type, config, module, Settings(rows, {}, {}, {}, ignored),
        weights=_own_weights, architecture=lambda config: module.__name__,
        vocabularies=vocabularies, tokenizer=tokenizer, generation=generation, own=True,
    )  # fmt: skip


def _own_weights(config: Any, names: Iterable[str]) -> list[Weight]:
    return [Weight(pattern, pattern) for pattern in dict.fromkeys(slots(name)[0] for name in names)]


def _kind(default: Any) -> type:
    if default is None or default is MISSING:
        return int
    return list if isinstance(default, tuple) and default and isinstance(default[0], int) else type(default)
