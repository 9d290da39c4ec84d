"""Read and write model directories in the format of the library `transformers`, without importing that library.

A model directory written by Manyheads contains these files:

    config.json  model.safetensors  generation_config.json  tokenizer.json  tokenizer_config.json
    target_tokenizer.json               only for translators with two vocabularies (model type `manyheads-...`)
    source.spm  target.spm  vocab.json  instead of tokenizer.json, in directories of OPUS-MT
    preprocessor_config.json            settings of image preprocessing

Directories of other tools may have sharded weights and other tokenizer files (`interop/vocabularies.py`).
A translator with a joint vocabulary is saved as a Marian directory (post-norm, no final norms) or as a Pegasus
directory (pre-norm, final norms). The model type of a model that no other tool supports begins with `manyheads-`.

This module never loads a pickle. It uses the network only for models whose name begins with `hub:`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.core.layers import skip_init
from manyheads.core.tensor_file import checksum, write_tensors
from manyheads.errors import UserError, extra, shown
from manyheads.files import JsonMapping, JsonObject, WriteError, read_json, replacing_all
from manyheads.interop.adapters import SETTINGS, WEIGHTS, Adapter, adapter_files, is_adapter
from manyheads.interop.encoder_decoder import MARIAN
from manyheads.interop.family import AnyFamily, saved_tensors
from manyheads.interop.formats import FAMILIES, TIMM
from manyheads.interop.own import OWN_TRANSFORMER
from manyheads.interop.sentences import PATTERNS, SentenceEncoder, sentence_encoder
from manyheads.interop.table import Mismatch
from manyheads.interop.tokenizer import (
    TOKENIZER_CONFIG,
    TOKENIZERS,
    Tokenizers,
    read_tokenizers,
    tokenizer_config,
    vocabulary_sizes,
)
from manyheads.interop.vocabularies import FILES
from manyheads.interop.weights import CHECKSUM, PICKLED, SAFE, read_safe, read_shapes, weight_files
from manyheads.models.adapt import adapt
from manyheads.training.checkpoints import model_files, read_unfinished
from manyheads.training.run_directory import describe_unfinished
from manyheads.training.state import load_weights
from manyheads.versions import LAST_READER, EarlierVersion, check_complete, upgrade

logger = logging.getLogger(__name__)

CONFIG, PREPROCESSOR, GENERATION = "config.json", "preprocessor_config.json", "generation_config.json"
# Keys of generation_config.json for translators. The last key is the exponent of Manyheads' length penalty; the length
# penalty of transformers has another formula.
DECODING = ("num_beams", "length_penalty", "alpha")
# Names, or patterns of names, of the files that are downloaded from the Hub in addition to the weights.
FETCHED = (CONFIG, PREPROCESSOR, GENERATION, *TOKENIZERS, *FILES, *PATTERNS, SETTINGS, WEIGHTS)


@dataclass(frozen=True)
class Loaded:
    """Model and other contents of a model directory.

    tokenizer         tokenizer, of the source language for a translator; None if the model accepts only token ids
    target_tokenizer  tokenizer of the target language; the same object as `tokenizer` if the vocabulary is joint
    family            model type in config.json
    vocabulary        contents of the original tokenizer files if there is no tokenizer.json; they are saved with
                      the model unchanged
    preprocessing     contents of preprocessor_config.json, or the equivalent part of timm's config.json, or None
    decoding          entries of generation_config.json that translators use (`DECODING`)
    label_type        type that the labels of a classifier had in the training data; their names are strings
    """

    model: Any  # a `Model`; only config.json states its class
    tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None
    family: str
    path: Path
    vocabulary: Mapping[str, bytes] = field(default_factory=dict)
    preprocessing: JsonMapping | None = None
    decoding: JsonMapping = field(default_factory=dict)
    sentences: SentenceEncoder = field(default_factory=SentenceEncoder)
    label_type: str = "str"

    def save(self, path: str | Path) -> str:
        """Write the model and all other contents to another directory, as `save` does. Return the model type."""
        if self.sentences.files:
            write_files(Path(path), self.sentences.files)
        return save(
            path, self.model, self.tokenizer, self.target_tokenizer, vocabulary=self.vocabulary,
            preprocessing=self.preprocessing, decoding=self.decoding, label_type=self.label_type,
        )  # fmt: skip


class UnknownArchitecture(UserError):
    """Error for a model directory whose architecture this package does not build."""


def save(
    path: str | Path,
    model: Model[Config],
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    *,
    vocabulary: Mapping[str, bytes] | None = None,
    preprocessing: JsonMapping | None = None,
    decoding: JsonMapping | None = None,
    label_type: str = "str",
) -> str:
    """Write a model directory and return the model type. It is `manyheads-...` if no other tool can open the directory.

    path              directory, which is created if it does not exist. Other files in it are not changed. Each file is
                      written under a temporary name, then renamed
    target_tokenizer  target tokenizer of a model with two vocabularies
    vocabulary        contents of the original tokenizer files (`Loaded.vocabulary`), written instead of
                      tokenizer.json
    preprocessing     settings of image preprocessing, written to preprocessor_config.json
    decoding          entries of generation_config.json that replace those of the model type (`DECODING`)
    label_type        type of the labels of a classifier

        >>> from manyheads import directory
        >>> directory.save("copy", gpt.model, gpt.tokenizer)
        'gpt2'
    """
    if target_tokenizer is tokenizer or vocabulary:
        target_tokenizer = None
    family, _ = family_of(model)
    if adapter := adapter_files(model, family, label_type):
        write_files(Path(path) / "adapter", adapter)
    if target_tokenizer is not None and not family.own:
        # Other tools ignore a second tokenizer file and would decode target texts with the source tokenizer. So save
        # the model in the format of Manyheads.
        family = OWN_TRANSFORMER
    sizes = vocabulary_sizes(model.config)
    if tokenizer is not None and target_tokenizer is None and sizes[0] != sizes[1] and not vocabulary:
        raise UserError(
            f"expected a target tokenizer too: the model has two vocabularies, of {sizes[0]} and {sizes[1]} tokens"
        )
    if vocabulary and family is not MARIAN:
        raise UserError(f"{family.model_type} directories cannot hold the SentencePiece vocabulary of this model")
    pair = {} if vocabulary else dict(zip(TOKENIZERS, (tokenizer, target_tokenizer), strict=True))
    texts = {name: given.to_str(pretty=True) for name, given in pair.items() if given is not None}
    settings = family.settings_of(model.config) | {"dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    settings |= {} if label_type == "str" else {"label_type": label_type}
    if family.own:
        settings["tokenizers"] = list(texts)
    files: dict[str, str | bytes | dict[str, Tensor]] = {SAFE: family.tensors_of(model)}
    files |= texts | dict(vocabulary or {})
    if tokenizer is not None and not vocabulary:
        files[TOKENIZER_CONFIG] = _json(tokenizer_config(model.config, tokenizer))
    if preprocessing is not None:
        files[PREPROCESSOR] = _json(preprocessing)
    if family.generation is not None and (generating := family.generation(model.config)) is not None:
        files[GENERATION] = _json(generating | dict(decoding or {}))
    files[CONFIG] = _json(settings)  # config.json is written last, because a directory without it is not a model
    write_files(Path(path), files)
    return family.model_type


def load(path: str | Path) -> Loaded:
    """Load a model from a directory or from `hub:OWNER/NAME[@REVISION]`. The model is in float32 and in eval mode.

    Raises UserError with a one-line message if weights, tokenizer or settings do not match config.json.

        >>> from manyheads import directory
        >>> loaded = directory.load("runs/gpt")
        >>> type(loaded.model).__name__, loaded.family
        ('GPT', 'gpt2')
    """
    path, source = resolve(path), path
    if (unfinished := read_unfinished(path)) is not None:
        files, weights, description = unfinished
        loaded = load(files)
        check_finite(path, weights)
        load_weights(loaded.model, weights)
        logger.warning(description)
        return replace(loaded, path=path)
    if is_adapter(path):
        return _load_adapted(Adapter.read(path))
    family, settings = read_settings(path)
    check_weight_files(path, source)
    shapes = read_shapes(path)
    for name, shape in shapes.items():
        # PyTorch can store float8 and smaller types, but cannot compute with them.
        if shape.is_floating_point() and shape.element_size() < 2:
            raise UserError(
                f"{path}: {name} is {str(shape.dtype).removeprefix('torch.')}: expected float32, float16 or bfloat16. "
                "Convert the weights to one of these"
            )
    try:
        config, tensors = family.read(settings, shapes, lambda: read_safe(path))
    except UserError as error:
        raise misfit(path, family, error) from None
    check_finite(path, tensors)
    tokenizers = _tokenizers(path, family, settings, vocabulary_sizes(config))
    with skip_init():
        model = family.module(config)
    with torch.no_grad():
        for name, tensor in saved_tensors(model).items():
            tensor.copy_(tensors[name])
    try:
        stated = family.preprocessing(settings)
    except UserError as error:
        raise UserError(f"{path / CONFIG}: {error}") from None
    preprocessing = _read_json(path / PREPROCESSOR) if (path / PREPROCESSOR).is_file() else stated
    generation = _read_json(path / GENERATION) if (path / GENERATION).is_file() else {}
    return Loaded(
        model.eval(), tokenizers.source, tokenizers.target, family.model_type, path, tokenizers.vocabulary,
        preprocessing, {name: generation[name] for name in DECODING if name in generation},
        sentence_encoder(path), settings.get("label_type", "str"),
    )  # fmt: skip


def check_weight_files(path: Path, source: str | Path) -> None:
    """Raise UserError if a directory has no weights in safetensors. `source` is the path or name that the user gave."""
    if weight_files(path, SAFE):
        return
    if weight_files(path, PICKLED):
        raise UserError(
            f"{path}: {PICKLED} is a pickle, which can run code and is never loaded. Make a safe copy with"
            f" 'manyheads convert {path} OUT'"
        )
    # From the Hub, only the required files were downloaded, so it is unknown whether the model has pickled weights.
    if str(source).startswith("hub:"):
        raise UserError(f"{source}: no {SAFE}. If it has {PICKLED}, run 'manyheads convert {source} OUT'")
    raise UserError(f"{path}: no {SAFE}: the directory is incomplete. Copy or save the model again")


def _load_adapted(adapter: Adapter) -> Loaded:
    """Load the base model of an adapter, and add the adapter to its weights."""
    loaded = load(_base_of(adapter))
    model, new = adapt(loaded.model, **adapter.new_head(loaded.model))
    family, _ = family_of(model)
    theirs = adapter.apply(model, family, new)
    check_finite(adapter.path, theirs)
    load_weights(model, family.read(family.settings_of(model.config), theirs, lambda: theirs)[1])
    return replace(loaded, model=model.eval(), path=adapter.path, label_type=adapter.label_type or loaded.label_type)


def _base_of(adapter: Adapter) -> Path:
    """Return the directory of an adapter's base model: a path, a path relative to the adapter, or a download."""
    name, revision = (adapter.settings.get(key) for key in ("base_model_name_or_path", "revision"))
    for base in (Path(str(name)), adapter.path / str(name)):
        if base.is_dir() and not base.samefile(adapter.path):
            return base
    stated = f"hub:{name}" + f"@{revision}" * bool(revision)
    try:
        return resolve(stated, cached=True)
    except UserError:
        hint = f"expected a model directory. Correct the path, or load {stated} once if it is a model of the Hub"
        raise UserError(f"{adapter.path / SETTINGS}: 'base_model_name_or_path' is {name}: {hint}") from None


def resolve(model: str | Path, *, pickled: bool = False, cached: bool = False, known: bool = True) -> Path:
    """Return the local directory of a model. For `hub:OWNER/NAME[@REVISION]`, download only the files that are needed.

    pickled  if True, download pickled weights instead of safetensors, for the command `manyheads convert`
    cached   if True, download nothing, and use the files of an earlier download
    known    if True, raise UserError for an unknown architecture before its weights are downloaded
    """
    if not str(model).startswith("hub:"):
        return Path(model)
    with extra("hub", "loading a model from the Hugging Face Hub"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

    name, _, revision = str(model).removeprefix("hub:").partition("@")
    weights = PICKLED if pickled else SAFE
    stem, suffix = weights.split(".")
    large = (weights, f"{weights}.index.json", f"{stem}-?????-of-?????.{suffix}")

    def fetch(*wanted: str) -> Path:
        patterns, version = list(wanted), revision or None
        try:
            return Path(snapshot_download(name, revision=version, allow_patterns=patterns, local_files_only=cached))
        except (HfHubHTTPError, OSError, ValueError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(f"{model}: download failed ({reason}): expected hub:OWNER/NAME[@REVISION]") from None

    if (path := fetch(*FETCHED)).joinpath(CONFIG).is_file() and known:
        read_settings(path)
    return fetch(*FETCHED, *large)


def family_of(model: Model[Config]) -> tuple[AnyFamily, list[str]]:
    """Return the first format that can represent a model, and the reasons for which the formats before it cannot.

    Raises UserError if no format can represent the model.
    """
    obstacles = []
    for family in FAMILIES.values():
        if type(model) is family.module:  # Do not accept subclasses, because they have another format.
            try:
                family.settings_of(model.config)
            except UserError as error:
                obstacles.append(f"{family.model_type}: {error}")
                continue
            return family, obstacles
    raise UserError(f"no model type can represent this {type(model).__name__}: {'; '.join(obstacles) or 'unknown'}")


def read_settings(path: Path) -> tuple[AnyFamily, JsonObject]:
    """Return the format of a model directory and the content of its config.json. Its model type names the format."""
    if is_adapter(path):
        path = _base_of(Adapter.read(path))
    path, run = model_files(path), path
    file = path / CONFIG
    if not path.is_dir():
        what = "a file" if path.exists() else "no such directory"
        raise UserError(f"{path}: {what}: expected a model directory or hub:OWNER/NAME")
    if not file.is_file():
        raise UserError(f"{path}: {describe_unfinished(run) or f'no {CONFIG}: this is not a model directory'}")
    settings = upgrade(_read_json(file))
    model_type, architecture = settings.get("model_type"), settings.get("architecture")
    if model_type is None and isinstance(architecture, str):
        if known := next((family for begin, family in TIMM.items() if architecture.startswith(begin)), None):
            return known, settings
        raise UserError(f"{file}: expected a timm model with {', '.join(TIMM)} in its name, found {architecture}")
    if str(model_type).startswith("manyheads-") and model_type not in FAMILIES:
        raise EarlierVersion(file, [f"a model type of this version instead of {model_type}"])
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        types = ", ".join(name for name, family in FAMILIES.items() if not family.own)
        named = settings.get("architectures")
        found = ", ".join(map(str, named)) if isinstance(named, list) and named else "no architecture"
        found += f" ('model_type' is {model_type!r})"
        raise UnknownArchitecture(f"{file}: expected a model of type {types}, found {found}")
    family = FAMILIES[model_type]
    if family.own:
        check_complete(file, (key for row in family.settings.rows for key in row.keys if key not in settings))
    return family, settings


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError if a weight is infinite or NaN."""
    if wrong := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise UserError(f"{path}: {shown(wrong)} not finite: the file is damaged, or training diverged")


def misfit(path: Path, family: AnyFamily, error: UserError) -> UserError:
    """Return an error that states if the weights do not fit config.json, or if the model is not supported."""
    if not isinstance(error, Mismatch):
        return UserError(f"{path / CONFIG}: unsupported model: {error}")
    return UserError(
        f"{path}: {CONFIG} and the weights do not match, or this variant of the model is not supported: {error}"
        + f"; if an earlier, unreleased version wrote it, commit {LAST_READER} reads it" * family.own
    )


def _read_json(file: Path) -> JsonObject:
    value = read_json(file, "copy or save the model again")
    if not isinstance(value, dict):
        raise UserError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def _tokenizers(path: Path, family: AnyFamily, settings: JsonMapping, sizes: tuple[int, int]) -> Tokenizers:
    names = settings.get("tokenizers") if family.own else [TOKENIZERS[0]]
    if not (isinstance(names, list) and names == list(TOKENIZERS[: len(names)])):
        raise UserError(f"{path / CONFIG}: 'tokenizers' is {names!r}: expected some of {list(TOKENIZERS)}")
    file = path / TOKENIZER_CONFIG
    about = _read_json(file) if file.is_file() else None
    return read_tokenizers(path, family.model_type, names, about, settings.get("tokenizer_class"), sizes)


def _json(value: JsonMapping) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_files(directory: Path, files: Mapping[str, str | bytes | Mapping[str, Tensor]]) -> None:
    """Write files (text, bytes or tensors) under temporary names, then rename all of them in order."""

    def write(temporary: Path, name: str, content: str | bytes | Mapping[str, Tensor]) -> None:
        try:
            if isinstance(content, str | bytes):
                temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
            else:
                with temporary.open("wb") as file:
                    write_tensors(file, content, {"format": "pt", CHECKSUM: checksum(content)})
        except OSError as error:
            raise WriteError(f"{directory / name}: cannot write: {error}; the previous content is intact") from error

    try:
        for name in files:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{directory}: cannot write: {error}") from error
    with replacing_all([directory / name for name in files]) as temporaries:
        for temporary, (name, content) in zip(temporaries, files.items(), strict=True):
            write(temporary, name, content)
