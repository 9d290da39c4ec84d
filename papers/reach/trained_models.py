"""Influence of one word of a text on the output of a trained model, by its distance from the end of the text."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from manyheads import directory
from manyheads.core.layers import TokenEmbedding
from manyheads.data.text.windows import SpecialTokenTemplate
from manyheads.errors import UserError
from manyheads.models.bert_features import BertFeatures
from papers.reach.influence import influence

TEXTS = 64  # maximum number of texts read from the user's file
# types of task head that compute logits from a single text
READING_HEADS = (None, "sequence", "masked_lm", "language", "decoder")


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
