"""User settings for a nested configuration (dataclass), from dotted `key=value` arguments and YAML files.

The values from both sources are parsed as text, and the type of the field determines how. For example, `1e-3` is a
number if the field is a number, and `no` is a language code if the field is a language code. YAML alone would read
`1e-3` as text and `no` as false.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import accumulate, chain, repeat
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml

from manyheads.core.config import (
    UNIONS,
    DataclassInstance,
    FieldError,
    Hint,
    as_dict,
    expected,
    field_types,
    is_config,
    plain,
    types_of,
    values,
)
from manyheads.errors import UserError, nearest
from manyheads.files import JsonMapping, JsonObject, parse_json, regular

C = TypeVar("C", bound=DataclassInstance)

# name of a setting in other training tools -> name of the same setting here, for hints in error messages
OTHER_NAMES = {
    "lr": "learning_rate", "epoch": "epochs", "max_epochs": "epochs", "max_steps": "steps", "warmup_steps": "warmup",
    "wd": "weight_decay", "scheduler": "schedule", "grad_clip": "clip",
    "gradient_accumulation_steps": "accumulate", "batch_size": "batch_items", "random_seed": "seed",
    "rank": "lora_rank", "alpha": "lora_alpha",
}  # fmt: skip
MAX_BYTES = 100_000  # maximum size of YAML text in bytes
MAX_DEPTH = 50  # maximum number of nested levels in a YAML file
_OPENING = (
    yaml.FlowMappingStartToken, yaml.FlowSequenceStartToken, yaml.BlockMappingStartToken, yaml.BlockSequenceStartToken,
)  # fmt: skip
_CLOSING = (yaml.FlowMappingEndToken, yaml.FlowSequenceEndToken, yaml.BlockEndToken)
_NONE = ("", "none", "null", "~")
_BOOL = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
MAX_SHOWN = 60  # maximum number of characters of a value in an error message


@dataclass(frozen=True)
class Setting:
    """Value that the user sets for one dotted key: text, a list of texts, or a Python value.

    place  file and line of the setting for error messages, such as `run.yaml:3`
    """

    key: str
    value: object
    place: str = ""

    def error(self, message: str, key: str | None = None) -> UserError:
        return UserError(
            f"{self.place}: {key or self.key}: {message}" if self.place else f"{key or self.key}: {message}"
        )


def from_arguments(arguments: Iterable[str]) -> list[Setting]:
    """Parse command-line arguments of the form `training.steps=100`."""
    settings = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key.strip():
            raise UserError(f"{argument!r} is not a setting; expected key=value, such as training.steps=100")
        if not value.strip():
            raise UserError(f"{argument!r} has no value (an unset variable?); for none, write {key.strip()}=null")
        settings.append(Setting(key.strip(), value.strip()))
    return settings


def from_mapping(settings: JsonMapping) -> list[Setting]:
    """Convert a dictionary of Python values, nested or with dotted keys, as passed to `manyheads.train`."""
    values = {str(key): plain(value) for key, value in settings.items()}
    return [Setting(key, value) for key, value in leaves(values)]


def from_file(path: str | Path) -> list[Setting]:
    """Read settings from a YAML file: a mapping, nested or with dotted keys. Raises a UserError with file and line."""
    try:
        file = regular(Path(path))
        if file.stat().st_size > MAX_BYTES:  # Large files are rejected, because PyYAML takes seconds per megabyte.
            raise UserError(f"{path}: expected at most {MAX_BYTES:,} bytes of settings, found {file.stat().st_size:,}")
        text = file.read_text(encoding="utf-8")
        if token := _find_unbounded(text):
            line = token.start_mark.line + 1
            if isinstance(token, yaml.AliasToken):
                raise UserError(f"{path}:{line}: aliases (*{token.value}) are not supported; write the settings out")
            raise UserError(
                f"{path}:{line}: too many levels of nesting; expected settings such as `training: {{steps: 100}}`"
            )
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: failed to read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise UserError(f"{path}{line}: invalid YAML: {getattr(error, 'problem', None) or error}") from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}:{root.start_mark.line + 1}: expected settings such as `training: {{steps: 100}}`")
    return list(_flatten(root, "", str(path)))


def _find_unbounded(text: str) -> yaml.Token | None:
    """Return the first token of a YAML text that makes parsing expensive; None if there is none.

    This is an alias, because aliases of aliases expand exponentially, or the start of a bracket or block that is nested
    too deeply, because PyYAML's time is quadratic in the depth.
    """
    depth = 0
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        depth += isinstance(token, _OPENING) - isinstance(token, _CLOSING)
        if isinstance(token, yaml.AliasToken) or depth > MAX_DEPTH:
            return token
    return None


def apply(config: C, settings: Iterable[Setting]) -> C:
    """Return a copy of `config` with the settings applied; later settings take precedence over earlier ones.

    Raises a UserError that names the key, its location and a possible correction.
    """
    settings = with_full_keys(config, settings)
    for setting in settings:
        _check_key(config, setting)
    return rebuild(config, "", settings)


def with_full_keys(config: DataclassInstance, settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings with full keys: `steps` becomes `training.steps`, if no other key ends in `.steps`.

    Raises UserError if several keys match.
    """
    known = [key for key, _ in leaves(as_dict(config))]
    full = []
    for setting in settings:
        matching = [key for key in known if key.rpartition(".")[2] == setting.key]
        if matching and "." not in setting.key and setting.key not in values(config):
            if len(matching) > 1:
                raise setting.error(f"several settings have this name; choose {' or '.join(matching)}")
            setting = replace(setting, key=matching[0])
        full.append(setting)
    return full


def leaves(settings: JsonMapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield each setting of a configuration as a pair of dotted key and value."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def setting_words(value: object) -> str:
    """Format a setting's value as text that `key=value` can parse.

    A list of fewer than two items requires brackets. A nested list, or a list of words with separators, requires
    quotes.
    """
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (list, tuple)) or _needs_quotes(item) for item in value):
            return json.dumps(value, ensure_ascii=False)
        items = ",".join(setting_words(item) for item in value)
        return items if len(value) > 1 else f"[{items}]"
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def _needs_quotes(item: object) -> bool:
    return isinstance(item, str) and (not item or item != item.strip() or not set(item).isdisjoint("[](),'\""))


def _flatten(node: yaml.Node, prefix: str, file: str) -> Iterator[Setting]:
    place = f"{file}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode) and (node.value or not prefix):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{file}:{key.start_mark.line + 1}: {prefix[:-1]}: expected a name before the colon")
            if key.value in seen:
                raise UserError(f"{file}:{key.start_mark.line + 1}: found {prefix}{key.value} twice; remove one")
            seen.add(key.value)
            yield from _flatten(value, f"{prefix}{key.value}.", file)
    elif isinstance(node, yaml.MappingNode):
        yield Setting(prefix[:-1], "{}", place)
    else:
        yield Setting(prefix[:-1], _text(node), place)


def _text(node: yaml.Node) -> object:
    if isinstance(node, yaml.SequenceNode):
        return [_text(item) for item in node.value]
    return node.value if isinstance(node, yaml.ScalarNode) else yaml.serialize(node)


def _keys(config: DataclassInstance, prefix: str = "") -> Iterator[str]:
    for name, value in values(config).items():
        yield from _keys(value, f"{prefix}{name}.") if is_config(value) else [f"{prefix}{name}"]


def _check_key(config: DataclassInstance, setting: Setting) -> None:
    node: object = config
    for part in setting.key.split("."):
        if not is_config(node) or part not in values(node):
            raise setting.error(f"unknown setting; {_suggest(setting.key, list(_keys(config)))}")
        if dict in types_of(field_types(type(node))[part]):
            return  # The rest of the key is the name of an item.
        node = values(node)[part]
    if is_config(node) and setting.value not in ("{}", {}):
        raise setting.error(f"is a group of settings; set one of {', '.join(_keys(node, setting.key + '.'))}")


def _suggest(key: str, valid: list[str]) -> str:
    """Return a hint for an unknown key: the valid key with the same last part, or the most similar valid key."""
    last = {name.rpartition(".")[2]: name for name in reversed(valid)}
    word = key.rpartition(".")[2]
    if (meant := OTHER_NAMES.get(word)) in last:
        return f"did you mean {last[meant]}?"
    for near in (get_close_matches(key, valid, n=1, cutoff=0.75), get_close_matches(word, last, n=1, cutoff=0.75)):
        if near:
            return f"did you mean {last.get(near[0], near[0])}?"
    return nearest(key, valid)


def rebuild(config: C, prefix: str, settings: list[Setting]) -> C:
    """Return a copy of a configuration with all settings applied at once.

    The checks of the configuration class run once, with all new values.

    prefix  prefix of the keys in `settings` that belong to this configuration, such as "training."
    """
    hints = field_types(type(config))
    changes: JsonObject = {}
    applied: list[Setting] = []
    for name, value in values(config).items():
        key = prefix + name
        matching = [s for s in settings if s.key == key or s.key.startswith(f"{key}.")]
        if name == "model" and isinstance(value, dict) and _selects_preset(config, prefix, settings):
            value = changes["model"] = {}  # The recipe's model settings are meant for its preset only.
        applied += matching
        if is_config(value):
            changes |= {name: rebuild(value, f"{key}.", matching)} if matching else {}
            continue
        for setting in matching:
            if setting.key == key:
                value = _converted(setting, hints[name])
            else:  # The key names an item of a dictionary, not a field of a configuration.
                items = value if isinstance(value, dict) else {}
                value = {**items, setting.key[len(key) + 1 :]: _read(setting, setting.value, Any)}
            changes[name] = value
    try:
        return replace(config, **changes)
    except FieldError as error:
        key = prefix + error.field
        place = next((f"{s.place}: " for s in reversed(applied) if s.key == key and s.place), "")
        raise UserError(f"{place}{key} {error.fault}") from error
    except UserError as error:
        if len(applied) == 1 and not str(error).startswith(applied[0].key):
            raise applied[0].error(str(error)) from error
        named = not prefix or str(error).startswith(prefix)
        raise UserError(str(error) if named else f"{prefix[:-1]}: {error}") from error


def _selects_preset(config: DataclassInstance, prefix: str, settings: list[Setting]) -> bool:
    """Return True if the user's settings select another model preset than the configuration."""
    presets = [setting_words(setting.value) for setting in settings if setting.key == f"{prefix}preset"]
    return any(preset != setting_words(vars(config)["preset"]) for preset in presets)


def _converted(setting: Setting, hint: Hint) -> object:
    """Return the value of a setting for a field of the type `hint`. Raises UserError if it has another type."""
    value = _read(setting, setting.value, hint)
    if wanted := expected(value, hint):
        raise setting.error(f"expected {wanted}, found {repr(setting.value)[:MAX_SHOWN]}")
    return value


def _read(setting: Setting, value: object, hint: Hint) -> object:
    """Convert text, or a list of texts, to the type of a field. Text that cannot be converted is returned unchanged."""
    origin: Hint = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return _read(setting, value, arguments[0])
    if not isinstance(value, str | list):
        return (value,) if origin is tuple else value  # The user gave a single number for a field that expects a tuple.
    if origin in UNIONS:
        if NoneType in arguments and isinstance(value, str) and value.lower() in _NONE:
            return None
        if str in arguments and isinstance(value, str) and "," not in value and value[:1] not in ("[", "("):
            return value  # A single name is not a list.
        # The type str is tried last, because it accepts any text.
        readings = ((_read(setting, value, kind), kind) for kind in sorted(arguments, key=lambda kind: kind is str))
        return next((read for read, kind in readings if not expected(read, kind)), value)
    if origin is tuple:
        items = _items(value) if isinstance(value, str) else value
        kinds = repeat(arguments[0]) if Ellipsis in arguments else chain(arguments, repeat(Any))
        return tuple(_read(setting, item, kind) for item, kind in zip(items, kinds, strict=False))
    if hint is Any or dict in (origin, hint):
        return _load(setting, value)
    if not isinstance(value, str):
        return value
    if origin is Literal:
        return {str(choice): choice for choice in arguments}.get(value, value)
    if hint is bool:
        return _BOOL.get(value.lower(), value)
    try:
        return hint(value)
    except (TypeError, ValueError):
        return value


def _items(text: str) -> list[object]:
    """Return the items of a list that is written as text: `a,b`, `[a, b]`, or a JSON list of strings.

    Strings in a JSON list may contain any characters.
    """
    try:
        words = parse_json(text)
        if isinstance(words, list) and words and all(isinstance(word, (str, list)) for word in words):
            return words
    except ValueError:
        pass
    inner = _strip_enclosing(text, "[]", "()")
    return [_strip_enclosing(part, '""', "''") for part in inner.split(",")] if inner else []


def _strip_enclosing(text: str, *pairs: str) -> str:
    """Return the text inside the brackets or quotes that enclose the whole text; without these, return the whole text.

    The text `(a) b (c)` has no enclosing pair.
    """
    text = text.strip()
    inner = text[1:-1]
    depths = accumulate((character in "[(") - (character in "])") for character in inner)
    around = len(text) > 1 and text[0] + text[-1] in pairs and min(depths, default=0) >= 0
    return inner.strip() if around else text


def _load(setting: Setting, value: object) -> object:
    if isinstance(value, list):
        return [_load(setting, item) for item in value]
    if not isinstance(value, str):
        return value
    # Add brackets to a list without them, because YAML requires brackets.
    text = f"[{value}]" if "," in value and value[:1] not in "[{(\"'" else value
    try:
        if len(text) <= MAX_BYTES and not _find_unbounded(text):
            return _convert_numeric_strings(yaml.safe_load(text))
    except Exception as error:  # PyYAML may raise any exception for values that do not match their YAML tags.
        raise setting.error(f"failed to parse the value {value[:40]!r}") from error
    bounds = f"at most {MAX_BYTES:,} characters, {MAX_DEPTH} levels of brackets and no aliases (*name)"
    raise setting.error(f"expected {bounds}; found {value[:40]!r}")


def _convert_numeric_strings(loaded: object) -> object:
    """Convert texts such as "1e-3" to numbers, because YAML 1.1 reads these numbers as text. Other values remain."""
    if isinstance(loaded, dict):
        return {key: _convert_numeric_strings(item) for key, item in loaded.items()}
    if isinstance(loaded, list):
        return [_convert_numeric_strings(item) for item in loaded]
    try:
        return float(loaded) if isinstance(loaded, str) else loaded
    except ValueError:
        return loaded
