"""The command `manyheads export`: export a model for other tools."""

from __future__ import annotations

import argparse
import sys

from manyheads.cli.parser import MODEL, Option, Positional, Verbs


def add(verbs: Verbs) -> None:
    verbs.add(
        "export", _export, "export a model for other tools", MODEL, Positional("DIR", "a new directory"),
        Option("--format", "FORMAT", "hf, ctranslate2, onnx, pt2 (torch.export) or gguf (llama.cpp)",
               required=True, choices=("hf", "ctranslate2", "onnx", "pt2", "gguf")),
        Option("--weights", "FORMAT", "for ctranslate2, onnx and gguf: float32 (default), float16 or int8",
               choices=("float32", "float16", "int8"), default="float32"),
        example="manyheads export runs/translation models/translation --format hf",
    )  # fmt: skip


def _export(options: argparse.Namespace) -> None:
    from manyheads.export import export

    family = export(options.model, options.dir, options.format, options.weights)
    print(f"{options.dir}: {options.format}, model type {family}", file=sys.stderr)
