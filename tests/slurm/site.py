"""A clone of the workflow that is set up for the test cluster, and keeps a journal of its jobs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.waiting import PATIENCE
from tests.workflow.chain import ROOT, Chain


class Site(Chain):
    """A fresh clone of the workflow, set up for the test cluster, with what others prepared."""

    def __init__(
        self,
        folder: Path,
        study: dict[str, Any],
        prepared: Path,
        trouble: str = "",
        **settings: Any,
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
        self._settings(trouble, settings)
        for stage in ("data", "backbones", "noise"):
            shutil.copytree(prepared / stage, self.results / stage)
            said = Path("provenance") / stage
            shutil.copytree(prepared / said, self.results / said)

    def write(self) -> None:
        content = self.study | {"results": "results"}
        (self.folder / "config.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def _settings(self, trouble: str, settings: dict[str, Any]) -> None:
        # Jobs keep a journal through the site's own setting of how dpsweep is called.
        command = self.folder / "journalled.sh"
        command.write_text(
            "#!/bin/bash\n"
            f'echo "start $SLURM_JOB_ID ${{SLURM_STEP_GPUS:--}} $(date +%s) $*" >> {self.journal}\n'
            f"{trouble}"
            f"exec dpsweep \"$@\" > >(trap '' TERM; exec tee -a {self.journal}) 2>&1\n"
        )
        command.chmod(0o755)
        site = {
            "account": "",
            "gpu_partition": "gpu",
            "cpu_partition": "cpu",
            "gpus": [{"request": "gpu:1", "memory_gigabytes": 80}],
            "time_limit_minutes": 30,
            "job_minutes": 1,
            "signal_seconds": 118,
            "require_gpu": False,
            "command": str(command),
        } | settings
        (self.folder / "profiles/slurm/site.yaml").write_text(yaml.safe_dump({"slurm": site}))
        # A real cluster is polled gently; a test does not wait that long.
        profile = self.folder / "profiles/slurm/config.yaml"
        text = profile.read_text()
        for key, value in {
            "seconds-between-status-checks": "3",
            "slurm-packed-seconds-between-submissions": "0",
            "retries": "1",
        }.items():
            text, found = re.subn(rf"(?m)^{key}: .*$", f"{key}: {value}", text)
            assert found == 1, key
        profile.write_text(text)

    def command(self, *targets: str, **_: Any) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--profile", "slurm", *targets]

    def run(self, *targets: str, expect: int = 0) -> str:
        done = subprocess.run(
            self.command(*targets),
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        output = done.stdout + done.stderr
        assert done.returncode == expect, output[-8000:] + self.journal_text()[-4000:]
        return output

    def journal_text(self) -> str:
        return self.journal.read_text() if self.journal.exists() else ""

    def starts(self, sweep: str) -> list[tuple[str, str, str, int]]:
        """Training that was started: (Slurm job, GPU, cell, time), in order."""
        pattern = rf"^start (\d+) (\S+) (\d+) train --study \S+ {sweep} (\S+)$"
        found = re.findall(pattern, self.journal_text(), re.MULTILINE)
        return [(job, gpu, cell, int(at)) for job, gpu, at, cell in found]

    def cells(self) -> dict[str, int]:
        """Finished cells: name -> time of their last output, ns."""
        done = (self.results / "cells").glob("*/*/steps.parquet")
        return {f"{path.parts[-3]}/{path.parts[-2]}": path.stat().st_mtime_ns for path in done}
