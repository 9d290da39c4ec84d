"""Export models to the formats of Hugging Face or CTranslate2, and convert pickled weights to safetensors."""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from manyheads.data.text.tokenizers import word_tokenizer
from manyheads.directory import (
    CONFIG,
    Loaded,
    check_finite,
    family_of,
    load,
    misfit,
    read_settings,
    resolve,
    save,
    write_files,
)
from manyheads.errors import UserError, extra
from manyheads.interop.encoder_decoder import MARIAN, PEGASUS
from manyheads.interop.tutorial import HEADS, read_vocabulary, translator, unwrapped
from manyheads.interop.vocabularies import FILES
from manyheads.interop.weights import PICKLED, SAFE, read_file, read_pickled, weight_files
from manyheads.models.transformer import Transformer

logger = logging.getLogger(__name__)

FORMATS = ("hf", "ctranslate2")


def export(model: Loaded | str | Path, out: str | Path, format: str) -> str:
    """Export a model for another tool into `out`, a new directory. Return the exported model type.

    format  "hf": write a directory that `transformers` opens. "ctranslate2": run the converter of CTranslate2; the
            exported model never generates the padding token

    Raises UserError for a model that the other tool does not support.

        >>> export("runs/gpt", "exported", "hf")
        'gpt2'
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    loaded, out = model if isinstance(model, Loaded) else load(model), Path(out)
    _check_free(out)
    if format == "hf":
        return _to_hugging_face(loaded, out)
    return _to_ctranslate2(loaded, out)


def convert(
    directory: str | Path,
    out: str | Path,
    *,
    heads: int | None = None,
    vocabularies: tuple[str | Path, str | Path] | None = None,
    languages: tuple[str, str] | None = None,
) -> None:
    """Convert a model directory with pickled weights to safetensors, or a single state_dict to a model directory.

    The result is written to `out`. A state_dict must come from the translation model of the PyTorch tutorial
    (`interop/tutorial.py`).

    heads         number of attention heads of the tutorial's model, which the state_dict does not contain; default
                  8
    vocabularies  files of the source and target vocabulary, JSON or text (`read_vocabulary`); without them, the
                  converted model accepts only token ids
    languages     codes of the source and target language, which decide how text is split into words; default German
                  and English

    A pickle is opened with `weights_only=True`, here and nowhere else, so that no code in it runs.
    """
    path, out = resolve(directory, pickled=True), Path(out)
    if not path.exists():
        raise UserError(
            f"{path}: no such file or directory: expected a model directory, hub:OWNER/NAME, or the .pt or"
            " .safetensors file"
            " of a state_dict"
        )
    if languages is not None and vocabularies is None:
        raise UserError(
            "--languages without --vocabularies: give both, since the languages decide how the vocabularies split text"
        )
    if path.is_file():
        _convert_state_dict(path, out, heads, vocabularies, languages or ("de", "en"))
        return
    of_file = {"heads": heads, "vocabularies": vocabularies, "languages": languages}
    if given := [name for name, value in of_file.items() if value is not None]:
        raise UserError(
            f"{path}: {', '.join(given)}: these options apply to a state_dict file, but this is a directory"
        )
    family, settings = read_settings(path)
    _check_free(out)
    if not weight_files(path, PICKLED):
        raise UserError(f"{path}: no {PICKLED} to convert" + ", weights already safe" * bool(weight_files(path, SAFE)))
    tensors = read_pickled(path)
    try:
        shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
        _, weights = family.read(settings, shapes, lambda: tensors)
    except UserError as error:
        raise misfit(path, error) from None
    check_finite(path, weights)
    once: dict[int, str] = {}  # Tied weights share memory, so each of them is written once, under its first name.
    for name, tensor in tensors.items():
        once.setdefault(tensor.data_ptr(), name)
    copied = {*path.glob("*.json"), *(path / name for name in FILES)} - set(path.glob("*.index.json"))
    present = [file for file in sorted(copied) if file.is_file()]
    files: dict[str, Any] = {SAFE: {name: tensors[name].contiguous() for name in once.values()}}
    files |= {file.name: file.read_bytes() for file in sorted(present, key=lambda file: file.name == CONFIG)}
    write_files(out, files)


def _convert_state_dict(
    file: Path, out: Path, heads: int | None, vocabularies: tuple[str | Path, str | Path] | None,
    languages: tuple[str, str],
) -> None:  # fmt: skip
    _check_free(out)
    words = [read_vocabulary(Path(vocabulary)) for vocabulary in vocabularies or ()]
    tensors, wrapper = unwrapped(read_file(file))
    if wrapper:
        logger.info(f"{file}: removed the prefix {wrapper!r} of a wrapped model from the names of the weights")
    check_finite(file, tensors)
    try:
        model = translator(tensors, *words, heads=HEADS if heads is None else heads)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None
    c = model.config
    for vocabulary, known, size in zip(vocabularies or (), words, (c.source_vocab, c.target_vocab), strict=False):
        if len(known) != size:
            raise UserError(
                f"{vocabulary}: {len(known):,} words, but the model has {size:,}: expected the vocabulary of this model"
            )
    sides = zip(words, languages, (True, False), strict=False)
    save(out, model, *(word_tokenizer(known, language, begin=begin) for known, language, begin in sides))
    assumed = f"{HEADS} heads (--heads), " if heads is None else ""
    unread = "" if vocabularies else "; without --vocabularies it translates no text"
    logger.info(
        f"{out}: {c.encoder_layers} + {c.decoder_layers} layers of width {c.width}; {assumed}ReLU and norms"
        " after each"
        f" sum, as in the tutorial{unread}"
    )


def _to_hugging_face(loaded: Loaded, out: Path) -> str:
    family, obstacles = family_of(loaded.model)
    if loaded.target_tokenizer is not loaded.tokenizer and not loaded.vocabulary:
        obstacles = ["it has two tokenizer files"]
    elif not family.own:
        obstacles = []
    else:
        obstacles = obstacles or [f"it has no architecture like {type(loaded.model).__name__}"]
    if obstacles:
        raise UserError(
            f"{loaded.path}: transformers cannot open this model ({'; '.join(obstacles)}). Only manyheads can: copy the"
            " directory instead"
        )
    if getattr(loaded.model.config, "channels", 3) != 3:
        logger.info(
            f"{out}: transformers' AutoModel and AutoImageProcessor open it for images of its"
            f" {loaded.model.config.channels} channels. Its pipelines fail, because they convert every image to"
            " three channels"
        )
    return save(out, loaded.model, loaded.tokenizer, loaded.target_tokenizer, vocabulary=loaded.vocabulary,
                preprocessing=loaded.preprocessing)  # fmt: skip


def _to_ctranslate2(loaded: Loaded, out: Path) -> str:
    with extra("export", "export to CTranslate2"):
        from ctranslate2.converters import TransformersConverter
        from transformers.utils.logging import disable_progress_bar
    if obstacle := _obstacle_to_ctranslate2(loaded):
        raise UserError(f"{loaded.path}: cannot be exported to CTranslate2: {obstacle}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
            hf, converted = Path(scratch, "hf"), Path(scratch, "ctranslate2")
            family = save(hf, _without_pad(loaded.model) if loaded.family == PEGASUS.model_type else loaded.model,
                          loaded.tokenizer, vocabulary=loaded.vocabulary)  # fmt: skip
            tokenizer_files = list(loaded.vocabulary) or ["tokenizer.json", "tokenizer_config.json"]
            # Hide the progress bar of the converter, because users would take it for a progress bar of Manyheads.
            disable_progress_bar()
            TransformersConverter(str(hf), copy_files=tokenizer_files).convert(str(converted))
            os.replace(converted, out)
    except OSError as error:
        raise UserError(f"{out}: failed to write ({error}); nothing is left there") from error
    return family


def _obstacle_to_ctranslate2(loaded: Loaded) -> str | None:
    """Return the reason why the CTranslate2 converter would fail or produce a different model; None if it works."""
    c = loaded.model.config
    if loaded.family not in (MARIAN.model_type, PEGASUS.model_type):
        # The format search gives the reasons why a translation model can be saved neither as Marian nor as Pegasus.
        _, obstacles = family_of(loaded.model)
        why = f" ({'; '.join(obstacles)})" * bool(obstacles and isinstance(loaded.model, Transformer))
        return f"expected a Marian or Pegasus model, found {loaded.family}{why}"
    if loaded.tokenizer is None or loaded.target_tokenizer is None:
        return "expected a tokenizer.json"
    if loaded.tokenizer.get_vocab() != loaded.target_tokenizer.get_vocab():
        return "expected one vocabulary, found two"
    if c.encoder_heads != c.decoder_heads:
        return f"expected one number of heads, found {c.encoder_heads} and {c.decoder_heads}"
    size = loaded.tokenizer.get_vocab_size()
    if not size == c.source_vocab == c.target_vocab:
        return f"the tokenizer has {size} tokens, but the model {c.source_vocab} and {c.target_vocab}"
    if loaded.tokenizer.id_to_token(c.pad) != "<pad>" or not c.start == c.pad == size - 1:
        return f"expected decoding to start from <pad>, the last token, found {loaded.tokenizer.id_to_token(c.start)}"
    if loaded.model.target_embedding.weight[c.pad].any():
        return "expected zeros in the padding token's embedding, which starts decoding"
    return None


def _without_pad(model: Transformer) -> Transformer:
    """Return a copy of a model with an output bias that prevents the padding token from being generated.

    Such a copy is exported to tools that cannot suppress a token.
    """
    c = model.config
    copy = Transformer(replace(c, output_bias=True))
    copy.load_state_dict({"output_bias": torch.zeros(c.target_vocab), **model.state_dict()})
    assert copy.output_bias is not None
    with torch.no_grad():
        copy.output_bias[c.pad] = -1e4
    return copy


def _check_free(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty: expected a new directory")
