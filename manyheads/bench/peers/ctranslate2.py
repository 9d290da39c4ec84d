"""CTranslate2: a translator through our own export; one worker with all threads, or two with one thread each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from manyheads import directory
from manyheads.export import export
from manyheads.models.transformer import Transformer

SETTINGS: Mapping[str, str] = {"float32": "float32", "int8": "int8", "int8 2x1": "int8"}


def translator(model: Transformer, setting: str, threads: int, folder: str) -> Any:
    """A `ctranslate2.Translator` of the model, whose tokens are the numbers of its vocabulary, as text."""
    import ctranslate2

    c = model.config
    names = {c.end: "</s>", c.pad: "<pad>", 1: "<unk>"}
    vocabulary = {names.get(number, str(number)): number for number in range(c.source_vocab)}
    directory.save(Path(folder, "hf"), model, Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")))
    export(Path(folder, "hf"), Path(folder, "ct2"), "ctranslate2")
    kind, _, workers = setting.partition(" ")
    count, each = (2, 1) if workers else (1, threads)
    return ctranslate2.Translator(
        str(Path(folder, "ct2")), device="cpu", compute_type=kind, inter_threads=count, intra_threads=each
    )
