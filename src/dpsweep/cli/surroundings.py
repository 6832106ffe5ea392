"""The environment of a command: caches, temporary files, locale, backend, width of the terminal.

Libraries use these late: a cache that is not writable would end a job after its training. So every command
begins here, and its child processes inherit the settings. If nothing is wrong, only the backend of matplotlib
is set, because dpsweep draws only into files.
"""

import locale
import os
import pwd
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dpsweep.base.errors import DpsweepError

# Variables with the cache folders of other libraries, and the default names of these folders.
_IN_CACHE = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}


def prepare() -> None:
    """Fix the environment where it would end a command later; report fixes on standard error.

    Raises:
        DpsweepError: there is no writable folder for temporary files.
    """
    _use_utf8()
    lines = [*_locale(), *_temporary_files(), *_home(), *_caches()]
    os.environ["MPLBACKEND"] = "agg"
    for name in ("COLUMNS", "LINES"):
        if not os.environ.get(name, "1").isdigit() or os.environ.get(name) == "0":
            del os.environ[name]
    sys.stderr.writelines(f"{line}\n" for line in lines)


def can_write(folder: Path) -> bool:
    """Create a folder if it is missing, and return whether it accepts files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _use_utf8() -> None:
    """Restart in Python's UTF-8 mode if this process reads or writes in another encoding."""
    encodings = {locale.getpreferredencoding(False), sys.getfilesystemencoding()}
    encodings |= {stream.encoding for stream in (sys.stdout, sys.stderr) if stream is not None}
    if {name.lower().replace("-", "") for name in encodings} == {"utf8"}:
        return
    if os.environ.get("PYTHONUTF8") == "1":
        return  # UTF-8 mode is on, and does not help
    os.environ["PYTHONUTF8"] = "1"
    os.environ.pop("PYTHONIOENCODING", None)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _locale() -> Iterator[str]:
    """Replace a locale that is not installed, because shells and libraries complain or fail with it."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, "")
    except locale.Error:
        names = sorted(name for name in os.environ if name.startswith("LC_") or name == "LANG")
        values = {name: os.environ.pop(name) for name in names}
        os.environ["LANG"] = "C.UTF-8"
        named = [f"{name}={value}" for name, value in values.items() if value != "C.UTF-8"]
        yield f"{', '.join(named)}: no such locale here; C.UTF-8 is used"
    finally:
        locale.setlocale(locale.LC_ALL, before)


def _temporary_files() -> Iterator[str]:
    named = os.environ.get("TMPDIR")
    try:
        found = tempfile.gettempdir()
    except OSError as error:
        raise DpsweepError(
            f"TMPDIR: found {named or 'none'}, and no place for temporary files: {error.strerror}; "
            "allowed: a folder that can be written and has space"
        ) from None
    if named and Path(named).absolute() != Path(found):
        os.environ["TMPDIR"] = found
        yield f"TMPDIR={named}: cannot be written; {found} is used"


def _home() -> Iterator[str]:
    """Set a name and home folder for a user without an account, as in a container."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("LOGNAME", f"user{os.getuid()}")
    if not Path(os.path.expanduser("~")).is_absolute():  # noqa: PTH111 (which raises an error)
        os.environ["HOME"] = str(_scratch())
        yield f"HOME: this user has none; {os.environ['HOME']} is used"


def _caches() -> Iterator[str]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    if not can_write(cache):
        # Existing downloads can still be read.
        for name, folder in _IN_CACHE.items():
            if (cache / folder).is_dir():
                os.environ.setdefault(name, str(cache / folder))
        os.environ["XDG_CACHE_HOME"] = str(_scratch())
        yield f"{cache}: cannot be written; caches are in {_scratch()}"
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "matplotlib"
    drawing = os.environ.get("MPLCONFIGDIR")
    if not can_write(Path(drawing) if drawing else settings):
        # Otherwise every job would search for fonts.
        os.environ["MPLCONFIGDIR"] = str(_scratch() / "matplotlib")
        if drawing:
            yield f"MPLCONFIGDIR={drawing}: cannot be written; {os.environ['MPLCONFIGDIR']} is used"


def _scratch() -> Path:
    """Return a private temporary folder of this user, the same for all commands."""
    folder = Path(tempfile.gettempdir(), f"dpsweep-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="dpsweep-")
        return _scratch()
    return folder
