"""Language modeling loss of a text: compared with transformers, window by window, and with a count by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.data.text.blocks import Ids
from manyheads.data.text.tokenizers import train_character
from manyheads.models.gpt import GPT
from manyheads.models.presets import preset
from manyheads.tasks.language.objective import LanguageModelingObjective, text_metrics, token_losses

V = 31


def small(positions: int = 10, vocab: int = V) -> GPT:
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", vocab=vocab, width=16, layers=2, heads=2, max_positions=positions))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def stream(tokens: int) -> Ids:
    return np.random.default_rng(1).integers(V, size=tokens).astype(np.uint16)


@pytest.mark.parametrize(("context", "stride"), [(10, 10), (10, 3), (10, 1), (1, 1)])
def test_every_token_is_scored_once_with_full_context(context: int, stride: int) -> None:
    model = small()
    for tokens in (2, 10, 11, 12, 31, 35):
        ids = stream(tokens)
        losses = token_losses(model, ids, prepare(), context=context, stride=stride)
        assert losses.shape == (tokens - 1,)
        for predicted, loss in enumerate(losses.tolist(), 1):
            begin = next(b for b in range(0, predicted, stride) if b + context >= predicted)
            window = torch.from_numpy(ids[begin:predicted].astype(np.int64))[None]
            with torch.no_grad():
                expected = -model(window)[0, -1].log_softmax(-1)[int(ids[predicted])]
            assert loss == pytest.approx(float(expected), abs=1e-4), "the earliest window has the most context"


def test_losses_equal_transformers(tmp_path: Path) -> None:
    model, ids = small(positions=11), stream(81)
    directory.save(tmp_path, model, None)
    other = AutoModelForCausalLM.from_pretrained(tmp_path)
    losses = token_losses(model, ids, prepare(), context=10, stride=10)
    tokens = torch.from_numpy(ids.astype(np.int64))
    windows = [tokens[i : i + 11][None] for i in range(0, 80, 10)]
    expected = sum(float(other(window, labels=window).loss.detach()) for window in windows) / len(windows)
    assert losses.mean() == pytest.approx(expected, abs=1e-5)
    metrics = text_metrics(losses, 200, "")
    assert metrics["loss"]["value"] == pytest.approx(expected, abs=1e-5)
    assert metrics["perplexity"]["value"] == pytest.approx(math.exp(expected), rel=1e-4)
    assert metrics["bits_per_byte"]["value"] == pytest.approx(80 * expected / math.log(2) / 200, rel=1e-5)
    assert "80 tokens" in metrics["loss"]["signature"]


def test_a_uniform_model_has_a_loss_of_log_vocabulary() -> None:
    model = small()
    with torch.no_grad():
        model.embedding.weight.zero_()
    metrics = text_metrics(token_losses(model, stream(50), prepare(), context=8, stride=4), 49, "")
    assert metrics["loss"]["value"] == pytest.approx(math.log(V))
    assert metrics["perplexity"]["value"] == pytest.approx(V)
    assert metrics["bits_per_byte"]["value"] == pytest.approx(math.log2(V))


def test_one_batch_is_overfitted_and_the_loss_is_a_sum() -> None:
    text = "the cat sat on the mat"
    tokenizer = train_character([text])
    ids = np.array(tokenizer.encode(text).ids, dtype=np.uint16)
    torch.manual_seed(0)
    model = GPT(preset("gpt2/nano", vocab=tokenizer.get_vocab_size(), width=32, layers=2, heads=2))
    task = LanguageModelingObjective(
        model, tokenizer, ids, ids, len(text) - 1, compute=prepare(), block=7, rows=4, random=False, seed=1
    )
    batches = task.batches(0)
    assert sum(batch.items for batch in batches) in (14, 21)
    batch = batches[0]
    assert torch.equal(batch.read[:, 1:], batch.write[:, :-1])
    logits = model(batch.read).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, batch.write.flatten(), reduction="sum")
    torch.testing.assert_close(task.loss(batch).total, expected)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        task.loss(batch).mean.backward()
        optimizer.step()
    assert float(task.loss(batch).mean.detach()) < 0.2
    values = task.validate()
    assert set(values) == {"loss", "perplexity", "bits_per_byte"}
    assert values["loss"] == pytest.approx(token_losses(model, ids, prepare(), context=7, stride=7).mean())


def test_impossible_windows_and_blocks() -> None:
    for context, stride in ((11, 5), (5, 6), (5, 0)):
        with pytest.raises(ValueError, match=f"windows of {context} tokens every {stride}: expected 0 < stride"):
            token_losses(small(), stream(20), prepare(), context=context, stride=stride)
    with pytest.raises(ValueError, match="found no token to score"):
        text_metrics(token_losses(small(), stream(1), prepare(), context=4, stride=4), 1, "")
    with pytest.raises(ValueError, match="block is 11 tokens, but the model has only 10 positions"):
        LanguageModelingObjective(
            small(), train_character(["x"]), stream(20), stream(20), 20, compute=prepare(), block=11, rows=1,
            random=True, seed=1,
        )  # fmt: skip
