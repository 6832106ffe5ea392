"""The package is a program that checks its environment at its start, and names the variable that is wrong."""

import os
import sys
from pathlib import Path

import pytest

from tests.waiting import called

VERSION = [sys.executable, "-m", "dpsweep", "--version"]
NOWHERE = "/proc/nowhere"  # cannot be created


def test_the_package_is_a_program() -> None:
    assert called(VERSION).stdout.startswith("dpsweep ")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"HOME": NOWHERE}, f"HOME: found {NOWHERE}, "),
        ({"HOME": "no/root"}, "HOME: found no/root, "),
        ({"XDG_CACHE_HOME": NOWHERE}, f"XDG_CACHE_HOME: found {NOWHERE}, "),
        ({"TMPDIR": NOWHERE}, f"TMPDIR: found {NOWHERE}, "),
        (
            {"LANG": "none_such", "LC_ALL": "none_such"},
            "LANG, LC_ALL: found none_such, none_such, ",
        ),
        ({"PYTHONIOENCODING": "latin-1"}, "PYTHONIOENCODING: found the encoding "),
    ],
    ids=str,
)
def test_what_would_end_a_command_later_is_refused_by_its_variable(
    tmp_path: Path, change: dict[str, str], named: str
) -> None:
    other = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")
    caller = {name: value for name, value in os.environ.items() if name not in other}
    environment = caller | {"HOME": str(tmp_path)} | change
    done = called(VERSION, tmp_path, environment, status=1)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {named}") and "; allowed: " in line and not done.stdout
