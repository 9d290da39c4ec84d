"""Classification of texts and of pairs of texts."""

from __future__ import annotations

from manyheads.tasks.info import FINE_TUNED, OWN_DATA, PUBLISHED, PredictorRow, TaskInfo

INFO = TaskInfo(
    "classify",
    "classification",
    {
        OWN_DATA: {"text-classification": "classifiers of texts from scratch"},
        FINE_TUNED: {
            "single-sentence": "classifiers of single texts, from a BERT or GPT",
            "sentence-pair": "classifiers of pairs of texts, from a BERT or GPT",
        },
        PUBLISHED: {
            "imdb": "classifiers of film reviews: a Transformer and five baselines",
            "sst2": "a sentiment classifier of sentences",
            "mrpc": "a classifier of sentence pairs with equal meaning",
        },
    },
    (
        PredictorRow("classification.predictor:Classifier", ("text-classifier", "sequence-baseline", "tfidf")),
        PredictorRow(
            "classification.predictor:Classifier", ("bert", "bert-features", "gpt", "gpt2", "elmo"), ("sequence",)
        ),
    ),
)
