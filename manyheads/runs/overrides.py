"""User settings for a nested configuration (dataclass), from dotted `key=value` arguments and YAML files.

The values from both sources are parsed as text, and the type of the field determines how. For example, `1e-3` is a
number if the field is a number, and `no` is a language code if the field is a language code. YAML alone would read
`1e-3` as text and `no` as false.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from manyheads.core.config import DataclassInstance, Hint, is_config
from manyheads.errors import UserError
from manyheads.files import JsonMapping, parse_json, regular

C = TypeVar("C", bound=DataclassInstance)

# names of settings in other training tools, and our names for the same settings, for hints in error messages
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
_PLAIN = {int: "an integer", float: "a number", bool: "true or false"}


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


def from_mapping(values: JsonMapping) -> list[Setting]:
    """Convert a dictionary of Python values, nested or with dotted keys, as passed to `manyheads.train`."""
    return [Setting(key, value) for key, value in leaves(_to_plain(values))]


def from_file(path: str | Path) -> list[Setting]:
    """Read settings from a YAML file: a mapping, nested or with dotted keys. Raises a UserError with file and line."""
    try:
        file = regular(Path(path))
        if file.stat().st_size > MAX_BYTES:  # the size is limited, because PyYAML takes seconds per megabyte
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
    """Return the first YAML alias, or the first bracket or block that is nested too deeply, or None.

    Aliases are rejected because aliases of aliases expand exponentially. The depth is limited because PyYAML's time is
    quadratic in it.
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
        if matching and "." not in setting.key and setting.key not in {f.name for f in fields(config)}:
            if len(matching) > 1:
                raise setting.error(f"several settings have this name; choose {' or '.join(matching)}")
            setting = replace(setting, key=matching[0])
        full.append(setting)
    return full


def as_dict(config: object) -> Any:
    """Convert a configuration to nested dictionaries and lists for JSON or YAML."""
    if is_config(config) and not isinstance(config, type):
        return {f.name: as_dict(getattr(config, f.name)) for f in fields(config)}
    return _to_plain(config)


def leaves(settings: JsonMapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
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


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: the most similar valid name, or all valid names."""
    names = list(valid)
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"valid are {', '.join(names)}"


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


def _to_plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _keys(config: DataclassInstance, prefix: str = "") -> Iterator[str]:
    for f in fields(config):
        value = getattr(config, f.name)
        yield from _keys(value, f"{prefix}{f.name}.") if is_config(value) else [f"{prefix}{f.name}"]


def _check_key(config: DataclassInstance, setting: Setting) -> None:
    node: object = config
    for part in setting.key.split("."):
        if isinstance(node, dict):
            return
        if not is_config(node) or part not in {f.name for f in fields(node)}:
            raise setting.error(f"unknown setting; {_suggest(setting.key, list(_keys(config)))}")
        node = getattr(node, part)
    if is_config(node) and setting.value not in ("{}", {}):
        raise setting.error(f"is a group of settings; set one of {', '.join(_keys(node, setting.key + '.'))}")


def _suggest(key: str, valid: list[str]) -> str:
    """Suggest the most similar key, or a key with the same last part: `training.steps` for `steps`."""
    last = {name.rpartition(".")[2]: name for name in reversed(valid)}
    word = key.rpartition(".")[2]
    if (meant := OTHER_NAMES.get(word)) in last:
        return f"did you mean {last[meant]}?"
    for near in (get_close_matches(key, valid, n=1, cutoff=0.75), get_close_matches(word, last, n=1, cutoff=0.75)):
        if near:
            return f"did you mean {last.get(near[0], near[0])}?"
    return nearest(key, valid)


def rebuild(config: C, prefix: str, settings: list[Setting]) -> C:
    """Return a copy of the configuration with all changes applied at once, so that its checks see all new values
    together.

    prefix  beginning of the keys of this configuration among the settings
    """
    hints = get_type_hints(type(config))
    changes: dict[str, object] = {}
    applied: list[Setting] = []
    for f in fields(config):
        key = prefix + f.name
        value = getattr(config, f.name)
        matching = [s for s in settings if s.key == key or s.key.startswith(f"{key}.")]
        if (
            f.name == "model"
            and isinstance(value, dict)
            and any(
                s.key == f"{prefix}preset" and setting_words(s.value) != setting_words(vars(config)["preset"])
                for s in settings
            )
        ):
            # if the user selects another model preset, the recipe's settings for its own model are discarded
            value = changes["model"] = {}
        if not matching:
            continue
        applied += matching
        if is_config(value):
            changes[f.name] = rebuild(value, f"{key}.", matching)
            continue
        for setting in matching:
            if setting.key == key:
                value = _convert(setting, setting.value, hints[f.name])
            else:  # the key names an entry of a dictionary, not a field
                value = {**value, setting.key[len(key) + 1 :]: _convert(setting, setting.value, Any)}
        changes[f.name] = value
    try:
        return replace(config, **changes)
    except UserError as error:
        if len(applied) == 1 and not str(error).startswith(applied[0].key):
            raise applied[0].error(str(error)) from error
        raise UserError(
            f"{prefix[:-1]}: {error}" if prefix and not str(error).startswith(prefix) else str(error)
        ) from error


def _convert(setting: Setting, value: object, hint: Hint) -> object:
    """Convert text, or a list of texts, to the type of a field.

    Python values are checked later by the dataclass itself.
    """
    origin: Hint = get_origin(hint)
    arguments = get_args(hint)
    if not isinstance(value, str | list):
        return (value,) if origin is tuple else value  # The user gave a single number for a field that expects a tuple.
    if origin in (Union, types.UnionType):
        if type(None) in arguments and isinstance(value, str) and value.lower() in _NONE:
            return None
        # str is tried last, because it accepts any text
        kinds = sorted((a for a in arguments if a is not type(None)), key=lambda a: a is str)
        for kind in kinds[:-1]:
            try:
                return _convert(setting, value, kind)
            except ValueError:
                continue
        return _convert(setting, value, kinds[-1])
    if origin is Literal:
        named = {str(a): a for a in arguments}
        if not isinstance(value, str) or value not in named:
            close = [f"; did you mean {name}?" for name in get_close_matches(str(value), named, n=1)]
            raise setting.error(f"expected one of {', '.join(named)}, found {value!r}{''.join(close)}")
        return named[value]
    if origin in (tuple, list):
        return _sequence(setting, value, origin, arguments)
    if origin is dict or hint is dict:
        loaded = _load(setting, value)
        if not isinstance(loaded, dict) or not all(isinstance(name, str) for name in loaded):
            raise setting.error(f"expected a mapping such as {{name: value}}, found {value!r}")
        return loaded
    if hint is Any:
        return _load(setting, value)
    if not isinstance(value, str):
        raise setting.error(f"expected {_PLAIN.get(hint, 'one value')}, found a list")
    try:
        return _BOOL[value.lower()] if hint is bool else hint(value)
    except (KeyError, ValueError) as error:
        raise setting.error(f"expected {_PLAIN.get(hint, hint.__name__)}, found {value!r}") from error


def _sequence(setting: Setting, value: str | list[object], origin: Hint, arguments: tuple[Hint, ...]) -> object:
    value = _items(value) if isinstance(value, str) else value
    fixed = origin is tuple and Ellipsis not in arguments
    if fixed and len(value) != len(arguments):
        raise setting.error(f"expected {len(arguments)} values, found {len(value)}")
    kinds = arguments if fixed else [arguments[0]] * len(value)
    return origin(_convert(setting, item, kind) for item, kind in zip(value, kinds, strict=True))


def _items(text: str) -> list[object]:
    """Split the text of a list `a,b`, with or without brackets. The words of a JSON list may contain any characters."""
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
    # the text is a list without brackets
    text = f"[{value}]" if "," in value and value[:1] not in "[{(\"'" else value
    try:
        if len(text) <= MAX_BYTES and not _find_unbounded(text):
            return _convert_numeric_strings(yaml.safe_load(text))
    except Exception as error:  # PyYAML may raise any exception for values that do not match their YAML tags
        raise setting.error(f"failed to parse the value {value[:40]!r}") from error
    bounds = f"at most {MAX_BYTES:,} characters, {MAX_DEPTH} levels of brackets and no aliases (*name)"
    raise setting.error(f"expected {bounds}; found {value[:40]!r}")


def _convert_numeric_strings(loaded: object) -> object:
    """Convert text to a number. YAML 1.1 reads numbers such as 1e-3 as text."""
    if isinstance(loaded, dict):
        return {key: _convert_numeric_strings(item) for key, item in loaded.items()}
    if isinstance(loaded, list):
        return [_convert_numeric_strings(item) for item in loaded]
    try:
        return float(loaded) if isinstance(loaded, str) else loaded
    except ValueError:
        return loaded
