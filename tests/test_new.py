"""`dpsweep new` writes a study of a dataset; `check` accepts it and `plan` estimates its cost."""

import csv
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PillowImage
from typer.testing import CliRunner

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import Gpu
from dpsweep.cli.check import check
from dpsweep.cli.main import app
from dpsweep.cli.options import find_study
from dpsweep.data.prepare import load
from dpsweep.planning.plan import Plan
from dpsweep.privacy.noise import Sampling
from dpsweep.recommend.new import FoundDataset, new_study
from dpsweep.recommend.rule import LEAST_STEPS, expected_gradient_norm, facts_of_sweep, recommend
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from tests.data.pictures import picture

ROOT = Path(__file__).parents[1]
COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
FILE = Path("studies/pets.yaml")


@pytest.fixture(autouse=True)
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the paper's study, and a cache of the hub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpsweep.recommend.rule.noise_multiplier", rough_noise)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("dpsweep.study.load.PROJECT", tmp_path)  # where paths start
    monkeypatch.setattr("dpsweep.study.load.IN_CLONE", True)
    shutil.copy(ROOT / "config.yaml", tmp_path)
    (tmp_path / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "paper-accuracies.csv", tmp_path / "studies")
    return tmp_path


def rough_noise(epsilon: float, delta: float, sampling: Sampling) -> float:
    """Return a rough noise multiplier, because an accountant takes half a second."""
    return 0.5 + 4 * sampling.rate * sampling.steps**0.5 / epsilon


def new(*options: str) -> Study:
    """Call the command, and return its study."""
    done = CliRunner().invoke(app, ["new", str(FILE), *options])
    if done.exception is not None:
        raise done.exception
    return load_study(FILE)


def accept(study: Study) -> None:
    """Check a study, and estimate its cost."""
    paths = Paths(Path(study.results))
    assert "pets: " in "\n".join(check(study, paths, 0))
    assert "0 of" in next(iter(Plan(study, paths).lines([1])))
    assert {"tab1_tuning_implications", "taba2_datasets"} <= set(study.tables)


def make_images(counts: dict[str, int]) -> None:
    for folder, count in counts.items():
        place = Path(folder)
        place.mkdir(parents=True)
        for number in range(count):
            PillowImage.new("RGB", (4, 4), (number, 0, 0)).save(place / f"{number}.png")


def make_table(name: str, rows: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    with Path(name).open("w", newline="") as stream:
        csv.writer(stream).writerows([columns, *rows])


def test_a_folder_of_images_with_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsweep.cli.studies.visible_gpus", lambda: [Gpu("0", "0", "H100", 80.0)])
    sizes = {"train": 15, "val": 4, "test": 5}
    make_images({f"my pets/{split}/{name}": sizes[split] for split in sizes for name in "abc"})
    study = new("--images", "my pets")
    accept(study)
    pets = study.datasets["pets"]
    assert (pets.classes, pets.train_size, pets.test_size) == (3, 57, 15)
    ((name, sweep),) = study.sweeps.items()
    assert name == "pets_vit-tiny_film"
    norm = expected_gradient_norm(study, name).value
    assert sweep.clipping_bounds == pytest.approx([0.15 * norm, 0.6 * norm], rel=0.05)
    # The small grids of both epsilons, with rates a factor of two apart at most.
    (epochs,) = sweep.epochs  # 8 would be too few steps
    made = [recommend(facts_of_sweep(study, name, epsilon, epochs)) for epsilon in (1, 8)]
    assert all(each.steps >= LEAST_STEPS for each in made)
    rates = [rate for each in made for found in each.small_grid.values() for rate in found]
    grid = np.array(sweep.learning_rates)
    assert (grid[0], grid[-1]) == pytest.approx((min(rates), max(rates)), rel=0.05)
    assert (grid[1:] / grid[:-1]).max() < 2.2
    sizes = [pets.train_size if size == "full" else int(size) for size in sweep.batch_size]
    for each in made:
        assert any(1 / 3 < size / each.batch_size < 3 for size in sizes)
    assert {"fig1_accuracy_heatmaps", "fig2_clipping_vs_difficulty"} <= set(study.figures)


def test_private_data_get_a_release_instead_of_a_sweep() -> None:
    make_images({"photos/cat": 40, "photos/Train": 30})  # a class that is no split
    study = new("--images", "photos", "--private", "--epsilon", "2.5")
    assert study.datasets["pets"].private and study.budget is not None and study.release is not None
    (name,) = study.sweeps
    assert (study.release.sweep, study.release.epsilon, study.budget.epsilon) == (name, 2.5, 2.5)
    (cell, rate) = study.release.candidates(study.sweeps[name].problem.name)[0]
    expected = recommend(facts_of_sweep(study, name, 2.5, cell.epochs))
    assert study.numeric_batch_size("pets", cell.batch_size) == expected.batch_size
    assert rate == pytest.approx(expected.learning_rate, rel=0.05)
    assert cell.clipping_bound == pytest.approx(expected.clipping_bound, rel=0.05)
    # The next steps at the head of the study are those of a release, not of a sweep.
    head = FILE.read_text().partition("extends:")[0].splitlines()[2:]
    assert [line.split()[2] for line in head] == ["check", "run", "verify"]
    notes = "\n".join(check(study, Paths(Path(study.results)), 0))
    assert "run only with --unaccounted; a release needs no sweep" in notes


def publish(name: str, features: Features, splits: dict[str, dict[str, list[object]]]) -> None:
    """Write a dataset into the hub's cache, as after a download."""
    folder = Path("cache") / f"datasets--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for split, rows in splits.items():
        Dataset.from_dict(rows, features=features).to_parquet(
            snapshot / f"{split}-00000-of-00001.parquet"
        )


def test_a_dataset_of_the_hub() -> None:
    features = Features({"picture": Image(), "kind": ClassLabel(names=["cat", "dog"])})
    rows: dict[str, list[object]] = {"picture": [{"bytes": picture(9), "path": None}] * 20}
    rows["kind"] = [0, 1] * 10
    publish("someone/pets", features, {"train": rows, "validation": rows, "test": rows})
    source = new("--hub", "someone/pets").datasets["pets"].source
    assert source.model_dump(exclude_defaults=True) == {
        **{"kind": "hub", "id": "someone/pets", "revision": COMMIT},
        **{"train_splits": ["train", "validation"], "input_column": "picture"},
        "label_column": "kind",
    }
    FILE.unlink()
    features = Features({"title": Value("string"), "body": Value("string"), "tag": Value("int64")})
    rows = {"title": ["a"] * 20, "body": ["b c"] * 20, "tag": [0, 1] * 10}
    publish("someone/mails", features, {"train": rows, "dev": rows})
    with pytest.raises(DpsweepError, match='column: found "label"; allowed: title, body, tag'):
        new("--hub", "someone/mails")
    study = new("--hub", "someone/mails", "--label-column", "tag", "--text-column", "body")
    pets = study.datasets["pets"]
    assert (pets.kind, pets.tokenizer) == ("text", "distilbert")
    assert pets.source.test_split == "validation"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        (["--private"], "2 of 44 texts are longer than max_length (1024 bytes)"),
        ([], "1 of 44 texts are longer than max_length (128 tokens)"),
    ],
)
def test_texts_that_are_cut_are_counted_in_the_unit_of_the_network(
    options: list[str], cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The network of a release reads bytes, others read tokens."""
    many, long = " ".join("a" * 150), " ".join(["pneumonoultramicroscopic"] * 60)
    rows = [("few words", "ham"), ("other words", "spam")] * 20
    rows += [(many, "ham"), (long, "ham"), (long, "spam"), (" ", "ham")]
    make_table("train.csv", rows, ("mail", "kind"))
    columns = ("--input-column", "mail", "--label-column", "kind")
    done = CliRunner().invoke(app, ["new", str(FILE), "--texts", "train.csv", *columns, *options])
    assert f"note: at least {cut}" in done.output
    assert "note: left out 1: train.csv, data row 44: an empty text" in done.output
    study = load_study(FILE)
    pets = study.datasets["pets"]
    assert (pets.classes, pets.train_size + pets.test_size, pets.corrupt) == (2, 43, "skip")
    list(check(study, Paths(Path(study.results)), 0))
    assert f"pets: at least {cut}" in caplog.text


def make_embeddings(name: str, size: int) -> None:
    embeddings = np.random.default_rng(size).normal(size=(size, 12)).astype(np.float32)
    np.savez(name, x=embeddings, y=np.array(["ham", "spam"])[np.arange(size) % 2])


def test_embeddings_in_two_files() -> None:
    make_embeddings("train.npz", 240)
    make_embeddings("test.npz", 60)
    study = new("--embeddings", "train.npz", "test.npz")
    accept(study)
    pets, backbone = study.datasets["pets"], study.backbones["embedding"]
    source = {"kind": "arrays", "train": "train.npz", "test": "test.npz"}
    assert pets.source.model_dump(exclude_defaults=True) == source
    assert (pets.kind, pets.dimension) == ("embedding", 12)
    assert (pets.train_size, pets.test_size) == (240, 60)
    assert (backbone.reads, backbone.normalisation) == ("embedding", ((), ()))
    # Every normalised embedding has the length sqrt(12).
    norm = expected_gradient_norm(study, "pets_embedding_head").value
    assert norm == pytest.approx((0.5 * 13) ** 0.5)
    (sweep,) = study.sweeps.values()
    assert sweep.clipping_bounds[0] == pytest.approx(0.15 * norm, rel=0.05)
    assert {"fig1_accuracy_heatmaps", "fig3_gradnorm_distributions"} <= set(study.figures)


def test_embeddings_of_one_number_are_not_normalised_and_rows_left_out_are_counted() -> None:
    """Normalising a single number gives 0."""
    numbers = np.random.default_rng(0).normal(size=(300, 1)).astype(np.float32)
    numbers[[3, 50]] = np.nan
    np.savez("all.npz", x=numbers, y=np.arange(300) % 2)
    network = new("--embeddings", "all.npz").backbones["embedding"]
    assert network.arguments == {"dimension": 1}
    assert "corrupt: skip # examples that cannot be used: 2" in FILE.read_text()


REFUSED = [
    (("--images", "pets", "--hub", "a/b"), "found none or several of --images, --hub, --texts"),
    (("--images", "pets", "--backbone", "vit-tni"), "did you mean vit-tiny?"),
    (("--images", "pets", "--backbone", "distilbert"), "found pets (images); allowed: what"),
    (("--images", "one"), "folder one: found one class, cat; allowed: two or more"),
    (("--images", "empty"), "empty: found no training example of bird; allowed: one or more of each"),
    (("--images", "large"), "large: found the folders Train; allowed: train, and test, validation, val"),
    (("--images", "mixed"), "mixed: found the folders Test, train; allowed: train, and test, validation"),
    (("--images", "pets", "--unit", "folder"), "no such folder; allowed: <split>/<class>/<unit>/<image>"),
    (("b.csv", "--images", "pets"), "found b.csv; allowed: a test file with --texts or --embeddings"),
    (("--texts", "a.csv"), "a.csv: found 0 columns 'text'; allowed: one, of one, two, three"),
    (("--texts", "b.csv", "b.csv"), "test: found b.csv, which is in train too; allowed: each once"),
    (("--texts", "none.csv"), "none.csv: no such file"),
    (("--embeddings", "ids.npz"), "0.2 of 30 examples of 30 classes, which leaves none to test on"),
    (("--texts", "pets"), "pets: found a folder; allowed: .csv, .tsv, .jsonl, .parquet"),
    (("--texts", "l.jsonl"), ": no text but [19], and no row of its split can be used"),
    (("--embeddings", "a.npy"), "a.npy: found nothing; allowed: one array with one label for each"),
    (("--embeddings", "a.npz", "--backbone", "vit-tiny"), "found --embeddings with --backbone"),
    (("--embeddings", "a.npz", "--input-column", "z"), "allowed: one array that is named z with float32"),
    (("--embeddings", "a.npz", "a.npz"), "test: found a.npz, which is in train too"),
    (("--texts", "n.jsonl", "b.csv"), "n.jsonl, data row 2: no text but 7, and no row of its"),
]  # fmt: skip


def test_refused_options_leave_no_file() -> None:
    sizes = {"pets/cat": 20, "pets/dog": 20, "one/cat": 20, "empty/cat": 20, "large/Train/cat": 1}
    sizes |= {"mixed/train/cat": 1, "mixed/Test/cat": 1}
    make_images(sizes | {"empty/bird": 0})
    Path("l.jsonl").write_text("".join(f'{{"text": [{n}], "label": {n % 2}}}\n' for n in range(20)))
    make_table("a.csv", [("x", "1", "2")], ("one", "two", "three"))
    make_table("b.csv", [("x", "1")], ("text", "label"))
    Path("n.jsonl").write_text('{"text": null, "label": 0}\n{"text": 7, "label": 1}\n')
    make_embeddings("a.npz", 20)
    np.savez("ids.npz", x=np.ones((30, 2), np.float32), y=np.arange(30))
    np.save("a.npy", np.zeros((5, 2), np.float32))
    for options, message in REFUSED:
        with pytest.raises(DpsweepError) as error:
            new(*options)
        assert message in str(error.value)
        assert not FILE.exists()
    FILE.write_text("title: mine")
    with pytest.raises(DpsweepError, match="exists already"):  # before data are read
        new("--images", "missing")
    assert FILE.read_text() == "title: mine"
    for name in ("my pets.yaml", "pets.txt", "pets"):
        done = CliRunner().invoke(app, ["new", name, "--images", "missing"])
        assert f"{name}: found the name {name}; allowed: letters" in str(done.exception)


def test_the_name_of_a_study_may_be_a_number() -> None:
    make_embeddings("a.npz", 20)
    CliRunner().invoke(app, ["new", "2024.yaml", "--embeddings", "a.npz"])
    assert load_study(Path("2024.yaml")).datasets.keys() == {"2024"}


@pytest.mark.parametrize("size", [2, 3_000])
def test_a_study_of_any_size_is_valid_and_delta_is_below_one_over_n(size: int) -> None:
    found = FoundDataset(
        kind="image",
        source={"kind": "folder", "path": "a: b"},
        classes=["no", "yes"],
        train_counts=[size // 2, size - size // 2],
        test_counts=[3, 4],
    )
    study = new_study(FILE, "config.yaml", found)
    assert study.privacy.delta * size < 1
    assert study.datasets["pets"].source.path == "a: b"  # type: ignore[union-attr]
    (sweep,) = study.sweeps.values()
    assert len(sweep.batch_size) >= 2
    assert len(FILE.read_text().splitlines()) < 45


def test_paths_start_at_the_folder_of_a_study_outside_of_a_clone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpsweep.study.load.PROJECT", ROOT)
    make_images({"pets/cat": 8, "pets/dog": 8})
    new("--images", "pets", "--extends", "paper", "--private")
    assert "dpsweep verify studies/results/pets/release\n" in FILE.read_text()
    _, study, _ = find_study(FILE)  # changes to the folder that paths start at
    assert study.datasets["pets"].source.local_folders() == {"path": "../pets"}
    assert len(load(study.datasets["pets"]).classes) == 2


def test_a_network_keeps_the_dataset_that_pretrains_it() -> None:
    demo = load_study(ROOT / "studies" / "demo.yaml").model_dump(mode="json", exclude_unset=True)
    own = {
        "datasets": {"glyphs": demo["datasets"]["glyphs"]},
        "backbones": {"own": demo["backbones"]["vit-weak"]},
    }
    Path("base.yaml").write_text(yaml.safe_dump({"extends": "config.yaml", **own}))
    make_images({"pets/train/cat": 8, "pets/train/dog": 8, "pets/test/cat": 4, "pets/test/dog": 4})
    study = new("--images", "pets", "--extends", "base.yaml", "--backbone", "own")
    assert "glyphs" in study.datasets
    assert {sweep.dataset for sweep in study.sweeps.values()} == {"pets"}


# -- units -----------------------------------------------------------------------------------


def unit_arguments(kind: str, rows: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Write a dataset of two classes with a unit for each row; return the options that name it."""
    units, labels = [unit for unit, _ in rows], [label for _, label in rows]
    names = np.array(["ham", "spam"])[labels].tolist()
    match kind:
        case "images" | "folder":
            between, option = ("_", r"(\w+)_") if kind == "images" else ("/", "folder")
            for place, (unit, name) in enumerate(zip(units, names, strict=True)):
                file = Path("pets", name, f"{unit}{between}{place}.png")
                file.parent.mkdir(parents=True, exist_ok=True)
                PillowImage.new("RGB", (4, 4)).save(file)
            return ("--images", "pets", "--unit", option)
        case "texts" | "parquet":
            table = [
                (f"text {place}", *each)
                for place, each in enumerate(zip(names, units, strict=True))
            ]
            make_table("all.csv", table, ("text", "label", "who"))
            if kind == "parquet":
                Dataset.from_csv("all.csv", cache_dir="cache").to_parquet("all.parquet")
            return ("--texts", "all.csv" if kind == "texts" else "all.parquet", "--unit", "who")
        case "embeddings":
            inputs = np.random.default_rng(0).normal(size=(len(rows), 12)).astype(np.float32)
            np.savez("all.npz", x=inputs, y=names, who=units)
            return ("--embeddings", "all.npz", "--label-column", "y", "--unit", "who")
    raise ValueError(kind)


@pytest.mark.parametrize("kind", ["images", "folder", "texts", "parquet", "embeddings"])
def test_new_reads_units_and_splits_by_them(kind: str) -> None:
    """40 units with 1, 2 or 6 rows; three quarters are of the first class."""
    rows = [
        (f"p{unit}", int(unit % 4 == 0)) for unit in range(40) for _ in range((1, 2, 6)[unit % 3])
    ]
    options = unit_arguments(kind, rows)
    done = CliRunner().invoke(app, ["new", str(FILE), *options])
    assert done.exit_code == 0, done.exception
    # A fifth of the 30 units of one class and of the 10 of the other.
    assert (
        f"units ({options[-1]}): 32 + 8; rows in a unit: smallest 1, median 2, largest 6"
        in done.output
    )
    pets = load_study(FILE).datasets["pets"]
    assert (pets.unit, pets.train_units) == (options[-1], 32)
    assert pets.train_size + pets.test_size == len(rows)
    data = load(pets)
    assert data.train.units is not None and data.test.units is not None
    both = [set(split.units) for split in (data.train, data.test)]
    assert not both[0] & both[1] and both[0] | both[1] == {unit for unit, _ in rows}
    label_of = dict(rows)
    assert sum(label_of[unit] == data.classes.index("spam") for unit in both[1]) == 2
    for split in (data.train, data.test):
        assert [label_of[unit] for unit in split.units] == split.labels.tolist()  # type: ignore[union-attr]


ROWS = [(f"p{row // 4}", row % 2) for row in range(40)]
UNITS_REFUSED = [
    ("folder", [("all", row % 2) for row in range(40)], None, "found all in all 40 rows; allowed: at least"),
    ("texts", [(("ham", "spam")[row % 2], row % 2) for row in range(40)], None,
        "found one unit of each class, ham, spam; allowed: what says whose row it is"),
    ("texts", ROWS, "text", "found text, which is the input_column; allowed: another column"),
    ("embeddings", ROWS, "y", "found y, which is the label_column; allowed: another column"),
    # pandas writes whole numbers as 7.0 where one is missing, which would be another unit than 7.
    *((kind, [("7.0", 1), *ROWS], None, "found the unit '7.0'; allowed: a whole number or a name")
        for kind in ("texts", "parquet", "embeddings")),
    ("parquet", [("", 1), *ROWS], None, "; allowed: a whole number or a name"),
    ("texts", ROWS, "", "found"),
    ("images", ROWS, "patient", "found patient with 0 groups; allowed: a regular expression with one group"),
    ("images", ROWS, "(a)(b)", "found (a)(b) with 2 groups; allowed: a regular expression with one group"),
    ("images", ROWS, "folder", "no such folder"),
    ("images", ROWS, "(p", "found (p, which is no regular expression"),
    ("images", ROWS, r"(\d+)x", "found no unit in its name; allowed: names in which unit: (\\d+)x finds one"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "rows", "unit", "message"), UNITS_REFUSED)
def test_what_names_no_unit_is_refused(
    kind: str, rows: list[tuple[str, int]], unit: str | None, message: str
) -> None:
    options = unit_arguments(kind, rows)
    with pytest.raises(DpsweepError, match=re.escape(message)):
        new(*options[:-1], options[-1] if unit is None else unit)
    assert not FILE.exists()


def test_units_of_one_row_are_rows() -> None:
    options = unit_arguments("texts", [(f"p{row}", row % 2) for row in range(40)])
    said = "each unit (who) has one row, so epsilon protects a row, as unit: row says"
    assert f"note: {said}" in CliRunner().invoke(app, ["new", str(FILE), *options]).output
    lines = "\n".join(check(load_study(FILE), Paths(Path("results")), 0))
    assert said.replace("(who)", "of pets") in lines


def test_units_of_the_hub() -> None:
    kinds = {"text": Value("string"), "label": Value("int64"), "author": Value("string")}

    def rows(first: int) -> dict[str, list[object]]:
        numbers = range(first, first + 20)
        texts, authors = [f"text {i}" for i in numbers], [f"a{i // 4}" for i in numbers]
        return {"text": texts, "label": [0, 1] * 10, "author": authors}

    def splits(**firsts: int) -> dict[str, dict[str, list[object]]]:
        return {split: rows(first) for split, first in firsts.items()}

    publish("someone/mails", Features(kinds), splits(train=0, validation=20, test=40))
    pets = new("--hub", "someone/mails", "--unit", "author").datasets["pets"]
    assert (pets.unit, pets.train_units, pets.train_size) == ("author", 10, 40)
    data = load(pets)
    assert data.train.units is not None and data.test.units is not None
    assert [*data.train.units, *data.test.units] == [f"a{i // 4}" for i in range(60)]
    FILE.unlink()
    with pytest.raises(DpsweepError, match='column: found "writer"; allowed: text, label, author'):
        new("--hub", "someone/mails", "--unit", "writer")
    publish("someone/twice", Features(kinds), splits(train=0, test=18))
    with pytest.raises(
        DpsweepError, match="unit: found 1 unit in the training and in the test set, a4"
    ):
        new("--hub", "someone/twice", "--unit", "author")


def test_noise_delta_and_batch_sizes_of_new_count_units() -> None:
    """1,000 rows of 50 units: with delta = 1e-5 both are fine, so the base study has a larger one."""
    options = unit_arguments("embeddings", [(f"p{i // 20}", i // 20 % 2) for i in range(1000)])
    Path("base.yaml").write_text("extends: config.yaml\nprivacy: {delta: 0.005}\n")
    for unit, n in (("who", 40), ("row", 800)):
        study = new(*options[:-1], unit, "--extends", "base.yaml")
        (sweep,) = study.sweeps.values()
        assert study.train_size("pets") == pytest.approx(n, rel=0.1)
        assert 0.1 / n < study.privacy.delta < 1 / study.train_size("pets")
        assert all(
            size == "full" or int(size) <= study.train_size("pets") for size in sweep.batch_size
        )
        FILE.unlink()
