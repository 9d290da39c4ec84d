"""File format of Manyheads (model types `manyheads-...`) for models and settings that no other tool supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.encoder_decoder import generation as translation
from manyheads.interop.family import AnyFamily, Family
from manyheads.interop.gpt import generation as continuation
from manyheads.interop.table import Settings, Weight, slots
from manyheads.models.presets import FAMILIES


@dataclass(frozen=True)
class _Field:
    """Row of a conversion table for a field that config.json contains under the same name.

    The configuration class checks the type and the range of the value.
    """

    name: str

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        return {self.name: theirs[self.name]}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        return {self.name: ours[self.name]}


def _family(
    model_type: str,
    config: type[Config],
    module: type[Model[Any]],
    generation: Callable[[Any], JsonObject | None] | None = None,
) -> AnyFamily:
    rows = tuple(_Field(field.name) for field in fields(config))
    ignored = frozenset({"architectures", "model_type", "dtype", "tokenizers"})
    settings = Settings(rows, ours_only={}, theirs_only={}, tolerated={}, ignored=ignored)
    return Family(
        model_type, config, module, settings, _weights,
        architecture=lambda config: module.__name__, generation=generation, own=True,
    )  # fmt: skip


def _weights(config: Config, names: Iterable[str]) -> list[Weight]:
    return [Weight(pattern, pattern) for pattern in dict.fromkeys(slots(name)[0] for name in names)]


# One format for each configuration class in the table of presets. ViT and DeiT share a class, as do GPT and GPT-2.
_GENERATION: dict[str, Callable[[Any], JsonObject | None]] = {"transformer": translation, "gpt": continuation}
OWN = tuple(
    _family(f"manyheads-{name}", row.configuration(), row.model_class(), _GENERATION.get(name))
    for name, row in {row.config: (name, row) for name, row in reversed(FAMILIES.items())}.values()
)
OWN_TRANSFORMER = next(family for family in OWN if family.model_type == "manyheads-transformer")
