"""Record the outputs of the present code, and compare later code with them: a redesign must not change any.

    python -m benchmarks.record write            # write the record with the present code
    python -m benchmarks.record compare          # each difference by name; exits with 1 if there is one
    python -m benchmarks.record compare targets cells jobs   # these parts only

The parts, each a file of benchmarks/results/record/ with one item on a line, under headings:

- targets: the settings of every figure and table of the studies, and the reasons for undrawn ones;
- cells: the path of every cell, with a hash of the keys of its trials. Data, weights and noise are made up,
  so the hash depends only on the study and the code;
- noise: noise multipliers and certified epsilons of all cells of the studies (10 minutes);
- demo: outputs of the demo: a hash of each CSV file, the noise, a hash of the trial keys of each cell. It
  needs results/demo, and another processor changes the last digits of training;
- jobs: the number of jobs of each rule that `snakemake -n` plans without any results.
"""

import hashlib
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple
from multiprocessing import Pool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import torch

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment, snakemake
from dpsweep.base.files import read_json, write_text
from dpsweep.planning.outputs import Outputs
from dpsweep.privacy import Calibration, Sampling
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.tuning import calibrate_tuning
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.paths import Paths, settings_of
from dpsweep.training.trial import specify

FOLDER = RESULTS / "record"
STUDIES = {
    "paper": "config.yaml",
    "demo": "studies/demo.yaml",
    "frozen features": "studies/frozen-features.yaml",
}
DEMO = REPOSITORY / "results" / "demo"
MADE_WITH = "made with"
PACKAGES = ("dp-accounting", "numpy", "opacus", "prv-accountant", "scipy", "torch")
Items = Iterator[tuple[str, str, Any]]
"""Heading, name and value of each item."""


def short_hash(parts: Iterable[Any]) -> str:
    """Return the first 8 digits of a hash of some texts."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:8]


def studies() -> Iterator[tuple[str, Study]]:
    """Yield the studies of the record."""
    for name, file in STUDIES.items():
        yield name, load_study(REPOSITORY / file)


# -- the parts -------------------------------------------------------------------------------


def targets() -> Items:
    """Yield the texts, settings and input files of every target."""
    for study_name, study in studies():
        for kind, found in (("figures", study.figures), ("tables", study.tables)):
            for name, target in found.items():
                yield study_name, f"{kind}/{name}", _target(study, target)
        for name, reason in study.targets.undrawn.items():
            yield study_name, f"not drawn: {name}", reason


def _target(study: Study, target: Any) -> dict[str, Any]:
    outputs = Outputs(study, Paths(Path(study.results)))
    files = [file.as_posix() for file in outputs.drawn_from(target)]
    parts = getattr(target, target.part, [])
    headings = [*(parts if isinstance(parts, list) else []), *getattr(target, "axes", [])]
    apart = {"select", "foreach", target.part}
    return {
        **{key: value for key, value in target.model_dump(mode="json").items() if key not in apart},
        "panels": [
            " | ".join(map(_heading, [each, *getattr(each, "lines", [])])) for each in headings
        ],
        "cells": [
            f"{len(cells)} of {cells[0].problem}, {short_hash(cell.name for cell in cells)}"
            for cells in (each.cells() for each in target.leaves())
        ],
        "files": f"{len(files)}, {short_hash(files)}",
    }


def _heading(part: Any) -> str:
    return next((str(getattr(part, key)) for key in ("title", "label") if hasattr(part, key)), "")


def cells() -> Items:
    """Yield the path of every cell, with a hash of the keys of all trials that its grid may need."""
    for _, study in studies():
        paths = Paths(Path(study.results))
        for cell in study.all_cells():
            path = paths.cell(cell)
            yield path.parent.as_posix(), path.name, short_hash(_trial_keys(study, cell))


def _trial_keys(study: Study, cell: Cell) -> Iterator[str]:
    problem, grid = study.problems[cell.problem], study.sweeps[study.sweep_of(cell)]
    sampling = study.sampling(problem.dataset, cell.epochs, cell.batch_size)
    sigma = 1.0 if math.isfinite(cell.epsilon) else 0.0
    made_up = (sigma, cell.epsilon, "none", cell.epsilon, None, "")
    noise = Calibration(cell.epsilon, study.privacy.delta, *astuple(sampling), *made_up)

    def prepared(**metadata: Any) -> Any:
        return SimpleNamespace(metadata=SimpleNamespace(**metadata), train_units=None)

    data = prepared(checksum=f"data of {problem.dataset}", classes=["a", "b"])
    backbone = prepared(checksum=f"weights of {problem.backbone}")
    for rate in grid.learning_rates:
        for seed in range(1, grid.seeds + 1):
            cpu = torch.device("cpu")
            yield specify(study, cell, noise, data, backbone, cpu, rate, seed).key


def noise() -> Items:
    """Yield noise multiplier and certified epsilon of all private cells, and of some settings of tuning."""
    settings = set()
    for _, study in studies():
        for cell in filter(lambda each: math.isfinite(each.epsilon), study.all_cells()):
            dataset = study.problems[cell.problem].dataset
            sampling = study.sampling(dataset, cell.epochs, cell.batch_size)
            settings.add((*astuple(sampling), float(cell.epsilon), study.privacy.delta))
    with Pool() as pool:
        yield from pool.imap(_calibrated, sorted(settings), chunksize=8)
        yield from pool.imap(_calibrated_tuning, [(1, 3, 1), (8, 3, 1), (1, 10, 0), (8, 10, 0)])


def _calibrated(setting: tuple[int, int, int, float, float]) -> tuple[str, str, list[float]]:
    size, batch_size, steps, epsilon, delta = setting
    found = calibrate(epsilon, delta, size, batch_size, steps)
    name = f"B = {batch_size}, T = {steps}, epsilon = {epsilon:g}"
    return f"N = {size}, delta = {delta:g}", name, [found.noise_multiplier, found.certified_epsilon]


def _calibrated_tuning(setting: tuple[float, float, float]) -> tuple[str, str, list[float]]:
    epsilon, mean, shape = setting
    found = calibrate_tuning(epsilon, 1e-5, mean, shape, [Sampling(1212, 256, 38)])
    (training,) = found.noise
    name = f"epsilon = {epsilon:g}, mean = {mean:g}, shape = {shape:g}"
    certified = [training.noise_multiplier, found.score_noise, found.total_epsilon]
    return "tuning, N = 1212, B = 256, T = 38, delta = 1e-05", name, certified


def demo() -> Items:
    """Yield the outputs of the demo; none if it has not run."""
    for file in sorted([*DEMO.glob("figures/*.csv"), *DEMO.glob("tables/*.csv")]):
        yield file.parent.name, file.name, short_hash([file.read_text(encoding="utf-8")])
    for file in sorted(DEMO.glob("noise/*/*.json")):
        found = read_json(file)
        certified = [found["noise_multiplier"], found["certified_epsilon"]]
        yield file.parent.relative_to(DEMO).as_posix(), settings_of(file), certified
    for file in sorted(DEMO.glob("cells/*/*/trials-*.parquet")):
        keys = pd.read_parquet(file, columns=["trial_key"])["trial_key"]
        cell = file.parent.relative_to(DEMO)
        yield cell.parent.as_posix(), cell.name, f"{len(keys)}, {short_hash(keys)}"


def jobs() -> Items:
    """Yield the number of planned jobs of each rule in an empty folder."""
    for study in ("paper", "demo"):
        with tempfile.TemporaryDirectory() as folder:
            config = f"study={REPOSITORY / STUDIES[study]}"
            options = ("--dry-run", "--quiet", "rules", "--config", config)
            command = snakemake(Path(folder), *options, "--", "all")
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        counts = re.findall(r"^(\S+) +(\d+)$", done.stdout + done.stderr, re.MULTILINE)
        if done.returncode or not counts:
            raise SystemExit(f"{study}: no plan:\n{done.stdout}{done.stderr}")
        for rule, count in sorted(dict(counts).items()):
            yield study, rule, int(count)


PARTS: dict[str, Callable[[], Items]] = {
    part.__name__: part for part in (targets, cells, noise, demo, jobs)
}


# -- the record ------------------------------------------------------------------------------


def found_in(part: str) -> dict[tuple[str, str], Any]:
    """Return the items of a part from the present code, as JSON values, by heading and name."""
    found: dict[tuple[str, str], Any] = {}
    for heading, name, value in PARTS[part]():
        assert (heading, name) not in found, f"{part}: two items are {heading} {name}"
        found[heading, name] = json.loads(as_json(value))
    return found


def as_json(value: Any) -> str:
    """Return JSON on one line."""
    return json.dumps(value, ensure_ascii=False)


def write(part: str) -> None:
    """Write the items of a part from the present code, one on a line."""
    found = found_in(part)
    if not found:
        raise SystemExit(f"{part}: nothing to record; run: make demo")
    processor = f"cpu: {torch.backends.cpu.get_cpu_capability()}"
    content = {MADE_WITH: environment(*PACKAGES, device=processor, load=False)}
    for (heading, name), item in found.items():
        content.setdefault(heading, {})[name] = item
    blocks = []
    for heading, items in content.items():
        lines = ",\n".join(f"  {as_json(name)}: {as_json(item)}" for name, item in items.items())
        blocks.append(f"{as_json(heading)}: {{\n{lines}\n}}")
    write_text(FOLDER / f"{part}.json", "{\n" + ",\n".join(blocks) + "\n}\n")
    print(f"{part}: {len(found)} items recorded", flush=True)


def compare(part: str) -> int:
    """Print the differences from the record; return the number of different items."""
    recorded, now = read_json(FOLDER / f"{part}.json"), found_in(part)
    if not now:
        print(f"{part}: not compared, nothing is there; run: make demo", flush=True)
        return 0
    del recorded[MADE_WITH]
    before = {
        (heading, name): item for heading, of in recorded.items() for name, item in of.items()
    }
    different = [item for item in {**before, **now} if before.get(item) != now.get(item)]
    print(f"{part}: {len(before)} items, {len(different)} differ", flush=True)
    for item in different:
        print(f"  {' '.join(item)}")
        was, is_now = (_parts(items.get(item, {})) for items in (before, now))
        for key in {**was, **is_now}:
            if was.get(key) != is_now.get(key):
                old, new = as_json(was.get(key)), as_json(is_now.get(key))
                print(f"    {key}: {old} is recorded, {new} found")
    return len(different)


def _parts(item: Any) -> dict[str, Any]:
    return item if isinstance(item, dict) else {"value": item}


def main() -> None:
    """Write or compare some parts, or all."""
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("parts", nargs="*", metavar="part", help=", ".join(PARTS))
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"found {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    parts = arguments.parts or list(PARTS)
    if arguments.what == "compare":
        sys.exit(1 if sum(map(compare, parts)) else 0)
    for part in parts:
        write(part)


if __name__ == "__main__":
    main()
