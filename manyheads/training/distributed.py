"""Processes (ranks) of a training run: their launch and communication.

`torchrun` or `train --processes N` starts the processes. Only rank 0 writes files and prints. Objects and numbers are
sent with the backend gloo, even if gradients are sent with nccl. For a run with a single process, this module does not
import torch.

The launcher of several processes on one machine uses the same library as `torchrun`.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from manyheads.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup, Store

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEARTBEAT_SECONDS = 5.0  # seconds between two heartbeats of a process
MAX_MISSED = 8  # number of missed heartbeats after which a process is considered dead
RELEASE_SECONDS = 0.25  # time in which the threads of Gloo release their last tensors before Python ends
# Maximum wait in a collective call. It is long, because rank 0 may validate or write files for hours.
MAX_WAIT = timedelta(days=30)
SHUTDOWN_SECONDS = 120  # seconds that the processes have to write a checkpoint before they are killed
PEER_ENDED = "another process has ended, so this one stops, too; resume training from the last checkpoint with --resume"


_stores: list[Store] = []  # key-value store shared by all processes; empty before they are connected


@dataclass(frozen=True)
class DistributedContext:
    """Rank of this process in the training run. A single process is rank 0 of 1.

    rank   index of this process, from 0
    world  number of processes
    local  index of this process among those on its machine, which is also the index of its GPU
    group  processes among which the methods communicate. By default, all processes of the run
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    group: ProcessGroup | None = None

    @property
    def first(self) -> bool:
        """Return True on rank 0, the process that writes files and prints."""
        return self.rank == 0

    def total(self, *numbers: float) -> list[float]:
        """Return each number summed over all ranks. Collective: all ranks must call it."""
        return self._all_reduce(numbers, maximum=False)

    def all_reduce_max(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all ranks. Collective: all ranks must call it."""
        return self._all_reduce(numbers, maximum=True)

    def _all_reduce(self, numbers: tuple[float, ...], *, maximum: bool) -> list[float]:
        if self.world == 1:
            return list(numbers)
        import torch
        import torch.distributed as dist

        reduced = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        dist.all_reduce(reduced, dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM, group=self.group)
        return reduced.tolist()

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        """Sum the tensor over all ranks in place, and return it. Collective: all ranks must call it."""
        if self.world > 1:
            import torch.distributed as dist

            dist.all_reduce(tensor, group=self.group)
        return tensor

    def broadcast(self, make: Callable[[], T]) -> T:
        """Call the function `make` on rank 0, and return its result on all ranks.

        Collective: all ranks must call it.
        """
        if self.world == 1:
            return make()
        import torch
        import torch.distributed as dist

        objects: list[Any] = [make() if self.first else None]
        dist.broadcast_object_list(objects, device=torch.device("cpu"), group=self.group, group_src=0)
        return objects[0]

    def all_gather(self, value: T) -> list[T]:
        """Return a list of the values that the ranks passed, ordered by rank. Collective: all ranks must call it."""
        if self.world == 1:
            return [value]
        import torch.distributed as dist

        values = [value] * self.world
        dist.all_gather_object(values, value, group=self.group)
        return values

    def wait(self) -> None:
        """Wait until all ranks have called this method (barrier)."""
        self.total(0.0)

    @contextmanager
    def rank_zero_first(self) -> Iterator[None]:
        """Run the `with` block on rank 0 first, then on the other ranks, which can read the files that rank 0 wrote."""
        if not self.first:
            self.wait()
        yield
        if self.first:
            self.wait()

    @property
    def shown(self) -> dict[str, int]:
        """Return the number of ranks as a dictionary with one entry for result.json.

        The dictionary is empty for a single process.
        """
        return {"ranks": self.world} if self.world > 1 else {}


def is_rank() -> bool:
    """Return True if this process is one of several, according to the environment variables of `torchrun`."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


def was_restarted() -> bool:
    """Return True if `torchrun --max-restarts` has restarted the processes after one of them failed."""
    return is_rank() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


@cache
def distributed_context() -> DistributedContext:
    """Return the rank and the number of processes, as a `DistributedContext`.

    The first call joins the process group. On all ranks except 0, it redirects standard output to the null device.
    """
    if not is_rank():
        return DistributedContext()
    import torch
    import torch.distributed as dist

    rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    ranks = DistributedContext(rank, world, local)
    if not ranks.first:
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    gpus = torch.cuda.device_count()
    if gpus:
        if (local_world := int(os.environ.get("LOCAL_WORLD_SIZE", "1"))) > gpus:
            raise UserError(
                f"{local_world} processes on a machine with {gpus} GPU{'s' * (gpus > 1)}: start at most one process "
                "per GPU, or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
            )
        torch.cuda.set_device(ranks.local)
    store = next(iter(dist.rendezvous("env://", timeout=timedelta(minutes=10))))[0]
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpus else "gloo", store=_attempt_store(store), rank=ranks.rank,
        world_size=ranks.world, timeout=MAX_WAIT,
    )  # fmt: skip
    heartbeat = _Heartbeat(ranks)
    heartbeat.start()
    atexit.register(_shut_down, heartbeat)
    return ranks


def _attempt_store(store: Store) -> Store:
    """Return a section of the key-value store that only the processes of the current start of the run use.

    If processes fail, torchrun starts them again with the same store. Outside of this section, the store still contains
    the addresses of the failed processes.
    """
    from torch.distributed import PrefixStore

    return PrefixStore(f"manyheads/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _shut_down(heartbeat: _Heartbeat) -> None:
    import torch.distributed as dist

    heartbeat.stopped.set()
    # Wait for the heartbeat thread: the process would crash if Python stopped it during a call to the store.
    heartbeat.join(MAX_MISSED * HEARTBEAT_SECONDS)
    if dist.is_initialized():
        dist.destroy_process_group()
        # Gloo's threads outlive the group, and may still release the tensors of the last collective. One that needs
        # Python's lock once Python has begun to end aborts the process (PyTorch's issue 190489).
        time.sleep(RELEASE_SECONDS)


class _Heartbeat(threading.Thread):
    """Thread that sends heartbeats to the other ranks, and ends this process if a rank stops sending them.

    Connections to a machine that has failed stay open, so only missing heartbeats show the failure. Time is counted in
    heartbeats of this process, so that a suspended process does not time out its peers.
    """

    def __init__(self, ranks: DistributedContext) -> None:
        import torch.distributed as dist

        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self._ranks = ranks
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        self._store = _attempt_store(store)
        _stores.append(self._store)
        self._store.set(f"alive{ranks.rank}", "0")
        ranks.wait()  # Return only after every rank has sent its first heartbeat.

    def run(self) -> None:
        last: dict[int, bytes] = {}
        # number of consecutive heartbeats that each rank has missed
        missed = dict.fromkeys(range(self._ranks.world), 0)
        parent = os.getppid()
        pool = ThreadPoolExecutor(1)
        for beat in range(1, sys.maxsize):
            if self.stopped.wait(HEARTBEAT_SECONDS):
                return
            answer = pool.submit(self._exchange, beat)
            if not _wait_for(answer) or answer.exception():
                _end_process("cannot reach the process that coordinates the run")
            for rank, heartbeat in enumerate(answer.result()):
                missed[rank] = missed[rank] + 1 if last.get(rank) == heartbeat else 0
                last[rank] = heartbeat
            dead = [rank for rank, beats in missed.items() if beats >= MAX_MISSED]
            if dead:
                alive = min(rank for rank, beats in missed.items() if beats < MAX_MISSED)
                _end_process(f"no heartbeat from rank {dead[0]} for {MAX_MISSED * HEARTBEAT_SECONDS:.0f} seconds",
                     quietly=self._ranks.rank != alive)  # fmt: skip
            if os.getppid() != parent:
                _end_process("the parent process has ended")

    def _exchange(self, beat: int) -> list[bytes]:
        self._store.set(f"alive{self._ranks.rank}", str(beat))
        return self._store.multi_get([f"alive{rank}" for rank in range(self._ranks.world)])


def _wait_for(answer: Future[list[bytes]]) -> bool:
    for _ in range(int(MAX_MISSED * HEARTBEAT_SECONDS)):
        if answer.done():
            return True
        time.sleep(1)
    return answer.done()


def _end_process(reason: str, quietly: bool = False) -> None:
    """End this process at once from a background thread.

    The main thread may be blocked in a call that no exception can interrupt.
    """
    if not quietly:
        logger.error(f"{reason}: stopping all processes; resume training from the last checkpoint with --resume")
    os._exit(1)


def post_failure(message: str) -> None:
    """Send the error message of rank 0 to the other ranks, which print nothing themselves."""
    if _stores:
        _stores[0].set("complaint", message)


def failure_of_first_rank() -> str | None:
    """Return the error message that rank 0 sent, or None if no message arrives within a few seconds."""
    for _ in range(int(2 * HEARTBEAT_SECONDS)):
        try:
            if _stores and _stores[0].check(["complaint"]):
                return _stores[0].get("complaint").decode()
        except RuntimeError:  # The key-value store is gone, because its host, rank 0, has ended.
            return None
        time.sleep(0.5)
    return None


@contextmanager
def reraise_peer_failure() -> Iterator[None]:
    """Raise a one-line error if the connection to another process is lost, because that process has ended."""
    try:
        yield
    except RuntimeError as error:
        if distributed_context().world == 1 or not ("gloo" in str(error) or "Dist" in type(error).__name__):
            raise
        raise ConnectionAbortedError(PEER_ENDED) from error


def launch(processes: int, arguments: Sequence[str], module: str = "manyheads") -> int:
    """Run `python -m MODULE` with these arguments in several processes and return the exit status.

    The processes write to the terminal themselves. If a process fails, the others are stopped, and an error names it.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Disable the long error reports of the library. One line about the failed process is printed below instead.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    # Older PyTorch versions would kill the processes after 30 seconds by default, too early for a large checkpoint.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", local_addr="localhost", max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
    except SignalException as received:
        return 130 if received.sigval in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else 1
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            logger.error(
                f"rank {rank} (process {failure.pid}) was killed by {failure.signal_name()}; stopped the other "
                "processes; resume training from the last checkpoint with --resume"
            )
            return 1
        return failure.exitcode  # The failed process has already reported its error.
    return 0
