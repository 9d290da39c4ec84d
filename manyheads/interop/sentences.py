"""Directories of the library sentence-transformers: pooling, maximum length and prompts of a text encoder.

    modules.json                        list of modules: Transformer, Pooling, and Normalize or not
    sentence_bert_config.json           `max_seq_length` and `do_lower_case`
    1_Pooling/config.json               pooling mode, as flags `pooling_mode_...` or in the newer key `pooling_mode`
    config_sentence_transformers.json   prompts, and the name of the default prompt

Based on sentence-transformers 6.2. The library also truncates texts to `model_max_length` of tokenizer_config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase, Sequence

from manyheads.errors import UserError
from manyheads.files import JsonObject, read_json, regular
from manyheads.interop.tokenizer import TOKENIZER_CONFIG

Pool = Literal["mean", "first", "max", "tokens"]
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
PATTERNS = (MODULES, PROMPTS, "sentence_*_config.json", "?_*/config.json")  # patterns of the names of all files
_AGAIN = "copy the directory again"
UNLIMITED = 10**9  # A tokenizer states a larger number if it has no limit.
_CHAIN = ["Transformer", "Pooling", "Normalize"]  # supported list of modules; "Normalize" is optional
_POOLS: dict[str, Pool] = {"cls": "first", "max": "max", "mean": "mean"}  # pooling mode in the library -> in Manyheads
_FLAG, _OLDER = "pooling_mode_", {"cls_token": "cls", "max_tokens": "max", "mean_tokens": "mean"}  # older keys


@dataclass(frozen=True)
class SentenceEncoder:
    """Settings for computing the vector of a text from the token states of a model.

    The defaults apply to directories that sentence-transformers has not written.

    files           contents of the settings files, by name
    pool            pooling mode
    normalize       True if vectors are scaled to unit length
    fault           reason for which the pooling of the directory is not supported; empty if it is supported
    max_tokens      maximum number of tokens of a text. If None, the model's maximum
    lower_case      True if texts are converted to lower case
    prompts         texts that may be inserted before a text, by name
    default_prompt  name of the prompt that is inserted before all texts; empty if there is none
    """

    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    pool: Pool = "mean"
    normalize: bool = True
    fault: str = ""
    max_tokens: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""

    def prompt(self, name: str | None) -> str:
        """Return the text of a prompt. Raises UserError for an unknown name.

        name  name of the prompt; None for the default prompt, "" for no prompt
        """
        name = self.default_prompt if name is None else name
        if name and name not in self.prompts:
            raise UserError(
                f"prompt is {name!r}: expected {', '.join(self.prompts) or 'none, this model has no prompt'}"
            )
        return self.prompts.get(name, "")

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer, or a copy that converts texts to lower case if the settings require it."""
        if not self.lower_case:
            return tokenizer
        copy = Tokenizer.from_str(tokenizer.to_str())
        copy.encode_special_tokens = tokenizer.encode_special_tokens
        copy.normalizer = Sequence([Lowercase(), *([tokenizer.normalizer] if tokenizer.normalizer else [])])
        return copy


def sentence_files(path: Path) -> dict[str, bytes]:
    """Return the contents of the settings files of sentence-transformers in a directory, by name.

    The result is empty for a directory that this library has not written.
    """
    if not (path / MODULES).is_file():
        return {}
    files = sorted(file for pattern in PATTERNS for file in path.glob(pattern))
    return {file.relative_to(path).as_posix(): regular(file).read_bytes() for file in files}


def encoder_files(pool: Pool, width: int, max_tokens: int) -> dict[str, bytes]:
    """Return the contents of the files of an encoder of vectors (width,) of unit length, by their names.

    The names and keys are those that all versions of the library read.
    """
    paths = ["", *(f"{index}_{name}" for index, name in enumerate(_CHAIN[1:], 1))]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{name}"}
        for index, (path, name) in enumerate(zip(paths, _CHAIN, strict=True))
    ]
    flags = {f"{_FLAG}{older}": _POOLS[mode] == pool for older, mode in _OLDER.items()}
    contents = {
        MODULES: modules,
        "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
        f"{paths[1]}/config.json": {"word_embedding_dimension": width, **flags},
        PROMPTS: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    return {name: f"{json.dumps(content, indent=2)}\n".encode() for name, content in contents.items()}


def sentence_encoder(path: Path) -> SentenceEncoder:
    """Read the settings for text vectors from a model directory. Raises UserError if a file is damaged."""
    if not (files := sentence_files(path)):
        return SentenceEncoder()
    values = {name: read_json(path / name, _AGAIN) for name in (*files, TOKENIZER_CONFIG) if (path / name).is_file()}
    try:
        config: Any = next((value for name, value in values.items() if name.startswith("sentence_")), {})
        limit = values.get(TOKENIZER_CONFIG, {}).get("model_max_length")
        limit = config.get("max_seq_length") or (limit if limit and limit < UNLIMITED else None)
        prompts = values.get(PROMPTS, {})
        texts = {name: text or "" for name, text in (prompts.get("prompts") or {}).items()}
        default = prompts.get("default_prompt_name") or ""
        kinds = [module["type"] for module in values[MODULES]]
        pooling = next((f"{module['path']}/config.json" for module in values[MODULES][1:2]), "")
        pool, fault = _pooling(kinds, values.get(pooling), any(texts.values()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / MODULES} or a file of its modules is damaged ({error!r}): {_AGAIN}") from None
    return SentenceEncoder(
        files, pool, len(kinds) == len(_CHAIN), fault and f"{path}: {fault}", limit and int(limit),
        bool(config.get("do_lower_case")), texts, default,
    )  # fmt: skip


def _pooling(kinds: list[str], config: JsonObject | None, prompted: bool) -> tuple[Pool, str]:
    """Return the pooling mode of a list of modules, and the reason if it is not supported, or an empty text.

    kinds     types of the modules in modules.json
    config    content of the config.json of the module Pooling
    prompted  True if the directory has prompts
    """
    names = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in kinds]
    if names not in (_CHAIN, _CHAIN[:2]):
        other = ", ".join(name for name in names if name not in _CHAIN) or "another order"
        return "mean", f"expected the modules {', '.join(_CHAIN)}, found {other}"
    if config is None:
        return "mean", f"found no config.json of the module Pooling: {_AGAIN}"
    flags = [key.removeprefix(_FLAG) for key, on in config.items() if key.startswith(_FLAG) and on]
    stated = config.get("pooling_mode") or [_OLDER.get(flag, flag) for flag in flags] or "mean"
    modes = [stated] if isinstance(stated, str) else stated
    if len(modes) != 1 or modes[0] not in _POOLS:
        return "mean", f"expected the pooling mode {', '.join(_POOLS)}, found {' and '.join(modes)}"
    if prompted and config.get("include_prompt") is False:
        return "mean", "found 'include_prompt' false: pooling without the prompt is not supported"
    return _POOLS[modes[0]], ""
