"""Description of a saved model's format (config.json, weights and further files) for reading and writing models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from manyheads.core.config import Config, FieldError
from manyheads.core.interface import Model
from manyheads.core.layers import skip_init
from manyheads.core.low_rank import merged
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.table import Settings, Weight, check_shapes, slots, weights_to_ours, weights_to_theirs

# Maximum number of values in tables that are computed from config.json; it protects against huge tables of a small
# file.
LARGEST_TABLES = 2**26


def _nothing(*_: object) -> JsonObject:
    return {}


def _unstated(_: JsonMapping) -> None:
    return None


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a model that are saved, by name.

    They are the parameters (tied ones once) and the persistent buffers, such as running statistics of batch norms.
    Low-rank additions are part of their weights.
    """
    persistent = module.state_dict().keys()
    return merged(dict(module.named_parameters()) | {n: b for n, b in module.named_buffers() if n in persistent})


C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Family(Generic[C]):
    """Format in which a model is saved.

    model_type     value of `model_type` in config.json
    config         configuration class of Manyheads (a dataclass)
    module         model class, built from a configuration
    settings       table that converts between config.json and the configuration
    weights        function that returns the rows of the conversion table for all tensors, for a configuration and the
                   names of its parameters and buffers
    architecture   function that returns the value of `architectures` in config.json
    generation     function that returns the content of generation_config.json; None, or a function that returns
                   None, for models that do not generate text
    preprocessing  function that returns the content of preprocessor_config.json if config.json contains it (timm)
    renamed        function that maps a tensor name in a file to the name in the rows, for libraries that number
                   layers differently; used only for reading
    modules        parts of tensor names in files, each with the name of the module in transformers, where they differ
    infer          function that returns settings that are not in config.json and follow from `architectures` or
                   from the weights. Its first call gets the weights without values, on the meta device
    computed       function that returns tensors of a file that follow from the configuration; None instead of a
                   tensor means that the tensor is unused and may have any values
    stored         names of the computed tensors that are written, with `{}` in place of layer numbers
    also_written   function that returns keys that are written to config.json only for other tools
    own            True for a format of Manyheads; config.json then also lists the names of the tokenizers
    """

    model_type: str
    config: type[C]
    module: type[Model[C]]
    settings: Settings
    weights: Callable[[C, Iterable[str]], list[Weight]]
    architecture: Callable[[C], str]
    generation: Callable[[C], JsonObject | None] | None = None
    infer: Callable[[JsonMapping, Mapping[str, Tensor]], JsonObject] = _nothing
    computed: Callable[[C], Mapping[str, Tensor | None]] = _nothing
    stored: tuple[str, ...] = ()
    also_written: Callable[[C], JsonObject] = _nothing
    own: bool = False
    preprocessing: Callable[[JsonMapping], JsonObject | None] = _unstated
    renamed: Callable[[str], str] = str
    modules: tuple[tuple[str, str], ...] = ()

    def read(
        self, settings: JsonMapping, shapes: Mapping[str, Tensor], load: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[C, dict[str, Tensor]]:
        """Read a configuration, parameters and buffers. Raises UserError if anything cannot be represented exactly.

        shapes  tensors of the file, on the meta device (without values). Their shapes are compared with the
                configuration before any memory is allocated
        load    function that reads the tensors with their values; called only after the comparison
        """
        shapes = {self._plain(name): shape for name, shape in shapes.items()}
        stated = {**self.infer(settings, shapes), **self.settings.to_ours(settings, strict=self.own)}
        try:
            config = self.config(**stated)
        except FieldError as error:
            raise UserError(f"{self.settings.key_of(error.field)} {error.fault}") from None
        try:
            with torch.device("meta"), skip_init():
                module = self.module(config)
                expected = saved_tensors(module)
                check_shapes(self.weights(config, expected), expected, shapes, self.computed(config))
        except UserError as error:
            if settings.get("architectures") or "model_type" not in settings:
                raise
            hint = "config.json lacks 'architectures', which names the head of the model"
            raise type(error)(f"{error}. {hint}") from None
        except RuntimeError as error:  # torch rejects a shape if the tensor would have 2^63 bytes or more
            raise UserError(f"the sizes require more memory than possible ({error})") from None
        # One of the computed tensors is the table of sinusoidal position vectors.
        computed = sum(buffer.numel() for buffer in module.buffers())
        if computed > max(LARGEST_TABLES, sum(tensor.numel() for tensor in expected.values())):
            raise UserError(
                f"expected at most {LARGEST_TABLES:,} values in computed tables, or the number of weights; found"
                f" {computed:,}"
                ". The number of positions may be wrong"
            )
        tensors = {self._plain(name): tensor for name, tensor in load().items()}
        # The first call of `infer` had only the shapes of the weights. This call also has their values.
        exact = replace(config, **self.infer(settings, tensors))
        if exact != config:
            with torch.device("meta"), skip_init():
                expected = saved_tensors(self.module(exact))
        return exact, weights_to_ours(self.weights(exact, expected), expected, tensors, self.computed(exact))

    def _plain(self, name: str) -> str:
        """Return a tensor name without the prefixes of `torch.compile` and DDP, as the rows spell it."""
        return self.renamed(name.replace("_orig_mod.", "").removeprefix("module."))

    def settings_of(self, config: C) -> JsonObject:
        """Return the content of config.json, except for the dtype of the weights.

        Raises UserError if this format cannot represent the configuration.
        """
        fixed = {"architectures": [self.architecture(config)], "model_type": self.model_type}
        return fixed | self.also_written(config) | self.settings.to_theirs(asdict(config))

    def tensors_of(self, model: Model[C]) -> dict[str, Tensor]:
        """Return the weights of a model under the tensor names of this format. A tied weight is returned once."""
        ours = {name: tensor.detach() for name, tensor in saved_tensors(model).items()}
        like = next(iter(ours.values()))
        theirs = weights_to_theirs(self.weights(model.config, ours), ours)
        computed = self.computed(model.config).items()
        stored = {
            name: tensor.to(like) for name, tensor in computed if tensor is not None and slots(name)[0] in self.stored
        }
        return stored | theirs


AnyFamily: TypeAlias = Family[Any]  # of any configuration
