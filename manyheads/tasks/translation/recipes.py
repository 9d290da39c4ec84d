"""Recipes for training translators (Vaswani 2017), on the user's parallel corpus or on the built-in corpus."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from manyheads.core.config import Count, Range
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.runs.recipe import FINE_TUNING, DataConfig, Recipe
from manyheads.training.config import TrainingConfig

TASK = "manyheads.tasks.translation.task:Translation"
Ids = Annotated[int, Range(4, 10**7)]


@dataclass(frozen=True)
class TranslationConfig(DataConfig):
    """Settings of a training run for translation.

    data          path of a directory with train, val and test files, or of one corpus. With none, the built-in corpus
                  with `size` training pairs is used
    source        source language, which is also the suffix of its files
    target        target language, which is also the suffix of its files
    size          number of training pairs of the built-in corpus
    preset        name of the encoder-decoder preset, such as small or universal/tiny; `model` overrides its fields
    model         overrides fields of the preset, such as model.dropout=0.1
    tokenizer     kind of tokenizer: "bpe" (Sennrich 2016), "unigram" (Kudo 2018), or "words" with joint=false, which
                  splits at white space and punctuation
    vocabulary    number of ids in the joint vocabulary of both languages. With joint=false, it is the number of ids in
                  each language's vocabulary, or a pair (source, target)
    joint         if true, both languages have one vocabulary. If false, each language has a vocabulary
    bpe_dropout   probability of skipping a merge of byte-pair encoding, so that each epoch divides training sentences
                  into other tokens. It requires tokenizer=bpe. Batches may then exceed batch_tokens
    batch_tokens  maximum number of tokens in a micro-batch, including padding. Source and target texts are counted
                  separately
    max_length    maximum number of tokens in a training sentence. Longer sentences are an error, or are cut with
                  truncate=true
    truncate      if true, sentences that are longer than max_length are cut
    smoothing     label smoothing: fraction of the probability that is spread evenly over all words
    beam          beam width of the final translation; 1 means greedy decoding
    alpha         exponent of the length penalty in the beam search; larger values prefer longer translations
    scored        name of the split ("test", for example) that is translated and scored at the end, with beam width
                  `beam` and length penalty `alpha`
    """

    source: str = "en"
    target: str = "de"
    size: Count = 30_000
    preset: str = "tiny"
    model: JsonObject = field(default_factory=dict)
    tokenizer: Literal["bpe", "unigram", "words"] = "bpe"
    vocabulary: tuple[Ids, Ids] | Ids = 2000
    joint: bool = True
    bpe_dropout: Annotated[float, Range(0, 1, below=True)] = 0.0
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
            raise UserError("tokenizer=words builds a vocabulary for each language: add joint=false model.tie=none")
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise UserError(f"bpe_dropout requires tokenizer=bpe, found {self.tokenizer}: leave it out")
        if self.joint and isinstance(self.vocabulary, tuple):
            raise UserError(
                f"vocabulary is {self.vocabulary}: expected one size for a joint vocabulary. "
                "Give one number, or add joint=false."
            )

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Numbers of ids in the vocabularies of the source and the target language."""
        return self.vocabulary if isinstance(self.vocabulary, tuple) else (self.vocabulary, self.vocabulary)


EMBEDDED = TranslationConfig(
    # The built-in data have no noise and are not repeated, so no dropout is needed. Pre-norm gives the lowest loss
    # within three minutes of training.
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
    # With post-norm (layer norm after each residual connection), training fails for some seeds.
    model={"norm": "pre", "final_norm": True, "dropout": 0.3},
    batch_tokens=4096,
    beam=5,
    alpha=1.4,
    training=TrainingConfig(
        width=128, steps=10_000, schedule="linear", learning_rate=4e-3, warmup=750, average=10, average_every=260,
        validate_every=520, checkpoint_every=520, clip=1.0,
    ),
)  # fmt: skip

# Settings of the PyTorch tutorial on translation. Its batches have 128 sentences, which on Multi30k is about 2,000
# tokens.
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
    scored="validation",  # The validation data are scored, as in the paper. The test data remain unused.
    training=replace(EMBEDDED.training, learning_rate=1.5e-3, steps=400, warmup=100, validate_every=None),
)

WMT14_DATA = {"data": "DIR with the train, validation and test files of WMT14"}

RECIPES = {
    "translation": Recipe(
        "a small translator of dates, amounts and names between two locales", "Vaswani et al. 2017", EMBEDDED, TASK,
        """Without data, it uses phrases from Unicode CLDR in two locales, and the test set has combinations
        that do not occur in training. It takes about three minutes on two cores.""",
        options="[source=en target=de] [data=CORPUS]", init="may", with_init=replace(EMBEDDED, training=FINE_TUNING),
    ),
    "translation/multi30k": Recipe(
        "a translator of image captions, 2 M parameters", "Wu et al. 2021", MULTI30K, TASK,
        """Transformer-Tiny of Wu et al. 2021 (BLEU 41.02 lowercased and tokenized, en-de), on raw cased text.
        To suit a CPU, it has pre-norm layers, a smaller vocabulary and smaller batches. It takes about two
        hours on one core with --precision bf16.""",
        options="[source=en target=de]", init="may",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
    "translation/blog": Recipe(
        "the PyTorch tutorial's German-English translator of image captions", "Vaswani et al. 2017", BLOG, TASK,
        """nn.Transformer with 3 + 3 layers of width 512 and two word vocabularies, 33.6 M parameters. It trains
        with Adam at 1e-4 for 18 epochs and decodes greedily. Unlike in the tutorial, a batch has sentences of
        similar length; the batches are in random order. It takes about three hours on one core.""",
        options="[source=de target=en]",
        requires={"data": "DIR with train, val and test_2016_flickr of Multi30k"},
    ),
    "translation/wmt14-base": Recipe(
        "the paper's base model for 100,000 steps", "Vaswani et al. 2017", WMT14_BASE, TASK,
        """Published result (table 2): BLEU 27.3 en-de. Each step has 25,000 source and target tokens. The joint
        vocabulary has 37,000 tokens; the last five checkpoints are averaged.""",
        options="source=en target=de", requires=WMT14_DATA, init="may",
    ),
    "translation/wmt14-big": Recipe(
        "the paper's big model for 300,000 steps", "Vaswani et al. 2017", WMT14_BIG, TASK,
        "Published result (table 2): BLEU 28.4 en-de. Dropout is 0.3; the last twenty checkpoints are averaged.",
        options="source=en target=de", requires=WMT14_DATA, init="may",
    ),
    "translation/ablate": Recipe(
        "the rows of the paper's table 3 at a small budget, on any corpus", "Vaswani et al. 2017",
        ABLATE, "manyheads.tasks.translation.ablation:train",
        """It trains a small model for every row and writes the table of validation perplexity and BLEU. Each
        run has its own directory below --out and can be resumed. At this budget, only large effects exceed the
        noise between seeds.""",
        options="[data=CORPUS] [training.steps=N]",
    ),
}  # fmt: skip
