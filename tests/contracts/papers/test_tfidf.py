"""TF-IDF classifier: equality with scikit-learn, a run of the recipe, and refused options."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyheads
from manyheads import cli, directory
from manyheads.core.runtime import prepare
from manyheads.data.text.tokenizers import train_word_level
from manyheads.models.tfidf import Tfidf, TfidfConfig
from manyheads.tasks.classification.objective import label_logits
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.encoding import encode
from manyheads.tasks.train import train
from papers.text_classifier.fitting import fit_tfidf
from papers.text_classifier.recipes import RECIPES
from tests.contracts.tasks.classification.test_run import BAD, GOOD, rows, write
from tests.contracts.tasks.classification.test_task import TEXTS

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")


@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.parametrize("labels", [("a", "b"), ("a", "b", "c")])
def test_tfidf_equals_scikit_learn_before_and_after_saving(
    tmp_path: Path, labels: tuple[str, ...], components: int | None
) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear = pytest.importorskip("sklearn.linear_model")
    from sklearn.decomposition import TruncatedSVD
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    tokenizer = train_word_level(TEXTS, 12)
    wanted = [i % len(labels) for i in range(24)]
    model = Tfidf(TfidfConfig(vocab=12, labels=labels, components=components))
    ids = encode(tokenizer, TEXTS, None, None, truncate=False)
    fit_tfidf(model, ids.ids, torch.tensor(wanted), strength=3.0)
    vectors = text.TfidfVectorizer(sublinear_tf=True)
    if components is not None:
        steps = (vectors, TruncatedSVD(components, random_state=0), Normalizer())
        vectors = make_pipeline(*steps)
    theirs = linear.LogisticRegression(C=3.0, max_iter=1000).fit(vectors.fit_transform(TEXTS), wanted)
    held = ["red red red moon", "dog zebra, cat!", "and"]
    expected = theirs.predict_proba(vectors.transform(held))
    encoded = encode(tokenizer, held, None, None, truncate=False)
    assert label_logits(model, encoded, prepare(threads=1)).softmax(-1).numpy() == pytest.approx(expected, abs=1e-5)
    directory.save(tmp_path / "m", model, tokenizer)
    reloaded = Classifier(directory.load(tmp_path / "m"), prepare(threads=1))
    found = reloaded.classify(held, top=3)
    assert [{label.label: label.probability for label in each} for each in found] == [
        pytest.approx(dict(zip(labels, row, strict=True)), abs=1e-5) for row in expected
    ]
    assert not [file for file in (tmp_path / "m").iterdir() if file.suffix not in (".json", ".safetensors")]


def test_more_components_than_texts_are_refused() -> None:
    pytest.importorskip("sklearn")
    ids = encode(train_word_level(TEXTS, 12), TEXTS[:4], None, None, truncate=False)
    with pytest.raises(ValueError, match="components is 9: expected at most 4 for 4 texts of 12 words"):
        fit_tfidf(Tfidf(TfidfConfig(vocab=12, components=9)), ids.ids, torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize("labels", [("a", "b", "c"), ("a", "b", "c", "d")])
def test_a_label_missing_in_training_is_reported(labels: tuple[str, ...]) -> None:
    """Of two labels there is one row of weights, which would go into every row of three."""
    model = Tfidf(TfidfConfig(vocab=12, labels=labels))
    wanted = [place for place in range(len(labels)) if labels[place] != "b"] * 2
    texts = [np.array([place + 3, place + 4]) for place in wanted]
    with pytest.raises(ValueError, match="no training text has the label 'b': remove the label from names"):
        fit_tfidf(model, texts, torch.tensor(wanted))


def fit(data: Path, out: Path, options: dict[str, Any] | None = None, **settings: Any) -> Any:
    given = {"data": str(data), "vocabulary": 40, "threads": 1, **settings}
    return train("imdb/tfidf", given, out=out, recipes=RECIPES, **(options or {}))


def test_a_run_is_scored_loaded_and_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    data = write(tmp_path / "data", train=rows(200), val=rows(30, 200), test=rows(30, 300))
    result = fit(data, tmp_path / "run")
    assert result["metrics"]["accuracy"]["value"] > 0.9
    assert result["scored"] == "test"
    with pytest.raises(ValueError, match="contains a finished run"):
        fit(data, tmp_path / "run")
    assert manyheads.load(tmp_path / "run").outcome().metrics == result["metrics"]
    capsys.readouterr()
    assert cli.main(["classify", str(tmp_path / "run"), GOOD, BAD, "--top", "2"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["positive", "negative"]


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"training.epochs": 3}, {}, "training.epochs: no effect, because TF-IDF is fitted at once"),
        ({}, {"max_minutes": 1.0, "precision": "bf16"}, "--max-minutes, --precision: no effect"),
        ({"tokens": "pieces"}, {}, "tokens: no effect, because TF-IDF counts words"),
        ({"model.foo": 3}, {}, "unknown settings foo"),
        ({"target": "regression", "names": []}, {}, "target: not supported by TF-IDF"),
    ],
)
def test_settings_without_any_effect_are_refused(
    settings: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    data = write(tmp_path / "data", train=rows(200), test=rows(30, 300))
    with pytest.raises(ValueError, match=message):
        fit(data, tmp_path / "run", options, **settings)
    assert not (tmp_path / "run").exists()
