"""Verdict on an input: accepted, rejected with a clear error, or a finding.

A clear error is our ValueError with the cause, or an OSError that names a file; the command line prints these in one
line. Everything else is a finding:

- any other error (also of a library, because it cannot name the file at fault),
- excessive time or memory,
- a file written outside the input's folder, or an unrelated file that was read,
- a network connection, a started program, or code executed from the data.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import manyheads
from tests.stress.fuzzing.inputs import Files, write
from tests.stress.fuzzing.targets.target import Refused

SECONDS = 5.0  # of the processor, for an input of at most a megabyte
HANG = 30  # seconds of the processor after which the process is ended
BYTES = 2**30  # of memory beyond what was held before
_OURS = str(Path(manyheads.__file__).parent)
_HERE = str(Path(__file__).parent)
_LIBRARIES = tuple({*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, str(Path(_OURS).parent)})
_SYSTEM = ("/usr/", "/proc/", "/sys/", "/dev/null", "/dev/urandom", "/etc/localtime", "/lib", "/etc/mime.types")
_MAKERS = (
    "babel/localedata.py",
    "babel/plural.py",
    "/ast.py",
    "/dataclasses.py",
    "collections/__init__.py",
    "/enum.py",
    "/typing.py",
    "/inspect.py",
)
_CACHES = (str(Path.home() / ".cache" / "manyheads"),)  # of compiled kernels
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")
_PROGRAMS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
)
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
)


class Verdict(NamedTuple):
    """Verdict on an input.

    `finding` names the fault and its place, equal for inputs with the same fault, or is empty.
    """

    accepted: bool
    finding: str = ""
    told: str = ""


@dataclass
class Watch:
    """Audit events of this process while an input in `folder` is used. The audit hook cannot be removed."""

    folder: str = ""
    readable: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder:
            return
        fault = None
        if event == "open":
            fault = self._opened(*arguments)
        elif event in _NETWORK or event in _PROGRAMS:
            fault = f"{event} {arguments[1:]!r}"[:200]
        elif event in _CHANGES and not self._inside(arguments[0]):
            fault = f"{event} {arguments!r}"[:200]
        elif event in ("exec", "compile", "pickle.find_class") and not _imports():
            fault = f"{event} of data"
        if fault:
            self.seen.append(fault)
            raise Forbidden(fault)

    def _inside(self, path: Any) -> bool:
        """Return True if a path is below the folder, without following links."""
        if not isinstance(path, str | bytes | os.PathLike):
            return True  # a file descriptor, opened earlier
        absolute = os.path.abspath(os.fsdecode(path))
        return absolute == self.folder or absolute.startswith((self.folder + os.sep, *_CACHES))

    def _opened(self, path: Any, mode: Any, flags: Any) -> str | None:
        writes = (
            any(c in "wax+" for c in mode) if isinstance(mode, str) else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
        )
        if self._inside(path):
            return None
        name = "/" + os.path.abspath(os.fsdecode(path)).lstrip("/")  # two slashes would stay
        known = name.startswith((*_LIBRARIES, *_SYSTEM, *self.readable)) or name == "/dev/null"
        return (
            f"opens {name} to {'write' if writes else 'read'}"
            if (writes and name != "/dev/null") or not known
            else None
        )


class Forbidden(BaseException):
    """Error for an action that no input may cause. It is a BaseException so that no reader catches it."""


def _imports() -> bool:
    """Return True for code from an import, from a library's code generator, or from a literal."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "importlib._bootstrap" in name or name.endswith(_MAKERS) or "/torch/" in name or "/numba/" in name:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@dataclass
class Judge:
    """Runner that uses each input in a new folder and returns the verdict."""

    folder: Path
    use: Callable[[Path], object]
    readable: tuple[str, ...] = ()
    watch: Watch = field(default_factory=Watch)
    deadly: bool = False  # whether a hang ends the process

    def __call__(self, files: Files) -> Verdict:
        place = self.folder / "input"
        write(place, files)
        tempfile.tempdir = str(place)  # temporary files
        before, begun = _most_memory(), time.process_time()
        if self.deadly:
            signal.setitimer(signal.ITIMER_PROF, HANG)
        verdict = self._used(place)
        spent, grown = time.process_time() - begun, _most_memory() - before
        if verdict.finding:
            return verdict
        if spent > SECONDS:
            return Verdict(False, "slow", f"{spent:.1f} seconds\n{verdict.told}")
        if grown > BYTES:
            return Verdict(False, "memory", f"{grown / 2**20:,.0f} MiB\n{verdict.told}")
        return verdict

    def _used(self, place: Path) -> Verdict:
        self.watch.folder, self.watch.readable = str(place), self.readable
        self.watch.seen.clear()
        try:
            with _silent():
                self.use(place)
            verdict = Verdict(True)
        except KeyboardInterrupt:
            raise
        except Refused as refused:
            verdict = Verdict(False, "", str(refused))
        except BaseException as error:
            self.watch.folder = ""
            verdict = _judged(error)
        finally:
            self.watch.folder = ""
        if self.watch.seen:
            return Verdict(False, f"forbidden: {self.watch.seen[0]}", "\n".join(self.watch.seen))
        return verdict


def _judged(error: BaseException) -> Verdict:
    told = "".join(traceback.format_exception(error))[-6000:]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(_OURS)]
    where = f"{Path(ours[-1].filename).relative_to(_OURS)}:{ours[-1].lineno}" if ours else "outside"
    finding = f"{type(error).__name__} at {where}"
    if (
        isinstance(error, OSError) and not ours
    ):  # the folder itself: links in it that lead back, names that are too long
        return Verdict(False, "", told)
    if not isinstance(error, ValueError | OSError) or not ours:
        return Verdict(False, finding, told)
    raised_here = frames[-1].filename.startswith(_OURS)
    if isinstance(error, OSError) and not isinstance(error, ValueError):
        return Verdict(False, "" if error.filename is not None or raised_here else finding, told)
    own = type(error) is ValueError or type(error).__module__.startswith("manyheads")
    message = str(error)
    if not own or not raised_here:
        return Verdict(False, f"a library's {finding}", told)
    if not message.strip():
        return Verdict(False, f"a message of nothing: {finding}", told)
    return Verdict(False, "", message)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _most_memory() -> int:
    """Return the peak memory of the process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    """Limit the further memory of this process."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 3 * BYTES, held + 3 * BYTES))
