"""Recipes that tag the words of a text with BERT's encoder: from scratch, or fine-tuned (Devlin 2018, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from manyheads.core.config import Count, Range, Vocabulary
from manyheads.errors import UserError
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe, Tuned
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.tagging.run"


@dataclass(frozen=True)
class TaggingConfig(DataConfig):
    """What a tagging run is made of.

    data          a directory with train, val and test files of CoNLL columns, or one file (see `data/conll.py`);
                  None: the embedded corpus in `locale`, of `size` training phrases
    preset        of BERT, such as mini, where the run does not start from another model; `model` overrides its fields
    vocabulary    sub-tokens, and whether they are lowercased; given by the model to start from
    batch_tokens  padded tokens of a micro-batch
    max_length    tokens of a window: longer sentences are read in several
    tuned         of the model to start from: "all"; or nothing, and a BiLSTM reads its "last" layer, or its "last-four"
    scored        which data are tagged and scored at the end
    """

    locale: str = "en"
    size: Count = 8000
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    vocabulary: Vocabulary = 2000
    lowercase: bool = False
    batch_tokens: Count = 1024
    max_length: Annotated[int, Range(8, 10**6)] = 128
    tuned: Tuned = "all"
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length > self.batch_tokens:
            raise UserError(f"max_length is {self.max_length}: expected at most batch_tokens, {self.batch_tokens}")


EMBEDDED = TaggingConfig(
    model={"max_positions": 256, "dropout": 0.0, "attention_dropout": 0.0},  # nothing is noisy and nothing repeats
    training=replace(FINE_TUNING, epochs=8, learning_rate=2e-3),
)
CONLL2003 = TaggingConfig(
    preset="base-cased",
    batch_tokens=512,  # about 28 sentences, the paper's 32
    training=replace(FINE_TUNING, learning_rate=5e-5, warmup=170),
)

RECIPES = {
    "tagging": Recipe(
        "a small tagger of dates, times, amounts, places and languages, or of your tags", "Devlin et al. 2018",
        EMBEDDED, RUN,
        """Without data, phrases of dates, amounts and names from Unicode CLDR, with tags of their parts; what is tested
        are combinations that training has not shown. About two minutes on two cores. With --init it has the optimiser
        and schedule of `conll2003`.""",
        options="[locale=en] [data=DIR] [--init MODEL]", init="may",
        with_init=replace(EMBEDDED, training=CONLL2003.training),
    ),
    "conll2003": Recipe(
        "named entities, fine-tuned from any BERT", "Devlin et al. 2018", CONLL2003, RUN,
        """Published for BERT base (section 5.3): entity F1 92.4 on the test data; it also read the text around each
        sentence, here a sentence is read by itself. `tuned` is the paper's ablation: a BiLSTM reads the states of the
        frozen BERT (on validation 94.9 from its last layer, 96.1 from four).""",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train, valid and test files of CoNLL-2003 columns"},
    ),
}  # fmt: skip
