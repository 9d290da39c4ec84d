"""Recording and editing in compiled models."""

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from manyheads.core.editing import edit
from manyheads.core.recording import record
from manyheads.models.transformer import Transformer
from tests.unit.core.test_states import D, T, built, inputs, logits
from tests.unit.core.test_tap import NAMES, explicit, sources_and_targets, translator


@pytest.fixture
def model() -> Transformer:
    return translator().eval()


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor, Tensor]:
    return sources_and_targets()


@pytest.mark.parametrize("way", [True, False])
def test_attention_works_under_compile(way: bool, model: Transformer, batch: tuple[Tensor, ...]) -> None:
    """Trace the model as for the inductor, which needs a compiler and minutes.

    A graph traced without recording is traced again for a recording; the first graph is used again afterwards.
    """
    explicit(model, way)
    with torch.no_grad(), record(model) as expected:
        output = model(*batch)
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(*batch), output)
        with record(model) as maps:
            assert torch.equal(compiled(*batch), output)
        with edit(model) as change:
            change.zero("encoder.blocks.0.attention", [1])
            assert not torch.equal(compiled(*batch), output)
        assert torch.equal(compiled(*batch), output)
    for name in NAMES:
        torch.testing.assert_close(maps[name], expected[name], atol=1e-5, rtol=1e-5)


def test_edits_are_applied_under_compile() -> None:
    """A hook that is added behind a compilation is not seen by it: one of the reasons for taps."""
    model = built("gpt")
    given = inputs(model)
    plain = logits(model, given)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(logits(compiled, given), plain)
    with edit(model) as change:
        change.feed_forward("decoder.blocks.0.feed_forward", torch.zeros_like)
        change.residual("decoder.blocks.1", torch.zeros_like, positions=[1])
        torch.testing.assert_close(logits(compiled, given), edited := logits(model, given))
    assert not torch.allclose(edited, plain)
    with record(model, of="residual") as states:
        logits(compiled, given)
    assert states["decoder"][0].shape == (2, T, D)
    torch.testing.assert_close(logits(compiled, given), plain)


def test_batches_of_many_sizes_train_on_one_graph() -> None:
    """Neither dropout nor a mask breaks the graph, and no size of a batch is compiled again."""
    model, counter = translator(dropout=0.1).train(), CompileCounter()
    hidden = torch.compile(model.hidden, backend=counter, dynamic=True)
    for rows, length, target_length in ((4, 7, 6), (3, 9, 11), (5, 13, 8), (6, 8, 10)):
        tokens = torch.randint(3, 9, (rows, length + target_length))
        lengths = torch.full((rows,), length)
        hidden(tokens[:, :length], lengths, tokens[:, length:]).sum().backward()
    assert counter.frame_count == 1
