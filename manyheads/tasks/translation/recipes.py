"""Recipes of translation (Vaswani 2017): from the user's parallel corpus, or from the embedded one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from manyheads.core.config import Count, Range
from manyheads.errors import UserError
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

RUN = "manyheads.tasks.translation.run"
Ids = Annotated[int, Range(4, 10**7)]


@dataclass(frozen=True)
class TranslationConfig(DataConfig):
    """What a translation run is made of.

    data          a directory with train, val and test files, or one corpus (see `data/parallel.py`);
                  None: the embedded corpus, of `size` training pairs
    preset        of the encoder-decoder, such as small, or universal/tiny; `model` overrides its fields
    tokenizer     "bpe" (Sennrich 2016), "unigram" (Kudo 2018), or "words", split at blanks and punctuation, with
                  joint=false
    vocabulary    ids of the joint vocabulary; with joint=false of each one, or two numbers, the source's first
    batch_tokens  padded tokens of a micro-batch, on each side
    max_length    tokens a training sentence may have; a longer one is an error, or is cut with truncate=true
    scored        which data are translated and scored at the end, with `beam` and `alpha`
    """

    source: str = "en"
    target: str = "de"
    size: Count = 30_000
    preset: str = "tiny"
    model: dict[str, Any] = field(default_factory=dict)
    tokenizer: Literal["bpe", "unigram", "words"] = "bpe"
    vocabulary: tuple[Ids, Ids] | Ids = 2000
    joint: bool = True
    batch_tokens: Count = 2048
    max_length: Annotated[int, Range(2, 10**6)] = 256
    truncate: bool = False
    smoothing: Annotated[float, Range(0, 1, below=True)] = 0.1
    beam: Annotated[int, Range(1, 1000)] = 4
    alpha: Annotated[float, Range(0, 10)] = 0.6
    training: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=1000, width=128))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joint and self.tokenizer == "words":
            raise UserError("tokenizer=words makes a vocabulary for each language: add joint=false model.tie=none")
        if self.joint and isinstance(self.vocabulary, tuple):
            raise UserError(
                f"vocabulary is {self.vocabulary}: a joint vocabulary has one size: give one, or add joint=false"
            )

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Ids of the source and of the target."""
        return self.vocabulary if isinstance(self.vocabulary, tuple) else (self.vocabulary, self.vocabulary)


EMBEDDED = TranslationConfig(
    # nothing is noisy and nothing repeats: no dropout, and pre-norm learns fastest in three minutes
    model={"norm": "pre", "final_norm": True, "dropout": 0.0, "encoder_layers": 3, "decoder_layers": 3},
    batch_tokens=1024,
    beam=1,
    training=TrainingConfig(
        width=128, steps=1500, schedule="cosine", learning_rate=3e-3, warmup=150, clip=1.0, validate_every=500,
        checkpoint_every=500, log_every=20,
    ),
)  # fmt: skip

MULTI30K = TranslationConfig(
    vocabulary=5000,
    model={"norm": "pre", "final_norm": True, "dropout": 0.3},  # with "post" a run learns or not by its seed
    batch_tokens=4096,
    beam=5,
    alpha=1.4,
    training=TrainingConfig(
        width=128, steps=10_000, schedule="linear", learning_rate=4e-3, warmup=750, average=10, average_every=260,
        validate_every=520, checkpoint_every=520, clip=1.0,
    ),
)  # fmt: skip

# the PyTorch tutorial's settings; its batches are of 128 sentences, which so many tokens hold on Multi30k
BLOG = TranslationConfig(
    source="de",
    target="en",
    preset="blog",
    model={"embedding_init": "xavier"},
    tokenizer="words",
    vocabulary=(19_214, 10_837),
    joint=False,
    batch_tokens=2000,
    smoothing=0.0,
    beam=1,
    training=TrainingConfig(epochs=18, schedule="constant", learning_rate=1e-4, warmup=0, checkpoint_every=100),
)

WMT14_BASE = TranslationConfig(
    preset="base",
    vocabulary=37_000,
    batch_tokens=25_000,
    training=TrainingConfig(
        width=512, steps=100_000, average=5, average_every=1500, validate_every=5000, checkpoint_every=1500,
    ),
)  # fmt: skip

WMT14_BIG = replace(
    WMT14_BASE,
    preset="big",
    training=replace(WMT14_BASE.training, width=1024, steps=300_000, average=20),
)

ABLATE = replace(
    EMBEDDED,
    model={"dropout": 0.1},
    beam=4,
    scored="validation",  # as in the paper; the test data stay unseen
    training=replace(EMBEDDED.training, learning_rate=1.5e-3, steps=400, warmup=100, validate_every=None),
)

WMT14_DATA = {"data": "DIR with WMT14's train, validation and test files"}

RECIPES = {
    "translation": Recipe(
        "a small translator of dates, amounts and names, any two locales", "Vaswani et al. 2017", EMBEDDED, RUN,
        """Without data, phrases from Unicode CLDR in two locales; what is tested are combinations that training has not
        shown. About three minutes on two cores.""",
        options="[source=en target=de] [data=CORPUS]", init="may", with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "translation/multi30k": Recipe(
        "a translator of image captions, 2 M parameters", "Wu et al. 2021", MULTI30K, RUN,
        """Transformer-Tiny of Wu et al. 2021 (BLEU 41.02 lowercased and tokenised, en-de), on raw cased text, with the
        norm before each sublayer, a smaller vocabulary and fewer tokens, to suit a processor. About two hours on one
        core with --precision bf16.""",
        options="[source=en target=de]", init="may",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
    "translation/blog": Recipe(
        "the PyTorch tutorial's German-English translator of image captions", "Vaswani et al. 2017", BLOG, RUN,
        """nn.Transformer with 3 + 3 layers of width 512 and two vocabularies of words, 33.6 M parameters; Adam at 1e-4
        for 18 epochs, greedy decoding. Unlike there, batches are of sentences alike in length, in random order. About
        three hours on one core.""",
        options="[source=de target=en]",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
    "translation/wmt14-base": Recipe(
        "the paper's base model, 100,000 steps", "Vaswani et al. 2017", WMT14_BASE, RUN,
        """Published (table 2): BLEU 27.3 en-de. Steps of 25,000 source and target tokens, joint vocabulary of 37,000,
        the last five checkpoints averaged.""",
        options="source=en target=de", requires=WMT14_DATA, init="may",
    ),
    "translation/wmt14-big": Recipe(
        "the paper's big model, 300,000 steps", "Vaswani et al. 2017", WMT14_BIG, RUN,
        "Published (table 2): BLEU 28.4 en-de. Dropout 0.3, the last twenty checkpoints averaged.",
        options="source=en target=de", requires=WMT14_DATA, init="may",
    ),
    "translation/ablate": Recipe(
        "the rows of the paper's table 3 at a small budget, on any corpus", "Vaswani et al. 2017",
        ABLATE, "manyheads.tasks.translation.ablation",
        """A small run for every row, each resumable in a directory of its own below --out, and the table of validation
        perplexity and BLEU. At this budget only large effects show; equal rows are equal within a seed's noise.""",
        options="[data=CORPUS] [training.steps=N]",
    ),
}  # fmt: skip
