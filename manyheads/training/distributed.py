"""The processes that a run is spread over, as `torchrun` or `train --processes N` starts them: which one this is, and
what they tell each other. Needs no torch as long as there is but one.

Rank 0 alone writes and speaks. Messages go over gloo, also where gradients go over nccl.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from manyheads.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

T = TypeVar("T")

BEAT = 5.0  # seconds between two signs of life of a process
SILENCE = 8  # beats without one, after which it is taken for dead
FOREVER = timedelta(days=30)  # to wait for a process that lives: rank 0 may score or write for long
ENDED = "another process has ended: so does this one; a training goes on from its last checkpoint with --resume"


_board: list[Any] = []  # a store of texts that all processes see, as soon as they are joined


@dataclass(frozen=True)
class DistributedContext:
    """This process among those of the run; by itself, one process is all of them.

    rank   its number, from 0
    world  how many there are
    local  its number on its machine, which is that of its GPU
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """The sums of all processes' numbers."""
        return self._reduced("SUM", numbers)

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """The largest of all processes' numbers, one by one."""
        return self._reduced("MAX", numbers)

    def _reduced(self, how: str, numbers: tuple[float, ...]) -> list[float]:
        if self.world == 1:
            return list(numbers)
        import torch
        import torch.distributed as dist

        reduced = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        dist.all_reduce(reduced, getattr(dist.ReduceOp, how))
        return reduced.tolist()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """The tensor, with the sum of all processes' tensors in it."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor)
        return tensor

    def broadcast(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, for all."""
        if self.world == 1:
            return make()
        import torch
        import torch.distributed as dist

        held: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(held, device=torch.device("cpu"))
        return held[0]

    def all_gather(self, value: T) -> list[T]:
        """What each process has, by rank."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Until all are here."""
        self.total(0.0)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Rank 0 goes through the block before the others do, who find the files that it has made."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    @property
    def shown(self) -> dict[str, int]:
        """For records: nothing of a single process."""
        return {"ranks": self.world} if self.world > 1 else {}


def is_rank() -> bool:
    """Whether this process is one of several, by what `torchrun` has told it."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


def restarted() -> bool:
    """Whether `torchrun --max-restarts` has started the processes again after one died."""
    return is_rank() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@cache
def distributed_context() -> DistributedContext:
    """This process; the first call joins it to the others, and silences it if it is not rank 0."""
    if not is_rank():
        return DistributedContext()
    import torch
    import torch.distributed as dist

    ranks = DistributedContext(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if not ranks.first:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    gpus = torch.cuda.device_count()
    if gpus:
        if (here_too := int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > gpus:
            raise UserError(
                f"{here_too} processes on a machine with {gpus} GPU{'s' * (gpus > 1)}: start no more than it has, or "
                "set CUDA_VISIBLE_DEVICES= to compute on the processor"
            )
        torch.cuda.set_device(ranks.local)
    store = next(iter(dist.rendezvous("env://", timeout=timedelta(minutes=10))))[0]
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo", store=_of_this_attempt(store), rank=ranks.rank,
        world_size=ranks.world, timeout=FOREVER,
    )  # fmt: skip
    watch = _Watch(ranks)
    watch.start()
    atexit.register(_leave, watch)
    return ranks


def _of_this_attempt(store: Any) -> Any:
    """After a restart the store still holds the addresses of the processes before."""
    from torch.distributed import PrefixStore

    return PrefixStore(f"manyheads/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _leave(watch: _Watch) -> None:
    import torch.distributed as dist

    watch.over.set()
    watch.join(SILENCE * BEAT)  # a thread that Python ends within a call of the store takes the process down with it
    if dist.is_initialized():
        dist.destroy_process_group()


class _Watch(threading.Thread):
    """Gives signs of life, and ends this process when another gives none: a machine that is lost closes no connection.

    Time is counted in beats of this process, so that one that was stopped for a while takes nobody for dead.
    """

    def __init__(self, ranks: DistributedContext) -> None:
        import torch.distributed as dist

        super().__init__(daemon=True)
        self.over = threading.Event()
        self._ranks = ranks
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self._store = _of_this_attempt(store)
        _board.append(self._store)
        self._store.set(f"alive{ranks.rank}", "0")
        ranks.wait()  # all have a first sign there

    def run(self) -> None:
        seen: dict[int, bytes] = {}
        silent = dict.fromkeys(range(self._ranks.world), 0)  # beats
        parent = os.getppid()
        pool = ThreadPoolExecutor(1)
        for beat in range(1, sys.maxsize):
            if self.over.wait(BEAT):
                return
            answer = pool.submit(self._exchange, beat)
            if not _answered(answer) or answer.exception():
                _end("the process that holds the run together cannot be reached any more")
            for rank, sign in enumerate(answer.result()):
                silent[rank] = silent[rank] + 1 if seen.get(rank) == sign else 0
                seen[rank] = sign
            dead = [rank for rank, beats in silent.items() if beats >= SILENCE]
            if dead:
                alive = min(rank for rank, beats in silent.items() if beats < SILENCE)
                _end(f"rank {dead[0]} has given no sign of life for {SILENCE * BEAT:.0f} seconds",
                     quietly=self._ranks.rank != alive)  # fmt: skip
            if os.getppid() != parent:
                _end("the process that started this one is gone")

    def _exchange(self, beat: int) -> list[bytes]:
        self._store.set(f"alive{self._ranks.rank}", str(beat))
        return self._store.multi_get([f"alive{rank}" for rank in range(self._ranks.world)])


def _answered(answer: Future[Any]) -> bool:
    for _ in range(int(SILENCE * BEAT)):
        if answer.done():
            return True
        time.sleep(1)
    return answer.done()


def _end(reason: str, quietly: bool = False) -> None:
    """End this process from a thread: the main thread may wait forever in a call that no exception reaches."""
    if not quietly:
        logger.error(f"{reason}: all end; a training goes on from its last checkpoint with --resume")
    os._exit(1)


def post_failure(message: str) -> None:
    """Let the other ranks know why rank 0 fails."""
    if _board:
        _board[0].set("complaint", message)


def failure_of_first_rank() -> str | None:
    """Return why rank 0 fails, if it says so within seconds."""
    for _ in range(int(2 * BEAT)):
        try:
            if _board and _board[0].check(["complaint"]):
                return _board[0].get("complaint").decode()
        except RuntimeError:  # rank 0 held it, and has ended
            return None
        time.sleep(0.5)
    return None


@contextmanager
def reraise_peer_failure() -> Iterator[None]:
    """An error of the connection to another process, which must have ended, as one line for the user."""
    try:
        yield
    except RuntimeError as error:
        if distributed_context().world == 1 or not ("gloo" in str(error) or "Dist" in type(error).__name__):
            raise
        raise ConnectionAbortedError(ENDED) from error
