"""Run `snakemake --lint`, and fail on every finding but one.

Snakemake expects a conda environment or a container for each rule. All rules of this workflow run in
the environment where snakemake is installed (requirements.lock, environment.yml), so this finding does
not apply.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ACCEPTED = "Specify a conda environment or container for each rule.:"


def main() -> None:
    """Print the findings, and exit with status 1 if there are others than the accepted one."""
    study = Path("config.yaml").absolute()
    # In a temporary folder, because Snakemake writes files where it runs and into the results folder.
    with tempfile.TemporaryDirectory() as folder:
        command = ["snakemake", "--lint", "--directory", folder, "--config", f"study={study}"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    report = run.stdout + run.stderr
    titles = [line.strip()[2:] for line in report.splitlines() if line.startswith("    * ")]
    if "Lints for" not in report and run.returncode != 0:
        sys.exit(report)
    if any(title != ACCEPTED for title in titles):
        sys.exit(report)
    print("snakemake --lint: nothing to fix")  # noqa: T201


if __name__ == "__main__":
    main()
