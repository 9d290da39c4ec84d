"""CTranslate2: a translator through our own export; one worker with all threads, or two with one thread each."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from manyheads import directory
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.models.transformer import Transformer

# types of computation and their precisions
KINDS: Mapping[str, str] = {"float32": "float32", "bfloat16": "bf16", "int8": "int8", "int8_bfloat16": "int8"}
WORKERS = ("", " 1x1", " 2x1")  # one with all threads, one with one thread, two with half of the threads each


def settings() -> dict[str, str]:
    """The types that this processor computes in, each with one or two workers."""
    if find_spec("ctranslate2") is None:
        return {}
    import ctranslate2

    supported = ctranslate2.get_supported_compute_types("cpu")
    return {kind + workers: precision for kind, precision in KINDS.items() if kind in supported for workers in WORKERS}


def translator(model: Transformer, setting: str, threads: int, folder: str) -> Any:
    """A `ctranslate2.Translator` of the model, whose tokens are named as `token_names` has it."""
    import ctranslate2

    vocabulary = {name: number for number, name in enumerate(token_names(model))}
    directory.save(Path(folder, "hf"), model, Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    export(Path(folder, "hf"), Path(folder, "ct2"), "ctranslate2")
    kind, _, workers = setting.partition(" ")
    if workers == "2x1" and threads < 2:
        raise UserError(f"{setting}: two workers need two threads, got {threads}")
    count, intra_threads = {"": (1, threads), "1x1": (1, 1), "2x1": (2, threads // 2)}[workers]
    return ctranslate2.Translator(
        str(Path(folder, "ct2")), device="cpu", compute_type=kind, inter_threads=count, intra_threads=intra_threads
    )


def token_names(model: Transformer) -> list[str]:
    """Of all ids: the special ones have their names, the others their numbers."""
    c = model.config
    special = {c.end: "</s>", 1: "<unk>", c.pad: "<pad>"}
    return [special.get(number, str(number)) for number in range(c.source_vocab)]
