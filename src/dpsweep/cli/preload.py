"""The start of a command: a check of its environment, and no import time.

A server process imports the libraries once and forks every command.

Most commands of a study are short, and importing torch takes longer than many of them. While a workflow
runs, the command ``dpsweep`` only sends its arguments, environment and output to a server, and waits. The
server forks a child for every command, so commands stay separate: a child has its own memory, receives
the signals of its command, and ends when its command is killed.

The server is optional. Without one (no address in the environment, server ended, not Linux) a command runs
in its own process, with the same result. If the workflow has ended too, the command does not start.

Libraries use encoding, locale, folders for temporary files and caches, and a user's name late: a cache that
is not writable would end a job after its training. So every command checks them at its start.
"""

import contextlib
import ctypes
import getpass
import importlib
import json
import locale
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dpsweep.base.errors import DpsweepError

ADDRESS = "DPSWEEP_PRELOADED"
"""Environment variable: the server's socket."""
STARTED_BY = "DPSWEEP_PRELOADED_BY"
"""Environment variable: ``process@machine`` that started the server; commands end with this process."""

# Libraries that only some commands import. After a child has imported one of these, or a module of
# dpsweep, the server imports it too, before it forks the next child.
LAZY_LIBRARIES = frozenset(
    {
        "matplotlib.pyplot",
        "opacus.validators",
        "peft",
        "pyarrow.parquet",
        "timm",
        "torch._dynamo",
        "torchvision",
        "transformers",
    }
)
_FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# Without threads, which would not survive a fork: of linear algebra, and of Arrow's allocator.
_SERVERS_OWN = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONUTF8": "1",  # as in its commands
}
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # option of Linux' prctl: the signal to a process when its parent ends
_INTEGER_BYTES = 4
_LARGEST_MESSAGE = 1 << 16
_LONGEST_ADDRESS = 100  # of a socket, in bytes; TMPDIR may be longer


# Keeps the servers' standard inputs open; a server ends when its input is closed.
_servers: list["subprocess.Popen[bytes]"] = []


def main() -> None:
    """Run the command line in a child of the server, or without a server in this process."""
    try:
        check_environment()
    except DpsweepError as error:
        sys.exit(f"error: {error}")
    address = os.environ.get(ADDRESS)
    if address is not None:
        status = _hand_over(address)
        if status is None and not _is_running(os.environ[STARTED_BY]):
            sys.exit("the workflow has ended, and its commands with it")
        if status is not None:
            sys.exit(status)
    # Imported late, because the import takes longer than a request to the server.
    from dpsweep.cli.main import main as run

    run()


def start() -> None:
    """Start a server for the commands of this process and its children, unless there is one already.

    It ends when this process ends for any reason, and its commands end with it; those that train save
    their state first. Outside Linux nothing is started, because other systems cannot safely fork a
    process that has loaded such libraries.
    """
    if sys.platform != "linux" or ADDRESS in os.environ:
        return
    # A private folder, because writing to the socket runs commands as this user.
    address = Path(tempfile.mkdtemp(prefix="dpsweep-")) / "socket"
    if len(str(address)) > _LONGEST_ADDRESS:
        address.parent.rmdir()
        address = Path(tempfile.mkdtemp(prefix="dpsweep-", dir="/tmp")) / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(address))
        listener.listen(socket.SOMAXCONN)
        # The server ignores Ctrl-C; it ends with this process.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        _servers.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "dpsweep.cli.preload", str(listener.fileno())],
                # The system closes it when this process ends, and then the server ends.
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, **_SERVERS_OWN},
            )
        )
        signal.signal(signal.SIGINT, handler)
    os.environ.update({ADDRESS: str(address), STARTED_BY: f"{os.getpid()}@{os.uname().nodename}"})


# -- the environment -------------------------------------------------------------------------


def check_environment() -> None:
    """Refuse an environment that would end a command later, and let matplotlib draw only into files.

    Raises:
        DpsweepError: the message names the variable to set.
    """
    os.environ["MPLBACKEND"] = "agg"
    _check_locale()
    _check_encoding()
    _check_folders()
    try:
        getpass.getuser()
    except (KeyError, OSError):
        raise DpsweepError(
            f"LOGNAME: found none, and user {os.getuid()} has no account; allowed: any name"
        ) from None


def _check_locale() -> None:
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        names = sorted(name for name in os.environ if name.startswith("LC_") or name == "LANG")
        raise DpsweepError(
            f"{', '.join(names)}: found {', '.join(os.environ[name] for name in names)}, which is not "
            "installed here; allowed: a locale of `locale -a`, such as C.UTF-8"
        ) from None
    finally:
        locale.setlocale(locale.LC_ALL, before)


def _check_encoding() -> None:
    streams = {stream.encoding for stream in (sys.stdout, sys.stderr) if stream is not None}
    encodings = {locale.getpreferredencoding(False), sys.getfilesystemencoding(), *streams}
    others = sorted(name for name in encodings if name.lower().replace("-", "") != "utf8")
    if others:
        name = "PYTHONIOENCODING" if os.environ.get("PYTHONIOENCODING") else "LC_ALL"
        raise DpsweepError(
            f"{name}: found the encoding {', '.join(others)}; allowed: UTF-8 (unset {name}, or set "
            "PYTHONUTF8=1)"
        )


def _check_folders() -> None:
    of_cache = "XDG_CACHE_HOME" if os.environ.get("XDG_CACHE_HOME") else "HOME"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (which raises)
    for name, folder in (
        ("TMPDIR", os.environ.get("TMPDIR") or tempfile.gettempdir()),
        (of_cache, cache),
    ):
        try:
            if not Path(folder).is_absolute():
                raise OSError
            Path(folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            raise DpsweepError(
                f"{name}: found {os.environ.get(name, 'none')}, and {folder} cannot be written; allowed: an "
                "absolute path of a folder that can be written (XDG_CACHE_HOME moves caches of libraries)"
            ) from None


# -- the command -----------------------------------------------------------------------------


def _hand_over(address: str) -> int | None:
    """Let the server run this process's command; return its exit status, or None without a server."""
    # Signals wait until they can be forwarded.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED_SIGNALS)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            child = _requested(connection, address)
            if child is None:
                return None

            def forward(number: int, _frame: FrameType | None) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)

            for number in _FORWARDED_SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, forward)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)
            status = connection.recv(1)
            # A killed child sends no status.
            return status[0] if status else 128 + signal.SIGKILL
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED_SIGNALS)


def _requested(connection: socket.socket, address: str) -> int | None:
    """Send this process's command to the server; return the process that runs it, None without a server."""
    try:
        connection.connect(address)
        request = json.dumps([sys.argv, str(Path.cwd()), dict(os.environ)]).encode()
        length = len(request).to_bytes(_INTEGER_BYTES, "big")
        socket.send_fds(connection, [length], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(_INTEGER_BYTES, socket.MSG_WAITALL)
    except OSError:
        return None
    return int.from_bytes(answer, "big") if len(answer) == _INTEGER_BYTES else None


def _is_running(started_by: str) -> bool:
    """Return whether a process is running (neither ended nor a zombie), or belongs to another machine."""
    process, machine = started_by.split("@")
    if machine != os.uname().nodename:
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# -- the server ------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Fork a child for every command until standard input is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _ENDING_SIGNALS:
        signal.signal(number, lambda received, _: sys.exit(128 + received))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the children
    importlib.import_module("dpsweep.cli.main")
    end_with_parent = ctypes.CDLL(None).prctl  # before there are threads
    needed, children = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    while True:
        ready, _, _ = select.select([listener, sys.stdin, needed], [], [])
        if sys.stdin in ready:
            return
        if needed in ready:
            for name in needed.recv(_LARGEST_MESSAGE).decode().split():
                _import(name)
        if listener in ready:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    end_with_parent(_PR_SET_PDEATHSIG, signal.SIGTERM)
                    listener.close()
                    _run(connection, children)


def _import(name: str) -> None:
    if name not in sys.modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _run(connection: socket.socket, server: socket.socket) -> NoReturn:
    """Run one command in this new process, and end the process."""
    preloaded = set(sys.modules)
    status = 1
    try:
        for number in (signal.SIGCHLD, *_ENDING_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        length, descriptors, _, _ = socket.recv_fds(connection, _INTEGER_BYTES, 3)
        request = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
        sys.argv, folder, environment = json.loads(request)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # read again from the new environment
        connection.sendall(os.getpid().to_bytes(_INTEGER_BYTES, "big"))
        threading.Thread(target=_end_with_command, args=[connection], daemon=True).start()
        status = _command()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over
            loaded = set(sys.modules) - preloaded
            needed = [
                name for name in loaded if name in LAZY_LIBRARIES or name.startswith("dpsweep.")
            ]
            with contextlib.suppress(OSError):
                if needed:
                    server.send(" ".join(needed).encode())
                sys.stdout.flush()
                sys.stderr.flush()
                connection.sendall(bytes([status]))
        finally:
            # Not sys.exit, which would run the server's clean-up in this process.
            os._exit(status)


def _command() -> int:
    from dpsweep.cli import options
    from dpsweep.cli.main import main as run

    options.STARTED = time.monotonic()
    try:
        run()
    except SystemExit as stop:
        if isinstance(stop.code, int) or stop.code is None:
            return stop.code or 0
        sys.stderr.write(f"{stop.code}\n")
        return 1
    return 0


def _end_with_command(connection: socket.socket) -> None:
    """Kill this process when its command is killed."""
    # The connection is reset if the command ends before it reads the answer.
    with contextlib.suppress(ConnectionResetError):
        if connection.recv(1):
            return
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    inherited = socket.socket(fileno=int(sys.argv[1]))
    try:
        serve(inherited)
    finally:
        shutil.rmtree(Path(inherited.getsockname()).parent, ignore_errors=True)
