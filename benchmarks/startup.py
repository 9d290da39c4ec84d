"""Seconds from start to end of a command: the first translated line of a tiny model, and `manyheads --help`.

The limit of the former is `import torch`, of the latter Python itself. Other libraries translate with the same model,
each by a script that imports, opens and translates. The only warm-up is the file cache of the system.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.ceilings import Ceilings
from benchmarks.ours import seeded
from benchmarks.work import Prepared, Side, Work
from manyheads import directory
from manyheads.data.text.tokenizers import train_bpe
from manyheads.errors import UserError
from manyheads.export import export

LINE = "two men are walking a dog"
TEXTS = [LINE, "a dog, two cats: 42 paws", "zwei Männer führen einen Hund", "ein Hund läuft"]
TIMES = 3

TRANSFORMERS = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, line, most = sys.argv[1:]
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
tokens = model.generate(**tokenizer(line, return_tensors="pt"), num_beams=4, max_new_tokens=int(most))
print(tokenizer.decode(tokens[0]))
"""
CTRANSLATE2 = """
import sys
from ctranslate2 import Translator
from tokenizers import Tokenizer
folder, line, most = sys.argv[1:]
tokenizer, translator = Tokenizer.from_file(f"{folder}/tokenizer.json"), Translator(folder)
tokens = translator.translate_batch([tokenizer.encode(line).tokens], beam_size=4, max_decoding_length=int(most))
print(tokenizer.decode([tokenizer.token_to_id(token) for token in tokens[0].hypotheses[0]]))
"""


@dataclass(frozen=True)
class Command:
    """The command to start: translate a line, or print the help."""

    translates: bool
    preset: str = "transformer/tiny"


def ours(case: Command, setting: str, threads: int) -> Prepared:
    manyheads = [sys.executable, "-m", "manyheads"]
    return _started([*manyheads, "translate", _model(case), LINE] if case.translates else [*manyheads, "--help"])


def with_transformers(case: Command, setting: str, threads: int) -> Prepared:
    folder = _translated(case)
    return _started([sys.executable, "-c", TRANSFORMERS, folder, LINE, _longest(folder)])


def with_ctranslate2(case: Command, setting: str, threads: int) -> Prepared:
    saved = Path(_translated(case))
    export(saved, saved / "ct2", "ctranslate2")
    return _started([sys.executable, "-c", CTRANSLATE2, str(saved / "ct2"), LINE, _longest(saved)])


def _longest(folder: str | Path) -> str:
    """Tokens of a translation: as many as ours writes, since random weights seldom end one."""
    return str(len(Tokenizer.from_file(str(Path(folder, "tokenizer.json"))).encode(LINE).ids) + 50)


def _translated(case: Command) -> str:
    if not case.translates:
        raise UserError("expected a line to translate, got --help: that is measured of ours alone")
    return _model(case)


def _model(case: Command) -> str:
    """A directory with random weights, in the temporary folder."""
    tokenizer = train_bpe(TEXTS * 3, 60)
    size = tokenizer.get_vocab_size()
    sizes: dict[str, Any] = {"source_vocab": size, "target_vocab": size, "pad": size - 1, "start": size - 1, "end": 0}
    model = seeded(case.preset, **sizes)
    with torch.no_grad():
        model.source_embedding.weight[size - 1] = 0.0
    folder = tempfile.mkdtemp()
    directory.save(folder, model, tokenizer)
    return folder


def _started(command: Sequence[str]) -> Prepared:
    def run() -> None:
        subprocess.run(command, check=True, capture_output=True)

    run()
    return Prepared(run, None)


def least(case: Command, precision: str, ceilings: Ceilings) -> float:
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch" if case.translates else ""], check=True)
        times.append(time.perf_counter() - began)
    return min(times)


WORK = Work(
    unit="seconds", cases={"first line": Command(True), "--help": Command(False)}, amount=lambda case: 1, least=least,
    ours=Side({"": "float32"}, ours),
    peers={
        "transformers": Side({"": "float32"}, with_transformers),
        "ctranslate2": Side({"": "float32"}, with_ctranslate2),
    },
)  # fmt: skip
