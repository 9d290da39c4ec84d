"""Classification task: batches, and metrics compared with scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.data.readers.labeled import Labeled
from manyheads.data.text.tokenizers import train_word_level, train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import preset
from manyheads.models.sequence_baselines import SequenceBaseline
from manyheads.models.text_classifier import TextClassifier
from manyheads.tasks.classification.objective import ClassificationObjective
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.encoding import encode
from manyheads.tasks.label_metrics import classification_metrics
from manyheads.tasks.targets import Target

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
WORDS = ["red", "blue", "moon", "dog", "cat", "sun", "fog"]  # of which one of the first three makes the label
TEXTS = [f"{WORDS[3 + i % 4]} " + "and " * (i % 5) + f"{WORDS[i % 3]} {WORDS[3 + i % 2]}" for i in range(24)]
LABELS = ["abc"[i % 3] for i in range(24)]
DATA = Labeled(TEXTS, LABELS)
WORD_LEVEL = {"vocab": 12, "labels": ("a", "b", "c"), "max_positions": 8, "dropout": 0.0}


def models() -> dict[str, Any]:
    torch.manual_seed(1)
    bert: dict[str, Any] = {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "feed_forward": 16,
        "max_positions": 24,
        "dropout": 0.0,
    }
    return {
        "textbook": TextClassifier(preset("text-classifier/textbook", **WORD_LEVEL)),
        "corrected": TextClassifier(preset("text-classifier/corrected", **WORD_LEVEL)),
        **{
            n: SequenceBaseline(preset(f"sequence-baseline/{n}", **WORD_LEVEL))
            for n in ("rnn", "lstm", "bilstm", "conv1d", "conv2d")
        },
        "bert": Bert(BertConfig(vocab=60, head="sequence", labels=("a", "b", "c"), attention_dropout=0.0, **bert)),
    }


def task(name: str, data: Labeled = DATA, **settings: Any) -> ClassificationObjective:
    tokenizer = train_wordpiece(TEXTS, 60) if name == "bert" else train_word_level(TEXTS, 12)
    options = {"batch_tokens": 40, "batch_items": 4, "max_length": 8, "truncate": False, "seed": 1}
    target = Target("classes", ("a", "b", "c"))
    return ClassificationObjective(
        models()[name], tokenizer, data, data, compute=prepare(threads=1), target=target, **{**options, **settings}
    )


@pytest.mark.parametrize("name", models())
def test_a_batch_can_be_overfitted(name: str) -> None:
    learning = task(name, max_length=24, batch_tokens=10_000, batch_items=None)
    (batch,) = learning.batches(0)
    assert batch.items == 24
    optimizer = torch.optim.Adam(learning.model.parameters(), lr=4e-3 if name == "bert" else 0.02)
    for _ in range(120):
        optimizer.zero_grad()
        loss = learning.loss(batch).total
        loss.backward()
        optimizer.step()
    values = learning.validate()
    assert values["accuracy"] == values["macro_f1"] == 1.0
    assert values["loss"] < 0.1


def test_batches_respect_their_limits_and_contain_every_text_once() -> None:
    learning = task("corrected")
    seen: list[int] = []
    for batch in learning.batches(3):
        assert batch.ids.numel() <= 40
        assert batch.items <= 4
        assert batch.segments is None
        seen += batch.labels.tolist()
    assert sorted(seen) == sorted("abc".index(label) for label in LABELS)
    one, two = ([b.ids.tolist() for b in learning.batches(epoch)] for epoch in (1, 2))
    assert one == [b.ids.tolist() for b in learning.batches(1)]
    assert one != two


def test_validation_equals_loss_and_accuracy_of_single_texts() -> None:
    learning = task("lstm")
    learning.model.eval()
    losses, right = [], 0
    for text, label in zip(TEXTS, LABELS, strict=True):
        ids = torch.tensor([learning.tokenizer.encode(text).ids])
        logits = learning.model(ids)[0]
        wanted = "abc".index(label)
        losses.append(-logits.log_softmax(0)[wanted].item())
        right += int(logits.argmax()) == wanted
    values = learning.validate()
    assert values["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert values["accuracy"] == right / 24


def test_pairs_are_one_sequence_of_two_segments() -> None:
    tokenizer = train_wordpiece(TEXTS, 60)
    found = encode(tokenizer, ["red dog", "cat"], ["sun", "moon and blue"], 24, truncate=False)
    tokens, lengths, segments = found.batch([0, 1], 0)
    assert segments is not None
    words = [[tokenizer.id_to_token(i) for i in row] for row in tokens.tolist()]
    assert words[0] == ["[CLS]", "red", "dog", "[SEP]", "sun", "[SEP]", "[PAD]"]
    assert words[1] == ["[CLS]", "cat", "[SEP]", "moon", "and", "blue", "[SEP]"]
    assert segments.tolist() == [[0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1, 1]]
    assert lengths.tolist() == [6, 7]
    cut = encode(tokenizer, ["red dog", "cat"], ["sun", "moon and blue"], 6, truncate=True)
    assert ([len(ids) for ids in cut.ids], cut.cut) == ([6, 6], 1)
    assert cut.ids[1][0] == tokenizer.token_to_id("[CLS]")
    assert cut.ids[1][-1] == tokenizer.token_to_id("[SEP]")
    assert len(encode(tokenizer, ["red " * 30], None, None, truncate=False).ids[0]) == 32, "the limit is not kept"


def test_overlong_texts_are_reported_with_their_position(tmp_path: Path) -> None:
    tokenizer = train_word_level(TEXTS, 12)
    with pytest.raises(
        ValueError, match=r"text 2 has 9 tokens, the limit is 8 \(2 texts are longer\): .* truncate=true \(--truncate\)"
    ):
        encode(tokenizer, ["red", "red " * 9, "dog " * 10], None, 8, truncate=False)
    data = Labeled(["red " * 9], ["a"], lines=[7], file=tmp_path / "train.tsv")
    with pytest.raises(ValueError, match=r"train\.tsv:7 has 9 tokens, the limit is 8"):
        task("corrected", data)
    assert encode(tokenizer, ["?!", "red"], None, 8, truncate=False).ids[0].tolist() == [1]


@pytest.mark.parametrize("labels", [("no", "yes"), ("a", "b", "c", "d")])
def test_metrics_equal_scikit_learn(labels: tuple[str, ...]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(1)
    truth, guess = (random.integers(0, len(labels) - (len(labels) > 2), size=60).tolist() for _ in range(2))
    found = classification_metrics(guess, truth, labels)
    assert found["macro_f1"]["value"] == pytest.approx(metrics.f1_score(truth, guess, average="macro"))
    assert found["accuracy"]["value"] == pytest.approx(metrics.accuracy_score(truth, guess))
    assert ("f1" in found) == ("f1" in Target("classes", labels).metrics) == (len(labels) == 2)
    if len(labels) == 2:
        assert found["f1"]["value"] == pytest.approx(metrics.f1_score(truth, guess, pos_label=1))
        assert "'yes'" in found["f1"]["signature"]
        assert classification_metrics([0, 0], [0, 0], labels)["f1"]["value"] == 0.0
    with pytest.raises(ValueError, match="the test data are empty"):
        classification_metrics([], [], labels)


def loaded(path: Path, name: str = "corrected") -> Classifier:
    learning = task(name, max_length=24) if name == "bert" else task(name)
    learning.save(path)
    return Classifier(directory.load(path), prepare(threads=1))


def test_texts_are_classified_in_order_for_any_batch(tmp_path: Path) -> None:
    classifier = loaded(tmp_path)
    found = classifier.classify(["", *TEXTS, " "], top=2)
    assert found[0] == found[-1] == []
    for text, several in zip(TEXTS, found[1:-1], strict=True):
        alone = classifier.classify(text, top=2)
        assert [each.label for each in alone] == [each.label for each in several]
        assert [each.probability for each in alone] == pytest.approx([e.probability for e in several], abs=1e-6)
        assert several[0].probability >= several[1].probability
    assert sum(each.probability for each in classifier.classify("red", top=9)) == pytest.approx(1.0, abs=1e-6)
    assert classifier.classify([]) == []


def test_unclassifiable_input_is_reported(tmp_path: Path) -> None:
    classifier = loaded(tmp_path)
    with pytest.raises(ValueError, match="text 3 has 9 tokens, the limit is 8"):
        classifier.classify(["", "red", "red " * 9])
    assert len(classifier.classify("red " * 9, truncate=True)) == 1
    with pytest.raises(ValueError, match="reads single texts, not pairs"):
        classifier.classify("red", "blue")
    pairs = loaded(tmp_path / "bert", "bert")
    assert pairs.takes_pairs
    assert not pairs.needs_pairs
    with pytest.raises(
        ValueError, match=r"text 2 contains half a character \(a lone surrogate\) at position 4; give valid"
    ):
        classifier.classify(["red", "caf\udce9"])
    mixed: list[tuple[Any, Any]] = [("red", ["blue"]), (["red"], "blue")]
    for texts, seconds in mixed:
        with pytest.raises(ValueError, match="found one (second )?text, but a list of"):
            pairs.classify(texts, seconds)
    with pytest.raises(ValueError, match="text 1 contains half a character"):
        pairs.classify("red", "\ud800")
    assert str(pairs.classify("red", "blue")[0]) in "abc"
    assert pairs.classify([""], [" "]) == [[]]
    with pytest.raises(ValueError, match="text 1 and its second text: only one of them is blank"):
        pairs.classify(["red"], [""])
    with pytest.raises(ValueError, match="2 texts but 1 second texts"):
        pairs.classify(["red", "blue"], ["dog"])
    with pytest.raises(ValueError, match="found no result.json that names its test data"):
        classifier.outcome()


def test_results_follow_the_file_with_numeric_labels(tmp_path: Path) -> None:
    classifier = loaded(tmp_path)
    names = [str(each[0]) for each in classifier.classify(TEXTS)]
    for kind, labels in (("names", names), ("numbers", ["abc".index(name) for name in names])):
        file = tmp_path / f"{kind}.tsv"
        rows = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True))
        file.write_text("text\tlabel\n" + rows)
        outcome = classifier.outcome(str(file))
        assert outcome.metrics["accuracy"]["value"] == 1.0
        assert (outcome.outputs, outcome.references, outcome.quality) == (names, names, [1.0] * 24)
    (tmp_path / "other.tsv").write_text("text\tlabel\nred\tz\n")
    with pytest.raises(ValueError, match=r"other\.tsv:2: expected one of the labels a, b, c \(0 to 2\), found 'z'"):
        classifier.outcome(str(tmp_path / "other.tsv"))


class Shared:
    """A tokenizer that other threads use at the same time: its settings must stay as they are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        assert name not in ("enable_truncation", "no_truncation"), "a setting of the tokenizer is changed"
        return getattr(self._tokenizer, name)


def test_truncation_does_not_change_the_tokenizer() -> None:
    shared: Any = Shared(train_wordpiece(TEXTS, 60))
    encoded = encode(shared, ["red " * 30, "red"], None, 8, truncate=True)
    assert [len(ids) for ids in encoded.ids] == [8, 3]
    assert encoded.cut == 1
