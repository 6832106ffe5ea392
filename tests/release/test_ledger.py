"""The ledger of releases, the budget of a study, and sweeps without an account."""

import contextlib
import json
import math
import os
import random
import re
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.common import snakemake
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from snakemake.cli import parse_config
from tests.release.releases import FIXED, PRIVATE, Content, release
from tests.release.releases import study as study_of
from tests.training.tiny_study import tiny_sections
from tests.waiting import called
from typer.testing import CliRunner

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import with_fingerprint
from dpsweep.cli import run
from dpsweep.cli.main import app
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.accountants import composed_epsilon, total_delta
from dpsweep.privacy.calibration import calibrate
from dpsweep.release import (
    ReleaseError,
    epsilon_of_sweeps,
    price,
    private_sweeps,
    refuse_unaccounted,
)
from dpsweep.release import train as release_training
from dpsweep.release.certificate import ReleasedModel
from dpsweep.release.ledger import (
    Ledger,
    account,
    open_ledger,
    refuse_beyond_budget,
    released_together,
)
from dpsweep.release.train import check_budget
from dpsweep.report import write as write_report
from dpsweep.study import Study, StudyError
from dpsweep.study.load import UNACCOUNTED, begin
from dpsweep.study.paths import Paths

DELTA = 1e-5
PETS, CATS = [["path", "data", "pets"]], [["path", "data", "pets", "cats"]]
DOGS = [["hub", "a/dogs"]]


def model(epsilon: float, delta: float = DELTA) -> ReleasedModel:
    return ReleasedModel(certificate="0" * 64, epsilon=epsilon, delta=delta, noise=None)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "new" / "releases.jsonl"
    for epsilon, data, origins in ((1.0, "a", PETS), (2.0, "b", DOGS), (3.0, "c", CATS)):
        with open_ledger(file) as ledger:
            ledger.add(data, origins, model(epsilon))
    return file


def test_releases_are_found_by_data_and_source(file):
    ledger = Ledger(file)

    def found(data, *origins):
        return [each.epsilon for each in ledger.released(data, list(origins))]

    assert found("a", ["glyphs"]) == [1]
    assert found("z", *CATS) == found("z", *PETS) == [1, 3]
    assert found("z", ["path", "data", "pets", "dogs"]) == [1]
    assert found("z", ["path", "data", "pet"]) == []
    assert found("b", *PETS) == [1, 2, 3]
    first, _, third = ledger._lines
    before = [[each.epsilon for each in ledger.before(line)] for line in (first, third)]
    assert before == [[], [1]]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_edited_and_removed_lines_are_found(number, file):
    lines = file.read_text().splitlines(keepends=True)
    edited = lines[number].replace(f'"epsilon": {number + 1}', '"epsilon": 0')
    file.write_text("".join([*lines[:number], edited, *lines[number + 1 :]]))
    with pytest.raises(ReleaseError, match=f"line {number + 1}: damaged or edited"):
        Ledger(file)
    if number < 2:  # removing the last line leaves no trace
        file.write_text("".join(lines[:number] + lines[number + 1 :]))
        said = f"line {number + 1}: .* a line was edited or taken out"
        with pytest.raises(ReleaseError, match=said), open_ledger(file):
            pass
    content = json.loads(lines[number])
    del content["fingerprint"]
    file.write_text("".join(lines[:number]) + json.dumps(with_fingerprint(content | {"more": 1})))
    with pytest.raises(
        ReleaseError, match=rf"line {number + 1}: damaged: more: Extra .*, found 1$"
    ):
        Ledger(file)


@pytest.mark.parametrize("half", ['{"data": ', '{"data": "d\x00', "\x00\x00"])
def test_an_incomplete_line_is_moved_to_another_file(half, file):
    """Such a line is from a call that was killed before it made its model."""
    whole = file.read_text()
    file.write_text(whole + half)
    assert len(Ledger(file).released("z", CATS)) == 2
    assert file.read_text() == whole + half  # reading changes nothing
    with open_ledger(file) as ledger:
        ledger.add("d", DOGS, model(4.0))
    assert file.read_text().startswith(whole)
    assert len(file.read_text().splitlines()) == len(whole.splitlines()) + 1
    assert file.with_name(f"{file.name}.unfinished").read_text() == f"{half}\n"
    assert [each.epsilon for each in Ledger(file).released("d", [])] == [4]


def test_a_last_line_without_its_line_break_counts(file):
    file.write_text(file.read_text().rstrip())
    assert len(Ledger(file).released("z", CATS)) == 2
    with open_ledger(file) as ledger:
        assert file.read_text().endswith("\n")
        ledger.add("d", DOGS, model(4.0))
    assert [each.epsilon for each in Ledger(file).released("d", [])] == [4]


def budgeted(section: Content, epsilon: float, delta: float) -> Study:
    return study_of(section, budget={"epsilon": epsilon, "delta": delta})


def test_a_model_beyond_the_budget_is_refused_before_its_data_are_prepared(paths):
    allowed = budgeted(FIXED, epsilon=8.0, delta=2 * DELTA)
    release(allowed, paths)
    elsewhere = Paths(paths.results.with_name("unprepared"))
    assert elsewhere.ledger == paths.ledger and not elsewhere.results.exists()
    with pytest.raises(ReleaseError, match="of which epsilon 0 is left"):
        check_budget(allowed, elsewhere)
    check_budget(budgeted(FIXED, epsilon=20.0, delta=2 * DELTA), elsewhere)
    paths.ledger.write_text("{}\n")
    with pytest.raises(ReleaseError, match="line 1"):  # also without a budget
        check_budget(study_of(FIXED), elsewhere)


def test_the_budget_counts_what_the_certificate_counts():
    noise = calibrate(2.0, DELTA, 200, 200, 4)
    earlier = [model(2.0).model_copy(update={"noise": noise})] * 2
    joint = released_together(earlier, earlier[0]).joint_epsilon
    section = FIXED | {"epsilon": 2.0}
    refuse_beyond_budget(budgeted(section, 1.001 * joint, 3 * DELTA), earlier, earlier[0])
    with pytest.raises(ReleaseError, match="budget"):
        refuse_beyond_budget(budgeted(section, 0.999 * joint, 3 * DELTA), earlier, earlier[0])


@pytest.mark.parametrize("epsilon", [800.0, 1e5])
def test_epsilons_with_overflowing_exponentials_add_up(epsilon):
    """After a release with such an epsilon, further releases must still work."""
    first, second = model(epsilon), model(2.0)
    assert released_together([first], second).joint_epsilon == epsilon + 2
    with pytest.raises(CalibrationError, match=r"found deltas that are 1\.2 together"):
        released_together([model(1.0, 0.6)], model(1.0, 0.6))


@pytest.mark.parametrize("delta", [0.9 * DELTA, 0.5 * DELTA])
def test_a_delta_above_that_of_the_budget_is_beyond_it(delta):
    """The epsilon of a choice among trials is not known at a smaller delta."""
    made = budgeted(PRIVATE, epsilon=100.0, delta=delta)
    with pytest.raises(ReleaseError, match="makes epsilon inf"):
        refuse_beyond_budget(made, [], model(8.0))


@pytest.mark.parametrize("seed", range(6))
def test_the_rest_that_the_report_promises_is_accepted(seed, paths):
    chosen = random.Random(seed)
    models = []
    for _ in range(chosen.randint(1, 4)):
        if seed % 2:
            models.append(model(chosen.uniform(0.3, 2.0)))
            continue
        epsilon = round(chosen.uniform(0.3, 2.0), 2)
        noise = calibrate(epsilon, DELTA, 200, 200, 4)
        models.append(model(epsilon).model_copy(update={"noise": noise}))
    deltas = float(f"{len(models) + 1}e-05")
    small = budgeted(PRIVATE | {"epsilon": 1.0}, epsilon=8.0, delta=deltas)
    with open_ledger(paths.ledger) as ledger:
        for each in models:
            ledger.add("", [["sklearn-digits"]], each)
    found = account(small, paths)
    assert found.left > 0
    write_report(small, Path("study.yaml"), paths)
    page = paths.report.read_text()
    (said,) = re.findall(r"a next model may have at least ε = (\S+) at", page)
    assert 0.99 * found.left < float(said) <= found.left
    following = budgeted(PRIVATE | {"epsilon": float(said)}, epsilon=8.0, delta=deltas)
    refuse_beyond_budget(following, models, model(float(said)))
    # No accountant of all together is asked then: what models spent at the rest of delta adds to it.
    rest_of_delta = total_delta([deltas, -DELTA])
    noises = [each.noise for each in models if each.noise is not None]
    stated = [(each.epsilon, each.delta) for each in models if each.noise is None]
    assert composed_epsilon(noises, stated, rest_of_delta) + float(said) <= 8.0
    # A refusal promises no more.
    beyond = budgeted(PRIVATE | {"epsilon": 8.0}, epsilon=8.0, delta=deltas)
    with pytest.raises(ReleaseError, match="makes epsilon") as refused:
        refuse_beyond_budget(beyond, models, model(8.0))
    (rest,) = re.findall(r"of which epsilon (\S+) is left", str(refused.value))
    assert 0.99 * found.left < float(rest) <= found.left
    # What the report says that is spent holds, too.
    (spent,) = re.findall(r"(?:it is|they are) \((\S+), \S+\)-differentially", page)
    assert found.epsilon <= float(spent) < 1.001 * found.epsilon


def test_deltas_add_up_as_they_are_written():
    """In floats 3 times 1e-05 is above 3e-05."""
    made = budgeted(PRIVATE | {"epsilon": 1.0}, epsilon=3.0, delta=3e-5)
    refuse_beyond_budget(made, [model(1.0)] * 2, model(1.0))
    with pytest.raises(ReleaseError, match="makes epsilon inf"):
        refuse_beyond_budget(made, [model(1.0)] * 3, model(1.0))


def test_of_two_releases_at_once_one_is_beyond_the_budget(paths, monkeypatch):
    """Each is within the budget alone, and both have read the ledger before either adds its line."""
    made = budgeted(FIXED, epsilon=8.0, delta=2 * DELTA)
    train, both = release_training.train_release, threading.Barrier(2, timeout=100)
    alone = threading.Lock()

    def train_at_once(*given):
        both.wait()
        with alone:  # the trainer is made for one training in a process
            return train(*given)

    monkeypatch.setattr(release_training, "train_release", train_at_once)
    other = Paths(Path(shutil.copytree(paths.results, paths.results.with_name("other"))))
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(release, made, each) for each in (paths, other)]
        errors = [call.exception() for call in calls]
    (refused,) = filter(None, errors)
    assert "with 1 earlier on the same data makes epsilon" in str(refused)
    assert sum(each.release.exists() for each in (paths, other)) == 1
    assert len(Ledger(paths.ledger).released("", [["sklearn-digits"]])) == 1
    assert not list(paths.results.parent.rglob(".partial-*"))


def sections(private: bool = True, **sweep: Any) -> dict[str, Any]:
    made = tiny_sections({}, {"kind": "film"}, **sweep)
    made["datasets"]["digits"] |= {"private": private}
    return made | {"release": FIXED}


@pytest.fixture
def private_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(UNACCOUNTED, raising=False)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(sections()))
    return tmp_path


def test_all_trials_together_are_the_composed_gaussian_mechanisms():
    """Compare with another library's composition of the Gaussian mechanisms."""
    rates = [0.1, 0.2, 0.3, 0.4]
    study = Study.model_validate(sections(epsilon=[2.0], learning_rate=rates, seeds=3))
    delta = study.privacy.delta
    without = Study.model_validate(sections(epsilon=[1.0, math.inf]))
    assert epsilon_of_sweeps(without, without.sweeps) == math.inf
    assert price(Study.model_validate(sections(private=False))) == ""

    def composed(sigma, trials):
        event = SelfComposedDpEvent(GaussianDpEvent(sigma), trials)
        return float(PLDAccountant().compose(event).get_epsilon(delta))

    sigma = brentq(lambda each: composed(each, 1) - 2.0, 1.0, 3.0, xtol=1e-4)
    expected = composed(sigma, len(rates) + 2)
    assert epsilon_of_sweeps(study, study.sweeps) == pytest.approx(expected, rel=2e-3)


def test_the_same_data_under_another_name_is_private_too():
    made = sections()
    made["datasets"]["copy"] = made["datasets"]["digits"] | {"private": False}
    made["sweeps"]["copied"] = made["sweeps"]["digits"] | {"dataset": "copy"}
    assert private_sweeps(Study.model_validate(made)) == ["digits", "copied"]


@pytest.mark.parametrize("stage", ["train", "theory", "gradient-norms"])
def test_a_job_refuses_private_data_without_permission(private_study, monkeypatch, stage):
    """The job itself refuses, so a direct call of Snakemake is refused too."""
    study = Study.model_validate(sections())
    (cell,) = study.all_cells()
    words = [cell.problem, cell.name]
    if stage == "gradient-norms":
        words = [cell.problem, f"{cell.epsilon:g}", str(cell.epochs), f"{cell.clipping_bound:g}"]
    call = [stage, *words, "--study", "mine.yaml"]
    done = CliRunner().invoke(app, call)
    assert isinstance(done.exception, StudyError), done.output
    assert "--unaccounted" in str(done.exception)
    monkeypatch.setenv(UNACCOUNTED, "1")
    assert "--unaccounted" not in str(CliRunner().invoke(app, call).exception)


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ([], False),
        (["digits_vit_method"], False),
        (["report", "release"], False),
        (["release"], True),
        (["all", "--unaccounted", "--", "--cores", "1"], True),
        (["--", "-n"], False),
        (["--", "--unlock"], True),
        (["--", "--cores", "1"], False),
        (["results/data/digits/metadata.json"], True),
    ],
)
def test_a_call_that_would_sweep_private_data_needs_the_option(
    private_study, monkeypatch, words, allowed
):
    handed: list[list[str]] = []
    monkeypatch.setattr(run, "run_snakemake", lambda given: handed.append([*given]) or 0)
    done = CliRunner().invoke(app, ["run", "mine.yaml", *words])
    assert bool(handed) == allowed, done.output
    if not allowed:
        assert "dpsweep run release" in str(done.exception)
    assert any("unaccounted=true" in given for given in handed) == ("--unaccounted" in words)
    assert not any("--unaccounted" in given for given in handed)


def test_a_study_of_private_data_is_complete_without_its_sweeps(private_study):
    more = {"budget": {"epsilon": 9.0, "delta": 2e-5}, "figures": "none"}
    (private_study / "mine.yaml").write_text(yaml.safe_dump(sections() | more))
    said = {
        word: CliRunner().invoke(app, [word, "mine.yaml", *options]).output
        for word, *options in (["report"], ["status"], ["check", "--seconds", "0"])
    }
    page = (private_study / "results" / "report.html").read_text()
    assert not re.search('unfinished|id="incomplete|not finished|planned cell|no trial yet', page)
    assert "digits_vit_method: private, trained only with --unaccounted" in said["status"]
    assert "waiting\nThe study's" in said["status"] and "time left" not in said["status"]
    rest = "By basic composition a next model may have at least ε = 9 at δ = 1e-05"
    for each in (page, said["status"], said["check"]):
        assert f"budget is ε = 9 at δ = 2e-05. {rest}" in each


@pytest.mark.slow
def test_a_dry_run_of_snakemake_refuses_private_data_as_the_run_does(private_study, monkeypatch):
    def said(target: str, *config: str, status: int = 0) -> str:
        words = ["-n", "--config", "study=mine.yaml", *config, "--", target]
        return called(snakemake(private_study, *words), private_study, status=status).stdout

    table = "results/problems/digits_vit_method.parquet"
    assert "or --unaccounted (snakemake --config unaccounted=true)" in said(table, status=1)
    assert "rule train:" in said(table, "unaccounted=true")
    assert "rule train:" not in said("release")
    monkeypatch.setenv(UNACCOUNTED, "yes")
    assert f"{UNACCOUNTED}: found yes; allowed: true or false" in said(table, status=1)


def test_status_and_check_need_no_accountant_without_a_budget(private_study):
    content = sections(private=False) | {"figures": "none"}
    (private_study / "mine.yaml").write_text(yaml.safe_dump(content))
    (private_study / "results").mkdir()
    program = """
import sys
from dpsweep.cli.main import app
for words in ["status"], ["check", "--seconds", "0"]:
    app(words, standalone_mode=False)
assert "dp_accounting" not in sys.modules
"""
    said = called([sys.executable, "-c", program], private_study).stdout
    assert said.count("The study names no budget.") == 2


def given(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin the workflow as Snakemake does with ``--config unaccounted=word``."""
    monkeypatch.setattr("sys.argv", ["snakemake"])
    monkeypatch.setattr("os.environ", {"PATH": "", UNACCOUNTED: os.environ.get(UNACCOUNTED, "0")})
    begin(parse_config(["study=mine.yaml", f"unaccounted={word}"]))


@pytest.mark.parametrize(
    ("word", "allowed"), [("True", True), ("1", True), ("false", False), ("0", False)]
)
@pytest.mark.parametrize("inherited", ["1", "0"])
def test_the_workflow_passes_the_permission_to_its_jobs(monkeypatch, word, allowed, inherited):
    """Whatever the environment says; Snakemake passes ``false`` as text, which Python takes for true."""
    monkeypatch.setenv(UNACCOUNTED, inherited)
    given(word, monkeypatch)
    refused = pytest.raises(StudyError, match="--unaccounted")
    with contextlib.nullcontext() if allowed else refused:
        refuse_unaccounted(Study.model_validate(sections()), "digits_vit_method")


@pytest.mark.parametrize("word", ["no", "yes", "2", "[]", ""])
def test_other_words_than_true_and_false_are_refused(private_study, monkeypatch, word):
    with pytest.raises(DpsweepError, match=r"unaccounted: .*allowed: true or false"):
        given(word, monkeypatch)
    monkeypatch.setenv(UNACCOUNTED, word)
    with pytest.raises(DpsweepError, match=rf"{UNACCOUNTED}: .*allowed: true or false") as said:
        refuse_unaccounted(Study.model_validate(sections()), "digits_vit_method")
    assert f"found {word or 'nothing'};" in str(said.value)
    public = Study.model_validate(sections(private=False))
    refuse_unaccounted(public, "digits_vit_method")


@pytest.mark.parametrize(
    "given", [{"target": "lora"}, {"partial": "true"}, {"extends": "demo", "sweeps": {}}, {"": ""}]
)
def test_names_that_config_does_not_have_are_refused(given):
    """A plan of everything would be the answer to ``target=``; ``--configfile mine.yaml`` is no study."""
    with pytest.raises(DpsweepError, match=r"found .*allowed: study, targets, unaccounted"):
        begin(given)
