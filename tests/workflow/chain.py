"""Runs the real workflow on a study that trains in seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from benchmarks import warm

ROOT = Path(__file__).parents[2]

STUDY: dict[str, Any] = {
    "title": "Smallest chain",
    "datasets": {
        "digits": {
            "title": "Digits",
            "source": {"kind": "sklearn-digits"},
            "image_size": 8,
            "classes": 10,
            "train_size": 1347,
            "test_size": 450,
        }
    },
    "backbones": {
        "vit": {
            "title": "Smallest ViT",
            "architecture": "vit_tiny_patch16_224",
            "arguments": {
                "img_size": 8,
                "patch_size": 4,
                "in_chans": 1,
                "embed_dim": 16,
                "depth": 1,
                "num_heads": 2,
            },
            "weights": {"kind": "random"},
            "mean": [0.5],
            "std": [0.5],
        }
    },
    "methods": {"film": {"kind": "film"}},
    "sweeps": {
        "digits_vit_film": {
            "dataset": "digits",
            "backbone": "vit",
            "method": "film",
            "epsilon": [8.0],
            "epochs": [2],
            "batch_size": [128, "full"],
            "clipping_bound": [0.1, 1.0],
            "learning_rate": [0.01, 0.03],
            "seeds": 2,
        }
    },
    "roles": {
        "datasets": {"main": "digits"},
        "backbones": {"weak": "vit"},
        "methods": {"main": "film"},
    },
    "figures": {
        "heatmap": {
            "family": "heatmap",
            "section": "Figures",
            "caption": "Accuracy over the grid.",
            "panels": [{"title": "grid", "epochs": 2}],
        },
        "norms": {
            "family": "gradient_norm_distribution",
            "section": "Figures",
            "caption": "Norms.",
            "panels": [
                {
                    "title": "norms",
                    "epsilon": 8.0,
                    "epochs": 2,
                    "clipping_bound": 1.0,
                }
            ],
        },
        "theory": {
            "family": "error_decomposition",
            "section": "Figures",
            "caption": "Errors.",
            "panels": [
                {
                    "title": "error",
                    "epsilon": 8.0,
                    "epochs": 2,
                    "batch_size": 128,
                    "clipping_bound": 1.0,
                }
            ],
        },
    },
    "tables": {
        "grid": {
            "family": "hyperparameter_grid",
            "section": "Tables",
            "caption": "The grid.",
        }
    },
}


class Chain:
    """A study file in a folder of its own, and calls of Snakemake on it."""

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        self.folder = folder
        self.study = study
        self.results = folder / "results"
        self.write()

    def write(self) -> None:
        """Write the study file."""
        content = self.study | {"results": "results"}
        (self.folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))

    def command(
        self, *targets: str, options: tuple[str, ...] = (), config: tuple[str, ...] = ()
    ) -> list[str]:
        """The call of Snakemake."""
        return [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--directory", str(self.folder), "--workflow-profile", "none", "--cores", "2"),
            *("--keep-going", "--rerun-incomplete", "--scheduler", "greedy"),
            *options,
            *("--config", "study=study.yaml", *config),
            *("--", *targets),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """Rules find `dpsweep` beside this Python."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}

    def run(
        self,
        *targets: str,
        options: tuple[str, ...] = (),
        config: tuple[str, ...] = (),
        expect: int = 0,
    ) -> str:
        """Run Snakemake to its end and return what it printed."""
        status = self.fork(*targets, options=options, config=config).wait()
        output = (self.folder / "said.txt").read_text()
        assert status == expect, output + self.logs()
        return output

    def fork(
        self,
        *targets: str,
        options: tuple[str, ...] = (),
        config: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> warm.Run:
        """Fork Snakemake from a process that has imported everything; it prints into said.txt.

        Imports take longer than such a study.
        """
        command = self.command(*targets or ("all",), options=options, config=config)
        _, _, _, *arguments = command  # python -m snakemake
        environment = self.environment if environment is None else environment
        return warm.start(arguments, self.folder, environment, self.folder / "said.txt")

    def start(
        self, environment: dict[str, str] | None = None, target: str = "all"
    ) -> "subprocess.Popen[bytes]":
        """Start Snakemake in a process group of its own."""
        # Signals work as in a terminal, whatever the tests were started from (nohup).
        return subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *self.command(target)],
            env=self.environment if environment is None else environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def logs(self) -> str:
        """All logs of all jobs."""
        found = sorted((self.results / "logs").rglob("*.log"))
        return "\n".join(f"--- {log}\n{log.read_text()}" for log in found if log.stat().st_size)

    def timing(self, cell: str) -> dict[str, Any]:
        """The timing breakdown of a cell of the one sweep."""
        path = self.results / "provenance" / "cells" / "digits_vit_film" / f"{cell}.json"
        content: dict[str, Any] = json.loads(path.read_text())["timing"]
        return content

    def stored_trials(self) -> dict[str, int]:
        """Finished trials of the store: key -> time of writing, ns.

        A write that was killed leaves a hidden file, which is not a trial.
        """
        return {
            path.name.split(".")[0]: path.stat().st_mtime_ns
            for path in (self.results / "trials").glob("*/*.safetensors")
            if ".parameters" not in path.name and not path.name.startswith(".")
        }

    def drawn_numbers(self) -> dict[str, bytes]:
        """Content of every CSV behind a figure or table."""
        return {
            str(path.relative_to(self.results)): path.read_bytes()
            for path in sorted(self.results.glob("*/*.csv"))
        }
