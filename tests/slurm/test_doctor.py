"""``dpsweep doctor`` on a real Slurm: it finds nothing wrong there, and names each planted mistake.

Every mistake is planted in a site or a study of its own; the doctors run side by side.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.slurm import cluster
from tests.waiting import PATIENCE
from tests.workflow.chain import ROOT, STUDY

pytestmark = pytest.mark.slow
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

ACCOUNTING = True
AT_ONCE = 4
SITE: dict[str, Any] = {
    "account": "good",
    "gpu_partition": "gpu",
    "cpu_partition": "cpu",
    "gpus": [{"request": "gpu:1", "memory_gigabytes": 80}],
    "time_limit_minutes": 60,
    "require_gpu": False,
}


@dataclass(frozen=True)
class Mistake:
    """A change of what works, and what the doctor must say of it."""

    check: str
    words: str
    site: dict[str, Any] = field(default_factory=dict)
    study: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def request(text: str) -> dict[str, Any]:
    return {"gpus": [{"request": text, "memory_gigabytes": 80}]}


MISTAKES = {
    "account": Mistake("account", "Invalid account", {"account": "project_1"}),
    "no account": Mistake("account", "Invalid account", {"account": "bad"}),
    "GPU partition": Mistake(
        "partition", "slurm.gpu_partition to one of: cpu, gpu", {"gpu_partition": "a100"}
    ),
    "CPU partition": Mistake(
        "partition", "set slurm.cpu_partition to one of: cpu, gpu", {"cpu_partition": "batch"}
    ),
    "QOS": Mistake("qos", "Invalid qos", {"options": "--qos=long"}),
    "GPU type": Mistake("gpu request", "gpu:a100:1", request("gpu:a100:1")),
    "GPU option": Mistake(
        "gpu request", "--gpus-per-node=h100:1", request("--gpus-per-node=h100:1")
    ),
    "time limit": Mistake(
        "time limit", "set slurm.time_limit_minutes to 60", {"time_limit_minutes": 2880}
    ),
    "memory": Mistake(
        "options", "takes the job without this: --mem=90000", {"options": "--mem=90000"}
    ),
    "CPUs": Mistake("cpus", "nodes of partition gpu have 8", study={"threads": 64}),
    "unknown option": Mistake("options", "unrecognized option", {"options": "--colour=red"}),
    "unknown node": Mistake("options", "Invalid node name", {"options": "--exclude=nowhere"}),
    "module": Mistake(
        "setup",
        "this line of slurm.setup failed: module load cuda",
        {"setup": ["true", "module load cuda"]},
    ),
    "command": Mistake(
        "command", "no-container: command not found", {"command": "no-container exec dpsweep"}
    ),
    "other code": Mistake("version", "different code runs", {"command": "{other}"}),
    "no GPU": Mistake(
        "gpu", "this job has asked for a GPU and cannot use one", {"require_gpu": True}
    ),
    "signal": Mistake(
        "signal",
        "slurm.command must let SIGUSR1 through",
        {"command": "env --block-signal=USR1 dpsweep"},
    ),
    "requeue": Mistake("requeue", "scontrol", {"options": "--no-requeue"}),
    "controller": Mistake(
        "controller", "Unable to contact slurm controller", environment={"SLURM_CONF": "{nowhere}"}
    ),
    "no Slurm": Mistake("controller", "sinfo: command not found", environment={"PATH": "{bare}"}),
    "disk": Mistake("disk", "GB left", study={"results": "full"}),
}


class Clinic:
    """A clone with sites and studies to be examined."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "workflow/scripts", folder / "workflow/scripts")
        self._names = {
            "{other}": str(self._other_code()),
            "{nowhere}": str(self._unreachable()),
            "{bare}": str(self._path_without_slurm()),
        }
        (folder / "full").mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder / "full"], check=True
        )

    def close(self) -> None:
        subprocess.run(["umount", self.folder / "full"], check=True)

    def examine(self, name: str, mistake: Mistake | None, *options: str) -> tuple[int, str]:
        """Run a doctor; return its exit status and what it printed."""
        stem = re.sub(r"\W", "_", name)
        study = STUDY | {"results": f"results/{stem}"}
        site, environment = SITE, dict(os.environ)
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        if mistake is not None:
            study |= {key: value for key, value in mistake.study.items() if key != "threads"}
            if "threads" in mistake.study:
                study["training"] = {"threads": mistake.study["threads"]}
            site = SITE | {key: self._names.get(str(v), v) for key, v in mistake.site.items()}
            environment |= {key: self._names[v] for key, v in mistake.environment.items()}
        for suffix, content in (("study", study), ("site", {"slurm": site})):
            (self.folder / f"{stem}.{suffix}.yaml").write_text(yaml.safe_dump(content))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "dpsweep.cli", "doctor"),
                *("--study", f"{stem}.study.yaml", "--site", f"{stem}.site.yaml"),
                *options,
            ],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    def _other_code(self) -> Path:
        """A command that starts a copy of the package which is not this one."""
        package = self.folder / "other/dpsweep"
        shutil.copytree(ROOT / "src/dpsweep", package)
        with (package / "errors.py").open("a") as stream:
            stream.write("# older\n")
        script = self.folder / "other/command"
        script.write_text(
            f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} -m dpsweep.cli "$@"\n'
        )
        script.chmod(0o755)
        return script

    def _unreachable(self) -> Path:
        file = self.folder / "nowhere.conf"
        text = (cluster.CONFIGURATION / "slurm.conf").read_text()
        file.write_text(text + "SlurmctldPort=1\n")
        return file

    def _path_without_slurm(self) -> Path:
        folder = self.folder / "bare"
        folder.mkdir()
        for command in ("bash", "env"):
            (folder / command).symlink_to(str(shutil.which(command)))
        return folder


def headings(output: str) -> list[str]:
    """What the numbered faults are about."""
    return re.findall(r"^\d+\. ([a-z ]+?)(?: \(.*\))?$", output, re.MULTILINE)


@pytest.fixture(scope="module")
def clinic(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    clinic = Clinic(tmp_path_factory.mktemp("clinic"))
    yield clinic
    clinic.close()


@pytest.fixture(scope="module")
def findings(clinic: Clinic) -> dict[str, tuple[int, str]]:
    """What the doctors said, by mistake; "" where there is none."""
    cases: dict[str, Mistake | None] = {"": None, **MISTAKES}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda name: clinic.examine(name, cases[name]), cases)
        return dict(zip(cases, found, strict=True))


def test_nothing_is_wrong_where_nothing_is(findings: dict[str, tuple[int, str]]) -> None:
    status, output = findings[""]
    assert status == 0, output
    table = {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.split()}
    assert table["command"] == ["ok", "ok", "ok"]
    for step in ("request", "start", "snakemake"):
        assert table[step] == ["ok", "ok"], output
    for step in ("gpu", "signal", "requeue"):
        assert table[step] == ["ok"], output
    assert output.endswith("Everything works.\n")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, findings: dict[str, tuple[int, str]]) -> None:
    status, output = findings[name]
    assert status == 1, output
    assert headings(output) == [MISTAKES[name].check], output
    assert MISTAKES[name].words in output
    assert "   To do: " in output


def test_no_job_is_left(findings: dict[str, tuple[int, str]]) -> None:
    assert {state for _, state in cluster.queue()} <= {"COMPLETING"}


def test_a_partition_that_starts_nothing(clinic: Clinic) -> None:
    cluster.partition("gpu", "DOWN")
    try:
        status, output = clinic.examine("down", None)
    finally:
        cluster.partition("gpu", "UP")
    assert status == 1
    assert headings(output) == ["queue"], output
    assert "PartitionDown" in output


def test_a_folder_that_nodes_do_not_see(clinic: Clinic) -> None:
    cluster.hide(clinic.folder)
    try:
        status, output = clinic.examine("elsewhere", None)
    finally:
        cluster.hide(None)
    assert status == 1
    assert headings(output) == ["folder"], output
    assert f"a job must see {clinic.folder}" in output
