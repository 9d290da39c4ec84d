"""Memorizing of a batch, without the training loop."""

from torch.optim import Optimizer

from manyheads.training.objective import Objective


def learn(task: Objective, optimizer: Optimizer, epochs: int) -> None:
    """Every batch of every epoch, one step each, by the mean loss of its tokens."""
    for epoch in range(epochs):
        for batch in task.batches(epoch):
            optimizer.zero_grad()
            task.loss(batch).mean.backward()
            optimizer.step()
