"""A model directory: what `transformers` writes for the architecture, read and written without it.

    config.json  model.safetensors  generation_config.json  tokenizer.json  tokenizer_config.json
    target_tokenizer.json               only beside a `model_type` of our own, with two vocabularies
    source.spm  target.spm  vocab.json  instead of tokenizer.json, in what came from OPUS-MT
    preprocessor_config.json            how an image becomes the input of a model of images

Directories of other tools may have shards of weights, and other files for the tokenizer (`interop/vocabularies.py`).

A translator's joint vocabulary makes it a Marian directory (post-norm without final norms) or a Pegasus directory
(pre-norm with final norms), which other tools open. What no other tool knows gets a model type `manyheads-...`.

Nothing here unpickles, but for `convert`, which does it with `weights_only=True`; nothing reaches the network, but for
names that begin with `hub:`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.core.tensor_file import checksum, write_tensors
from manyheads.files import read_json, replacing_all
from manyheads.interop.bert import BERT
from manyheads.interop.classifiers import CLASSIFIERS
from manyheads.interop.encoder_decoder import MARIAN, OWN, PEGASUS
from manyheads.interop.family import Family, saved_tensors
from manyheads.interop.gpt import GPT2, OPENAI_GPT, OWN_GPT
from manyheads.interop.reading import READER
from manyheads.interop.resnet import RESNET, TIMM_RESNET
from manyheads.interop.universal import UNIVERSAL
from manyheads.interop.vision import VISION
from manyheads.interop.vit import DEIT, OWN_VIT, TIMM_VIT, VIT
from manyheads.interop.vocabularies import FILES, foreign_tokenizers, marian_files
from manyheads.interop.weights import CHECKSUM, PICKLED, SAFE, read_pickled, read_safe, weight_files
from manyheads.models.transformer import Transformer
from manyheads.training.run_directory import unfinished

# of several that can represent a model, the first is written
FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        MARIAN, PEGASUS, OWN, BERT, GPT2, OPENAI_GPT, OWN_GPT, *CLASSIFIERS, READER, VIT, DEIT, OWN_VIT, RESNET,
        *VISION, *UNIVERSAL,
    )
}  # fmt: skip
# timm's directories name an architecture such as vit_tiny_patch16_224, here by how it begins; read, not written
TIMM: dict[str, Family] = {"vit": TIMM_VIT, "deit": TIMM_VIT, "resnet": TIMM_RESNET, "seresnet": TIMM_RESNET}
FORMATS = ("hf", "ctranslate2")
CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
TOKENIZERS = ("tokenizer.json", "target_tokenizer.json")
# beside the weights: all that families need
FETCHED = (CONFIG, PREPROCESSOR, "generation_config.json", *TOKENIZERS, *FILES)


@dataclass(frozen=True)
class Loaded:
    """What a model directory holds. A directory may come without a tokenizer: then only ids can be translated.

    target_tokenizer  the same object as `tokenizer` where the vocabulary is joint.
    family            the model type.
    vocabulary        the files that make its tokenizers where no tokenizer.json can: to be saved with it, as they are.
    preprocessing     what preprocessor_config.json says, or timm's config.json, where there is one.
    """

    model: Any  # an nn.Module with its `config`; whoever uses it knows which
    tokenizer: Tokenizer | None
    target_tokenizer: Tokenizer | None
    family: str
    path: Path
    vocabulary: Mapping[str, bytes] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] | None = None


def save(
    path: str | Path,
    model: Any,
    tokenizer: Tokenizer | None = None,
    target_tokenizer: Tokenizer | None = None,
    *,
    vocabulary: Mapping[str, bytes] | None = None,
    preprocessing: Mapping[str, Any] | None = None,
) -> str:
    """Write a model directory and return its model type: `manyheads-...` where no other tool will open it.

    path              made if need be; what else it holds is left alone. Each file is complete before it takes its name.
    target_tokenizer  where there are two vocabularies.
    vocabulary        of what was loaded: written in place of the tokenizers.
    preprocessing     of images: becomes preprocessor_config.json.
    """
    if target_tokenizer is tokenizer or vocabulary:
        target_tokenizer = None
    family = _family(model)
    if target_tokenizer is not None and not family.own:
        # no other tool expects a second tokenizer.json: it would write the target with the source's pieces
        family = OWN
    sizes = family.vocabularies(model.config)
    if tokenizer is not None and target_tokenizer is None and sizes[0] != sizes[1] and not vocabulary:
        raise ValueError(
            f"the model has two vocabularies, of {sizes[0]} and {sizes[1]} tokens: give the target's tokenizer too"
        )
    if vocabulary and family is not MARIAN:
        raise ValueError(f"the model would be saved as {family.model_type}, whose vocabulary is not SentencePiece's")
    pair = zip(TOKENIZERS, (tokenizer, target_tokenizer), strict=True)
    tokenizers = {name: each for name, each in pair if each is not None and not vocabulary}
    settings = family.settings_of(model.config) | {"dtype": str(next(model.parameters()).dtype).removeprefix("torch.")}
    if family.own:
        settings["tokenizers"] = list(tokenizers)
    files: dict[str, Any] = {SAFE: family.tensors_of(model)}
    files |= {name: each.to_str(pretty=True) for name, each in tokenizers.items()} | dict(vocabulary or {})
    if tokenizer is not None and not vocabulary:
        about = {
            "clean_up_tokenization_spaces": False,
            "split_special_tokens": tokenizer.encode_special_tokens,  # "</s>" in a text is text
        }
        files["tokenizer_config.json"] = _json(family.tokenizer(model.config, tokenizer) | about)
    if preprocessing is not None:
        files[PREPROCESSOR] = _json(preprocessing)
    if family.generation is not None:
        files["generation_config.json"] = _json(family.generation(model.config))
    files[CONFIG] = _json(settings)  # last: a directory without it is no model
    _write(Path(path), files)
    return family.model_type


def load(path: str | Path) -> Loaded:
    """Open a model directory, or `hub:OWNER/NAME[@REVISION]`. The model is in float32 and in eval mode.

    Raises ValueError, in one line, on whatever is not exactly as the configuration says.
    """
    path, source = resolve(path), path
    family, settings = _settings(path)
    if not weight_files(path, SAFE):
        if weight_files(path, PICKLED):
            raise ValueError(
                f"{path}: {PICKLED} is a pickle, which could run code and is never loaded: make a safe copy with"
                f" 'manyheads convert {path} OUT'"
            )
        if str(source).startswith("hub:"):  # its other files were not fetched
            raise ValueError(f"{source}: no {SAFE}; if it has {PICKLED}: 'manyheads convert {source} OUT'")
        raise ValueError(f"{path}: no {SAFE}: the directory is incomplete, copy or save the model again")
    stored = read_safe(path)
    for name, tensor in stored.items():
        if tensor.is_floating_point() and tensor.element_size() < 2:  # float8 and smaller, which torch only stores
            raise ValueError(
                f"{path}: {name} is {str(tensor.dtype).removeprefix('torch.')}: expected float32, float16 or bfloat16: "
                "convert the weights to one of these"
            )
    config, tensors = _read(path, family, settings, stored)
    if wrong := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{path}: {', '.join(wrong[:3])} not finite: the weights are damaged, or training diverged")
    tokenizers, vocabulary = _tokenizers(path, family, settings, family.vocabularies(config))
    model = family.module(config)
    with torch.no_grad():
        for name, tensor in saved_tensors(model).items():
            tensor.copy_(tensors[name])
    try:
        stated = family.preprocessing(settings)
    except ValueError as error:
        raise ValueError(f"{path / CONFIG}: {error}") from None
    preprocessing = _read_json(path / PREPROCESSOR) if (path / PREPROCESSOR).is_file() else stated
    return Loaded(model.eval(), *tokenizers, family.model_type, path, vocabulary, preprocessing)


def resolve(model: str | Path, *, pickled: bool = False) -> Path:
    """The directory of a model. `hub:OWNER/NAME[@REVISION]` is fetched, the files that are needed; nothing else is.

    pickled  fetch weights that are pickles, for `convert`, and none that are safe.
    """
    if not str(model).startswith("hub:"):
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    name, _, revision = str(model).removeprefix("hub:").partition("@")
    weights = PICKLED if pickled else SAFE
    stem, suffix = weights.split(".")
    wanted = [*FETCHED, weights, f"{weights}.index.json", f"{stem}-?????-of-?????.{suffix}"]
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=wanted))
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{model}: cannot be fetched ({reason}): expected hub:OWNER/NAME[@REVISION]") from None


def convert(directory: str | Path, out: str | Path) -> None:
    """A directory that has only pickled weights as one with safetensors, in `out`. Code in the pickle is not run."""
    path, out = resolve(directory, pickled=True), Path(out)
    family, settings = _settings(path)
    _check_free(out)
    if not weight_files(path, PICKLED):
        raise ValueError(f"{path}: no {PICKLED} to convert" + ": it is safe as it is" * bool(weight_files(path, SAFE)))
    tensors = read_pickled(path)
    _read(path, family, settings, tensors)
    once: dict[int, str] = {}  # tied weights share their memory: the first name stays
    for name, tensor in tensors.items():
        once.setdefault(tensor.data_ptr(), name)
    copied = {*path.glob("*.json"), *(path / name for name in FILES)} - set(path.glob("*.index.json"))
    present = [file for file in sorted(copied) if file.is_file()]
    files: dict[str, Any] = {SAFE: {name: tensors[name] for name in once.values()}}
    files |= {file.name: file.read_bytes() for file in sorted(present, key=lambda file: file.name == CONFIG)}
    _write(out, files)


def export(model: Loaded | str | Path, out: str | Path, format: str) -> str:
    """Write a model for other tools into `out`, a new directory; returns the model type that was exported.

    format  "hf": a model directory. "ctranslate2": through CTranslate2's own converter; pad is suppressed.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}: this version exports to {', '.join(FORMATS)}")
    loaded, out = model if isinstance(model, Loaded) else load(model), Path(out)
    _check_free(out)
    if format == "hf":
        return save(out, loaded.model, loaded.tokenizer, loaded.target_tokenizer, vocabulary=loaded.vocabulary,
                    preprocessing=loaded.preprocessing)  # fmt: skip
    try:
        from ctranslate2.converters import TransformersConverter
        from transformers.utils.logging import disable_progress_bar
    except ModuleNotFoundError as error:
        raise ValueError(f"exporting to CTranslate2 needs {error.name}: pip install 'manyheads[export]'") from None
    if obstacle := _obstacle_to_ctranslate2(loaded):
        raise ValueError(f"{loaded.path}: cannot be exported to CTranslate2: {obstacle}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        hf, made = Path(scratch, "hf"), Path(scratch, "ctranslate2")
        family = save(hf, _without_pad(loaded.model) if loaded.family == PEGASUS.model_type else loaded.model,
                      loaded.tokenizer, vocabulary=loaded.vocabulary)  # fmt: skip
        tokenizer_files = list(loaded.vocabulary) or ["tokenizer.json", "tokenizer_config.json"]
        disable_progress_bar()  # the converter's bar would look like ours
        TransformersConverter(str(hf), copy_files=tokenizer_files).convert(str(made))
        os.replace(made, out)
    return family


def _family(model: Any) -> Family:
    """The first that can represent a model."""
    obstacles = []
    for family in FAMILIES.values():
        if type(model) is family.module:  # a network that builds on another one's class is another family's
            try:
                family.settings_of(model.config)
            except ValueError as error:
                obstacles.append(f"{family.model_type}: {error}")
                continue
            return family
    raise ValueError(f"no model type can represent this {type(model).__name__}: {'; '.join(obstacles) or 'unknown'}")


def _settings(path: Path) -> tuple[Family, dict[str, Any]]:
    """config.json, and the family that it names."""
    file = path / CONFIG
    if not path.is_dir():
        what = "a file" if path.exists() else "no such directory"
        raise ValueError(f"{path}: {what}: expected a model directory or hub:OWNER/NAME")
    if not file.is_file():
        raise ValueError(f"{path}: {unfinished(path) or f'no {CONFIG}: this is not a model directory'}")
    settings = _read_json(file)
    model_type, architecture = settings.get("model_type"), settings.get("architecture")
    if model_type is None and isinstance(architecture, str):
        for begin, family in TIMM.items():
            if architecture.startswith(begin):
                return family, settings
        raise ValueError(f"{file}: 'architecture' is {architecture!r}: of timm's, {', '.join(TIMM)} are supported")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"{file}: 'model_type' is {model_type!r}: supported are {', '.join(FAMILIES)}")
    return FAMILIES[model_type], settings


def _read_json(file: Path) -> dict[str, Any]:
    value = read_json(file, "copy or save the model again")
    if not isinstance(value, dict):
        raise ValueError(f"{file}: expected a JSON object, got {type(value).__name__}")
    return value


def _read(
    path: Path, family: Family, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Any, dict[str, Tensor]]:
    try:
        return family.read(settings, tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {CONFIG} and weights do not make a model: {error}") from None


def _tokenizers(
    path: Path, family: Family, settings: Mapping[str, Any], sizes: tuple[int, int]
) -> tuple[tuple[Tokenizer | None, Tokenizer | None], dict[str, bytes]]:
    """The tokenizers of source and target, which are one where the vocabulary is joint, and `Loaded.vocabulary`."""
    names = settings.get("tokenizers") if family.own else [TOKENIZERS[0]]
    if not (isinstance(names, list) and names == list(TOKENIZERS[: len(names)])):
        raise ValueError(f"{path / CONFIG}: 'tokenizers' is {names!r}: expected some of {list(TOKENIZERS)}")
    file = path / "tokenizer_config.json"
    about = {"tokenizer_class": settings.get("tokenizer_class"), **(_read_json(file) if file.is_file() else {})}
    foreign = None
    # where both lie there, transformers reads SentencePiece's files for this class, and tokenizer.json for all others
    present = (path / TOKENIZERS[0]).is_file()
    if not present or about["tokenizer_class"] == "MarianTokenizer":
        foreign = foreign_tokenizers(path, family.model_type, about)
        if foreign is None and not (present or family.own or file.is_file()):
            return (None, None), {}
    found = list(foreign) if foreign else [_tokenizer(path / name) for name in names]
    for tokenizer, size in zip(found, sizes, strict=False):
        largest = max(tokenizer.get_vocab().values(), default=-1)
        if largest >= size:
            raise ValueError(
                f"{path}: its tokenizer has tokens up to id {largest}, the model {size} in all: they do not belong"
                " together"
            )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = bool(about.get("split_special_tokens", False))
    pair = (found[0], found[-1]) if found else (None, None)
    return pair, marian_files(path) if foreign and family is MARIAN else {}


def _tokenizer(file: Path) -> Tokenizer:
    if not file.is_file():
        raise ValueError(f"{file.parent}: no {file.name}: the directory is incomplete, copy or save the model again")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more precise
        raise ValueError(f"{file}: not a tokenizer ({str(error).splitlines()[0]})") from None


def _obstacle_to_ctranslate2(loaded: Loaded) -> str | None:
    """What its converter would fail on, or convert into another model without a word."""
    c = loaded.model.config
    if loaded.family not in (MARIAN.model_type, PEGASUS.model_type):
        return f"it knows Marian and Pegasus directories, this one is {loaded.family}"
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        return "it needs a tokenizer.json"
    if loaded.tokenizer.get_vocab() != loaded.target_tokenizer.get_vocab():
        return "it takes one vocabulary, the model has two"
    if c.encoder_heads != c.decoder_heads:
        return f"it takes one number of heads, the model has {c.encoder_heads} and {c.decoder_heads}"
    size = loaded.tokenizer.get_vocab_size()
    if not size == c.source_vocab == c.target_vocab:
        return f"the tokenizer has {size} tokens, the model {c.source_vocab} and {c.target_vocab}"
    if loaded.tokenizer.id_to_token(c.pad) != "<pad>" or not c.start == c.pad == size - 1:
        return f"decoding must start from <pad>, the last token; here from {loaded.tokenizer.id_to_token(c.start)}"
    if loaded.model.target_embedding.weight[c.pad].any():
        return "it starts from a row of zeros, the model's padding row is not zero"
    return None


def _without_pad(model: Transformer) -> Transformer:
    """The model with a bias that keeps the padding token from being generated; for tools that cannot suppress it."""
    c = model.config
    copy = Transformer(replace(c, output_bias=True))
    copy.load_state_dict({"output_bias": torch.zeros(c.target_vocab), **model.state_dict()})
    assert copy.output_bias is not None
    with torch.no_grad():
        copy.output_bias[c.pad] = -1e4
    return copy


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: exists and is not empty: give a new directory")


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(directory: Path, files: Mapping[str, Any]) -> None:
    """Write all files (text, bytes or tensors), each whole or not at all, to be renamed in their order."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with replacing_all([directory / name for name in files]) as temporaries:
            for temporary, content in zip(temporaries, files.values(), strict=True):
                if isinstance(content, (str, bytes)):
                    temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
                else:
                    with temporary.open("wb") as file:
                        write_tensors(file, content, {"format": "pt", CHECKSUM: checksum(content)})
    except OSError as error:
        raise ValueError(f"{directory}: cannot write the model ({error}); what was there is intact") from error
