"""Recipes for language models in the style of GPT-2, from scratch or from a pretrained model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from manyheads.core.config import Count, Length, Range, Vocabulary
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.language.task:LanguageModeling"
EMBEDDED_TRAINING = TrainingConfig(
    steps=1500, optimizer="adamw", schedule="cosine", learning_rate=3e-3, floor=0.1, warmup=100, betas=(0.9, 0.99),
    eps=1e-8, weight_decay=0.1, clip=1.0, validate_every=500, checkpoint_every=500, log_every=20,
)  # fmt: skip


@dataclass(frozen=True)
class LanguageModelingConfig(DataConfig):
    """Settings of a training run for language modeling.

    data        path of a text file, of a table, or of a directory of them. With none, the source code of Python's
                standard library is used
    column      name of the column that holds the text, for tables
    share       fraction of the training data that is used for validation if there is no validation data
    tokenizer   kind of vocabulary. "byte-bpe" means at most `vocabulary` subwords; "character" means all characters of
                the corpus
    vocabulary  maximum size of the subword vocabulary
    preset      name of the GPT preset, such as gpt2/124m, or universal/tiny; `model` overrides its fields
    model       overrides fields of the preset, such as model.layers=6
    block       number of tokens in a training block, which is also the model's maximum length
    rows        number of training blocks in a micro-batch
    random      choice of the training blocks. If true, blocks start at random offsets. If false, blocks are adjacent,
                so that an epoch covers the whole text
    stride      number of tokens between the starts of two scored windows. With none, it equals `block`
    scored      name of the split that is scored at the end, in windows of `block` tokens that start `stride` tokens
                apart
    """

    column: str = "text"
    share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.05
    tokenizer: Literal["byte-bpe", "character"] = "byte-bpe"
    vocabulary: Vocabulary = 1024
    preset: str = "gpt2/nano"
    model: JsonObject = field(default_factory=dict)
    block: Length = 128
    rows: Count = 8
    random: bool = False
    stride: Length | None = None
    training: TrainingConfig = EMBEDDED_TRAINING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.stride > self.block:
            raise UserError(f"stride is {self.stride}: expected 1 to block, which is {self.block}")


# These settings follow nanoGPT's train.py and config/train_shakespeare_char.py, with its README's options for a CPU.
TINY_SHAKESPEARE = LanguageModelingConfig(
    share=0.1,
    tokenizer="character",
    # The cost estimate of --dry-run assumes this vocabulary size: 65 characters, the end-of-text and the unknown token.
    vocabulary=67,
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
    "language-modeling": Recipe(
        "a small language model on Python's source code, or on your texts", "Radford et al. 2019",
        LanguageModelingConfig(), TASK,
        "It uses byte-level BPE. "
        "Without data, it trains on the standard library's source code, in about three minutes on two cores.",
        options="[data=FILE|DIR] [--init MODEL]", init="may", with_init=LanguageModelingConfig(training=FINE_TUNING),
    ),
    "language-modeling/tiny-shakespeare": Recipe(
        "a character model with 0.8 M parameters, for a CPU", "Karpathy 2022, nanoGPT", TINY_SHAKESPEARE, TASK,
        """As in nanoGPT's README, section "I only have a macbook" (github.com/karpathy/nanoGPT), it trains for
        2,000 steps of 12 blocks of 64 tokens. The last tenth of the text is the validation split. The published
        validation loss is 1.88, estimated on 20 random batches; here every validation token is scored, in
        blocks of 64. training.learning_rate=3e-3 gives a lower loss.""",
        requires=TEXT_OF_SHAKESPEARE, init="may",
    ),
    "language-modeling/tiny-shakespeare-gpu": Recipe(
        "a character model with 10.7 M parameters, for a GPU", "Karpathy 2022, nanoGPT", TINY_SHAKESPEARE_GPU, TASK,
        """As in nanoGPT's README, section "quick start", it trains with dropout 0.2 for 5,000 steps of 64
        blocks of 256 tokens, and saves the weights with the best validation loss. The published loss is 1.4697.""",
        options="--precision bf16", requires=TEXT_OF_SHAKESPEARE, init="may",
    ),
}  # fmt: skip
