"""The additions of docs/extending.md work and pass the checks; their patches are applied to copies."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from pkgutil import resolve_name

import pandas as pd
import pytest
import yaml
from pydantic import ValidationError

from dpsweep import PrivateTraining
from dpsweep.figures import draw
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from tests.synthetic import write_cells
from tests.waiting import called

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))

# An example file that a study names, without a patch.
FIGURES = "A figure, and a family of figures"
# Places that must agree, without a patch.
SAMPLER = "A sampler beside Poisson"
# The code that uses each addition; `study` is a small study with the page's YAML.
USES = {
    "A clipping rule": """
import torch
(cell,) = study.sweep_cells("psac")
rule, norms = study.clipping(cell), torch.tensor([0.0, 1e-3, 1.0, 1e9], dtype=torch.float64)
assert rule.sensitivity == 1 and bool((norms * rule.factors(norms) <= 1).all())
""",
    "A method": """
from dpsweep.models.architectures import create
from dpsweep.models.build import apply_method, trainable_parameters
network = create(Architecture(library="timm", name="vit_tiny_patch16_224", arguments=TINY), 3)
apply_method(network, study.methods["bias"])
names = set(trainable_parameters(network))
assert "blocks.0.attn.qkv.bias" in names
assert {name for name in names if name.endswith("weight")} == {"head.weight"}
""",
    "An optimizer": """
import torch
from dpsweep.training.optimizer import make_optimizer
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = make_optimizer(study.optimizer("long-memory"), [weight], 0.25, 1.0)
for gradient in ([3.0, -0.1], [-0.02, -5.0]):
    weight.grad = torch.tensor(gradient)
    optimizer.step()
assert weight.tolist() == [-0.5, 0.5], weight  # along the average, not the last gradient
""",
    "A new axis of a sweep": """
cells = [study.sweep_cells(f"averages_{name}")[0] for name in ("early", "late")]
assert [cell.problem for cell in cells] == ["digits_vit_film_early", "digits_vit_film_late"]
weights = [0.0] * 10
for step in range(10):
    weight = study.optimizer("early").average.weight(step + 1, 10)
    weights = [(1 - weight) * each for each in weights]
    weights[step] += weight
assert all(abs(weights[step] - (step + 1) / 55) < 1e-7 for step in range(10))
""",
    "A backbone": """
from dpsweep.models.architectures import create, seeded
section = study.backbones["small-cnn"]
made = Architecture(library=section.library, name=section.architecture, arguments=section.arguments)
with seeded(0):
    compare_with_loop(create(made, 3), "bookkeeping")
""",
    "A layer": """
from torch import nn
for slopes in (1, 3):
    network = nn.Sequential(nn.Conv2d(1, 3, 3), nn.PReLU(slopes), nn.Flatten(), nn.Linear(108, 3))
    compare_with_loop(network, "bookkeeping")
""",
    "A kind of dataset": """
import numpy as np
from pathlib import Path
from dpsweep.data.prepare import prepare
from dpsweep.data.prepared import PreparedDataset
arrays = {
    f"{split}_{what}": array
    for split, count in (("train", 80), ("test", 16))
    for what, array in (
        ("images", np.random.default_rng(count).integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)),
        ("labels", (np.arange(count) % 8)[:, None]),
    )
}
np.savez("bloodmnist.npz", **arrays)
prepare("blood", study.datasets["blood"], Path("out"))
found = PreparedDataset.open(Path("out"))
assert (found.train_inputs == arrays["train_images"]).all()
assert found.metadata.train_counts == (10,) * 8
""",
    "A stage": """
import os, subprocess, sys
from pathlib import Path
import pandas as pd
from dpsweep.study.paths import Paths
from tests.synthetic import write_cells
Path("config.yaml").write_text(yaml.safe_dump(content))
paths = Paths(Path("results"))
write_cells(study, paths, lambda cell, rate, seed: {"macro_accuracy": cell.epsilon / 10 - rate})
snakemake = [sys.executable, "-m", "snakemake", "--cores", "1", "--workflow-profile", "none"]
subprocess.run(
    [*snakemake, "results/best/digits_vit_film.csv"],
    check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(["src", os.environ["PYTHONPATH"]])},
)
found = pd.read_csv("results/best/digits_vit_film.csv")
assert found["learning_rate"].tolist() == [0.01, 0.01] and found["centre"].round(9).tolist() == [0.09, 0.79]
""",
}  # fmt: skip
SMALL = """
title: Small
datasets:
  digits: {title: Digits, source: {kind: sklearn-digits}, classes: 10, train_size: 1347, test_size: 450,
    image_size: 8}
backbones: {vit: {title: ViT, architecture: vit_tiny_patch16_224, weights: {kind: random}}}
methods: {film: {kind: film}}
sweeps:
  one: {dataset: digits, backbone: vit, method: film, epsilon: [1, 8], epochs: [1], batch_size: [32],
    clipping_bound: [1], learning_rate: [0.01, 0.1], seeds: 2}
roles: {datasets: {main: digits}, backbones: {weak: vit}, methods: {main: film}}
"""
BEGIN = """
import yaml
from dpsweep.study import Study
from dpsweep.study.networks import Architecture
TINY = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 32, "depth": 1, "num_heads": 2}
content = yaml.safe_load(SMALL)
for section, entries in (yaml.safe_load(YAML) or {}).items():
    content.setdefault(section, {}).update(entries)
study = Study.model_validate(content)

def compare_with_loop(network, engine):
    import torch
    from dpsweep.gradients import make_engine
    from dpsweep.study.clipping import FlatClipping
    images, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    mask = torch.ones(5, dtype=torch.bool)
    fast, slow = (
        make_engine(each, network).clipped_sum(images, labels, mask, FlatClipping(0.1))
        for each in (engine, "loop")
    )
    torch.testing.assert_close(fast.norms, slow.norms)
    torch.testing.assert_close(fast.gradients, slow.gradients)
"""


def block(section: str, language: str) -> str:
    """Return the block of a language in a section, which has at most one of each."""
    found = re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE)
    return str(*found)


def patch(section: str) -> str:
    """Return the patch of a section: a file that it names, or a block."""
    named = re.findall(r"`git apply (\S+)`", SECTIONS[section])
    return (ROOT / str(*named)).read_text(encoding="utf-8") if named else block(section, "diff")


def files(section: str) -> list[str]:
    """Return the files that an addition changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch(section), re.MULTILINE)


def copy_with(sections: Iterable[str], folder: Path) -> None:
    """Copy the sources into a folder, and apply the patches of some sections there."""
    for name in ("src", "workflow"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    for section in sections:
        subprocess.run(
            ["git", "apply", "-"],
            input=patch(section), cwd=folder, text=True, check=True,
            env=os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )  # fmt: skip


@pytest.mark.parametrize("section", USES)
def test_an_addition_has_at_most_three_files_and_the_page_shows_lines_of_it(section: str) -> None:
    assert SECTIONS.keys() - {FIGURES, SAMPLER} == USES.keys()
    assert 1 <= len(set(files(section))) <= 3
    for shown in re.findall(r"^```python\n(.*?)^```", SECTIONS[section], re.DOTALL | re.MULTILINE):
        added = "".join(f"+{line}" for line in shown.splitlines(keepends=True))
        assert added in patch(section)


@pytest.mark.slow
def test_all_additions_together_pass_the_checks(tmp_path: Path) -> None:
    copy_with(USES, tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if (known := ROOT / ".mypy_cache").exists():
        # The cache of `make check`, with which mypy checks only the changed files.
        shutil.copytree(known, tmp_path / ".mypy_cache")
    touched = [file for section in USES for file in files(section)]
    python, rules = ([file for file in touched if file.endswith(end)] for end in (".py", ".smk"))
    for command in (
        *(["ruff", "check", *python], ["ruff", "format", "--check", *python]),
        *(["snakefmt", "--check", *rules], ["mypy"]),
    ):
        called([sys.executable, "-m", *command], tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("section", USES)
def test_the_addition_works(section: str, tmp_path: Path) -> None:
    copy_with([section], tmp_path)
    script = f"YAML, SMALL = {block(section, 'yaml')!r}, {SMALL!r}\n{BEGIN}\n{USES[section]}"
    places = os.pathsep.join([str(tmp_path / "src"), str(ROOT)])
    called([sys.executable, "-c", script], tmp_path, os.environ | {"PYTHONPATH": places})


def test_the_places_of_a_sampler_exist_and_a_study_cannot_choose_one() -> None:
    places = re.findall(r"^\| `([\w.]+)`", SECTIONS[SAMPLER], re.MULTILINE)
    assert places and all(resolve_name(f"dpsweep.{place}") for place in places)
    with pytest.raises(ValidationError, match="sampling: unknown key"):
        Study.model_validate(yaml.safe_load(SMALL) | {"privacy": {"sampling": "shuffled"}})
    assert "sampler" not in inspect.signature(PrivateTraining).parameters


def test_figures_of_a_file_are_drawn(tmp_path: Path) -> None:
    example = ROOT / "examples" / "figures.py"
    for shown in re.findall(r"^```python\n(.*?)^```", SECTIONS[FIGURES], re.DOTALL | re.MULTILINE):
        assert shown in example.read_text(encoding="utf-8")
    content = yaml.safe_load(SMALL)
    content["sweeps"]["one"] |= {"batch_size": [32, 64], "clipping_bound": [1, 2]}
    shutil.copy(example, tmp_path)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(content | {"figures": "figures.py"}))
    study, paths = load_study(tmp_path / "study.yaml"), Paths(tmp_path / "results")
    write_cells(study, paths, lambda cell, rate, seed: {"macro_accuracy": 0.5 + rate})
    draw(study, paths, "learning_rates")
    numbers = pd.read_csv(paths.figure("learning_rates", "csv"))
    assert (numbers["macro_accuracy"] - numbers["learning_rate"]).round(9).eq(0.5).all()
    assert set(numbers["epsilon"]) == {1, 8}
    draw(study, paths, "map_digits")
    assert study.figures["map_digits"].caption.startswith("ViT on Digits, 1 epoch, ε = 1; mean of")
