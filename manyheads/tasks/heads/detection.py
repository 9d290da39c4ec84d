"""Detection of induction, previous-token and duplicate-token heads on repeated random tokens (Olsson 2022).

    heads = detect_heads(manyheads.load(MODEL))
    heads["induction"]      # (L, H) scores

The command for the terminal is `manyheads probe MODEL`.
"""

from __future__ import annotations

import numpy as np
import torch

from manyheads.analysis.heads.detectors import head_scores
from manyheads.analysis.heat_maps import HeatMaps, Panel
from manyheads.errors import UserError
from manyheads.tasks.heads.word_maps import LoadedModel, WordReader

LENGTH = 50  # number of random tokens that are repeated
ROWS = 8  # number of texts of random tokens


def detect_heads(loaded: LoadedModel, *, length: int = LENGTH, seed: int = 0) -> HeatMaps:
    """Return the scores of each self-attention head, by layer and head, on random tokens that are repeated once.

    The special tokens of the model surround the tokens. For an encoder-decoder, the heads are those of the encoder.

    length  number of different random tokens; fewer if the vocabulary or the model's maximum length is smaller
    seed    seed of the random tokens

    Raises UserError for a model that reads no texts or has no attention.
    """
    reader = WordReader(loaded)
    frame, tokenizer = reader.frame, loaded.tokenizer
    ids = sorted({*tokenizer.get_vocab().values()} - {*tokenizer.get_added_tokens_decoder()})
    room = len(ids) if reader.max_tokens is None else (reader.max_tokens - len(frame)) // 2
    length = min(length, len(ids), room)
    if length < 2:
        raise UserError(f"{length} random tokens: expected at least 2, and a model that reads twice as many")
    generator = np.random.default_rng(seed)
    halves = [generator.choice(ids, length, replace=False).tolist() for _ in range(ROWS)]
    texts = torch.tensor([frame.around(half * 2)[0] for half in halves])
    begin = len(frame.before)
    words = slice(begin, begin + 2 * length)
    maps = reader.token_maps(texts, torch.full((ROWS,), texts.shape[1]))
    scores = [head_scores(map[:, :, words, words], texts[:, words]) for map in maps.values()]
    layers, heads = (tuple(f"{noun} {i}" for i in range(count)) for noun, count in (
        ("layer", len(scores)), ("head", len(scores[0]["induction"]))))  # fmt: skip
    panels = (
        Panel(name, layers, heads, torch.stack([layer[name] for layer in scores]).double().numpy())
        for name in scores[0]
    )
    title = f"{2 * length} random tokens, the second half repeats the first"
    return HeatMaps(str(loaded.path), title, "mean attention", tuple(panels))
