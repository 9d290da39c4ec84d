"""Attack a service with malformed requests while two well-behaved clients use it.

    python -m tests.stress.attack_service [--requests 10000] [--minutes 0] [--examples 700] [--seed 1] [--out FILE.json]

The service has three tiny models. A seeded generator sends malformed requests on raw sockets, at full speed or spread
over `--minutes`. schemathesis sends valid and invalid requests from the OpenAPI document. Two other clients repeat
their requests and compare each answer with the first. The test fails if an answer has status 500 or more or is missing,
if one of the two clients gets a different answer, or if the service does not stop on request.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

from manyheads.files import write_json
from manyheads.training.record import commit, hardware
from tests.stress.malformed import GOOD, KINDS, LEAVE, SLOW
from tests.support.services import Running, bert, client, language_model, serving, translator

PATIENCE = 60.0  # seconds in which an answer is due
LEAVING = 0.2  # seconds that a client waits which will leave
SLOW_PAUSE = 2.0  # seconds between the bytes of a slow client
CLOSING = 40  # seconds until the service has closed idle connections: docs/reference/service.md, Limits
SENDERS = 24
RARER = 5  # one slow client per five requests of any other kind, because it takes 10 to 20 seconds


def sent(url: str, data: bytes, then: str, rude: bool) -> str:
    """The status of the answer; "closed": the service hung up without one; "left": the client was gone before;
    "none": it never came. `rude` clients leave without a word."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as raw:
        if rude:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            if then == SLOW:
                for byte in data[:4], data[4:7], data[7:]:
                    raw.sendall(byte)
                    time.sleep(SLOW_PAUSE)
            else:
                raw.sendall(data)
        except OSError:
            pass  # the service has hung up; it may have said why
        answer = None
        for seconds in (
            [LEAVING] if then == LEAVE else [PATIENCE / 3] * 3
        ):  # a machine that stands still takes one of them
            raw.settimeout(seconds)
            try:
                answer = raw.recv(4096)
                break
            except TimeoutError:
                pass
            except OSError:
                return "closed"
    if answer is None:
        return "left" if then == LEAVE else "none"
    return answer.split()[1].decode("latin-1") if answer.startswith(b"HTTP/") else "closed"


class Clients:
    """Two well-behaved clients, and a clock that records the intervals in which this process was suspended."""

    def __init__(self, running: Running) -> None:
        self.running, self.stopped = running, threading.Event()
        self.seconds: list[tuple[float, float]] = []  # when it began, how long it took
        self.paused: list[tuple[float, float]] = []
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=work) for work in (self._ask, self._ask, self._beat)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        first: dict[str, Any] = {}
        with client(self.running) as http:
            while not self.stopped.is_set():
                for path, body in GOOD.items():
                    began = time.monotonic()
                    try:
                        answer = http.post(path, json=body)
                        reply = answer.json()
                        kept = (
                            {k: v for k, v in reply.items() if k not in ("id", "created")} if "id" in reply else reply
                        )
                        if answer.status_code != 200 or first.setdefault(path, kept) != kept:
                            self.wrong.append(f"{path}: {answer.status_code} {answer.text[:200]}")
                    except Exception as error:  # recorded as the answer; the client continues
                        self.wrong.append(f"{path}: {error!r}")
                    self.seconds.append((began, time.monotonic() - began))
                    self.stopped.wait(0.4)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self.stopped.wait(0.5):
            now = time.monotonic()
            if now - last > 2:
                self.paused.append((last, now))
            last = now

    def between(self, begin: float, end: float) -> dict[str, Any]:
        """Return request times in milliseconds in an interval, without requests while this process was suspended."""
        asked = [(at, took) for at, took in self.seconds if begin <= at < end]
        kept = [1000 * took for at, took in asked if not any(a < at + took and at < b for a, b in self.paused)]
        cuts = quantiles(kept, n=100, method="inclusive")
        figures = {"p50": cuts[49], "p99": cuts[98], "highest": max(kept)}
        return {
            "requests": len(asked),
            "left_out": len(asked) - len(kept),
            **{k: round(v, 1) for k, v in figures.items()},
        }

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()


def schemathesis(url: str, examples: int, seed: int, told: Path) -> subprocess.Popen[bytes]:
    """Start schemathesis on the OpenAPI document: valid requests get documented answers, invalid ones are rejected."""
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks",
               checks, "--max-examples", str(examples), "--phases", "examples,coverage,fuzzing",
               "--seed", str(seed)]  # fmt: skip
    with told.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


def attack(requests: int, minutes: float, examples: int, seed: int, folder: Path) -> dict[str, Any]:
    models = language_model(folder / "lm", max_positions=1024), translator(folder / "en-de"), bert(
        folder / "tell", head="sequence", labels=("en", "de"))  # fmt: skip
    with serving(folder / "log", *models, "--detect", "tell") as running:
        files = _open_files(running)
        clients = Clients(running)
        memory = [running.megabytes()]
        quiet = time.monotonic()
        time.sleep(max(20.0, 3 * minutes))
        began = time.monotonic()
        trying = schemathesis(running.url, examples, seed, folder / "told")
        counts = _send_all(running, requests, minutes, seed, memory)
        trying.wait()
        told = (folder / "told").read_text()
        ended = time.monotonic()
        clients.stop()
        memory.append(running.megabytes())
        files_left = _files_left(running, files)
        status = running.stop()
        said = [line for line in running.log.read_text().splitlines() if not line.startswith("{")]
        asked = [line for line in running.lines() if line["event"] == "request"]
        return {
            "attack": f"{requests:,} malformed requests" + f" in {minutes:g} minutes" * (minutes > 0),
            "seed": seed, "seconds": round(ended - began, 1),
            "malformed": {kind: dict(sorted(by.items())) for kind, by in counts.items()},
            "schemathesis": {"max_examples": examples, "rc": trying.returncode, "told": _gist(told, trying.returncode)},
            "requests": len(asked), "by_status": dict(sorted(Counter(str(line["status"]) for line in asked).items())),
            "good": {"before": clients.between(quiet, began), "while": clients.between(began, ended),
                     "wrong": clients.wrong[:20], "wrong_count": len(clients.wrong)},
            "memory_mib": memory, "files_left_open": files_left,
            "stopped_with": status, "faults": running.log.read_text().count("Traceback"), "other_lines": said[1:],
            "commit": commit(), "hardware": hardware(),
        }  # fmt: skip


def _open_files(running: Running) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def _files_left(running: Running, before: int) -> int:
    """Return the number of additional open files after idle, unread and incomplete connections have timed out."""
    for _ in range(CLOSING):
        if (left := _open_files(running) - before) <= 0:
            break
        time.sleep(1)
    return left


def _send_all(
    running: Running, requests: int, minutes: float, seed: int, memory: list[float]
) -> dict[str, Counter[str]]:
    """Every request, spread over the minutes; what became of those of each kind. Memory is looked at every minute."""
    rng = random.Random(seed)
    kinds = [kind for kind in KINDS for _ in range(1 if kind == "slow clients" else RARER)]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    lock, began = threading.Lock(), time.monotonic()

    def send(kind: str, data: bytes, then: str, rude: bool) -> None:
        try:
            what = sent(running.url, data, then, rude)
        except OSError as error:  # not even a connection
            what = type(error).__name__
        with lock:
            counts[kind][what] += 1
        room.release()

    room = threading.Semaphore(2 * SENDERS)
    with ThreadPoolExecutor(SENDERS) as pool:
        for number in range(requests):
            kind = rng.choice(kinds)
            data, then = KINDS[kind](rng)
            room.acquire()
            pool.submit(send, kind, data, then, rng.random() < 0.5)
            time.sleep(max(0.0, began + 60 * minutes * (number + 1) / requests - time.monotonic()))
            if time.monotonic() >= began + 60 * len(memory):
                memory.append(running.megabytes())
    return counts


def _gist(told: str, status: int | None) -> str:
    """Its last words; all of the end where it found something."""
    lines = [line.strip() for line in told.splitlines() if line.strip() and "===" not in line]
    return "\n".join(
        lines[-60:] if status else [line for line in lines if "generated" in line or "passed" in line][-2:]
    )


def faults_of(record: dict[str, Any]) -> list[str]:
    """Return the faults in a record of an attack."""
    silent = sum(
        by.get("none", 0) + sum(n for what, n in by.items() if what.endswith("Error"))
        for by in record["malformed"].values()
    )
    failed = [
        status for by in (record["by_status"], *record["malformed"].values()) for status in by if status[0] == "5"
    ]
    checks = {
        f"{silent} requests were never answered": silent, f"answers of status {', '.join(failed)}": failed,
        f"{record['files_left_open']} files were left open": record["files_left_open"] > 0,
        f"{record['faults']} tracebacks in the log": record["faults"],
        f"lines of the log that are no JSON: {record['other_lines'][:3]}": record["other_lines"],
        f"good clients: {record['good']['wrong']}": record["good"]["wrong_count"],
        f"schemathesis: {record['schemathesis']['told']}": record["schemathesis"]["rc"],
        f"the service stopped with {record['stopped_with']}": record["stopped_with"],
    }  # fmt: skip
    return [fault for fault, present in checks.items() if present]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.attack_service", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--requests", type=int, default=10_000, metavar="N", help="malformed ones (default: 10000)")
    parser.add_argument("--minutes", type=float, default=0.0, metavar="M", help="that they take (default: as it comes)")
    parser.add_argument("--examples", type=int, default=700, metavar="N", help="of schemathesis (default: 700)")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the record goes (default: it is printed)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="manyheads-attack-") as folder:
        record = attack(options.requests, options.minutes, options.examples, options.seed, Path(folder))
    if options.out:
        write_json(options.out, record)
    else:
        print(json.dumps(record, indent=1))
    faults = faults_of(record)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
