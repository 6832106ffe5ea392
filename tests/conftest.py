"""Isolation of tests from the user's folders, their order, and settings of Hypothesis."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dpsweep.study import Study, load_study

# Variables with folders of caches and settings; a program's own variable would override them.
HOMES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")
OWN_FOLDERS = ("HF_HOME", "HF_HUB_CACHE", "MPLCONFIGDIR", "TORCH_HOME", "SNAKEMAKE_PROFILE")

# No time limits, because machines may be slow.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# Started first, because a worker that starts one of these last would keep the others waiting.
LONGEST = (
    "test_golden.py",
    *("test_chain.py", "test_gpu_kit.py", "test_release_rule.py", "test_notebooks.py"),
    "test_calling.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first, and keep the order of the others."""
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collections, each of which would take a second longer."""
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests their own caches and settings; workers inherit those of the main process."""
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.mkdtemp(prefix="dpsweep-tests-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ.update({name: str(Path(folder, name)) for name in HOMES})
    for name in OWN_FOLDERS:
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def paper() -> Study:
    """The study of the paper, read once."""
    return load_study(Path(__file__).parents[1] / "config.yaml")


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Restore the folder that commands change to, and the variables that they set for child processes."""
    folder = Path.cwd()
    before = {name: value for name, value in os.environ.items() if name.startswith("DPSWEEP_")}
    yield
    for name in [name for name in os.environ if name.startswith("DPSWEEP_")]:
        del os.environ[name]
    os.environ.update(before)
    os.chdir(folder)


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """Restore the signals that a training job ignores as it ends."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


# Python cannot remove audit hooks, but those of a test (training jobs refuse the network) must end with it.
_hooks: list[Callable[[str, tuple[Any, ...]], None]] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    for hook in _hooks:
        hook(event, arguments)


sys.addaudithook(_watch)
sys.addaudithook = _hooks.append


@pytest.fixture(autouse=True)
def _own_audit_hooks() -> Iterator[None]:
    """Remove the audit hooks that a test adds."""
    before = len(_hooks)
    yield
    del _hooks[before:]
