"""A command checks its environment at its start, and names the variable that is wrong."""

import os
import sys
from pathlib import Path

import pytest

from tests.waiting import called

# Code that uses fonts, caches, files and terminals, as commands do late.
PROBE = """\
import os, sys, tempfile
from pathlib import Path
from dpsweep.base.errors import DpsweepError
from dpsweep.cli import environment
try:
    environment.check()
except DpsweepError as error:
    sys.exit(str(error))
import matplotlib
Path("é.txt").open("w").write("ε ≤ 8")
print(Path("é.txt").open().read())
for place in (os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", matplotlib.get_cachedir()):
    tempfile.TemporaryFile(dir=place)
assert matplotlib.get_backend().lower() == "agg"
"""
NOWHERE = "/proc/nowhere"  # cannot be created


def environment_with(here: Path, change: dict[str, str | None]) -> dict[str, str]:
    """Return the environment of a caller with a temporary home folder and some variables changed."""
    named = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")
    found = {name: value for name, value in os.environ.items() if name not in named}
    found["HOME"] = str(here)
    (here / "ä ö").mkdir()
    for name, value in change.items():
        found.pop(name, None)
        if value is not None:
            found[name] = value.format(here=here)
    return found


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
    tmp_path: Path, change: dict[str, str | None], named: str
) -> None:
    (tmp_path / "probe.py").write_text(PROBE, encoding="utf-8")
    done = called(
        [sys.executable, "probe.py"], tmp_path, environment_with(tmp_path, change), status=1
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith(named) and "; allowed: " in line
