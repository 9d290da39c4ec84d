"""Files in deploy/: the image as far as possible without a builder, and the unit as checked by systemd's tools."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

import pytest

from manyheads import cli
from tests.paths import ROOT
from tests.support.services import client, serving, translator

UNIT = ROOT / "deploy" / "manyheads.service"
TOKEN = "0123456789abcdef"
SIGNED = {"authorization": f"Bearer {TOKEN}"}
# a root directory that nothing can be written to but /var/tmp (as with --tmpfs), seen by somebody else without any
# right; $1: a Python for all
ELSEWHERE = """
mount --bind "$1" "$2" && mount -o remount,bind,ro / && mount -t tmpfs -o mode=1777 tmpfs /var/tmp || exit 77
export LD_LIBRARY_PATH=$2/lib; python=$2/bin/$3; shift 3
exec setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all --no-new-privs "$python" -B "$@"
"""


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: name and arguments, a line each."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
    lines = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, rest.strip()) for name, _, rest in lines]


def last(name: str) -> str:
    return [rest for each, rest in instructions() if each == name][-1]


def test_the_container_image_holds_existing_files() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    final = names[len(names) - names[::-1].index("FROM") :]
    assert {"RUN", "USER", "HEALTHCHECK"} & set(final) == {"USER", "HEALTHCHECK"}, "what builds is left behind"
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last("USER")), "a number, that others can tell is not root"
    let_in = (ROOT / ".dockerignore").read_text().split()
    for _, rest in (each for each in instructions() if each[0] == "COPY" and "--from" not in each[1]):
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in let_in, source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r'"\.\[(.*?)\]"', (ROOT / "deploy" / "Dockerfile").read_text())
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert project["readme"] in let_in[1][1:] or f"!{project['readme']}" in let_in
    images = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    assert images == {"python:3.11-slim"}


def test_commands_of_the_container_image_parse() -> None:
    program, *entry = json.loads(last("ENTRYPOINT"))
    assert program == "manyheads"
    options = cli._parse([*entry, "--token-file", "/run/secrets/token", "/models/mine"])
    assert (options.host, options.port, options.models) == ("0.0.0.0", 8000, ["/models/mine"])
    assert f"EXPOSE {options.port}" in (ROOT / "deploy" / "Dockerfile").read_text()


@pytest.mark.slow
def test_the_container_runs_unprivileged_with_a_read_only_root() -> None:
    """The image's entry, environment and health check, without the image: another user, no rights, nothing to write."""
    if os.geteuid() != 0 or not shutil.which("setpriv") or not shutil.which("unshare"):
        pytest.skip("needs root to switch to user nobody on a read-only root directory")
    with tempfile.TemporaryDirectory(prefix="manyheads-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # others may read it, as a directory of models
        _serves_as_nobody(folder)


def _serves_as_nobody(folder: Path) -> None:
    space, model = folder / "python", translator(folder / "en-de")
    space.mkdir()
    base, name = Path(sys.base_prefix), f"python3.{sys.version_info[1]}"
    command = ["unshare", "--mount", "sh", "-c", ELSEWHERE, "sh", str(base), str(space), name]
    if subprocess.run([*command, "-c", ""], check=False, capture_output=True).returncode:
        pytest.skip("mount is not permitted on this machine")
    written = subprocess.run([*command, "-c", f"open({str(folder / 'x')!r}, 'w')"], check=False, capture_output=True)
    assert b"Read-only file system" in written.stderr
    packages = sysconfig.get_path("purelib")
    environment = dict(pair.split("=", 1) for pair in shlex.split(last("ENV")) if not pair.startswith("PATH="))
    environment |= {"MANYHEADS_TOKEN": TOKEN, "PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"}
    _, _, *entry = json.loads(last("ENTRYPOINT"))
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    with serving(folder / "log", *entry, model, python=command, **environment) as running:
        port = running.url.rpartition(":")[2]
        healthy = [sys.executable, *(word.replace(":8000", f":{port}") for word in check[1:])]
        assert healthy[2] != check[2]
        assert f"Uid:\t{10001}\t{10001}" in Path(f"/proc/{running.process.pid}/status").read_text()
        with client(running, headers=SIGNED) as http:
            found = http.post("/translate", json={"q": "the cat", "source": "en", "target": "de"})
            assert found.status_code == 200
            assert http.get("/v1/models", headers={"authorization": ""}).status_code == 401
        assert subprocess.run(healthy, check=False).returncode == 0
        assert running.stop() == 0
        assert subprocess.run(healthy, check=False, capture_output=True).returncode != 0


def analyzed(tmp_path: Path, *words: str) -> str:
    """Return the report of systemd-analyze on the unit, with this Python as its program."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not here")
    text = UNIT.read_text(encoding="utf-8")
    (tmp_path / UNIT.name).write_text(text.replace("/opt/manyheads/bin/manyheads", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", *words, str(tmp_path / UNIT.name)], capture_output=True, text=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        pytest.skip(f"this systemd-analyze is too old: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_the_unit_of_progress_is_one_character(tmp_path: Path) -> None:
    assert analyzed(tmp_path, "verify", "--man=no") == ""


def test_the_systemd_unit_is_hardened(tmp_path: Path) -> None:
    """Versions of systemd weigh a little differently."""
    (shown,) = re.findall(r"exposure level .*: ([\d.]+)", analyzed(tmp_path, "security", "--offline=yes", "--no-pager"))
    page = (ROOT / "docs" / "how-to" / "deploy.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"exposure of ([\d.]+)", page)
    assert float(shown) == pytest.approx(float(told), abs=0.3)


def test_commands_of_the_systemd_unit_parse() -> None:
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE)
    words = (
        start.replace("${CREDENTIALS_DIRECTORY}", "/run/credentials").replace("$MODELS", "a=/x/a --detect a").split()
    )
    options = cli._parse(words[1:])
    assert (options.host, options.models, options.detect) == ("127.0.0.1", ["a=/x/a"], "a")
    stop, grace = re.search(r"TimeoutStopSec=(\d+)", UNIT.read_text()), options.grace
    assert stop is not None
    assert int(stop[1]) > grace


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_service_manager_is_notified(tmp_path: Path, workers: str) -> None:
    """Ready when it answers, alive from then on, and that it stops; by the process that was started alone."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        watched = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000000"}
        with serving(tmp_path / "log", translator(tmp_path / "m"), "--workers", workers, **watched) as running:
            told = [manager.recv(100) for _ in range(4)]
            assert told == [b"READY=1", *[b"WATCHDOG=1"] * 3]
            running.process.send_signal(signal.SIGTERM)
            while (word := manager.recv(100)) == b"WATCHDOG=1":
                pass
            assert word == b"STOPPING=1"
            assert running.process.wait(60) == 0
