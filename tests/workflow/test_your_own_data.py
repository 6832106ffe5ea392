"""The studies of docs/your-own-data.md run as printed, with fewer pixels, and the slowest with fewer cells.

Their data are generated, as small as the studies declare. Data and weights of the hub are in a cache of the
hub, as after a download. The weights are random, and the network that reads texts is small, as the
``config.json`` beside its weights states. Images have 96 pixels, not 224.
"""

import csv
import re
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tokenizers
import yaml
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as PillowImage
from safetensors.torch import save_file
from tests.workflow.chain import ROOT, Workflow
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from transformers import DistilBertConfig
from typer.testing import CliRunner

from dpsweep.base.files import write_json
from dpsweep.cli.main import app
from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.study import Study, load_study
from dpsweep.study.backbones import Architecture

TEXT = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")
STUDIES = {
    name: f"# {name}\n{rest}"
    for name, rest in re.findall(
        r"^```yaml\n# (studies/\S+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE
    )
}
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
VIT = ("timm/vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *map(str, range(40)), "say", "then", "stop"]
READER = {"dim": 32, "n_heads": 2, "n_layers": 2, "hidden_dim": 64, "vocab_size": len(PIECES)}


def picture(label: int, random: np.random.Generator) -> bytes:
    """Return a JPEG image: noise around the brightness of its class."""
    pixels = random.integers(0, 100, size=(24, 20, 3)) + 70 * label
    stream = BytesIO()
    PillowImage.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def make_folder(repository: Path, cache: Path) -> None:
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for label, name in enumerate(("cat", "dog", "eel")):
            folder = repository / "data" / "pets" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.jpg").write_bytes(picture(label, random))
    make_weights(cache, *VIT)


def make_hub_dataset(repository: Path, cache: Path) -> None:
    random = np.random.default_rng(0)
    names = ["angular_leaf_spot", "bean_rust", "healthy"]
    features = Features({"image": Image(), "labels": ClassLabel(names=names)})
    folder = snapshot(cache, "datasets", "AI-Lab-Makerere/beans")
    for split, count in (("train", 1034), ("validation", 133), ("test", 128)):
        labels = [number % 3 for number in range(count)]
        images = [{"bytes": picture(label, random), "path": None} for label in labels]
        Dataset.from_dict({"image": images, "labels": labels}, features=features).to_parquet(
            folder / f"{split}-00000-of-00001.parquet"
        )
    make_weights(cache, *VIT)


def make_table(repository: Path, cache: Path) -> None:
    folder = repository / "data" / "mails"
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("test", 10)):
        with (folder / f"{split}.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["text", "label"])
            for number in range(count):
                table.writerow([f'say "{number}", then\nstop', ("ham", "spam")[number % 2]])
    weights = load_study(ROOT / "config.yaml").backbones["distilbert"].weights
    files = make_weights(cache, weights.id, "distilbert", READER, weights.revision)  # type: ignore[union-attr]
    write_json(files / "config.json", DistilBertConfig(**READER).to_dict())
    library = tokenizers.Tokenizer(
        WordPiece({piece: number for number, piece in enumerate(PIECES)}, unk_token="[UNK]")  # noqa: S106
    )
    library.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    library.save(str(files / "tokenizer.json"))


def make_backbone(repository: Path, cache: Path) -> None:
    make_folder(repository, cache)
    make_weights(cache, "timm/convnext_atto.d2_in1k", "convnext_atto")


def snapshot(cache: Path, kind: str, repository: str, revision: str | None = None) -> Path:
    """Return the folder of a commit in the hub's cache."""
    folder = cache / f"{kind}--{repository.replace('/', '--')}"
    commit = folder / "snapshots" / (revision or COMMIT)
    commit.mkdir(parents=True, exist_ok=True)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision or COMMIT)
    return commit


def make_weights(
    cache: Path,
    repository: str,
    name: str,
    reader: dict[str, int] | None = None,
    revision: str | None = None,
) -> Path:
    """Write random weights of a network of timm, or of one that reads texts; return their folder."""
    library = "transformers" if reader else "timm"
    with seeded(0):
        network = create(Architecture(library=library, name=name, arguments=reader or {}), 2)
    state = state_without_head(network)
    if reader:
        # Published files name the tensors without our wrapper.
        state = {key.partition(".")[2]: value for key, value in state.items()}
    folder = snapshot(cache, "models", repository, revision)
    save_file(state, folder / "model.safetensors")
    return folder


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "studies/pets.yaml": make_folder,
    "studies/beans.yaml": make_hub_dataset,
    "studies/mails.yaml": make_table,
    "studies/convnext.yaml": make_backbone,
}


def example(name: str, folder: Path) -> Study:
    """Return a study of the page, in its own folder."""
    (folder / "studies").mkdir(parents=True)
    shutil.copy(ROOT / "config.yaml", folder)
    shutil.copy(ROOT / "studies" / "paper-accuracies.csv", folder / "studies")
    for each, block in STUDIES.items():
        (folder / each).write_text(block)
    return load_study(folder / name)


def test_every_example_is_run_and_short() -> None:
    assert STUDIES.keys() == MAKERS.keys()
    assert STUDIES.keys() == {name for names in RUNS for name in names}
    for name, block in STUDIES.items():
        assert len(block.splitlines()) < 20 + 1, name  # the first line is the file's name


@pytest.mark.parametrize("name", MAKERS)
def test_the_page_lists_the_figures_of_an_example(name: str, tmp_path: Path) -> None:
    study = example(name, tmp_path)
    page = TEXT[TEXT.index(f"# {name}") :]
    figures, tables, report, named = re.search(  # type: ignore[union-attr]
        r"\*Result:\* (\d+) figures and (\d+) tables in `(\S+)`, among them (.*?)\.\n", page
    ).groups()
    assert (int(figures), int(tables)) == (len(study.figures), len(study.tables))
    assert report == f"{study.results}/report.html"
    assert set(re.findall("`(.*?)`", named)) <= set(study.figures)


# A study that extends another one continues in its results, with some trained cells. Those that are not drawn
# train only their cells at epsilon 8.
RUNS = (
    ("studies/pets.yaml", "studies/convnext.yaml"),
    *((name,) for name in ("studies/beans.yaml", "studies/mails.yaml")),
)
DRAWN = {"studies/beans.yaml", "studies/mails.yaml"}


@pytest.mark.nightly
@pytest.mark.parametrize("names", RUNS, ids=lambda names: names[-1])
def test_example_runs_with_fewer_pixels(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, cache = tmp_path / "repository", tmp_path / "cache"
    study = example(names[0], repository)
    images = [name for name, each in study.datasets.items() if each.kind == "image"]
    smaller: dict[str, Any] = {
        "datasets": {name: {"image_size": 96} for name in images},
        "backbones": {"vit-tiny": {"arguments": {"img_size": 96}}} if images else {},
    }
    MAKERS[names[-1]](repository, cache)
    monkeypatch.chdir(repository)
    offline = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    results, files = Path(study.results), []
    tables: set[Path] = set()
    for name in names:
        sweeps = [] if name in DRAWN else load_study(Path(name)).sweeps
        file = Path(name).with_suffix(".smaller.yaml")
        fewer = {"sweeps": {each: {"epsilon": [8]} for each in sweeps}, "results": study.results}
        file.write_text(yaml.safe_dump({"extends": Path(name).name} | smaller | fewer))
        files.append(str(file))
        study, before = load_study(file), tables
        workflow = Workflow(repository, str(file), results, offline)
        wanted = (
            []
            if name in DRAWN
            else [f"{results}/problems/{each}.parquet" for each in study.problems]
        )
        # Not forked: the hub's library reads its variables when it is imported.
        assert workflow.start(*wanted).wait() == 0, workflow.said + workflow.logs()
        tables = set(results.glob("problems/*.parquet"))
        assert {table.stem for table in tables} == set(study.problems)
        for table in tables - before:
            trials = pd.read_parquet(table)
            assert not trials["diverged"].any()
            assert (trials["certified_epsilon"] <= 8).all()
        if name in DRAWN:
            page = (results / "report.html").read_text()
            for target in (*study.figures, *study.tables):
                assert f'id="target-{target}"' in page
            assert "cannot be shown yet" not in page
            assert {path.stem for path in results.glob("figures/*.pdf")} == set(study.figures)
    if len(files) > 1:
        said = CliRunner().invoke(app, ["compare", *files]).output
        assert "# Pets, and Pets with ConvNeXt" in said
