"""The environment of a command: encoding, locale, folders for temporary files and caches, a user's name.

Libraries use these late: a cache that is not writable would end a job after its training. So every command
checks them at its start.
"""

import getpass
import locale
import os
import sys
import tempfile
from pathlib import Path

from dpsweep.base.errors import DpsweepError


def check() -> None:
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
