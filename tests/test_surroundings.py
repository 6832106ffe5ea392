"""A command fixes its environment at its start, or reports what is wrong with it."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from dpsweep.cli import surroundings
from tests.described import described
from tests.waiting import called
from tests.workflow.chain import STUDY

# Code that uses fonts, caches, files, terminals and shells, as commands do late.
PROBE = """\
import os, subprocess, sys, tempfile
from pathlib import Path
from dpsweep.cli import surroundings
surroundings.prepare()
import matplotlib
from rich.console import Console
Path("é.txt").open("w").write("ε ≤ 8")
print(Path("é.txt").open().read(), file=sys.stderr)
tempfile.TemporaryFile(dir=os.environ.get("TMPDIR"))
for place in (os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", matplotlib.get_cachedir()):
    tempfile.TemporaryFile(dir=place)
Console().print("wide enough", style="bold")
assert "setlocale" not in subprocess.run(["bash", "-c", ":"], capture_output=True, text=True).stderr
print(matplotlib.get_backend())
"""
NOWHERE = "/proc/nowhere"  # cannot be created
# Independent changes share a process.
CASES: list[tuple[dict[str, str | None], list[str]]] = [
    (
        {"HOME": NOWHERE, "MPLCONFIGDIR": NOWHERE, "MPLBACKEND": "none_such"},
        [
            f"{NOWHERE}/.cache: cannot be written; caches are in ",
            f"MPLCONFIGDIR={NOWHERE}: cannot be written; ",
        ],
    ),
    (
        {"HOME": "no/root", "TMPDIR": NOWHERE, "TERM": None}
        | {"LANG": "none_such", "LC_ALL": "none_such"},
        [
            "LANG=none_such, LC_ALL=none_such: no such locale here; C.UTF-8 is used",
            f"TMPDIR={NOWHERE}: cannot be written; ",
            "HOME: this user has none; ",
        ],
    ),
    (
        {"HOME": "{here}", "XDG_CACHE_HOME": NOWHERE, "COLUMNS": "0", "LINES": "0"},
        [f"{NOWHERE}: cannot be written; caches are in "],
    ),
    (
        {"LANG": "C", "LC_ALL": None, "HOME": "{here}/ä ö/home", "XDG_CACHE_HOME": ""}
        | {"NO_COLOR": "1", "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"},
        [],
    ),
    (
        {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "wide"}
        | {"MPLCONFIGDIR": "{here}/ä ö", "MPLBACKEND": "TkAgg", "DISPLAY": None},
        [],
    ),
    (
        {"PYTHONIOENCODING": "latin-1", "XDG_CONFIG_HOME": NOWHERE, "TMPDIR": "{here}/ä ö"}
        | {"HF_HOME": None, "TORCH_HOME": None, "USER": None, "LOGNAME": None},
        [],
    ),
]


def changed(here: Path, change: dict[str, str | None]) -> dict[str, str]:
    """Return the environment of a caller with a temporary home folder and some variables changed."""
    named = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "TMPDIR")
    environment = {name: value for name, value in os.environ.items() if name not in named}
    environment["HOME"] = str(here)
    (here / "ä ö").mkdir()
    for name, value in change.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value.format(here=here)
    return environment


@pytest.mark.parametrize(("change", "said"), CASES, ids=str)
def test_a_command_fixes_its_environment(
    tmp_path: Path, change: dict[str, str | None], said: list[str]
) -> None:
    (tmp_path / "probe.py").write_text(PROBE, encoding="utf-8")
    done = called([sys.executable, "probe.py"], tmp_path, changed(tmp_path, change))
    *found, last = done.stderr.splitlines()
    assert last == "ε ≤ 8" and len(found) == len(said), done.stderr
    assert all(line.startswith(each) for line, each in zip(found, said, strict=True)), done.stderr
    assert "agg" in done.stdout.lower() and "wide enough" in done.stdout


def test_existing_downloads_are_still_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    for name in ("HF_HOME", "TORCH_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(surroundings, "can_write", lambda folder: ".cache" not in folder.parts)
    for name in ("MPLBACKEND", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    surroundings.prepare()
    assert os.environ["HF_HOME"] == str(tmp_path / ".cache" / "huggingface")
    assert "TORCH_HOME" not in os.environ
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name)


def test_no_temporary_folder_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(surroundings.tempfile, "gettempdir", full)
    with pytest.raises(surroundings.DpsweepError, match=r"TMPDIR: .* no place for temporary files"):
        surroundings.prepare()


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings.tempfile, "tempdir", str(tmp_path))
    other = tmp_path / f"dpsweep-{os.getuid()}"
    other.mkdir()
    other.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = surroundings._scratch()
    assert made.parent != tmp_path and made.stat().st_mode & 0o077 == 0


@pytest.mark.nightly
def test_a_study_runs_in_a_broken_environment(tmp_path: Path) -> None:
    here = tmp_path / "ä ö"
    environment = changed(
        tmp_path,
        {
            **{"HOME": NOWHERE, "MPLCONFIGDIR": NOWHERE, "TMPDIR": NOWHERE, "LC_ALL": "none_such"},
            **{"MPLBACKEND": "none_such", "COLUMNS": "0", "PYTHONUTF8": "0"},
            "XDG_CONFIG_HOME": NOWHERE,
        },
    )
    (problem, sweep), *_ = STUDY["sweeps"].items()
    sweep = sweep | {
        "batch_size": [128],
        "clipping_bound": [1.0],
        "learning_rate": [0.01],
        "seeds": 1,
    }
    figures = {"norms": STUDY["figures"]["norms"]}
    study = STUDY | {"title": "ε", "sweeps": {problem: sweep}, "figures": figures, "tables": {}}
    (here / "mine.yaml").write_text(
        yaml.safe_dump(described(study, here) | {"results": "results/ε"}), "utf-8"
    )
    command = [sys.executable, "-m", "dpsweep.cli", "run", "mine.yaml", "norms"]
    done = called(command, here, environment)
    assert (here / "results" / "ε" / "figures" / "norms.png").exists()
    assert "(100%)" in done.stderr  # a line for every tenth of the jobs
