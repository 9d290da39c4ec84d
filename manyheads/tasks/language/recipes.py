"""Recipes of language models of GPT-2's shape, from scratch on running text, or further from another one's weights."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Count, Length, Range, Vocabulary
from manyheads.errors import UserError
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.language.run"
EMBEDDED_TRAINING = TrainingConfig(
    steps=1500, optimiser="adamw", schedule="cosine", learning_rate=3e-3, floor=0.1, warmup=100, betas=(0.9, 0.99),
    eps=1e-8, weight_decay=0.1, clip=1.0, validate_every=500, checkpoint_every=500, log_every=20,
)  # fmt: skip


@dataclass(frozen=True)
class LanguageModellingConfig(DataConfig):
    """What a language modelling run is made of.

    data        a text file, a table, or a directory of them (see `data/texts.py`); None: the source text of Python's
                standard library
    column      of tables, that holds the text
    share       of the training data, held out where there is no validation data
    tokenizer   "byte-bpe" of at most `vocabulary` ids, or "character", whose vocabulary is all characters of the corpus
    preset      of GPT, such as gpt2/124m, or universal/tiny; `model` overrides its fields
    block       tokens that are read at once, which are all the model's positions
    rows        blocks of a micro-batch
    random      blocks from anywhere in the text; or one behind the other, so that an epoch is the whole text
    scored      which data are scored at the end, in windows of `block` tokens, one every `stride` (None: `block`)
    """

    column: str = "text"
    share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.05
    tokenizer: Literal["byte-bpe", "character"] = "byte-bpe"
    vocabulary: Vocabulary = 1024
    preset: str = "gpt2/nano"
    model: dict[str, Any] = field(default_factory=dict)
    block: Length = 128
    rows: Count = 8
    random: bool = False
    stride: Length | None = None
    training: TrainingConfig = EMBEDDED_TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.block:
            raise UserError(f"stride is {self.stride}: expected 1 to block, {self.block}")


# nanoGPT's train.py and config/train_shakespeare_char.py with the options of its README for a CPU
TINY_SHAKESPEARE = LanguageModellingConfig(
    share=0.1,
    tokenizer="character",
    vocabulary=67,  # 65 characters, the end of text and the unknown one, for --dry-run
    block=64,
    rows=12,
    random=True,
    scored="validation",
    training=replace(EMBEDDED_TRAINING, steps=2000, learning_rate=1e-3),
)
TINY_SHAKESPEARE_GPU = replace(
    TINY_SHAKESPEARE,
    preset="gpt2/baby",
    block=256,
    rows=64,
    training=replace(TINY_SHAKESPEARE.training, steps=5000, validate_every=250, metric="loss"),
)

TEXT_OF_SHAKESPEARE = {"data": "FILE, tiny-shakespeare's input.txt, or its directory"}

RECIPES = {
    "language-modelling": Recipe(
        "a small language model of Python's source text, or of your texts", "Radford et al. 2019",
        LanguageModellingConfig(), RUN,
        "Byte-level BPE. Without data, the standard library's source text, in about three minutes on two cores.",
        options="[data=FILE|DIR] [--init MODEL]", init="may", with_init=LanguageModellingConfig(training=FINE_TUNING),
    ),
    "language-modelling/tiny-shakespeare": Recipe(
        "a 0.8 M parameter character model, for a CPU", "Karpathy 2022, nanoGPT", TINY_SHAKESPEARE, RUN,
        """As in nanoGPT's README, "I only have a macbook" (github.com/karpathy/nanoGPT): 2,000 steps of 12 blocks of
        64, the last tenth of the text for validation. Published validation loss: 1.88, estimated on 20 random batches;
        here on every token of it, in blocks of 64. training.learning_rate=3e-3 does better.""",
        requires=TEXT_OF_SHAKESPEARE, init="may",
    ),
    "language-modelling/tiny-shakespeare-gpu": Recipe(
        "a 10.7 M parameter character model, for a GPU", "Karpathy 2022, nanoGPT", TINY_SHAKESPEARE_GPU, RUN,
        """As in nanoGPT's README, "quick start": dropout 0.2, 5,000 steps of 64 blocks of 256, the best weights by
        validation loss. Published: 1.4697.""",
        options="--precision bf16", requires=TEXT_OF_SHAKESPEARE, init="may",
    ),
}  # fmt: skip
