"""Learning by heart, without the training loop."""

from torch.optim import Optimizer

from manyheads.training.loss import in_tokens
from manyheads.training.task import Task


def learn(task: Task, optimiser: Optimizer, epochs: int) -> None:
    """Every batch of every epoch, one step each, by the mean loss of its tokens."""
    for epoch in range(epochs):
        for batch in task.batches(epoch):
            optimiser.zero_grad()
            (in_tokens(task.loss(batch), getattr(batch, "counts", ())) / batch.tokens).backward()
            optimiser.step()
