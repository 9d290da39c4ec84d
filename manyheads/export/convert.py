"""Convert models with pickled weights to safetensors."""

from __future__ import annotations

import logging
from pathlib import Path

from manyheads.data.text.tokenizers import word_tokenizer
from manyheads.directory import (
    CONFIG,
    UnknownArchitecture,
    check_finite,
    misfit,
    read_settings,
    resolve,
    save,
    write_files,
)
from manyheads.errors import UserError
from manyheads.files import JsonObject, check_free
from manyheads.interop.adapters import PICKLED_WEIGHTS, SETTINGS, WEIGHTS
from manyheads.interop.sentences import sentence_files
from manyheads.interop.tutorial import HEADS, read_vocabulary, translator, unwrapped
from manyheads.interop.vocabularies import FILES
from manyheads.interop.weights import PICKLED, SAFE, read_file, read_pickled, weight_files

logger = logging.getLogger(__name__)


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

    heads         number of attention heads of the tutorial's model, which the state_dict does not contain. By default,
                  it is 8
    vocabularies  files of the source and target vocabulary, JSON or text (`read_vocabulary`). By default, the converted
                  model has no vocabularies and accepts only token ids
    languages     codes of the source and target language, which decide how text is split into words. By default, they
                  are German and English

    The weights of an architecture that this package does not build are copied without a check against config.json.

    Pickles are loaded with `weights_only=True`, so that no code in them is executed. Only this command loads pickles.
    """
    path, out = resolve(directory, pickled=True, known=False), Path(out)
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
    check_free(out)
    if (pickled := path / PICKLED_WEIGHTS).is_file():  # an adapter of peft
        files: JsonObject = {SETTINGS: (path / SETTINGS).read_bytes(), WEIGHTS: read_file(pickled)}
        return write_files(out, files)
    try:
        family, settings = read_settings(path)
    except UnknownArchitecture:
        family, settings = None, {}  # The library transformers may build this model, so its weights are copied.
    if not weight_files(path, PICKLED):
        raise UserError(f"{path}: no {PICKLED} to convert" + ", weights already safe" * bool(weight_files(path, SAFE)))
    tensors = weights = read_pickled(path)
    if family is not None:
        shapes = {name: tensor.to("meta") for name, tensor in tensors.items()}
        try:
            _, weights = family.read(settings, shapes, lambda: tensors)
        except UserError as error:
            raise misfit(path, family, error) from None
    check_finite(path, weights)
    # address of each tensor -> first name of the tensor, because tied weights share memory and are written once
    once: dict[int, str] = {}
    for name, tensor in tensors.items():
        once.setdefault(tensor.data_ptr(), name)
    copied = {*path.glob("*.json"), *(path / name for name in FILES)} - set(path.glob("*.index.json"))
    present = [file for file in sorted(copied) if file.is_file()]
    files = {SAFE: {name: tensors[name].contiguous() for name in once.values()}}
    files |= sentence_files(path) | {
        file.name: file.read_bytes() for file in sorted(present, key=lambda file: file.name == CONFIG)
    }
    write_files(out, files)


def _convert_state_dict(
    file: Path, out: Path, heads: int | None, vocabularies: tuple[str | Path, str | Path] | None,
    languages: tuple[str, str],
) -> None:  # fmt: skip
    check_free(out)
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
