"""Settings that cannot split a model, and the loss and the random numbers of a split model."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from manyheads.errors import UserError
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.training import tensor_parallel
from manyheads.training.config import TrainingConfig
from manyheads.training.loss import vocabulary_loss
from manyheads.training.tensor_parallel import check_degree, split_model
from manyheads.training.tuning import select_trained
from tests.support.split_models import VOCAB, build


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("count", [0, 3, 10])  # no chunk, one and several
@pytest.mark.parametrize(("smoothing", "pad"), [(0.0, None), (0.0, 4), (0.3, 0)])
@pytest.mark.parametrize("biased", [True, False])
def test_the_loss_of_a_split_vocabulary(
    count: int, smoothing: float, pad: int | None, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    monkeypatch.setattr(tensor_parallel, "CHUNK", 4)
    torch.manual_seed(1)
    hidden, weight, bias = torch.randn(count, 6), torch.randn(VOCAB, 6), torch.randn(VOCAB)
    target = torch.randint(5, VOCAB, (count,))
    results = []
    for split in (False, True):
        h, w, b = (t.double().requires_grad_() for t in (hidden, weight, bias))
        table = DTensor.from_local(w, init_device_mesh("cpu", (1,)), [Shard(0)]) if split else w
        total = vocabulary_loss(h, table, b if biased else None, target, smoothing=smoothing, pad=pad)
        total.backward()
        results.append([total.detach(), h.grad, w.grad, *([b.grad] if biased else [])])
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-12)


@pytest.mark.usefixtures("one_rank")
def test_random_numbers_inside_split_layers_leave_those_outside_unchanged() -> None:
    """With one rank, the draws outside of attention and feed-forward networks are those of the model that is whole."""
    from torch.distributed.device_mesh import init_device_mesh

    model = build("transformer", 0.5)
    split_model(model, init_device_mesh("cpu", (1,)))
    seeds: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *_: seeds.append(torch.initial_seed()))
    torch.manual_seed(7)
    tokens = torch.randint(1, VOCAB, (2, 5))
    model(tokens, None, tokens)
    assert torch.initial_seed() == 7
    outside = [seed for seed in seeds if seed == 7]
    inside = [seed for seed in seeds if seed != 7]
    assert len(outside) > len(inside) == len(set(inside)) == 5  # three attentions and two feed-forward networks


def with_low_rank(model: nn.Module) -> nn.Module:
    select_trained(model, TrainingConfig(steps=1, schedule="constant", lora_rank=2))
    return model


@pytest.mark.parametrize(
    ("model", "degree", "world", "message"),
    [
        (lambda: build("gpt", 0.0), 2, 3, "tensor_parallel=2 does not divide the number of processes, 3"),
        (lambda: build("gpt", 0.0), 2, 1, "tensor_parallel=2 does not divide the number of processes, 1"),
        (lambda: build("bert", 0.0), 3, 3, "tensor_parallel=3 does not divide 4 heads"),
        (lambda: GPT(GPTConfig(9, width=8, heads=4, layers=1, feed_forward=6)), 4, 4, "does not divide 6 feed-forward"),
        (lambda: GPT(GPTConfig(5, width=8, heads=4, layers=1)), 4, 4, "too large for a vocabulary of 5 tokens"),
        (lambda: GPT(GPTConfig(9, width=8, heads=4, feed_forward="experts")), 2, 2, "GPT with these settings cannot"),
        (lambda: with_low_rank(build("gpt", 0.0)), 2, 2, "GPT with these settings cannot be split"),
        (lambda: nn.Linear(2, 2), 2, 2, "Linear with these settings cannot be split"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_split(model, degree: int, world: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_degree(model(), degree, world)
