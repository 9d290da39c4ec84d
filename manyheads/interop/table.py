"""Conversion tables between the configurations and tensors of Manyheads and those in files of other libraries.

Each row of a table converts one setting or one tensor, for reading and for writing. In names, "ours" means the format
of Manyheads and "theirs" the format of the files. Unknown values and tensors are errors; an unknown key of config.json
is an error or a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from manyheads.errors import UserError, shown
from manyheads.files import JsonMapping, JsonObject

logger = logging.getLogger(__name__)

REQUIRED = object()
_UNSET: tuple[object, ...] = (None, False, "", [], {})  # values with which an unknown option has no effect
COMPUTING = ("quantization_config", "compression_config", "rope_scaling")  # unsupported keys that change the output


# On the meta device, torch.cat and torch.arange would import PyTorch's compiler, which takes a second. There, the next
# two functions return tensors without values.


def concatenated(*parts: Tensor) -> Tensor:
    """Concatenate tensors in their first dimension. The tensors may be on the meta device."""
    return parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:]) if parts[0].is_meta else torch.cat(parts)


def numbered(count: int) -> Tensor:
    """Return a tensor of the integers from 0 to `count` - 1. The default device may be the meta device."""
    meta = torch.get_default_device().type == "meta"
    return torch.empty(count, dtype=torch.long) if meta else torch.arange(count)


class Mismatch(UserError):
    """Error for a model directory whose weights do not fit its config.json."""


@dataclass(frozen=True)
class Setting:
    """Row of a conversion table for a setting that has the same value in Manyheads and in config.json.

    The Manyheads configuration checks the type and the range of the value.

    ours     name of the setting in Manyheads
    theirs   key in config.json
    default  value if the key is missing or null: a constant, or a function of the content of config.json
    also     other names of the key. If several are present, their values must be equal
    null     True if null is a valid value (None) and does not mean a missing key
    """

    ours: str
    theirs: str
    default: Any = REQUIRED
    also: tuple[str, ...] = ()
    null: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.theirs, *self.also)

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        if self.null and theirs.get(self.theirs, REQUIRED) is None:
            return {self.ours: None}
        given = {key: theirs[key] for key in self.keys if theirs.get(key) is not None}
        if not given:
            if self.default is REQUIRED:
                raise UserError(f"{self.theirs!r} is missing")
            return {self.ours: self.default(theirs) if callable(self.default) else self.default}
        first, *others = given.values()
        if any(value != first for value in others):
            both = ", ".join(f"{key!r}: {value!r}" for key, value in given.items())
            raise UserError(f"{both} contradict each other, because they are the same setting")
        return {self.ours: first}

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        if ours[self.ours] is None and not self.null and self.default is not None:
            raise UserError(f"{self.ours} is None, which in the file would mean a default")
        return {self.theirs: ours[self.ours]}


@dataclass(frozen=True)
class Choice:
    """Row of a conversion table for a setting whose values differ in config.json, or for which it has several keys.

    ours     name of the setting in Manyheads
    theirs   keys in config.json
    values   mapping from a value in Manyheads to the equivalent tuples of values of these keys; the first is written
    default  values of the keys that apply if a key is missing
    """

    ours: str
    theirs: tuple[str, ...]
    values: Mapping[str, Sequence[tuple[Any, ...]]]
    default: tuple[Any, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.theirs

    def to_ours(self, theirs: JsonMapping) -> JsonObject:
        pairs = zip(self.theirs, self.default, strict=True)
        words = tuple(default if theirs.get(key) is None else theirs[key] for key, default in pairs)
        for ours, meanings in self.values.items():
            if words in meanings:
                return {self.ours: ours}
        shown = ", ".join(f"{key!r} is {value!r}" for key, value in zip(self.theirs, words, strict=True))
        known = ", ".join(" and ".join(map(repr, meaning)) for meanings in self.values.values() for meaning in meanings)
        raise UserError(f"{shown}, which cannot be represented; supported are {known}")

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        if ours[self.ours] not in self.values:
            raise UserError(f"{self.ours} is {ours[self.ours]!r}; expected one of {', '.join(map(repr, self.values))}")
        return dict(zip(self.theirs, self.values[ours[self.ours]][0], strict=True))


class SettingRow(Protocol):
    """Protocol of a row of a conversion table for settings.

    keys  keys in config.json that the row converts
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    def to_ours(self, theirs: JsonMapping) -> JsonObject: ...

    def to_theirs(self, ours: JsonMapping) -> JsonObject: ...


@dataclass(frozen=True)
class Settings:
    """Conversion table for the configuration of a model family.

    rows         settings that both Manyheads and config.json have
    ours_only    settings that only Manyheads has, with the only value that config.json can represent
    theirs_only  keys that only config.json has, with the only value that Manyheads supports. They are written, but may
                 be missing in a config.json that is read
    tolerated    keys like `theirs_only` that are not written
    ignored      keys of config.json that do not change the model's output: bookkeeping, and defaults for generation
    """

    rows: tuple[SettingRow, ...]
    _: KW_ONLY
    ours_only: JsonMapping
    theirs_only: JsonMapping
    tolerated: JsonMapping
    ignored: frozenset[str]

    def to_ours(self, theirs: JsonMapping, *, strict: bool = True) -> JsonObject:
        """Convert the content of config.json to Manyheads settings.

        strict  if True, an unknown key is an error. If False, it is ignored with a warning, unless it is known to
                change the model's output

        Raises UserError for an unsupported value or an unknown key.
        """
        only = {**self.theirs_only, **self.tolerated}
        known = {*only, *self.ignored, "label_type"}
        ours = dict(self.ours_only)
        for row in self.rows:
            ours |= row.to_ours(theirs)
            known |= set(row.keys)
        unknown = [key for key, value in theirs.items() if key not in known and (strict or value not in _UNSET)]
        if unknown and not strict:
            logger.warning(f"ignoring unknown keys of config.json: {', '.join(map(repr, unknown))}")
        for key, value in theirs.items():
            if key in unknown and (strict or key in COMPUTING):
                raise UserError(f"unknown key {key!r}: {value!r}; delete it if it does not change the computation")
            if key in only and value is not None and value != only[key]:
                raise UserError(f"{key!r} is {value!r}; only {only[key]!r} can be represented")
        return ours

    def key_of(self, name: str) -> str:
        """Return the key in config.json for a Manyheads setting, for error messages."""
        return next((repr(row.theirs) for row in self.rows if isinstance(row, Setting) and row.ours == name), name)

    def to_theirs(self, ours: JsonMapping) -> JsonObject:
        """Convert Manyheads settings to the content of config.json.

        Raises UserError for a value that config.json cannot represent.
        """
        for name, value in self.ours_only.items():
            if ours[name] != value:
                raise UserError(f"{name} is {ours[name]!r}; only {value!r} can be represented")
        theirs = dict(self.theirs_only)
        for row in self.rows:
            for key, value in row.to_theirs(ours).items():
                if theirs.setdefault(key, value) != value:
                    raise UserError(f"{key!r} would be {value!r}; only {theirs[key]!r} can be represented")
        return theirs


def identity(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Weight:
    """Row of a conversion table for a tensor that exists in Manyheads and in weight files.

    In a name, `{}` means a layer number. A row whose name contains the layer numbers of a tensor is preferred.

    ours       name in Manyheads, or the names of several tensors that form one tensor in the file
    theirs     name in the file
    also       further names of the tensor in files, if it is tied. All copies must have equal values
    to_theirs  conversion for writing: a function of all tensors in `ours` that returns the tensor of the file
    to_ours    conversion for reading: a function of the file's tensor that returns all tensors in `ours`
    """

    ours: str | tuple[str, ...]
    theirs: str
    also: tuple[str, ...] = ()
    to_theirs: Callable[..., Tensor] = identity
    to_ours: Callable[[Tensor], Tensor | Sequence[Tensor]] = identity

    @property
    def names(self) -> tuple[str, ...]:
        return (self.ours,) if isinstance(self.ours, str) else self.ours

    def split(self, theirs: Tensor) -> Sequence[Tensor]:
        """Convert a tensor of the file to one or more Manyheads tensors, in the order of `names`."""
        parts = self.to_ours(theirs)
        return [parts] if isinstance(parts, Tensor) else parts


def weights_and_biases(names: Mapping[str, str]) -> list[Weight]:
    """Return two rows of a conversion table for each layer, one for its weight and one for its bias.

    names  mapping from the name of each layer in Manyheads to its name in files
    """
    return [Weight(f"{o}.{leaf}", f"{t}.{leaf}") for o, t in names.items() for leaf in ("weight", "bias")]


def slots(name: str) -> tuple[str, list[str]]:
    """Replace the layer numbers in a tensor name by `{}`. Return the new name and the numbers."""
    return re.sub(r"\.\d+\.", ".{}.", name), re.findall(r"\.(\d+)\.", name)


def weights_to_theirs(rows: Iterable[Weight], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert Manyheads tensors to the tensors of a file, by their names in the file."""
    return {names[0]: row.to_theirs(*(ours[name] for name in group)) for group, row, names in _paired(rows, ours)}


def check_shapes(
    rows: Iterable[Weight],
    expected: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    known: Mapping[str, Tensor | None],
) -> None:
    """Raise UserError unless a file contains exactly the expected tensors, each with the right shape.

    The error lists missing tensors, unexpected tensors, and tensors with another shape or with a dtype of another kind
    (such as integers instead of floats). All tensors may be on the meta device.

    rows      conversion table
    expected  tensors of the model, by their names in Manyheads
    theirs    tensors of the file, by their names in the file
    known     further tensors that the file may contain. None instead of a tensor allows any shape (for unused heads)
    """
    faults: dict[str, list[str]] = {"missing": [], "unexpected": [], "misshapen": [], "contradictory": []}

    def check(name: str, like: Tensor, *, exact: bool) -> None:
        real, real_in_file = like.is_floating_point(), theirs[name].is_floating_point()
        if theirs[name].shape != like.shape:
            in_file, by_config = tuple(theirs[name].shape), tuple(like.shape)
            faults["misshapen"].append(
                f"{name}: expected the shape {by_config} from the configuration, found {in_file} in the file"
            )
        elif real > real_in_file or (exact and real != real_in_file):
            dtype = str(theirs[name].dtype).removeprefix("torch.")
            faults["contradictory"].append(f"{name}: expected {'real numbers' if real else 'integers'}, found {dtype}")

    unexpected = dict(theirs)
    for group, row, names in _paired(rows, expected):
        like = row.to_theirs(*(expected[name] for name in group))
        present = [name for name in names if unexpected.pop(name, None) is not None]
        for name in present:
            check(name, like, exact=True)
        if not present:
            faults["missing"].append(f"{names[0]} {tuple(like.shape)}")
    for name, value in known.items():
        if unexpected.pop(name, None) is not None and value is not None:
            check(name, value, exact=False)
    faults["unexpected"] = [f"{name} {tuple(tensor.shape)}" for name, tensor in unexpected.items()]
    if any(faults.values()):
        raise Mismatch("; ".join(f"{kind}: {shown(names)}" for kind, names in faults.items() if names))


def weights_to_ours(
    rows: Iterable[Weight],
    expected: Iterable[str],
    theirs: Mapping[str, Tensor],
    known: Mapping[str, Tensor | None],
) -> dict[str, Tensor]:
    """Convert the tensors of a file to Manyheads tensors. The caller must first call `check_shapes`.

    expected  names of the model's tensors in Manyheads
    known     further tensors that the file may contain (computed tables, zero biases), with the values that they must
              have

    Raises UserError if the copies of a tied tensor differ, or if a known tensor has other values.
    """
    ours: dict[str, Tensor] = {}
    contradictory = []
    for group, row, names in _paired(rows, expected):
        first, *others = [name for name in names if name in theirs]
        contradictory += [f"{name} differs from {first}" for name in others if _differ(theirs[name], theirs[first])]
        ours |= zip(group, row.split(theirs[first]), strict=True)
    for name, value in known.items():
        if name in theirs and value is not None:
            in_file = theirs[name]
            if not torch.allclose(in_file, value.to(in_file.dtype), rtol=0, atol=1e-4):
                contradictory.append(f"{name} differs from the values that this architecture computes")
    if contradictory:
        raise Mismatch(f"contradictory: {shown(contradictory)}")
    return ours


def _paired(rows: Iterable[Weight], ours: Iterable[str]) -> list[tuple[list[str], Weight, list[str]]]:
    """Return a triple for each tensor of a file: its names in Manyheads, its row, and its possible names in the file.

    Layer numbers replace `{}` in the names. The first of the possible names is used for writing.
    """
    by_name = {name: row for row in rows for name in row.names}
    pairs = []
    for name in ours:
        pattern, numbers = slots(name)
        pattern = name if name in by_name else pattern
        assert pattern in by_name, f"no row for {name}"
        row = by_name[pattern]
        if pattern == row.names[0]:
            group, names = ([name.format(*numbers) for name in side] for side in (row.names, (row.theirs, *row.also)))
            pairs.append((group, row, names))
    return pairs


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.equal(a, b.to(a.dtype))
