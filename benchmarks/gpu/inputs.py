"""Write all inputs of the GPU kit to a folder, on a machine with a network.

    python -m benchmarks.gpu.inputs FOLDER --python 3.12

The inputs are the prepared CIFAR-100 and ViT-Tiny of studies/gpu-cifar100.yaml, the calibrations of its
cells, and small packages that torch, timm, peft and transformers do not install, for the Python of the
machine with the GPU.
"""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.common import command_line
from benchmarks.gpu.trials import STUDY
from dpsweep.data.prepare import prepare
from dpsweep.models.prepare import prepare as prepare_backbone
from dpsweep.privacy.calibration import calibrate_sampling
from dpsweep.privacy.noise import write_calibration
from dpsweep.study import Paths, load_study

PACKAGES = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    "xxhash",
)


def prepare_inputs(folder: Path) -> None:
    """Prepare data and weights, and calibrate the noise of every cell."""
    study, paths = load_study(STUDY), Paths(folder)
    for name in dict.fromkeys(problem.dataset for problem in study.problems.values()):
        if not (paths.dataset(name) / "metadata.json").exists():
            prepare(name, study.datasets[name], paths.dataset(name))
    for name in dict.fromkeys(problem.backbone for problem in study.problems.values()):
        if not (paths.backbone(name) / "metadata.json").exists():
            prepare_backbone(name, study.backbones[name], paths)
    for cell in study.all_cells():
        dataset = study.problems[cell.problem].dataset
        path = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        if not path.exists():
            sampling = study.sampling(dataset, cell.epochs, cell.batch_size)
            noise = calibrate_sampling(cell.epsilon, study.privacy.delta, sampling)
            write_calibration(path, noise)
        print(path, flush=True)


def bring_packages(folder: Path, python: str) -> None:
    """Install the small packages for a given Python on 64-bit Linux; this machine may have another one."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
            *("--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64"),
            *("--target", str(folder / "packages")),
            *(f"{each}=={version(each)}" for each in PACKAGES),
        ],
        check=True,
    )


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    arguments = parser.parse_args()
    prepare_inputs(arguments.folder)
    bring_packages(arguments.folder, arguments.python)
