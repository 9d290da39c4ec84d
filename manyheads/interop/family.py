"""How a model is written down: its config.json, its weights and what lies beside them, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from manyheads.core.config import FieldError
from manyheads.core.layers import skip_init
from manyheads.errors import UserError
from manyheads.interop.table import Settings, Weight, check_shapes, slots, weights_to_ours, weights_to_theirs

LARGEST_TABLES = 2**26  # numbers that a model of a few weights may compute for itself


def _nothing(*_: Any) -> dict[str, Any]:
    return {}


def _unstated(_: Mapping[str, Any]) -> None:
    return None


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
    generation    generation_config.json; None, or giving None, for what does not generate.
    preprocessing what preprocessor_config.json would say, where config.json says it (timm's).
    renamed       a name in a file as the rows have it, for a library that numbers its layers otherwise; read only.
    infer         fields that config.json tells only through `architectures`, or the weights alone; given both, at first
                  the weights without their values.
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
    generation: Callable[[Any], dict[str, Any] | None] | None = None
    infer: Callable[[Mapping[str, Any], Mapping[str, Tensor]], dict[str, Any]] = _nothing
    computed: Callable[[Any], Mapping[str, Tensor | None]] = _nothing
    stored: tuple[str, ...] = ()
    also_written: Callable[[Any], dict[str, Any]] = _nothing
    own: bool = False
    preprocessing: Callable[[Mapping[str, Any]], dict[str, Any] | None] = _unstated
    renamed: Callable[[str], str] = str

    def read(
        self, settings: Mapping[str, Any], shapes: Mapping[str, Tensor], load: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[Any, dict[str, Tensor]]:
        """Our configuration, parameters and buffers. Raises UserError on all that is not exactly representable.

        shapes  what the file holds, on the meta device. It is compared with what the settings ask for before anything
                of those sizes is allocated; then `load` is called for the tensors themselves.
        """
        shapes = {self.renamed(name): shape for name, shape in shapes.items()}
        stated = {**self.infer(settings, shapes), **self.settings.to_ours(settings)}
        try:
            config = self.config(**stated)
        except FieldError as error:
            raise UserError(f"{self.settings.key_of(error.field)} {error.fault}") from None
        try:
            with torch.device("meta"), skip_init():
                module = self.module(config)
                expected = saved_tensors(module)
                check_shapes(self.weights(config, expected), expected, shapes, self.computed(config))
        except RuntimeError as error:  # a tensor of 2^63 bytes or more
            raise UserError(f"its sizes ask for more memory than there can be ({error})") from None
        computed = sum(buffer.numel() for buffer in module.buffers())  # such as sines of all positions
        if computed > max(LARGEST_TABLES, sum(tensor.numel() for tensor in expected.values())):
            raise UserError(
                f"its tables, which are in no file, have {computed:,} numbers: expected at most {LARGEST_TABLES:,}, or "
                "as many as it has weights: its number of positions may be wrong"
            )
        tensors = {self.renamed(name): tensor for name, tensor in load().items()}
        exact = replace(config, **self.infer(settings, tensors))  # with what only the values tell
        if exact != config:
            with torch.device("meta"), skip_init():
                expected = saved_tensors(self.module(exact))
        return exact, weights_to_ours(self.weights(exact, expected), expected, tensors, self.computed(exact))

    def settings_of(self, config: Any) -> dict[str, Any]:
        """config.json of a model, but for its number format. Raises UserError on what the family has not."""
        fixed = {"architectures": [self.architecture(config)], "model_type": self.model_type}
        return fixed | self.also_written(config) | self.settings.to_theirs(asdict(config))

    def tensors_of(self, model: nn.Module) -> dict[str, Tensor]:
        """The weights of a model under the names of the family, tied ones once."""
        config: Any = model.config
        ours = {name: tensor.detach() for name, tensor in saved_tensors(model).items()}
        like = next(iter(ours.values()))
        theirs = weights_to_theirs(self.weights(config, ours), ours)
        computed = self.computed(config).items()
        stored = {
            name: tensor.to(like) for name, tensor in computed if tensor is not None and slots(name)[0] in self.stored
        }
        return stored | theirs
