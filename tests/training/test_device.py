"""The device of a job, and the settings of a cluster that need another profile."""

import os

import pytest

from dpsweep.base.errors import DpsweepError
from dpsweep.study.file import Training
from dpsweep.training.device import check_machine, default_device

# As Slurm 22.05 and 24.11 print them.
CONFIG = """Configuration data as of 2026-11-01T10:00:00
AccountingStorageType   = {accounting}
MinJobAge               = {age} sec
PreemptExemptTime       = 00:00:00
PreemptMode             = {preempt}
PreemptType             = preempt/partition_prio

Slurmctld(primary) at node1 is UP
"""
SACCT, RETRIES, ADMINISTRATORS = "slurm-status-command: sacct", "retries: 10", "administrators"


@pytest.mark.parametrize(
    ("preempt", "age", "accounting", "advice"),
    [
        ("OFF", 300, "(null)", set()),
        ("REQUEUE", 120, "accounting_storage/slurmdbd", set()),
        ("GANG,SUSPEND", 300, "accounting_storage/slurmdbd", set()),
        ("CANCEL", 300, "accounting_storage/slurmdbd", {RETRIES}),
        ("GANG,CANCEL", 10, "accounting_storage/slurmdbd", {RETRIES, SACCT}),
        ("OFF", 60, "accounting_storage/slurmdbd", {SACCT}),
        ("OFF", 60, "(null)", {ADMINISTRATORS}),
        ("OFF", 119, "accounting_storage/none", {ADMINISTRATORS}),
    ],
)
def test_settings_of_slurm_that_need_another_profile(
    preempt, age, accounting, advice, tmp_path, monkeypatch
):
    """A script prints what ``scontrol show config`` would."""
    scontrol, written = tmp_path / "bin" / "scontrol", tmp_path / "here.txt"
    scontrol.parent.mkdir()
    config = CONFIG.format(preempt=preempt, age=age, accounting=accounting)
    scontrol.write_text(
        f'#!/bin/sh\n[ "$*" = "show config" ] || exit 3\ncat <<"END"\n{config}END\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    check_machine(Training(), written)
    said = written.read_text()
    assert f"PreemptMode={preempt}, MinJobAge={age} s" in said
    assert {each for each in (SACCT, RETRIES, ADMINISTRATORS) if each in said} == advice


@pytest.mark.parametrize(
    ("word", "gpu", "outcome"),
    [
        ("0", False, "cpu"),
        ("false", False, "cpu"),
        ("1", False, "set DPSWEEP_REQUIRE_GPU=0"),
        ("true", False, "set DPSWEEP_REQUIRE_GPU=0"),
        *(("no", gpu, "DPSWEEP_REQUIRE_GPU: found no; allowed: true or") for gpu in (True, False)),
    ],
)
def test_a_job_of_slurm_trains_on_its_cpu_only_where_that_is_allowed(
    monkeypatch, word, gpu, outcome
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setenv("SLURM_JOB_GPUS", "0")
    monkeypatch.setenv("DPSWEEP_REQUIRE_GPU", word)
    if outcome == "cpu":
        assert default_device().type == "cpu"
    else:
        with pytest.raises(DpsweepError, match=outcome):
            default_device()
