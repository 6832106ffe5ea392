"""Commands in a preloaded process give the same results as in their own process, and end when killed."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dpsweep.cli import preload
from tests.waiting import PATIENCE, called, children, running, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

DEMO = Path(__file__).parents[1] / "studies" / "demo.yaml"
COMMAND = [sys.executable, "-c", "from dpsweep.cli.preload import main; main()"]
PREPARE = [*COMMAND, "prepare-dataset", "glyphs", "--study", str(DEMO)]
PLANNED = ["plan", "digits_vit-weak_film", "--teraflops", "20"]
PLAN = [*COMMAND, *PLANNED, "--study", str(DEMO)]
STARTER = (
    "import os, sys\n"
    "from dpsweep.cli import preload\n"
    "preload.start()\n"
    "print(os.environ[preload.ADDRESS], os.environ[preload.STARTED_BY], flush=True)\n"
    "sys.stdin.read()\n"
)


class Started(NamedTuple):
    """A process that started a server, the environment of its commands, and the server."""

    process: "subprocess.Popen[str]"
    environment: dict[str, str]
    server: int


@pytest.fixture
def started() -> Iterator[Started]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address, starter = process.stdout.readline().split()
    (server,) = children(process.pid)
    environment = {**os.environ, preload.ADDRESS: address, preload.STARTED_BY: starter}
    try:
        yield Started(process, environment, server)
    finally:
        process.kill()
        process.communicate()


def begin_in_child(started: Started, folder: Path) -> tuple["subprocess.Popen[bytes]", int]:
    """Start a command, wait until a child of the server runs it, and return both."""
    command = subprocess.Popen(PREPARE, env=started.environment, cwd=folder)
    wait_for(lambda: children(started.server), "child of the server")
    (child,) = children(started.server)
    return command, child


def has_socket(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError):  # files are closed while they are listed
        return any("socket" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def outcome(command: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str, str]:
    ended = called(command, folder, environment, status=None)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    "arguments", [pytest.param(PLANNED, marks=pytest.mark.slow), ["no-command"]]
)
def test_a_forked_command_has_the_output_and_status_of_a_separate_process(
    started: Started, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "config.yaml").write_text(f"extends: {DEMO}\n")
    command = [*COMMAND, *arguments]
    alone = {name: value for name, value in started.environment.items() if name != preload.ADDRESS}
    assert outcome(command, started.environment, tmp_path) == outcome(command, alone, tmp_path)


@pytest.mark.parametrize(
    ("killed", "number"),
    [
        ("command", signal.SIGKILL),
        ("command", signal.SIGTERM),
        ("starter", signal.SIGKILL),
        pytest.param("server", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_command_its_child_and_the_workflow_end_together(
    started: Started, tmp_path: Path, killed: str, number: signal.Signals
) -> None:
    command, child = begin_in_child(started, tmp_path)
    if killed != "command":  # which may be killed before its child has read its request
        wait_for(lambda: len(list(Path(f"/proc/{child}/task").iterdir())) > 1, "work")
    pids = {"command": command.pid, "starter": started.process.pid, "server": started.server}
    os.kill(pids[killed], number)
    wait_for(lambda: not running(child), "end of the child")
    assert command.wait(PATIENCE) != 0
    assert not list(tmp_path.rglob("metadata.json"))
    if killed == "server":  # other commands run without it
        status, output, errors = outcome(PLAN, started.environment, tmp_path)
        assert (status, errors) == (0, "") and "cells are done" in output


def test_the_server_ends_with_its_starter_and_no_command_starts(
    started: Started, tmp_path: Path
) -> None:
    process, environment, server = started
    os.kill(server, signal.SIGSTOP)  # like a server that is still importing
    early = subprocess.Popen(PREPARE, env=environment, cwd=tmp_path)
    wait_for(lambda: has_socket(early.pid), "socket")
    process.kill()
    os.kill(server, signal.SIGCONT)
    process.wait()
    wait_for(lambda: not running(server), "end of the server")
    assert not Path(environment[preload.ADDRESS]).parent.exists()
    assert early.wait(PATIENCE) != 0
    late = subprocess.run(PREPARE, env=environment, cwd=tmp_path, check=False)
    assert late.returncode != 0
    assert not list(tmp_path.rglob("metadata.json"))
