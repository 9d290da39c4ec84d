"""Recipes for tagging words with a BERT encoder, from scratch or fine-tuned (Devlin 2018, section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from manyheads.core.config import Count, Range, Vocabulary
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe, Tuned
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.tagging.task:Tagging"


@dataclass(frozen=True)
class TaggingConfig(DataConfig):
    """Settings of a training run for tagging words.

    data          directory with train, val and test files in CoNLL's column format, or one file; None: the
                  embedded corpus in `locale`, with `size` training phrases
    locale        locale of the embedded corpus, such as en or de
    size          number of training phrases of the embedded corpus
    preset        name of the BERT preset, such as mini, if the run does not start from another model; `model` overrides
                  its fields
    model         overrides fields of the preset or of the initial model, such as model.dropout=0.1
    vocabulary    size of the subword vocabulary. A run that starts from another model uses that model's vocabulary
    lowercase     true: convert all text to lowercase
    batch_tokens  maximum number of tokens in a micro-batch, padding included
    max_length    maximum number of tokens in a window; a longer sentence is read in several windows
    tuned         part of the initial model to train. "all": the whole model; "last" or "last-four": the model is
                  frozen, and a new BiLSTM reads its last one or last four layers
    scored        name of the split ("test", for example) that is tagged and scored at the end
    """

    locale: str = "en"
    size: Count = 8000
    preset: str = "tiny"
    model: JsonObject = field(default_factory=dict)
    vocabulary: Vocabulary = 2000
    lowercase: bool = False
    batch_tokens: Count = 1024
    max_length: Annotated[int, Range(8, 10**6)] = 128
    tuned: Tuned = "all"
    training: TrainingConfig = field(default=FINE_TUNING)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length > self.batch_tokens:
            raise UserError(f"max_length is {self.max_length}: expected at most {self.batch_tokens}, the batch_tokens")


EMBEDDED = TaggingConfig(
    # The embedded phrases have no noise and are not repeated, so no dropout is needed.
    model={"max_positions": 256, "dropout": 0.0, "attention_dropout": 0.0},
    training=replace(FINE_TUNING, epochs=8, learning_rate=2e-3),
)
CONLL2003 = TaggingConfig(
    preset="base-cased",
    batch_tokens=512,  # These are about 28 sentences per batch; the paper has 32.
    training=replace(FINE_TUNING, learning_rate=5e-5, warmup=170),
)

RECIPES = {
    "tagging": Recipe(
        "a small tagger of dates, times, amounts, places and languages, or of your tags", "Devlin et al. 2018",
        EMBEDDED, TASK,
        """Without data, it uses phrases of dates, amounts and names from Unicode CLDR, with tags for their
        parts, and the test set has combinations that do not occur in training. It takes about two minutes on
        two cores. With --init, it uses the optimizer and schedule of `conll2003`.""",
        options="[locale=en] [data=DIR] [--init MODEL]", init="may",
        with_init=replace(EMBEDDED, training=CONLL2003.training),
    ),
    "conll2003": Recipe(
        "a tagger of named entities, fine-tuned from any BERT", "Devlin et al. 2018", CONLL2003, TASK,
        """Published result of BERT base (section 5.3): entity F1 92.4 on the test data. The paper's model also
        reads the text around each sentence; here each sentence is read alone. `tuned` selects the paper's
        ablation, in which a BiLSTM reads the states of the frozen BERT (validation F1 94.9 with its last layer,
        96.1 with four layers).""",
        options="[tuned=last-four]", init="must",
        requires={"data": "DIR with train, valid and test files in CoNLL-2003's column format"},
    ),
}  # fmt: skip
