"""Export models to the formats of other tools, and convert pickled weights to safetensors."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from manyheads.core.interface import ReadsImages
from manyheads.directory import Loaded, family_of, load, save
from manyheads.errors import UserError, extra
from manyheads.export.convert import convert
from manyheads.export.graphs import Weights
from manyheads.files import check_free
from manyheads.interop.encoder_decoder import MARIAN, PEGASUS
from manyheads.interop.weights import SAFE
from manyheads.models.bert import Bert
from manyheads.models.gpt import GPT
from manyheads.models.transformer import Transformer

__all__ = ["FORMATS", "convert", "export"]

logger = logging.getLogger(__name__)

FORMATS = ("hf", "ctranslate2", "onnx", "pt2", "gguf")
NARROWED = ("ctranslate2", "onnx", "gguf")  # formats whose weights may be narrower than float32
# maximum error of a log-probability in CTranslate2
BOUNDS: dict[Weights, float] = {"float32": 1e-3, "float16": 0.05, "int8": 1.0}


@torch.random.fork_rng(devices=())  # The checks compute random inputs.
def export(model: Loaded | str | Path, out: str | Path, format: str, weights: Weights = "float32") -> str:
    """Export a model for another tool into the new directory `out`. Return the exported model type.

    format   "hf" writes a directory that `transformers` opens. "ctranslate2" runs the converter of CTranslate2; the
             exported model never generates the padding token. "onnx" writes ONNX files with the tensor names of Hugging
             Face. "pt2" writes files of `torch.export`. "gguf" writes a file for llama.cpp: a GPT-2 for text
             generation, or a BERT for text vectors
    weights  number format of the matrices: "float32", or "float16" or "int8" for smaller files of ctranslate2, onnx
             and gguf. The error of the outputs due to this format is measured on random inputs and logged

    Raises UserError for a model that the other tool does not support, and if the exported model gives other outputs
    than the model. In these cases, nothing is left in `out`.

        >>> export("runs/gpt", "exported", "hf")
        'gpt2'
    """
    if format not in FORMATS:
        raise UserError(f"unknown format {format!r}: expected one of {', '.join(FORMATS)}")
    if weights not in BOUNDS:
        raise UserError(f"weights is {weights!r}: expected {', '.join(BOUNDS)}")
    if weights != "float32" and format not in NARROWED:
        raise UserError(f"weights={weights} is available for the formats {', '.join(NARROWED)}, found {format}")
    loaded, out = model if isinstance(model, Loaded) else load(model), Path(out)
    check_free(out)
    if format == "ctranslate2":
        return _to_ctranslate2(loaded, out, weights)
    try:
        if format == "hf":
            return _to_hugging_face(loaded, out)
        return _to_runtime(loaded, out, format, weights)
    except UserError as error:
        raise UserError(f"{loaded.path}: {error}") from None


def _to_hugging_face(loaded: Loaded, out: Path) -> str:
    from manyheads.export.onnx import check_copy

    family, obstacles = family_of(loaded.model)
    separate = loaded.target_tokenizer is not loaded.tokenizer and not loaded.vocabulary
    if separate or family.own:
        own = obstacles or [f"it has no architecture like {type(loaded.model).__name__}"]
        why = "it has two tokenizer files" if separate else "; ".join(own)
        raise UserError(f"transformers cannot open this model ({why}). Only manyheads can: copy the directory instead")
    if isinstance(loaded.model, ReadsImages) and loaded.model.channels != 3:
        logger.info(
            f"{out}: transformers' AutoModel and AutoImageProcessor open it for images of its"
            f" {loaded.model.config.channels} channels. Its pipelines fail, because they convert every image to"
            " three channels"
        )
    with _new_directory(out) as directory:
        written = loaded.save(directory)
        check_copy(load(directory).model, loaded.model)
    return written


def _to_ctranslate2(loaded: Loaded, out: Path, weights: Weights) -> str:
    with extra("export", "export to CTranslate2"):
        from ctranslate2.converters import TransformersConverter
        from transformers.utils.logging import disable_progress_bar
    if obstacle := _obstacle_to_ctranslate2(loaded):
        raise UserError(f"{loaded.path}: cannot be exported to CTranslate2: {obstacle}")
    with _new_directory(out) as converted, tempfile.TemporaryDirectory() as hf:
        family = save(hf, _without_pad(loaded.model) if loaded.family == PEGASUS.model_type else loaded.model,
                      loaded.tokenizer, vocabulary=loaded.vocabulary)  # fmt: skip
        tokenizer_files = list(loaded.vocabulary) or ["tokenizer.json", "tokenizer_config.json"]
        # Hide the progress bar of the converter, because users would take it for a progress bar of Manyheads.
        disable_progress_bar()
        quantization = None if weights == "float32" else weights
        TransformersConverter(hf, copy_files=tokenizer_files).convert(
            str(converted), quantization=quantization, force=True
        )
        _check_ctranslate2(converted, loaded, weights)
    return family


@torch.no_grad()
def _check_ctranslate2(converted: Path, loaded: Loaded, weights: Weights) -> None:
    """Raise UserError if the model and CTranslate2 compute different log-probabilities for a random pair of texts."""
    import ctranslate2

    model, tokenizer = loaded.model, loaded.tokenizer
    c = model.config
    assert tokenizer is not None
    source, target = ([*torch.randint(2, c.start, (5,)).tolist(), c.end] for _ in range(2))
    logits = model(torch.tensor([source]), None, torch.tensor([[c.start, *target[:-1]]]))[0]
    logits[:, c.pad] = -torch.inf
    expected = logits.log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0]
    words = [[tokenizer.id_to_token(i) for i in ids] for ids in (source, target[:-1])]
    [found] = ctranslate2.Translator(str(converted)).score_batch([words[0]], [words[1]])
    error = float((torch.tensor(found.log_probs) - expected).abs().max())
    if not error <= BOUNDS[weights]:
        raise UserError(f"{loaded.path}: expected an error below {BOUNDS[weights]}, found {error:.1e} in CTranslate2")
    logger.info(f"the largest error of a log-probability in CTranslate2 is {error:.1g}")


def _to_runtime(loaded: Loaded, out: Path, format: str, weights: Weights) -> str:
    from manyheads.export.gguf import write_bert, write_gguf
    from manyheads.export.onnx import write_onnx, write_pt2

    with _new_directory(out) as directory:
        if format == "gguf":
            file = directory / "model.gguf"
            if isinstance(loaded.model, GPT):
                write_gguf(file, loaded.model, loaded.tokenizer, weights)
            elif isinstance(loaded.model, Bert) and loaded.family == "bert":
                write_bert(file, loaded.model, loaded.tokenizer, loaded.sentences.pool, weights)
            else:
                raise UserError(f"expected a GPT-2 or a BERT for GGUF, found {loaded.family}")
            return loaded.family
        family = loaded.save(directory)
        (directory / SAFE).unlink()  # The graphs contain the weights.
        if format == "onnx":
            write_onnx(loaded.model, directory, weights)
        else:
            write_pt2(loaded.model, directory)
    return family


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """Context manager for a temporary directory that becomes `out` at the end, or is removed after an error."""
    # If `out` is an empty directory, move the files into it: it may be the current directory, a mount or a link.
    exists = out.exists()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".manyheads.", dir=out if exists else out.parent) as scratch:
            written = Path(scratch, "written")
            written.mkdir()
            yield written
            for file in written.iterdir() if exists else [written]:
                os.replace(file, out / file.name if exists else out)
    except OSError as error:
        raise UserError(f"{out}: failed to write ({error}); nothing is left there") from error


def _obstacle_to_ctranslate2(loaded: Loaded) -> str | None:
    """Return the reason for which CTranslate2's converter cannot convert a model correctly; None if it can."""
    c = loaded.model.config
    if loaded.family not in (MARIAN.model_type, PEGASUS.model_type):
        # `family_of` returns the reasons for which a translation model cannot be saved as Marian or Pegasus.
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
