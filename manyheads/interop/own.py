"""File format of Manyheads (model types `manyheads-...`) for models and settings that no other tool supports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.interop.encoder_decoder import generation as translation
from manyheads.interop.family import AnyFamily, Family
from manyheads.interop.gpt import generation as continuation
from manyheads.interop.table import Settings, Weight, slots
from manyheads.models.presets import FAMILIES


@dataclass(frozen=True)
class _Field:
    """Configuration field that is saved under the same name. The configuration class checks the field's type and range.

    default  value if the key is missing, for a field that was introduced after the model was saved. With this value,
             the model behaves as it did before
    """

    name: str
    default: Any

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.name,)

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        value = theirs.get(self.name, self.default)
        if value is MISSING:
            raise UserError(f"{self.name!r} is missing")
        return {self.name: value}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        return {self.name: ours[self.name]}


def _family(
    model_type: str,
    config: type[Config],
    module: type[Model[Any]],
    generation: Callable[[Any], JsonObject | None] | None = None,
) -> AnyFamily:
    rows = tuple(_Field(field.name, field.default) for field in fields(config))
    ignored = frozenset({"architectures", "model_type", "dtype", "tokenizers"})
    settings = Settings(rows, ours_only={}, theirs_only={}, tolerated={}, ignored=ignored)
    return Family(
        model_type, config, module, settings, _weights,
        architecture=lambda config: module.__name__, generation=generation, own=True,
    )  # fmt: skip


def _weights(config: Config, names: Iterable[str]) -> list[Weight]:
    return [Weight(pattern, pattern) for pattern in dict.fromkeys(slots(name)[0] for name in names)]


# One format for each configuration class in the table of presets. ViT and DeiT share a class, as do GPT and GPT-2.
_SAVED_AS = {"directions": "reader"}  # former model type, which existing model directories contain
_GENERATION: dict[str, Callable[[Any], JsonObject | None]] = {"transformer": translation, "gpt": continuation}
OWN = tuple(
    _family(f"manyheads-{_SAVED_AS.get(name, name)}", row.configuration(), row.model_class(), _GENERATION.get(name))
    for name, row in {row.config: (name, row) for name, row in reversed(FAMILIES.items())}.values()
)


class _OneVocabulary:
    """Rule for the former setting `vocab`, which was the size of both vocabularies."""

    keys: tuple[str, ...] = ("vocab",)

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        if "vocab" not in theirs:
            raise UserError("'vocab' is missing")
        return {"source_vocab": theirs["vocab"], "target_vocab": theirs["vocab"]}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        raise AssertionError("only read")


def _former_lstm() -> AnyFamily:
    """Return the former format of two LSTMs without attention, which existing model directories contain."""
    family = next(family for family in OWN if family.model_type == "manyheads-seq2seq-rnn")
    kept = ("pad", "end", "start", "width", "layers", "max_positions", "dropout")
    rows = (_OneVocabulary(), *(row for row in family.settings.rows if set(row.keys) <= {*kept}))
    fixed = {
        "cell": "lstm",
        "hidden": None,
        "tie": "all",
        "output_bias": True,
        "reverse_source": False,
        "source_pad": None,
    }
    return replace(
        family, model_type="manyheads-seq2seq-lstm", settings=replace(family.settings, rows=rows, ours_only=fixed),
        renamed=lambda name: name.replace("embedding.weight", "source_embedding.weight"),
    )  # fmt: skip


FORMER = (_former_lstm(),)
OWN_TRANSFORMER = next(family for family in OWN if family.model_type == "manyheads-transformer")
