"""Recipe that compares recurrent and convolutional translators with the Transformer (Vaswani 2017, table 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from manyheads.core.config import Distinct
from manyheads.errors import UserError
from manyheads.runs.recipe import Recipe
from manyheads.tasks.translation.recipes import TranslationConfig
from manyheads.training.config import TrainingConfig

# settings of each model in the comparison of architectures
RIVAL_ROWS: dict[str, dict[str, Any]] = {
    "lstm": {"preset": "seq2seq-rnn/rival"},
    "lstm-dot": {"preset": "rnn-attention/luong"},
    "gru-additive": {"preset": "rnn-attention/bahdanau"},
    "gnmt": {"preset": "gnmt/tiny"},
    "lstm-experts": {"preset": "gnmt/experts"},
    "deep-att": {"preset": "deep-att/rival"},
    "convs2s": {"preset": "convs2s/rival"},
    "bytenet": {"preset": "bytenet/rival"},
    "transformer": {"preset": "transformer/tiny", "model.norm": "pre", "model.final_norm": True},
    "transformer-post": {"preset": "transformer/tiny", "model.norm": "post"},  # as published
    "experts": {"preset": "transformer/tiny-experts", "model.norm": "pre", "model.final_norm": True},
}


@dataclass(frozen=True)
class RivalsConfig(TranslationConfig):
    """Settings of a comparison of architectures. Each row has its own preset.

    rows  names of the models
    """

    rows: Annotated[tuple[str, ...], Distinct(1)] = tuple(RIVAL_ROWS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if unknown := [name for name in self.rows if name not in RIVAL_ROWS]:
            raise UserError(f"rows: no model {', '.join(unknown)}: expected some of {', '.join(RIVAL_ROWS)}")


RIVALS = RivalsConfig(
    vocabulary=5000,
    batch_tokens=4096,
    beam=5,
    alpha=1.4,
    # The schedule and the average of the weights are independent of the length of the run, so each of the scored
    # checkpoints equals the end of a shorter run.
    training=TrainingConfig(
        width=128, steps=2600, schedule="inverse_sqrt", learning_rate=8e-3, warmup=200, ema=0.999, clip=1.0,
        validate_every=2600, checkpoint_every=100,
    ),
)  # fmt: skip

RECIPES = {
    "translation/rivals": Recipe(
        "recurrent and convolutional translators against the Transformer, 1.3 M parameters each",
        "Vaswani et al. 2017", RIVALS, "papers.rivals.run:train",
        """It trains every model on the same batches in the same order and writes a table of BLEU, loss, FLOPs and
        seconds. Each run has its own directory below --out and can be resumed. The entry "curve" of its
        result.json has the scores at ten checkpoints. For another seed, give another --out.""",
        options="[target=fr] [rows=[lstm,transformer]] [training.seed=2]",
        program="python -m papers.rivals",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
}  # fmt: skip
