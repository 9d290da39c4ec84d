"""Server processes of the service: startup, supervision and shutdown.

The service runs in a single process, or in several processes that share a socket.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from manyheads.core.config import Precision
from manyheads.errors import UserError
from manyheads.service.app import application
from manyheads.service.batching import Batcher, FairLock
from manyheads.service.generation_worker import GenerationWorker
from manyheads.service.logs import configure, log_event
from manyheads.service.metrics import MULTIPROCESS, Metrics
from manyheads.service.notify import READY, STOPPING, Pulse, notify
from manyheads.service.protocol import BoundedProtocol
from manyheads.service.registry import Registry, Served, offered, stamp_of, warm_up
from manyheads.service.run_api import Runs
from manyheads.service.state import LOCAL, Limits, Service
from manyheads.tasks.loading import load
from manyheads.tasks.verbs import SERVED

# Queue of requests for attention maps: its name in the metrics, and its maximum length.
ATTENTION_QUEUE, MAX_ATTENTION = "(attention)", 32
IMAGE_QUEUE = "(images)"  # name in the metrics of the queue of images to decode
MAX_CONNECTIONS = 1000  # maximum number of connections per process; further requests get status 503
HEAD_BYTES = 32_768
RESTART_SECONDS = 2.0  # seconds from the death of a server process until it is restarted
KILL_SECONDS = 5.0  # A process that is still running this number of seconds after the time `grace` is killed.


@dataclass(frozen=True)
class Settings:
    """Settings of the HTTP service.

    models     directories of the models, by name
    languages  source and target language of translators, by model name
    detector   name of the model for language detection
    workers    number of server processes
    watched    directories of training runs whose learning curves are shown, by name
    threads    number of threads in each process. By default, the processors are divided evenly among the processes
    token      access token that clients must send. By default, no token is required
    grace      maximum time in seconds to finish accepted requests after a signal to stop
    """

    models: Mapping[str, str]
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    precision: Precision = "float32"
    threads: int | None = None
    token: str | None = None
    languages: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    detector: str | None = None
    watched: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    grace: float = 30.0
    log_level: str = "info"


def is_local(host: str) -> bool:
    """Return True if an address can be reached only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(host: str) -> tuple[str, ...]:
    """Return the host names that requests may contain, for a service that listens on the address `host`.

    The result is empty, so that any name is allowed, if other machines can reach the service (see `Service.names`).
    """
    return tuple(dict.fromkeys((*LOCAL, _in_url(host)))) if is_local(host) else ()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def run(settings: Settings, announce: Callable[[str], None] = lambda _: None) -> None:
    """Run the service until a signal to stop arrives.

    announce  function that receives a line with the address as soon as the service answers requests

    Raises UserError for a model that cannot be served.
    """
    if not is_local(settings.host) and not settings.token:
        raise UserError(
            f"--host {settings.host} allows access from other machines, which requires a token: "
            "give --token-file FILE, or the environment variable MANYHEADS_TOKEN. "
            "Clients must send the token with every request."
        )
    configure(settings.log_level)
    with _socket(settings.host, settings.port) as listening:

        def serving() -> None:
            announce(_address(settings, listening))
            notify(READY)

        if settings.workers == 1:
            _work(settings, listening, serving, Pulse())
        else:
            _supervise(settings, listening, serving)


def _socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and a port. Raises UserError if the port is in use.

    The service calls this function before it loads a model, so that the error appears immediately.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise UserError(f"--host {host} --port {port}: cannot listen on this address: {reason}") from None
    return listening


def _address(settings: Settings, listening: socket.socket) -> str:
    models = ", ".join([*settings.models, *(f"the curves of {name}" for name in settings.watched)])
    address = f"{_in_url(settings.host)}:{listening.getsockname()[1]}"
    return f"serving {models} on http://{address}"


def service_of(settings: Settings) -> Service:
    """Load all models of the service and use each of them once. Raises UserError if a model is missing or invalid."""
    metrics, lock, limits = Metrics(), FairLock(), settings.limits
    bounds = {"max_characters": limits.characters, "max_waiting": limits.max_waiting}
    threads = settings.threads or max(1, (os.cpu_count() or 1) // settings.workers)

    def ready(name: str, model: str) -> Served:
        stamp = stamp_of(model)
        predictor = load(model, precision=settings.precision, threads=threads)
        if not {*SERVED} & {*predictor.verbs}:
            raise UserError(f"{model}: expected a model that supports one of {', '.join(SERVED)}")
        with lock:
            warm_up(predictor)
        worker: GenerationWorker | Batcher
        if "generate" in offered(predictor):
            worker = GenerationWorker(
                name, predictor, lock, metrics, rows=limits.rows, positions=limits.positions,
                max_waiting=limits.max_waiting,
            )  # fmt: skip
        else:
            worker = Batcher(name, lock, metrics, max_items=limits.max_items, **bounds)
        languages = settings.languages.get(name)
        if "translate" in predictor.verbs and languages is None and (languages := predictor.languages) is None:
            hint = f"/translate does not offer this model: give its languages with --languages {name}=SOURCE:TARGET"
            log_event("unknown languages of a translator", logging.WARNING, model=name, hint=hint)
        return Served(name, predictor, worker, stamp, languages)

    registry, runs = Registry(settings.models, ready), Runs.of(settings.models, settings.watched)
    attention = Batcher(
        ATTENTION_QUEUE, lock, metrics, max_items=1, max_characters=limits.characters, max_waiting=MAX_ATTENTION
    )  # fmt: skip
    images = Batcher(IMAGE_QUEUE, FairLock(), metrics, max_items=1, **bounds)
    service = Service(
        registry, limits, metrics, attention, images, runs, _names(settings.host), settings.token, settings.detector
    )  # fmt: skip
    for name in settings.languages:
        if "translate" not in service.registry.of(name, None).verbs:
            raise UserError(f"--languages {name}: expected a model that translates")
    if settings.detector is not None:
        _check_detector(service.registry, settings.detector)
    return service


def _check_detector(registry: Registry, name: str) -> None:
    served = registry.of(name, None)
    predictor = served.predictor
    fits = "classify" in served.verbs and predictor.reads == "texts" and predictor.target.kind == "classes"
    if not fits or predictor.needs_pairs:
        raise UserError(f"--detect {name}: expected a model that classifies single texts, to detect their language")


class _Server(uvicorn.Server):
    """uvicorn server that finishes accepted requests after a signal to stop. A second Ctrl-C stops it at once."""

    service: Service
    pulse: Pulse | None = None  # Only one process has this object: the process that the service manager monitors.

    async def on_tick(self, counter: int) -> bool:
        if self.pulse is not None:
            self.pulse.beat()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: object) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = self.service.draining = True
        if self.pulse is not None:
            notify(STOPPING)


def _work(
    settings: Settings, listening: socket.socket, started: Callable[[], None], pulse: Pulse | None = None
) -> None:
    """Run one server process until it receives a signal to stop."""
    # Signals SIGHUP that arrived while the models were being loaded. If there is one, the models are loaded again,
    # because their files may have changed.
    hangups: list[int] = []
    signal.signal(signal.SIGHUP, lambda number, _: hangups.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
    service = service_of(settings)
    config = uvicorn.Config(
        application(service), http=BoundedProtocol, ws="none", loop="asyncio", lifespan="on", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=15, h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=max(1, round(settings.grace)),
    )  # fmt: skip
    server = _Server(config)
    server.service, server.pulse = service, pulse

    def reload(*_: object) -> None:
        threading.Thread(target=service.registry.reload, daemon=True).start()

    signal.signal(signal.SIGHUP, reload)
    if hangups:
        reload()
    listening.listen(config.backlog)
    log_event("started", models=list(settings.models))
    started()
    server.run(sockets=[listening])
    log_event("stopped")


def _worker(settings: Settings, listening: socket.socket, parent: Connection) -> None:
    """Run one of several server processes. It stops if its parent process dies.

    parent  connection to the parent process, to which readiness or an error at startup is reported
    """
    configure(settings.log_level)

    def watch() -> None:
        try:
            parent.recv()
        except (EOFError, OSError):
            os.kill(os.getpid(), signal.SIGTERM)

    def started() -> None:
        parent.send("")
        threading.Thread(target=watch, daemon=True).start()

    # Until the server installs its own handler, SIGTERM ends the process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _work(settings, listening, started)
    except (UserError, OSError) as error:
        parent.send(str(error))


@contextlib.contextmanager
def _block_hangup() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers:
    """Several server processes that share a socket, each with all models. A process that dies is restarted.

    uvicorn's own worker processes are not used: they do not report model errors, die of a SIGHUP during loading, and
    survive a killed parent process.
    """

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        # Spawn the processes. A forked process would not have the threads with which PyTorch computes.
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[SpawnProcess, Connection] = {}
        self._signals: list[int] = []  # stop signals that this process has received, as signal numbers
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)

    def start(self) -> None:
        parent_end, child_end = self._context.Pipe()
        process = self._context.Process(target=_worker, args=(self._settings, self._listening, child_end))
        # SIGHUP is blocked in a new process until the process has a handler, because by default the signal would end
        # the process.
        with _block_hangup():
            process.start()
            self._running[process] = parent_end
        child_end.close()

    def ready(self) -> bool:
        """Wait until all server processes are ready.

        Returns False if a signal to stop arrived first. Raises UserError if a process fails.
        """
        for process, pipe in list(self._running.items()):
            fault = _startup_error(process, pipe)
            if fault and not self._signals:
                raise UserError(fault)
        return not self._signals

    def watch(self) -> None:
        """Restart server processes that die, until a signal to stop arrives."""
        pulse = Pulse()
        while not self._signals:
            pulse.beat()
            dead = wait([process.sentinel for process in self._running], timeout=0.5)
            for process in [p for p in self._running if p.sentinel in dead]:
                fault = _restart_error(self._running.pop(process))
                mark_process_dead(process.pid)
                if not self._signals:
                    log_event("a process died", logging.ERROR, pid=process.pid, status=process.exitcode, fault=fault)
                    time.sleep(RESTART_SECONDS)
                if not self._signals:
                    self.start()

    def stop(self) -> None:
        """Stop the server processes. They have `grace` seconds to finish accepted requests."""
        until = time.monotonic() + self._settings.grace + KILL_SECONDS
        for process in self._running:
            if process.is_alive():
                process.terminate()
        for process in self._running:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()

    def _forward(self, number: int, _: object) -> None:
        if number != signal.SIGHUP:
            self._signals.append(number)
            number = signal.SIGTERM
        for process in self._running:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)


def _supervise(settings: Settings, listening: socket.socket, serving: Callable[[], None]) -> None:
    """Run several server processes until a signal to stop arrives.

    serving  function that is called when all processes are ready
    """
    with tempfile.TemporaryDirectory(prefix="manyheads-metrics-") as counts:
        os.environ[MULTIPROCESS] = counts
        workers = _Workers(settings, listening)
        try:
            for _ in range(settings.workers):
                workers.start()
            if workers.ready():
                serving()
            workers.watch()
        finally:
            notify(STOPPING)
            workers.stop()
            del os.environ[MULTIPROCESS]


def _startup_error(process: SpawnProcess, pipe: Connection) -> str:
    """Wait for the startup of a process. Return its error message, or an empty string if it is ready."""
    try:
        return str(pipe.recv())
    except EOFError:
        process.join()
        return f"a process of the service ended with status {process.exitcode} before it was ready"


def _restart_error(pipe: Connection) -> str:
    """Return the error that a restarted process had at startup, or an empty string if the process became ready."""
    try:
        return str(pipe.recv()) if pipe.poll() else ""
    except (EOFError, OSError):
        return ""
