"""CTranslate2: a translator through our own export; one worker with all threads, or two with one thread each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from manyheads import directory
from manyheads.errors import UserError
from manyheads.export import export
from manyheads.models.transformer import Transformer

SETTINGS: Mapping[str, str] = {"float32": "float32", "int8": "int8", "int8 2x1": "int8"}


def translator(model: Transformer, setting: str, threads: int, folder: str) -> Any:
    """A `ctranslate2.Translator` of the model, whose tokens are named as `token_names` has it."""
    import ctranslate2

    vocabulary = {name: number for number, name in enumerate(token_names(model))}
    directory.save(Path(folder, "hf"), model, Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    export(Path(folder, "hf"), Path(folder, "ct2"), "ctranslate2")
    kind, _, workers = setting.partition(" ")
    if workers and threads < 2:
        raise UserError(f"{setting}: two workers need two threads, got {threads}")
    count, intra_threads = (2, threads // 2) if workers else (1, threads)
    return ctranslate2.Translator(
        str(Path(folder, "ct2")), device="cpu", compute_type=kind, inter_threads=count, intra_threads=intra_threads
    )


def token_names(model: Transformer) -> list[str]:
    """Of all ids: the special ones have their names, the others their numbers."""
    c = model.config
    special = {c.end: "</s>", 1: "<unk>", c.pad: "<pad>"}
    return [special.get(number, str(number)) for number in range(c.source_vocab)]
