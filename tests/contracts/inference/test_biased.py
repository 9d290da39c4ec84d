"""Stacks whose scores have a bias, for which the compiled functions are not used."""

import pytest

from manyheads.core.runtime import prepare
from manyheads.inference import compile_model
from manyheads.models.presets import build, preset


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_a_stack_with_a_bias_is_not_reported_as_compiled(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The textbook's classifier counts its padding with a bias; the corrected one masks it."""
    monkeypatch.setenv("MANYHEADS_ROUTE", "kernels")
    sizes = {"vocab": 50, "width": 16, "heads": 2, "head_width": 8, "feed_forward": 32}
    textbook, corrected = (build(preset(f"text-classifier/{name}", **sizes)) for name in ("textbook", "corrected"))
    biased, plain = (compile_model(model, prepare(precision, threads=2)) for model in (textbook, corrected))  # type: ignore[arg-type]
    assert (biased.precision, biased.compute.threads) == (None, 2)
    assert plain.precision is not None
