"""A small treebank, and a BERT that reads its words."""

from pathlib import Path

import torch

from manyheads import directory
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models import bert
from manyheads.models.presets import preset


def sentence(*words: tuple[str, int, str]) -> str:
    """Return the CoNLL-U lines of a sentence of words, given with their heads and relations."""
    lines = [f"{i}\t{word}\t_\tNOUN\t_\t_\t{head}\t{relation}\t_\tEntity=({word})"
             for i, (word, head, relation) in enumerate(words, 1)]  # fmt: skip
    return "\n".join(lines) + "\n\n"


BANK = sentence(("the", 2, "det"), ("dog", 3, "nsubj"), ("sees", 0, "root"), ("dog", 3, "obj")) * 3


def save_bert(path: Path) -> Path:
    """Save a BERT with random weights for masked words, and return its directory."""
    torch.manual_seed(1)
    config = preset(
        "bert/tiny", vocab=31, width=16, heads=2, layers=2, feed_forward=8, max_positions=9, head="masked_lm"
    )
    directory.save(path, bert.Bert(config), train_wordpiece(["the dog sees a cat"] * 3, 31))
    return path
