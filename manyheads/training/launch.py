"""Launcher of several training processes on this machine, based on the library that `torchrun` uses."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 120  # seconds that the processes have to write a checkpoint before they are killed


def launch(processes: int, arguments: Sequence[str], module: str = "manyheads") -> int:
    """Run `python -m MODULE` with these arguments in several processes and return the exit status.

    The processes write to the terminal themselves. If a process fails, the others are stopped, and an error names it.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # The library prints long error reports. They are disabled here, and one line is printed instead.
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // processes)))
    # the default grace period of older PyTorch versions is 30 seconds
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
