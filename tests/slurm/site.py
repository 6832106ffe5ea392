"""A clone of the workflow that is configured for the test cluster and keeps a journal of its jobs."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.described import described
from tests.waiting import called
from tests.workflow.chain import ROOT, Chain

# A real cluster is polled less often, but a test should not wait that long.
PROFILE = {
    "runtime": "30",
    "local-cores": "2",
    "seconds-between-status-checks": "3",
    "slurm-init-seconds-before-status-checks": "3",
    "max-status-checks-per-second": "1",
    "retries": "1",
}


class Site(Chain):
    """A fresh clone of the workflow, configured for the test cluster, with inputs prepared elsewhere."""

    def __init__(
        self,
        folder: Path,
        study: dict[str, Any],
        prepared: Path | None = None,
        trouble: str = "",
        **settings: str,
    ) -> None:
        folder.mkdir()
        for name in ("workflow", "profiles"):
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "Snakefile", folder)
        (folder / "slurm").symlink_to("profiles/slurm")
        super().__init__(folder, study)
        self.journal = folder / "journal.txt"
        self._settings(trouble, PROFILE | settings)
        if prepared is not None:
            shutil.copytree(prepared, self.results)

    def write(self) -> None:
        content = self.study | {"results": "results"}
        content = described(content, self.folder)
        (self.folder / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def _settings(self, trouble: str, settings: dict[str, str]) -> None:
        # Jobs call this script instead of dpsweep, as they would call a container; it keeps a journal.
        command = self.folder / "journalled.sh"
        command.write_text(
            "#!/bin/bash\n"
            f'echo "start ${{SLURM_JOB_ID:-here}} ${{SLURM_STEP_GPUS:--}} $(date +%s) $*" >> {self.journal}\n'
            f"{trouble}"
            # Jobs write at the same time, so each line begins with Slurm's number of its job.
            "exec dpsweep \"$@\" > >(trap '' TERM; "
            f'exec tee >(exec sed -u "s/^/${{SLURM_JOB_ID:-here}} /" >> {self.journal})) 2>&1\n'
        )
        command.chmod(0o755)
        self._variables |= {"DPSWEEP_COMMAND": str(command), "DPSWEEP_REQUIRE_GPU": "0"}
        profile = self.folder / "profiles/slurm/config.yaml"
        text = profile.read_text()
        for key, value in settings.items():
            text, found = re.subn(rf"(?m)^( *){key}: [\d.]+$", rf"\g<1>{key}: {value}", text)
            assert found == 1, key
        profile.write_text(text)

    def command(self, *targets: str, **_: Any) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--profile", "slurm", *targets]

    def run(self, *targets: str, expect: int = 0) -> str:
        done = called(self.command(*targets), self.folder, self.environment, status=None)
        output = done.stdout + done.stderr
        assert done.returncode == expect, output[-8000:] + self.journal_text()[-4000:]
        return output

    def journal_text(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    def snakemake_log(self) -> str:
        """Return the logs of all calls of Snakemake."""
        logs = sorted((self.folder / ".snakemake/log").iterdir())
        return "".join(log.read_text() for log in logs)

    def evidence(self) -> str:
        """Return output of jobs, Snakemake and Slurm, without progress and plans, for the error of a test."""
        events = [line for line in self.journal_text().splitlines() if " step " not in line]
        said = re.findall(
            r"^.*(?:[Ee]rror|status is|Trying|attempt).*$", self.snakemake_log(), re.MULTILINE
        )
        listed = ["squeue", "--states=all", "--noheader", "--format=%i %T %r %S %M %k"]
        jobs = called(listed, status=None).stdout
        return "\n".join([*events[-60:], "", *said[-40:], "", *jobs.splitlines()[-60:]])

    def starts(self, sweep: str) -> list[tuple[str, str, str, int]]:
        """Return the started trainings: (Slurm job, GPU, cell, time), in order."""
        pattern = rf"^start (\S+) (\S+) (\d+) train .*\b{sweep} (\S+)(?: --planned \S+)?$"
        found = re.findall(pattern, self.journal_text(), re.MULTILINE)
        return [(job, gpu, cell, int(at)) for job, gpu, at, cell in found]

    def cells(self) -> dict[str, int]:
        """Return finished cells: name -> time of their last output, ns."""
        done = (self.results / "cells").glob("*/*/steps*.parquet")
        return {f"{path.parts[-3]}/{path.parts[-2]}": path.stat().st_mtime_ns for path in done}
