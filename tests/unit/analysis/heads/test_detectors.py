"""Detectors of heads, against loops, on maps whose scores are known, and on a model with known heads."""

from __future__ import annotations

import pytest
import torch

from manyheads.analysis.heads.detectors import head_scores
from manyheads.core.recording import record
from tests.support.induction import TOKENS, induction_gpt

REPEATED = torch.tensor([[7, 3, 1, 4, 0, 5, 3, 1, 4, 0, 5]])


@pytest.mark.parametrize("causal", [True, False])
def test_scores_are_those_of_loops(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (3, 9), generator=generator)  # tokens occur several times
    scores = torch.randn(3, 2, 9, 9, generator=generator, dtype=torch.double)
    hidden = torch.ones(9, 9).triu(1).bool() & torch.tensor(causal)
    map = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    found = head_scores(map, tokens)
    for head in range(2):
        seen: dict[str, list[float]] = {"induction": [], "previous token": [], "duplicate token": []}
        for row in range(3):
            for query in range(9):
                same = [key for key in range(query) if tokens[row, key] == tokens[row, query]]
                weights = map[row, head, query]
                if same:
                    seen["duplicate token"].append(float(weights[same].sum()))
                    seen["induction"].append(float(weights[[key + 1 for key in same]].sum()))
                if query:
                    seen["previous token"].append(float(weights[query - 1]))
        for name, values in seen.items():
            assert float(found[name][head]) == pytest.approx(sum(values) / len(values))


def test_tokens_without_a_repetition_score_zero() -> None:
    found = head_scores(torch.eye(3).expand(1, 2, 3, 3), torch.tensor([[0, 1, 2]]))
    assert {name: values.tolist() for name, values in found.items()} == {key: [0.0, 0.0] for key in found}


def test_known_heads_are_found() -> None:
    model = induction_gpt()
    with record(model) as maps:
        following = model(REPEATED).argmax(-1)
    assert following[0, 6:].tolist() == [*REPEATED[0, 7:].tolist(), 3]  # it continues the repetition
    assert int(REPEATED.max()) < TOKENS
    first, second = (head_scores(calls[0], REPEATED) for calls in maps.values())
    assert first["previous token"].tolist() == pytest.approx([1.0, 0.2], abs=0.1)
    assert second["induction"].tolist() == pytest.approx([1.0, 0.1], abs=0.1)
    assert max(first["induction"].max(), second["previous token"].max(), second["duplicate token"].max()) < 0.3
