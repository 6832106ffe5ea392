"""Which study a call of the workflow names, what its jobs find, and whether its lock is in anybody's way."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from dpsweep.base.errors import DpsweepError
from dpsweep.planning import call
from dpsweep.study import commands


@pytest.fixture(autouse=True)
def process() -> Iterator[None]:
    """Leave environment and signals as they were."""
    before = signal.getsignal(signal.SIGUSR1)
    with patch.dict(os.environ):
        yield
    signal.signal(signal.SIGUSR1, before)


def test_a_study_is_named_by_config_or_is_the_one_configfile_that_is_a_study(
    tmp_path: Path,
) -> None:
    study, site = tmp_path / "mine.yaml", tmp_path / "site.yaml"
    study.write_text("title: Mine\nextends: demo\n")
    site.write_text("slurm: {}\n")
    content = {"extends": "demo", "slurm": {}}
    assert call.study_file({}, []) == str(commands.DEFAULT_STUDY)
    assert call.study_file({"slurm": {}}, [site]) == str(commands.DEFAULT_STUDY)
    assert call.study_file(content, [site, study]) == str(study)
    assert call.study_file(content | {"study": "other.yaml"}, [site, study]) == "other.yaml"
    for files in ([site], [study, study]):
        with pytest.raises(DpsweepError, match="name one study"):
            call.study_file(content, files)


def test_suggested_commands_repeat_the_profile_and_the_site(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(commands.OPTIONS, raising=False)
    words = ["snakemake", "--profile", "slurm", "--configfile", "my site.yaml", "-n", "--", "all"]
    monkeypatch.setattr(sys, "argv", words)
    call.prepare_environment()
    said = ["--profile=slurm", "--configfile", "my site.yaml"]
    assert shlex.split(os.environ[commands.OPTIONS])[:3] == said
    assert os.environ["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert call.called_again() == "snakemake --profile slurm --configfile 'my site.yaml' -n -- all"


@pytest.mark.parametrize("at_work", [True, False])
def test_a_lock_stays_while_another_call_is_there(tmp_path: Path, at_work: bool) -> None:
    parent = psutil.Process(os.getppid())
    lock = tmp_path / "0.output.lock"
    lock.touch()
    began = parent.create_time() - psutil.boot_time() - (0 if at_work else 1)
    (tmp_path / f"{os.uname().nodename} {parent.pid}.call").write_text(f"{began:.1f}")
    own = call.CallFile(tmp_path)
    assert lock.exists() == at_work
    assert (tmp_path / f"{os.uname().nodename} {os.getpid()}.call").exists()
    log = tmp_path / "job.log"
    assert not own.has_begun([str(log)])
    log.touch()
    os.utime(log, (2e9, 2e9))
    assert own.has_begun([str(log)])
    os.utime(log, (1e9, 1e9))
    assert not own.has_begun([str(log)])
