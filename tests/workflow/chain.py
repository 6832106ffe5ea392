"""Calls of the real workflow on a study that trains in seconds."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from benchmarks.campaigns import warm
from benchmarks.common import snakemake
from tests.described import described

from dpsweep.study import Cell, Study, load_study
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]
PATHS = Paths(Path("results"))
# As in profiles/default.
TRIGGERS = ("--rerun-triggers", "mtime", "params")


VIT = """
backbones:
  vit: {title: Tiny ViT, architecture: vit_tiny_patch16_224}
methods:
  film: {kind: film}
roles:
  backbones: {weak: vit}
  methods: {main: film}
figures:
  heatmap: {family: heatmap, panels: [{title: heatmap, epochs: 2}]}
  norms:
    family: gradient_norm_distribution
    panels: [{title: norms, epsilon: 8.0, epochs: 2, clipping_bound: 1.0}]
  theory:
    family: error_decomposition
    panels: [{title: theory, epsilon: 8.0, epochs: 2, clipping_bound: 1.0}]
tables:
  grid: {family: hyperparameter_grid, section: Tables, caption: The grid.}
"""


def vit_study(
    title: str, datasets: dict[str, Any], backbone: dict[str, Any], **sweep: Any
) -> dict[str, Any]:
    """Return a study of FiLM with a tiny ViT on the first dataset, with a figure for every stage.

    Args:
        title: of the study.
        datasets: their sections.
        backbone: other keys of its section; ``arguments`` are added to those of a tiny network.
        sweep: ``batch_size`` and ``clipping_bound``, with 1.0 among its values.
    """
    content: dict[str, Any] = {"title": title, "datasets": datasets} | yaml.safe_load(VIT)
    name = next(iter(datasets))
    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
    content["backbones"]["vit"] |= backbone | {"arguments": shape | backbone.get("arguments", {})}
    content["sweeps"] = {
        f"{name}_vit_film": {
            **{"dataset": name, "backbone": "vit", "method": "film"},
            **{"epsilon": [8.0], "epochs": [2], **sweep},
            **{"learning_rate": [0.01, 0.03], "seeds": 2},
        }
    }
    content["roles"]["datasets"] = {"main": name}
    content["figures"]["theory"]["panels"][0]["batch_size"] = sweep["batch_size"][0]
    for figure in content["figures"].values():
        figure |= {"section": "Figures", "caption": "What was measured."}
    return content


STUDY = vit_study(
    "Smallest chain",
    {
        "digits": {
            **{"title": "Digits", "source": {"kind": "sklearn-digits"}, "image_size": 8},
            **{"classes": 10, "train_size": 1347, "test_size": 450},
        }
    },
    {"arguments": {"in_chans": 1}, "weights": {"kind": "random"}, "mean": [0.5], "std": [0.5]},
    batch_size=[128, "full"],
    clipping_bound=[0.1, 1.0],
)


class Workflow:
    """Calls of Snakemake on a study file.

    Attributes:
        folder: Snakemake's working folder.
        file: the study, relative to ``folder``.
        results: the results folder of the study.
    """

    def __init__(
        self,
        folder: Path,
        file: str = "study.yaml",
        results: str | Path = "results",
        variables: dict[str, str] | None = None,
    ) -> None:
        """Set the study; ``variables`` are added to the environment of calls."""
        self.folder, self.file = folder, file
        self.results = folder / results
        self._output = folder / "said.txt"
        self._variables = variables or {}

    def command(
        self, *targets: str, options: tuple[str, ...] = (), config: tuple[str, ...] = ()
    ) -> list[str]:
        """Return the call of Snakemake."""
        return [
            *snakemake(self.folder, "--keep-going", "--rerun-incomplete", *TRIGGERS, *options),
            *("--config", f"study={self.file}", *config),
            *("--", *targets),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a call, in which rules find `dpsweep` beside this Python."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | self._variables

    def run(
        self,
        *targets: str,
        options: tuple[str, ...] = (),
        config: tuple[str, ...] = (),
        expect: int = 0,
    ) -> str:
        """Run Snakemake to its end, and return its output."""
        status = self.fork(*targets, options=options, config=config).wait()
        assert status == expect, self.said + self.logs()
        return self.said

    def fork(
        self,
        *targets: str,
        options: tuple[str, ...] = (),
        config: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> warm.Run:
        """Fork Snakemake from a process that has imported everything, because imports take longer."""
        command = self.command(*targets or ("all",), options=options, config=config)
        _, _, _, *arguments = command  # python -m snakemake
        return warm.start(arguments, self.folder, environment or self.environment, self._output)

    def start(
        self,
        *targets: str,
        options: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start Snakemake as a shell does, in its own process group."""
        command = self.command(*targets or ("all",), options=options)
        return as_in_a_terminal(command, self.folder, environment or self.environment, self._output)

    @property
    def said(self) -> str:
        """The output of the last call so far."""
        return self._output.read_text()

    def logs(self) -> str:
        """Return the logs of all jobs."""
        found = sorted((self.results / "logs").rglob("*.log"))
        return "\n".join(f"--- {log}\n{log.read_text()}" for log in found if log.stat().st_size)


def as_in_a_terminal(
    command: list[str], folder: Path, environment: dict[str, str], said: Path
) -> "subprocess.Popen[bytes]":
    """Start a command with the default signal handlers of a terminal, even if nohup started the tests."""
    with said.open("wb") as stream:
        return subprocess.Popen(
            ["env", "--default-signal=INT,HUP", *command],
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdout=stream,
            stderr=stream,
        )


class Chain(Workflow):
    """A study in its own folder. To edit it, change ``study`` and call `write`."""

    def __init__(self, folder: Path, study: dict[str, Any]) -> None:
        super().__init__(folder)
        self.study = study
        self.write()

    def write(self) -> None:
        """Write the study file."""
        content = self.study | {"results": "results"}
        (self.folder / self.file).write_text(
            yaml.safe_dump(described(content, self.folder), sort_keys=False)
        )

    @property
    def parsed(self) -> Study:
        """The current study."""
        return load_study(self.folder / self.file)

    def cell_file(self, cell: str, problem: str = "digits_vit_film") -> str:
        """Return the file of a cell's trials for the current study, relative to the folder."""
        return str(PATHS.cell_trials(self.parsed, Cell.parse(problem, cell)))

    def stored_trials(self) -> dict[str, int]:
        """Return the finished trials in the store: key -> time of writing, ns.

        A killed write leaves a hidden file, which does not count.
        """
        return {
            path.name.split(".")[0]: path.stat().st_mtime_ns
            for path in (self.results / "trials").glob("*/*.safetensors")
            if ".parameters" not in path.name and not path.name.startswith(".")
        }

    def drawn_numbers(self) -> dict[str, bytes]:
        """Return the content of every CSV behind a figure or table."""
        return {
            str(path.relative_to(self.results)): path.read_bytes()
            for path in sorted(self.results.glob("*/*.csv"))
        }
