"""Entity F1, compared with seqeval and with conlleval's rules case by case."""

import random

import pytest

from manyheads.tasks.tagging.metrics import Entity, count_entities, entities, tagging_metrics

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]


def sentences(seed: int, count: int) -> list[list[str]]:
    """Tags in any order, most of them breaking IOB2 as a model's may."""
    draw = random.Random(seed)
    return [draw.choices(TAGS, [4, 1, 2, 1, 2, 1, 1], k=1 + i % 12) for i in range(count)]


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("O O", []),
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
        ("B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),  # another kind begins
        ("O I-LOC I-LOC", [("LOC", 1, 3)]),  # conlleval: an I- after O begins
        ("I-LOC B-LOC I-LOC", [("LOC", 0, 1), ("LOC", 1, 3)]),
        ("B-a-b I-a-b", [("a-b", 0, 2)]),
        ("NOUN VERB B-PER NOUN", [("PER", 2, 3)]),
        ("", []),
    ],
)
def test_spans_are_selected(tags: str, expected: list[tuple[str, int, int]]) -> None:
    assert entities(tags.split()) == [Entity(*e) for e in expected]


def test_a_worked_case() -> None:
    wanted = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O", "O"]]
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O", "B-ORG"]]
    counts = count_entities(predicted, wanted)
    assert (counts[""].right, counts[""].found, counts[""].in_reference) == (1, 4, 3)
    assert counts["LOC"].precision == 0.5
    assert counts["PER"].f1 == counts["ORG"].f1 == 0.0
    metrics = tagging_metrics(predicted, wanted)
    assert metrics["entity_f1"]["value"] == pytest.approx(2 / 7)
    assert metrics["accuracy"]["value"] == pytest.approx(4 / 7)  # not the same number at all
    assert "precision 0.2500, recall 0.3333, 3 entities" in metrics["entity_f1"]["signature"]


def test_empty_predictions_and_targets_do_not_divide_by_zero() -> None:
    assert tagging_metrics([["O"]], [["O"]])["entity_f1"]["value"] == 0.0
    with pytest.raises(ValueError, match="test data are empty"):
        tagging_metrics([], [])


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_seqeval(seed: int) -> None:
    seqeval = pytest.importorskip("seqeval.metrics", reason="needs seqeval: pip install seqeval")
    wanted, predicted = sentences(seed, 60), sentences(seed + 100, 60)
    predicted = [w if i % 2 else p for i, (w, p) in enumerate(zip(wanted, predicted, strict=True))]
    together = count_entities(predicted, wanted)[""]
    assert together.precision == pytest.approx(seqeval.precision_score(wanted, predicted), abs=1e-12)
    assert together.recall == pytest.approx(seqeval.recall_score(wanted, predicted), abs=1e-12)
    assert together.f1 == pytest.approx(seqeval.f1_score(wanted, predicted), abs=1e-12)
    accuracy = tagging_metrics(predicted, wanted)["accuracy"]["value"]
    assert accuracy == pytest.approx(seqeval.accuracy_score(wanted, predicted), abs=1e-12)
    one_by_one = sum(count_entities([p], [w])[""].right for p, w in zip(predicted, wanted, strict=True))
    assert one_by_one == together.right
