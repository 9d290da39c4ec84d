"""Several processes on this machine, without a second command: `torchrun`'s own engine, called from here."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

logger = logging.getLogger(__name__)

TO_END = 120  # seconds in which the processes may write a checkpoint when they are asked to end


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Runs `manyheads` with these arguments in so many processes, which talk to the terminal themselves; its exit
    status. When one of them dies, the others are ended, and a line says which one it was."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # what there is to say is said below
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(TO_END))  # older ones of PyTorch wait 30 seconds
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", local_addr="localhost", max_restarts=0,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)("-m", "manyheads", *arguments)
    except SignalException as asked:
        return 130 if asked.sigval in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) else 1
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            logger.error(
                f"rank {rank} (process {failure.pid}) was ended by {failure.signal_name()}, and the others "
                "with it; a training goes on from its last checkpoint with --resume"
            )
            return 1
        return failure.exitcode  # it has told why
    return 0
