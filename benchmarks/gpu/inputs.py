"""Fill a folder with all that the GPU kit reads, where there is a network.

    python -m benchmarks.gpu.inputs FOLDER --python 3.12

It holds the prepared CIFAR-100 and ViT-Tiny of studies/gpu-cifar100.yaml, the calibrations of its cells,
and wheels of the small packages that torch, timm, peft and transformers do not bring, for the
Python of the other machine. Large files are cut into parts (`parts/`), which may be carried one by
one: the kit joins them when all are there.
"""

import subprocess
import sys
from pathlib import Path

from benchmarks.common import command_line
from dpsweep.base.files import atomic_path, checksum, read_json, write_json

PART_BYTES = 40_000_000
PACKAGES = (
    *("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection"),
    "xxhash",
)


def prepare_inputs(folder: Path) -> None:
    """Prepare data and weights, and calibrate the noise of every cell."""
    from benchmarks.gpu.trials import STUDY  # noqa: PLC0415
    from dpsweep.data.prepare import prepare  # noqa: PLC0415
    from dpsweep.models.prepare import prepare as prepare_backbone  # noqa: PLC0415
    from dpsweep.privacy.calibration import calibrate  # noqa: PLC0415
    from dpsweep.privacy.stored import write_calibration  # noqa: PLC0415
    from dpsweep.study import load_study  # noqa: PLC0415
    from dpsweep.study.paths import Paths  # noqa: PLC0415

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
            noise = calibrate(
                cell.epsilon,
                study.privacy.delta,
                study.train_size(dataset),
                study.batch_size(cell),
                study.steps(dataset, cell.epochs, cell.batch_size),
            )
            write_calibration(path, noise)
        print(path, flush=True)


def bring_packages(folder: Path, python: str) -> None:
    """Install the small packages for a Python on 64-bit Linux, whatever this machine has."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps"),
            *("--only-binary=:all:", "--implementation", "cp", "--python-version", python),
            *("--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_17_x86_64"),
            *("--target", str(folder / "packages"), *(f"{each}{_pin(each)}" for each in PACKAGES)),
        ],
        check=True,
    )


def _pin(package: str) -> str:
    from importlib.metadata import version  # noqa: PLC0415

    return f"=={version(package)}"


def cut_into_parts(folder: Path) -> None:
    """Cut the files that are larger than a part; the parts' list says what they become."""
    for file in sorted(folder.glob("data/*/*.npy")):
        if file.stat().st_size <= PART_BYTES:
            continue
        name = "-".join(file.relative_to(folder).parts)
        names = []
        with file.open("rb") as stream:
            while content := stream.read(PART_BYTES):
                names.append(f"{name}.{len(names)}")
                (folder / "parts").mkdir(exist_ok=True)
                (folder / "parts" / names[-1]).write_bytes(content)
        whole = {"file": str(file.relative_to(folder)), "sha256": checksum(file), "parts": names}
        write_json(folder / "parts" / f"{name}.json", whole)


def join_parts(folder: Path) -> None:
    """Make the files whose parts are all there."""
    for listed in sorted(folder.glob("parts/*.json")):
        whole = read_json(listed)
        file, parts = folder / whole["file"], [listed.parent / each for each in whole["parts"]]
        if file.exists() or not all(part.exists() for part in parts):
            continue
        with atomic_path(file) as partial:
            with partial.open("wb") as stream:
                for part in parts:
                    stream.write(part.read_bytes())
            if checksum(partial) != whole["sha256"]:
                raise SystemExit(f"{file}: its parts do not have the checksum of {listed}")


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    arguments = parser.parse_args()
    prepare_inputs(arguments.folder)
    bring_packages(arguments.folder, arguments.python)
    cut_into_parts(arguments.folder)
