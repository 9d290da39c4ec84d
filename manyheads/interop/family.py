"""Description of a file format in which models are saved: config.json, weights and further files."""

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

# Maximum number of values in tables that a model computes, such as position vectors. Without a limit, a small
# config.json could request huge tables.
LARGEST_TABLES = 2**26


def _nothing(*_: object) -> JsonObject:
    return {}


def _unstated(_: JsonMapping) -> None:
    return None


def saved_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors of a model that are saved, by name.

    They are the parameters and the persistent buffers, such as running statistics of batch norms. A tied parameter is
    included once. Low-rank matrices (LoRA) are added to their weights.
    """
    persistent = module.state_dict().keys()
    return merged(dict(module.named_parameters()) | {n: b for n, b in module.named_buffers() if n in persistent})


C = TypeVar("C", bound=Config)


@dataclass(frozen=True)
class Family(Generic[C]):
    """File format in which a kind of model is saved, such as the format of BERT in transformers.

    model_type     value of `model_type` in config.json
    config         configuration class of Manyheads (a dataclass)
    module         model class, built from a configuration
    settings       table that converts between config.json and the configuration
    weights        function of a configuration and of the names of the model's parameters and buffers. It returns the
                   conversion table of the tensors
    architecture   function that returns the value of `architectures` in config.json
    generation     function that returns the content of generation_config.json. For models that do not generate text,
                   it is None, or returns None
    preprocessing  function that returns the content of preprocessor_config.json if config.json contains it (timm)
    renamed        function that maps a tensor name in a file to the name in the conversion table, for libraries that
                   number layers differently. It is used only for reading
    modules        pairs of a part of tensor names in files and the different name of this part in transformers
    infer          function that returns settings that are not in config.json and follow from `architectures` or
                   from the weights. Its first call gets the weights without values, on the meta device
    computed       function that returns tensors of a file that follow from the configuration. None instead of a tensor
                   means that the tensor is unused and may have any values
    stored         names of the computed tensors that are written, with `{}` in place of layer numbers
    also_written   function that returns keys that are written to config.json only for other tools
    part           key of config.json that has the settings of the model, if the directory holds several models (CLIP)
    unread         beginnings of the names of tensors that belong to the other models in such a directory
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
    part: str = ""
    unread: tuple[str, ...] = ()
    own: bool = False
    preprocessing: Callable[[JsonMapping], JsonObject | None] = _unstated
    renamed: Callable[[str], str] = str
    modules: tuple[tuple[str, str], ...] = ()

    def read(
        self, settings: JsonMapping, shapes: Mapping[str, Tensor], load: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[C, dict[str, Tensor]]:
        """Convert the content of a model directory to a configuration and its parameters and buffers.

        settings  content of config.json
        shapes    tensors of the weight files, on the meta device (without values). Their shapes are compared with the
                  configuration before any memory is allocated
        load      function that reads the tensors with their values; it is called only after this comparison

        Raises UserError if a setting or tensor cannot be represented exactly.
        """
        shapes = self._plain(shapes)
        if self.part:
            own = settings.get(self.part) or {}
            if not isinstance(own, dict):
                raise UserError(f"{self.part!r} is {str(own)[:80]}; expected an object")
            settings = {**own, "architectures": settings.get("architectures")}
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
        except RuntimeError as error:  # PyTorch rejects the shape of a tensor of 2^63 bytes or more.
            raise UserError(f"the sizes require more memory than possible ({error})") from None
        # Buffers, such as the table of sinusoidal position vectors, are computed from sizes in config.json.
        computed = sum(buffer.numel() for buffer in module.buffers())
        if computed > max(LARGEST_TABLES, sum(tensor.numel() for tensor in expected.values())):
            raise UserError(
                f"expected at most {LARGEST_TABLES:,} values in computed tables, or the number of weights; found"
                f" {computed:,}"
                ". The number of positions may be wrong"
            )
        tensors = self._plain(load())
        # Call `infer` again: in its first call, the weights had only shapes; now they have values.
        exact = replace(config, **self.infer(settings, tensors))
        if exact != config:
            with torch.device("meta"), skip_init():
                expected = saved_tensors(self.module(exact))
        return exact, weights_to_ours(self.weights(exact, expected), expected, tensors, self.computed(exact))

    def _plain(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file by their names in the conversion table.

        The prefixes of `torch.compile` and DDP are removed, as are the tensors of other models (`unread`).
        """
        plain = {name.replace("_orig_mod.", "").removeprefix("module."): tensor for name, tensor in tensors.items()}
        return {self.renamed(name): tensor for name, tensor in plain.items() if not name.startswith(self.unread)}

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


AnyFamily: TypeAlias = Family[Any]  # family with any class of configuration
