"""Influence of one word of a text on the output of a network, by the distance of the word from the end of the text.

The influence is measured in small networks that are trained for a recall task, or in trained models of the user.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyheads import directory
from manyheads.analysis import drawing
from manyheads.analysis.figures.influence import Parts, draw, fading, influence, table
from manyheads.core.layers import TokenEmbedding
from manyheads.data.text.windows import SpecialTokenTemplate
from manyheads.errors import UserError
from manyheads.files import write
from manyheads.models.bert_features import BertFeatures
from manyheads.runs.run import Run
from manyheads.tasks.classification.recipes import InfluenceConfig
from manyheads.training.record import write_result
from manyheads.training.run_directory import locked_run_directory

TEXTS = 64  # maximum number of texts read from the user's file
# types of task head that compute logits from a single text
READING_HEADS = (None, "sequence", "masked_lm", "language", "decoder")


def train(config: InfluenceConfig, run: Run) -> str | dict[str, Any]:
    """Run the influence recipe: write the table, influence.png and result.json, and return the table."""
    if bool(config.models) != (config.texts is not None):
        raise UserError(
            "models and texts must be given together: models=DIR,DIR texts=FILE, with one text per line. "
            "Otherwise leave both out."
        )
    if run.dry_run:
        return asdict(config)
    with locked_run_directory(run.out, resume=run.resume):
        start_time = time.monotonic()
        if config.texts is None:
            nets = fading(config.length, config.width, config.layers, config.kernel, config.symbols, config.steps,
                          config.seed)  # fmt: skip
            parts, chance, parameters = nets.parts, 1 / config.symbols, sum(nets.parameters.values())
            signature = f"mean over {config.length} distances; chance level is {chance:.3g}"
            metrics = {f"recalled_{kind}": {"value": sum(curve) / len(curve), "signature": signature}
                       for kind, curve in nets.recalled.items()}  # fmt: skip
        else:
            curves = {name: influences(name, Path(config.texts), config.length, config.seed) for name in config.models}
            parts, chance, parameters = {"influence on the output": curves}, None, 0
            signature = f"influence at distance {config.length - 1}, relative to distance 0"
            metrics = {name: {"value": curve[-1] / curve[0], "signature": signature} for name, curve in curves.items()}
        shown = table(parts)
        with drawing.optional():
            draw(parts, run.out / "influence.png", chance)
        write(run.out / "table.txt", f"{shown}\n")
        write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data={}, metrics=metrics,
            wall_seconds=time.monotonic() - start_time, flops=None, parameters=parameters, seed=config.seed,
            by_distance=_rounded(parts),
        )  # fmt: skip
    return shown


def influences(model_path: str, file: Path, length: int, seed: int) -> list[float]:
    """Return the influence of a token on a trained model's output, by the token's distance from the last token.

    The output is the logits of a classifier, or a language model's logits after the last token. Raises UserError if the
    model does not read single texts, or if no text in the file has `length` tokens.
    """
    loaded = directory.load(model_path)
    tokenizer, model = loaded.tokenizer, loaded.model.double()
    embedding = next((module for module in model.modules() if isinstance(module, TokenEmbedding)), None)
    fits = getattr(model.config, "head", None) in READING_HEADS and not isinstance(model, BertFeatures)
    if tokenizer is None or embedding is None or hasattr(model.config, "start") or not fits:
        raise UserError(
            f"{model_path}: expected a model that reads single texts, such as a classifier or a language model"
        )
    if not file.is_file():
        raise UserError(f"{file}: found no such file; expected a file with one text per line")
    frame = SpecialTokenTemplate.of(tokenizer)
    rows: list[list[int]] = []
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            ids = tokenizer.encode(line.rstrip("\n"), add_special_tokens=False).ids
            if len(ids) >= length:
                rows.append(frame.around(ids[:length])[0])
            if len(rows) == TEXTS:
                break
    if not rows:
        raise UserError(f"{file}: found no text with {length} tokens or more. Set a smaller length.")
    tokens = torch.tensor(rows)

    def output(x: Tensor) -> Tensor:
        """Return the model's output for the embeddings x, which are used in place of the embeddings of the tokens."""
        with embedding.register_forward_hook(
            lambda module, inputs, embedded: torch.cat([x, embedded[:, x.shape[1] :]], 1)
        ):
            logits: Tensor = model(tokens)
        return logits if logits.dim() == 2 else logits[:, -1]

    with torch.no_grad():
        vectors = embedding(tokens)
    norms = influence(output, vectors, torch.Generator().manual_seed(seed))  # (B, T)
    first = len(frame.before)
    return norms[:, first : first + length].flip(1).square().mean(0).sqrt().tolist()


def _rounded(parts: Parts) -> Parts:
    """Round the influence curves to four significant digits, for result.json."""
    return {title: {name: [float(f"{value:.4g}") for value in curve] for name, curve in curves.items()}
            for title, curves in parts.items()}  # fmt: skip
