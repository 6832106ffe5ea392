"""The commands at the end of error messages work if they are pasted into a shell."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.waiting import called
from tests.workflow.chain import ROOT, STUDY, Chain

from dpsweep.base.files import read_json, write_json
from dpsweep.cli import preload

pytestmark = pytest.mark.nightly

CELL = "eps8_epochs2_B128_C1"
SWEEP = "digits_vit_film"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    """Yield a folder like a clone of this repository, with a study of one trained cell."""
    (sweep,) = STUDY["sweeps"].values()
    one_cell = sweep | {"batch_size": [128], "clipping_bound": [1.0], "seeds": 1}
    study = {key: STUDY[key] for key in ("title", "datasets", "backbones", "methods")}
    chain = Chain(tmp_path_factory.mktemp("clone"), study | {"sweeps": {SWEEP: one_cell}})
    shutil.copy(ROOT / "Snakefile", chain.folder)
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, chain.folder / name)
    chain.run(chain.cell_file(CELL))
    # One server for the commands of all calls, because imports take longer than the commands.
    with mock.patch.dict(os.environ):
        preload.start()
        yield chain


def shell(clone: Chain, command: str) -> "subprocess.CompletedProcess[str]":
    return called(["sh", "-c", command], clone.folder, clone.environment, status=None)


def halve_the_noise(path: Path) -> None:
    content = read_json(path)
    write_json(path, content | {"noise_multiplier": content["noise_multiplier"] / 2})


TRAIN = f"dpsweep train --study study.yaml {SWEEP} {CELL}"
AGGREGATE = f"dpsweep aggregate --study study.yaml {SWEEP}"


@pytest.mark.parametrize(
    ("command", "output", "damage"),
    [
        (TRAIN, "noise/digits/eps8_epochs2_B128-*.json", halve_the_noise),
        (AGGREGATE, f"cells/{SWEEP}/{CELL}/trials-*.parquet", Path.unlink),
    ],
)
def test_the_suggested_command_fixes_the_error(
    clone: Chain, command: str, output: str, damage: Callable[[Path], None]
) -> None:
    (file,) = clone.results.glob(output)
    damage(file)
    failed = shell(clone, command)
    assert failed.returncode == 1
    message, _, suggested = failed.stderr.partition("To make it again:\n")
    assert output.rpartition("/")[0] in message
    mended = shell(clone, suggested)
    assert mended.returncode == 0, mended.stderr + clone.logs()
    again = shell(clone, command)
    assert again.returncode == 0, again.stderr
