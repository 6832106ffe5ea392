"""Reading studies from YAML: overlays, numbers, paths, files that are refused; and finding their files."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.described import described
from tests.study.small import SMALL
from typer.testing import CliRunner

from dpsweep.cli.main import app
from dpsweep.study import StudyError, load_study
from dpsweep.study.load import DEFAULT_STUDY, OPTIONS, begin, make_command
from dpsweep.study.networks import FileWeights, HubWeights


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The small study, for others to extend."""
    path = tmp_path / "base.yaml"
    path.write_text(yaml.safe_dump(described(SMALL, tmp_path), sort_keys=False))
    return path


def overlay(base: Path, text: str, name: str = "overlay.yaml") -> Path:
    path = base.with_name(name)
    path.write_text(f"extends: {base.name}\n{text}")
    return path


def refused(path: Path) -> str:
    with pytest.raises(StudyError) as error:
        load_study(path)
    message = str(error.value)
    assert str(path) in message and "Traceback" not in message
    assert error.value.__suppress_context__ or error.value.__context__ is None
    assert len(message.splitlines()) <= 24 and len(message) < 3000
    return message


# -- overlays ------------------------------------------------------------------------------

WEIGHTS = "backbones: {random: {weights: {kind: %s}}}"


def test_mappings_are_merged_and_other_values_replaced(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (base.parent / "studies").mkdir()
    path = base.parent / "studies" / "overlay.yaml"
    # The path of the study below is relative to the overlay.
    changes = "title: Other\nsweeps: {flat: {epsilon: [2]}}\nfigures: none\n"
    path.write_text(f"extends: ../base.yaml\n{changes}")
    monkeypatch.chdir("/")
    study, below = load_study(path), load_study(base)
    assert study.title == "Other"
    assert list(study.sweeps) == ["flat", "automatic"]
    assert study.sweeps["flat"].epsilon == [2]  # a list is not merged with the list below
    assert study.sweeps["flat"].clipping_bound == below.sweeps["flat"].clipping_bound
    assert study.sweeps["automatic"] == below.sweeps["automatic"]
    assert study.datasets == below.datasets


def test_a_section_of_another_kind_replaces_the_one_below(base: Path) -> None:
    hub = overlay(base, WEIGHTS % "hub, id: someone/net", "hub.yaml")
    commit = "a" * 40
    for text, expected in (
        ("file, path: a.safetensors", FileWeights(kind="file", path="a.safetensors")),
        (f"hub, revision: {commit}", HubWeights(kind="hub", id="someone/net", revision=commit)),
    ):
        assert load_study(overlay(hub, WEIGHTS % text)).backbones["random"].weights == expected


def test_overlays_stack_and_replace(base: Path) -> None:
    rates = "{first: 1, last: 2, count: 2}"
    first = f"sweeps: {{flat: {{seeds: 7, epochs: [1, 2], learning_rate: !replace {rates}}}}}"
    once = overlay(base, first, "once.yaml")
    flat = load_study(overlay(once, "sweeps: {flat: {epochs: [2, 4, 8]}}")).sweeps["flat"]
    # A replacement or a single key deep in a mapping keeps the keys beside it.
    assert (flat.learning_rates, flat.seeds, flat.epochs) == ([1, 2], 7, [2, 4, 8])
    none = overlay(base, "sweeps: !replace {}", "none.yaml")
    sweeps = {"sweeps": {"flat": SMALL["sweeps"]["flat"]}}
    assert list(load_study(overlay(none, yaml.safe_dump(sweeps))).sweeps) == ["flat"]


# -- numbers and paths -----------------------------------------------------------------------


def test_numbers_are_read_as_people_read_them(base: Path) -> None:
    for text in ("1e-5", "1E-5", "1.0e-5", "0.00001", "+1e-5", "10e-6", "1.e-5"):
        assert load_study(overlay(base, f"privacy: {{delta: {text}}}")).privacy.delta == 1e-5
    # YAML 1.1 reads octal and base-60 numbers.
    for text in ("0300", "-017", "1:30", "1:30:05", "0_17", "1:30.5"):
        said = refused(overlay(base, f"datasets: {{digits: {{train_size: {text}}}}}"))
        assert f'datasets.digits.train_size: found "{text}"; allowed: a valid integer' in said
        assert load_study(overlay(base, f"title: {text}")).title == text
    for text in ("1" + 400 * "0", 5000 * "9", "0x" + 300 * "f"):
        said = refused(overlay(base, f"datasets: {{digits: {{train_size: {text}}}}}"))
        assert f'datasets.digits.train_size: found "{text[:50]}' in said
    # An infinite epsilon would train without privacy.
    for text in ("1e400", "1.5E+999", "1" + 400 * "0"):
        said = refused(overlay(base, f"sweeps: {{flat: {{epsilon: [8, {text}]}}}}"))
        assert "sweeps.flat.epsilon[1]: found " in said and "; allowed: a valid number" in said


def test_every_path_of_a_study_expands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("EMPTY", "")  # $EMPTY/results would be /results
    (tmp_path / "base.yaml").write_text(
        "extends: demo\nresults: ${SCRATCH}/results\nfigures: none\n"
        "datasets: {digits: {source: !replace {kind: folder, path: ~/images}}}\n"
        "backbones:\n"
        "  copied: {title: A, architecture: 'local-dir:$SCRATCH/vit', weights: {kind: random}}\n"
    )
    file = tmp_path / "study.yaml"
    file.write_text("extends: ~/base.yaml\n")
    study = load_study(file)
    assert study.results == f"{tmp_path}/scratch/results"
    assert study.backbones["copied"].described_at == ("local-dir", f"{tmp_path}/scratch/vit")
    assert study.datasets["digits"].source.local_folders() == {"path": f"{tmp_path}/images"}
    for path in (
        "results: $NOWHERE/results",
        "results: ${EMPTY}results",
        "extends: ${NOWHERE}/base.yaml",
        "figures: [$NOWHERE/a.py]",
        "backbones: {vit: {architecture: 'local-dir:$NOWHERE/vit'}}",
    ):
        file.write_text(path if path.startswith("extends") else f"extends: demo\n{path}\n")
        assert re.search(r"\$.* is not, or is empty", refused(file))


# -- refused files ------------------------------------------------------------------------

EXTENDS = "extends: base.yaml\n"
LONG = "d" * 100  # the longest allowed name
TOO_LONG = {
    "datasets": {LONG: SMALL["datasets"]["digits"]},
    "backbones": {LONG: SMALL["backbones"]["random"]},
    "sweeps": {"one": SMALL["sweeps"]["flat"] | {"dataset": LONG, "backbone": LONG}},
}
MANY = ", ".join(f"{0.1 + number / 1000}" for number in range(50_000))
SWEEP = f"{EXTENDS}sweeps: {{flat: {{%s}}}}"
IMAGES = f"{EXTENDS}datasets: {{digits: {{source: !replace {{kind: folder, path: %s}}}}}}"
REFUSED = [
    *(
        (text, 'cannot be read as YAML: *", line ')
        for text in ("title: [1, 2\n", "? {a: 1}\n: 3\n", "a: *missing\n", "a: &a {b: *a}\n")
    ),
    ("a: !!python/object/apply:os.system ['true']\n", 'cannot be read as YAML: *", line '),
    *((text, "cannot be read as YAML") for text in ("title: !!int abc", "title: 2024-13-45")),
    (f"{EXTENDS}privacy: {{delta: {'1' * 5000}}}", 'privacy.delta: found "1111'),
    (f"title: {'[' * 500}{']' * 500}", "cannot be read as YAML: maximum recursion"),
    *((text, "allowed: a mapping of sections (title, datasets,") for text in ("", "- a\n- b\n")),
    ("extends: [a.yaml]\n", "extends: found *, or the path of a file"),
    *(
        (f"{EXTENDS}privacy: {{delta: {each}}}", 'privacy.delta: found "')
        for each in ("'1e-5'", "e-5")
    ),
    (f"{EXTENDS}? ", "the study: found null; allowed: strings"),
    (f"{EXTENDS}audit: !replace null", "expected a mapping node, but found scalar*line 2"),
    (f"{EXTENDS}figures: wrong.csv", "wrong.csv; allowed: a Python file, whose name ends in .py"),
    (f"{EXTENDS}references: paper.csv", "references: [Errno 2] No such file"),
    (f"{EXTENDS}references: wrong.csv", "references[0].value: found"),
    (f'{EXTENDS}references: "a\\0b"', "control characters"),
    (f"{EXTENDS}results: {'r' * 300}", "at most 255 bytes"),
    (f'{EXTENDS}results: "res{{cell}}"', "a path without { and }"),
    (IMAGES % "~nosuchuser/x", "users that exist"),
    (SWEEP % "learning_rate: {first: 0.001, last: 0.1, count: 1000000000}", "1000"),
    (SWEEP % f"epsilon: [{MANY}]", "1000"),
    (SWEEP % "seeds: 1000000000", "1000"),
    (SWEEP % "learning_rate: [0.1, 0.10000000000001]", "values that differ in six digits"),
    (f"{EXTENDS}methods: {{lora: {{rank: 10000000}}}}", "equal to 4096"),
    (f"{EXTENDS}backbones: {{random: {{mean: [.nan]}}}}", "a finite number"),
    (f"{EXTENDS}roles: {{neighbours: {{film: [3, 2, 1]}}}}", "sorted from small to large"),
    (
        EXTENDS + yaml.safe_dump(TOO_LONG),
        "sweeps.one: found names of dataset, backbone and method with 206 characters together",
    ),
    ("title: a\nsweeps: {}\ntitle: b\n", 'line 3: "title" is defined twice, first on line 1'),
    ("extends: other.yaml\n", "extends itself"),
    ("extends: absent.yaml\n", 'extends: no such file as *absent.yaml: found "absent.yaml"'),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_invalid_study_files_are_refused(base: Path, text: str, said: str) -> None:
    base.with_name("wrong.csv").write_text("dataset,value\ndigits,high\n")
    base.with_name("other.yaml").write_text("extends: study.yaml\n")
    path = base.with_name("study.yaml")
    path.write_text(text)
    message = refused(path)
    for part in said.split("*"):
        assert part in message


@settings(max_examples=75)
@given(st.binary(max_size=60) | st.text(alphabet="abc:{}[]&*!-|>?'\"\n 0159e.~,%@", max_size=40))
def test_random_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, text: bytes | str
) -> None:
    file = tmp_path_factory.getbasetemp() / "random.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(StudyError):
        load_study(file)


# -- finding a study --------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder outside of the clone, with one study."""
    (tmp_path / "pets.yaml").write_text("extends: demo\nresults: results/pets\nfigures: none\n")
    (tmp_path / "other.yaml").write_text("name: no study\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str) -> str:
    """Return the output of a command, or its error."""
    done = CliRunner().invoke(app, words)
    return str(done.exception) if done.exception else done.output


def test_a_study_is_found_by_its_file_or_as_the_only_one(folder: Path) -> None:
    for words in ("pets.yaml", "--study pets.yaml", ""):
        said = call("plan", *words.split(), "digits_vit-weak_film")
        assert re.match(r"0 of \d+ cells are done\.", said), said


def test_paths_and_suggested_commands_start_where_the_user_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the command changes to the folder of its first study."""
    (folder / "sub").mkdir()
    for start, named in ((folder, "pets.yaml"), (folder / "sub", "../pets.yaml")):
        monkeypatch.chdir(start)
        said = call("status", named)
        assert Path.cwd() == folder and "results/pets: no such folder" in said
        monkeypatch.chdir(start)
        assert Path(shlex.split(said)[-1]).samefile(folder / "pets.yaml")
    (folder / "cats.yaml").write_text((folder / "pets.yaml").read_text())
    trials = folder / "results" / "pets" / "cells" / "former" / "cell.parquet"
    trials.parent.mkdir(parents=True)
    trials.touch()
    said = call("clean", "../pets.yaml", "../cats.yaml")
    assert said.splitlines()[:2] == [str(trials), "1 file of former settings, 0.0 MB"]


def test_suggested_commands_name_the_study_and_force_existing_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    assert make_command(DEFAULT_STUDY, ["audit"]) == "snakemake -- audit"
    command = shlex.split(make_command(Path("studies/my pets.yaml"), ["a", Path("b/c.json")]))
    assert command == ["snakemake", "--config", "study=studies/my pets.yaml", "--", "a", "b/c.json"]
    assert "--force" in make_command(DEFAULT_STUDY, [tmp_path])
    monkeypatch.chdir(tmp_path)  # without a Snakefile
    command = shlex.split(make_command(Path("pets.yaml"), ["audit"]))
    assert command == ["dpsweep", "run", "pets.yaml", "audit"]


def test_jobs_of_slurm_get_the_signal_before_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where options on the command line replace those of the profile."""
    monkeypatch.setattr("sys.argv", ["snakemake"])
    for own, expected in (({}, "USR1@120"), ({"SBATCH_SIGNAL": "USR1@600"}, "USR1@600")):
        monkeypatch.setattr("os.environ", {"PATH": "", **own})
        begin({})
        assert os.environ["SBATCH_SIGNAL"] == expected
