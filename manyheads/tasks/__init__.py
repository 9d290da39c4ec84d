"""What a model is trained to do: its loss, its predictions, its metrics, its directory."""

from __future__ import annotations

from pathlib import Path

from manyheads.core.runtime import Precision, prepare
from manyheads.directory import load as load_directory
from manyheads.tasks.translator import Translator


def load(model: str | Path, *, precision: Precision = "float32", threads: int | None = None) -> Translator:
    """A run directory, a model directory, or `hub:OWNER/NAME[@REVISION]`, ready to use."""
    return Translator(load_directory(model), prepare(precision, threads))
