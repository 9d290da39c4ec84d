"""Cards of models: labels of any type are texts over HTTP."""

from types import SimpleNamespace
from typing import Any

import pytest

from manyheads.service.openai import _card


@pytest.mark.parametrize("labels", [("a", "b"), (0, 1), (False, True), (0.5, 1.5)])
def test_labels_of_any_type_are_texts(labels: tuple[Any, ...]) -> None:
    predictor = SimpleNamespace(labels=labels, reads="texts", takes_pairs=False, mask="", threshold=None)
    served: Any = SimpleNamespace(
        predictor=predictor, name="m", created=0, verbs=("classify",), attends=False, languages=None
    )
    assert _card(served).labels == [str(label) for label in labels]
