"""The report: its content, what is missing, its look in a browser; the comparison of two studies."""

import base64
import itertools
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import html5lib
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import yaml
from tests.browser import CHROMIUM, chromium
from tests.described import study_of
from tests.synthetic import make_study, trial_rows, write_cells, write_dataset

from dpsweep import report
from dpsweep.analysis.evidence import compare, evidence_table
from dpsweep.analysis.frames import present_trials
from dpsweep.base.files import fingerprint
from dpsweep.report import summary
from dpsweep.report.page import study_yaml
from dpsweep.report.summary import best_settings, choice_costs
from dpsweep.report.warnings import Notice, of_data, warnings
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.tables.inputs import HyperparameterGrid

STUDY_FILE = Path("studies/small.yaml")
FIGURES = ("squares", "curve", "classes", "noise")

# -- a small study and its results ----------------------------------------------------------


DRAWN = """
figures:
  squares: {family: heatmap, section: Difficulty, caption: Accuracy over C and B.,
    panels: [{title: tight, epsilon: 1.0}]}
  curve: {family: clipping_curve, section: Difficulty, caption: Accuracy against C.,
    panels: [{title: digits, lines: [{label: all of it, epsilon: 8.0}]}]}
  classes: {family: per_class, section: Classes, caption: Who is helped by clipping., baseline: 1.0,
    panels: [{title: loose, epsilon: 8.0}]}
  noise: {family: noise_curve, section: Classes, caption: Noise against B.,
    axes: [{title: by B, quantity: effective, x: batch_size}]}
tables:
  grid: {family: hyperparameter_grid, section: Set-up, caption: What was tried.}
  rules: {family: tuning_implications, section: Difficulty, caption: What follows.}
"""


def study_content() -> dict[str, Any]:
    """Return the content of a study file with four figures and two tables."""
    rates = {"first": 0.001, "last": 0.1, "count": 3}  # 0.01 between them
    grid = {"batch_size": [64, "full"], "learning_rate": rates, "seeds": 2}
    free = {"epsilon": [math.inf], "clipping_bound": "none", "batch_size": [64, 256]}
    study = make_study(
        {
            "digits_film": grid | {"epsilon": [1.0, 8.0], "clipping_bound": [0.1, 1.0]},
            "digits_reference": grid | free,
        },
        backbones=["strong"],
    )
    return study.model_dump() | yaml.safe_load(DRAWN)


STUDY = study_of(study_content())
UNITS = {"source": {"kind": "folder", "path": "images"}, "unit": "folder", "train_units": 300}


def write_trials(study: Study, paths: Paths, **changes: Any) -> None:
    """Write trials of every cell: three learning rates with seed 1, the best (0.01) with seed 2.

    ``changes`` are columns of the first trial of the first cell, which is private.
    """
    first = study.sweep_cells("digits_film")[0]

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        tuned = rate == 0.01
        better = 0.6 if cell.batch_size == 256 else 0.4
        of_units = (
            {"unit_accuracy": 0.65 + 0.05 * seed} if study.datasets["digits"].has_units else {}
        )
        return {
            **of_units,
            "accuracy": 0.7 + 0.1 * seed if tuned else 0.5,
            "macro_accuracy": better + 0.1 * seed if tuned else 0.3,
            "certified_epsilon": cell.epsilon * 0.999,
            "wall_seconds": 90.0,
            "device": "a small CPU",
            "versions": '{"torch": "2.15.0"}',
            "trial_key": fingerprint([cell.name, rate, seed]),
        } | (changes if (cell, rate, seed) == (first, 0.001, 1) else {})

    write_cells(study, paths, outcome)
    for hour, file in enumerate(sorted((paths.results / "cells").rglob("trials-*.parquet"))):
        time = 1_700_000_000 + 3600 * hour
        os.utime(file, (time, time))


def write_targets(paths: Paths, width: int = 330) -> None:
    for name in FIGURES:
        paths.figure(name, "png").parent.mkdir(parents=True, exist_ok=True)
        pixels = np.linspace(0, 1, width // 5 * width).reshape(width // 5, width)
        matplotlib.image.imsave(paths.figure(name, "png"), pixels, cmap="viridis")
        paths.figure(name, "csv").write_text("x,y\n1,2\n")
    for name, numbers in table_numbers().items():
        paths.table(name, "csv").parent.mkdir(parents=True, exist_ok=True)
        numbers.to_csv(paths.table(name, "csv"), index=False)
        paths.table(name, "md").write_text("another way of writing it\n")


def table_numbers() -> dict[str, pd.DataFrame]:
    """Return the numbers of both tables: one rule is contradicted, another supported here."""
    rules = evidence_table(compare([]))
    columns = ["effect", "lower_here", "upper_here", "verdict"]
    rules.loc[0, columns] = [-0.25, -0.5, -0.125, "contradicted"]
    rules.loc[0, ["units", "in_favour", "against"]] = [9, 2, 7]
    rules.loc[0, ["smallest_visible_here", "needs"]] = [0.375, ""]
    rules.loc[1, ["needs", "needed_for"]] = ["1 of 3 separate datasets", "other datasets"]
    rules.loc[1, columns] = [1.5, 1, 2, "supported here"]
    grid = HyperparameterGrid(caption="Grids.").frames(STUDY, Paths(Path()))["csv"]
    return {"grid": grid, "rules": rules}


def written(study: Study, paths: Paths, study_file: Path = STUDY_FILE) -> "Page":
    report.write(study, study_file, paths)
    return Page(paths.report.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """All results of the study, for tests that do not change them."""
    paths = Paths(tmp_path_factory.mktemp("whole") / "results")
    write_trials(STUDY, paths)
    write_targets(paths)
    report.write(STUDY, STUDY_FILE, paths)
    return paths


@pytest.fixture(scope="module")
def page(whole: Paths) -> "Page":
    return Page(whole.report.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trials(whole: Paths) -> pd.DataFrame:
    return present_trials(STUDY, whole)


@pytest.fixture
def paths(whole: Paths, tmp_path: Path) -> Paths:
    """A copy of all results of the study, for tests that change them."""
    shutil.copytree(whole.results, tmp_path / "results")
    return Paths(tmp_path / "results")


@pytest.fixture
def empty(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "none")


# -- reading a page -------------------------------------------------------------------------


class Page:
    """Elements and text of a page; invalid HTML is an error."""

    def __init__(self, source: str) -> None:
        parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
        self.source = source
        self.root = parser.parse(source)
        self.elements = [(each.tag, each.attrib) for each in self.root.iter()]

    def text(self, identifier: str | None = None) -> str:
        """Return the text of an element or the page, with spaces and line ends collapsed."""
        within = self.root if identifier is None else self.root.find(f".//*[@id='{identifier}']")
        return " ".join("".join(within.itertext()).split())

    def values(self, attribute: str) -> list[str]:
        found = (attributes.get(attribute) for _, attributes in self.elements)
        return [value for value in found if value is not None]


# -- content of the page --------------------------------------------------------------------


def test_the_page_is_well_formed_and_links_only_to_itself(whole: Paths, page: Page) -> None:
    identifiers = page.values("id")
    assert len(identifiers) == len(set(identifiers))
    # Data URIs are not paths, and may be too long for one.
    for link in (each for each in page.values("href") if not each.startswith("data:")):
        beside = (whole.drawn / unquote(link)).exists()
        assert link.removeprefix("#") in identifiers or beside
    assert all(source.startswith("data:image/webp;base64,") for source in page.values("src"))
    images = [each for tag, each in page.elements if tag == "img"]
    assert sum(each.get("width") != "160" for each in images) == len(FIGURES)  # none twice
    assert all(identifier in identifiers for identifier in page.values("aria-labelledby"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_findings_come_first_and_every_target_is_in_its_section(page: Page) -> None:
    identifiers = page.values("id")
    headings = ("found", "gallery", "results", "checks", "grids", "privacy", "configuration")
    assert [name for name in identifiers if name in headings] == list(headings)
    assert [name for name in identifiers if name.startswith(("section-", "target-"))] == [
        *("section-1", "target-squares", "target-curve", "target-rules"),
        *("section-2", "target-classes", "target-noise", "section-3", "target-grid"),
    ]
    assert page.text("section-2") == "Classes"
    for name, figure in STUDY.figures.items():
        assert figure.caption in page.text(f"target-{name}")
        assert f"#target-{name}" in page.values("href")
    assert "Harder dataset Try larger C (easier: smaller C)" in page.text("target-rules")
    assert page.text("name-squares") == "Accuracy map: Digits, ViT strong, ε = 1 squares"
    assert "Per class, 1 panel: loose." in page.values("alt")


def test_the_configuration_has_only_references_of_trained_problems() -> None:
    number = {"dataset": "digits", "method": "film", "clipping_bound": 1.0, "epsilon": 8}
    content = study_content()
    content["backbones"]["other"] = content["backbones"]["strong"] | {"title": "Not trained"}
    content["references"] = [
        number | {"backbone": each, "epochs": 8, "value": 0.5} for each in content["backbones"]
    ]
    kept = yaml.safe_load(study_yaml(study_of(content)))
    assert [each["backbone"] for each in kept["references"]] == ["strong"]
    assert list(kept["backbones"]) == ["strong"]


def test_a_missing_or_damaged_figure_is_named_and_the_rest_is_shown(paths: Paths) -> None:
    paths.figure("squares", "png").unlink()
    whole = paths.figure("curve", "png").read_bytes()
    paths.figure("curve", "png").write_bytes(whole[: len(whole) // 2])
    paths.figure("noise", "png").write_bytes(b"no picture")
    paths.table("rules", "csv").unlink()
    paths.table("grid", "csv").write_text("sweep\ndigits_film\n")
    noise = np.random.default_rng(0).integers(0, 256, 800_000, dtype=np.uint8).tobytes()
    paths.figure("noise", "csv").write_bytes(base64.b64encode(noise))
    page = written(STUDY, paths)
    for name, said in {
        **{"target-squares": "has not been drawn", "target-rules": "has not been written"},
        **dict.fromkeys(("target-curve", "target-noise"), "PNG is damaged"),
        "target-grid": "CSV is damaged",
        "incomplete": "5 figures and tables of 6 cannot be shown",
    }.items():
        assert said in page.text(name)
    assert str(paths.results) not in page.source
    # A file that is too large is not inside.
    assert "CSV (1.1 MB): too large to be inside this page" in page.text("target-noise")
    assert len(page.source) < 1_000_000


def test_missing_results_are_reported_at_the_top(page: Page, paths: Paths, empty: Paths) -> None:
    assert "incomplete" not in page.values("id")
    shutil.rmtree(paths.cell(STUDY.sweep_cells("digits_film")[0]))
    partial = Paths(paths.results, partial=True)
    partial.report.parent.mkdir()
    write_targets(partial)
    for each, start in (
        (paths, "This report is incomplete. 1 cell"),
        (partial, "Partial results of an unfinished study. 1 cell"),
        (empty, "This report is incomplete. 10 cells"),
    ):
        lacking = written(STUDY, each)
        identifiers = lacking.values("id")
        assert identifiers.index("incomplete") < identifiers.index("found")
        assert re.match(rf"{start} of 10 ha(s|ve) no trial yet", lacking.text("incomplete"))
        assert ('http-equiv="refresh"' in lacking.source) == each.partial
    assert "none of the 10 planned cells has been trained yet" in lacking.text()
    assert "6 figures and tables of 6 cannot be shown" in lacking.text("incomplete")
    assert "Pass" not in lacking.text()


# -- findings -------------------------------------------------------------------------------


def test_verdicts_are_counted_and_rules_are_folded_if_none_is_decided(
    page: Page, paths: Paths
) -> None:
    verdicts = "1 contradicted, 4 not resolved, 1 supported here."
    assert page.text("verdicts-rules") == f"Tuning rules: {verdicts}"
    numbers = table_numbers()["rules"].assign(verdict="not resolved")
    numbers.to_csv(paths.table("rules", "csv"), index=False)
    for one, decided in ((page, True), (written(STUDY, paths), False)):
        assert ("No rule is confirmed or rejected" in one.text("target-rules")) != decided


def test_the_report_begins_with_the_best_settings(
    trials: pd.DataFrame, whole: Paths, page: Page
) -> None:
    # By hand: no private cell has B = 256, so all tie, and the smallest B, then C, wins. Seed 1 chooses, so
    # only seed 2 measures.
    about = ["Digits", "ViT strong", "FiLM"]
    tie = ["2", "0.1", "64", "0.01", "55.0 %", "50.0 to 60.0 %", "60.0 %", "2"]
    free = ["2", "No clipping", "256", "0.01", "75.0 %", "70.0 to 80.0 %", "80.0 %", "2"]
    assert best_settings(STUDY, whole, trials).rows == [
        [*about, "1", *tie], [*about, "8", *tie], [*about, "∞", *free],
    ]  # fmt: skip
    reached = "55.0 % (mean over 2 seeds, 50.0 to 60.0 %)"
    assert page.text("found-in-a-sentence") == (
        f"The best macro accuracy at ε = 8 is {reached}: Digits, ViT strong, FiLM, with C = 0.1, B = 64, "
        f"learning rate 0.01 and 2 epochs. At ε = 1 the same problem reaches {reached}."
    )


def test_units_of_several_rows_are_in_the_best_settings_and_the_privacy_statement(
    page: Page, empty: Paths
) -> None:
    statement = page.text().partition("Privacy statement This study has ")[2]
    assert statement.startswith("32 private trials with target ε 1, 8 and 8 trials without")
    for word in ("1e-05", "adding or removing", "Poisson", "dp-accounting", "tuning", "test set"):
        assert word in statement
    content = study_content()
    content["datasets"]["digits"] |= UNITS | {"unit": "writer", "rows_per_unit": 2}
    study = study_of(content)
    text = written(study, empty).text().partition("Privacy statement This study")[2]
    assert "The unit of Digits is one writer: all of their images, at most 2 of them" in text
    assert "an example's gradient, it is the mean over the rows of a unit" in text
    assert "one training example" not in text
    write_trials(study, empty)
    trials = present_trials(study, empty)
    write_dataset(empty, "digits", [135] * 10, test_units=200)
    table = best_settings(study, empty, trials)
    # By hand: Wilson's interval for 145 of 200, the mean of 0.70 and 0.75 over the two seeds of a best rate.
    assert table.header[-1] == "Right units" and len(table.columns) == len(table.header)
    assert {row[-1] for row in table.rows} == {"72.5 % [65.9, 78.2]"}


def test_costs_of_wrong_choices(trials: pd.DataFrame) -> None:
    # By hand: the first seed reaches 0.3 at a wrong rate, and 0.5 or (B = 256) 0.7 at the right one. C has no
    # effect. Two seeds that differ by 10 points have a standard deviation of 10/√2.
    scatter = "±7.1"
    assert [row[3:] for row in choice_costs(STUDY, trials).rows] == [
        ["1", "0.0 (0.1)", "0.0 (64)", "20.0 (0.001)", "–", scatter],
        ["8", "0.0 (0.1)", "0.0 (64)", "20.0 (0.001)", "–", scatter],
        ["∞", "–", "20.0 (64)", "40.0 (0.001)", "–", scatter],
    ]
    # The worst B has a thousands separator.
    better = trials["macro_accuracy"] + 0.1 * (trials["batch_size"] == 64)
    costs = choice_costs(STUDY, trials.assign(macro_accuracy=better, selection_accuracy=better))
    assert costs.rows[0][5] == "10.0 (1,000)"


def test_failures_are_said_at_the_top_and_notes_are_counted(empty: Paths) -> None:
    write_trials(STUDY, empty, certified_epsilon=9.0, diverged=True)
    said = written(STUDY, empty).text("known")
    assert said.startswith("Fail 1 of 32 private trials exceed the target ε")
    assert re.search(r"\d+ notes on this study", said) and "not finite" not in said


SENTENCES: dict[str, Any] = {
    **{"epsilon": [1.0, 8.0], "batch_size": [64, 256], "clipping_bound": [0.1, 1.0, 42.0]},
    "seeds": 5,
}
SCATTER = 0.005


def said(lost: dict[float, float], scatter: float = SCATTER, **grid: Any) -> list[str]:
    """Return the sentences on costs of a study in which some C or B lose accuracy."""
    study = make_study({"digits_film": SENTENCES | grid})
    random = np.random.default_rng(1)

    def trial(cell: Cell, *_: Any) -> dict[str, Any]:
        middle = 0.5 - lost.get(float(cell.clipping_bound), 0) - lost.get(float(cell.batch_size), 0)
        return {"macro_accuracy": middle + scatter * random.standard_normal()}

    rows = [
        row | {"problem": cell.problem, "cell": cell.name}
        for cell in study.all_cells()
        for row in trial_rows(study, cell, trial)
    ]
    return summary.choice_sentences(study, pd.DataFrame(rows))


def test_a_costly_value_is_named_with_its_accuracies() -> None:
    costly, alike, size, habit = said({42.0: 0.2, 256.0: 0.05})
    assert costly.startswith("C = 42 costs up to ") and "in 2 of 2 settings" in costly
    points = float(costly.split("up to ")[1].split()[0])
    assert points == pytest.approx(20, abs=1.5)
    reached, best = (float(costly.split(": ")[1].split()[place]) for place in (0, 3))
    assert best - reached == pytest.approx(points, abs=0.11)
    assert alike.startswith("C = 0.1 and 1 do not differ from the best C in any of 2 settings")
    assert size.startswith("B = 256 costs up to")
    assert habit.startswith("The usual C = 1 with B = 256 costs up to")
    assert 3.5 < float(habit.split("up to ")[1].split()[0]) < 6.5


def test_without_costs_there_are_only_sentences_on_equal_values() -> None:
    found = said({})
    assert [each.split(" do not")[0] for each in found] == ["C = 0.1, 1 and 42", "B = 64 and 256"]
    for sentence in found:
        seen = float(sentence.split("difference of ")[1].split()[0])
        # A few standard errors of a difference of two means of four seeds.
        assert 2 < seen / (100 * SCATTER / 2**0.5) < 5
    # 8 test examples, of which a seed gets one more or less right by chance.
    assert [each.split(":")[0] for each in said({}, scatter=1.0)] == [
        "C = 0.1, 1 and 42 cannot be compared", "B = 64 and 256 cannot be compared",
    ]  # fmt: skip
    assert said({42.0: 0.4}, seeds=1) == said({42.0: 0.4}, seeds=2) == []


# -- the numbers ----------------------------------------------------------------------------


def test_trials_count_once_and_gpus_of_a_machine_are_one_device(
    whole: Paths, trials: pd.DataFrame
) -> None:
    content = study_content()
    content["sweeps"]["digits_again"] = content["sweeps"]["digits_film"]
    keys, gpus = trials["trial_key"].to_numpy().copy(), trials.index % 2
    keys[4:8] = keys[:4]  # data with two names
    for study, changes, said in (
        (study_of(content), {}, "40 trials in 10 of 10 planned cells, 60 min of training on a small CPU."),
        (STUDY, {"trial_key": keys}, "36 trials in 10 of 10 planned cells, 54 min"),
        (STUDY, {"device": [f"cuda: H100 (GPU {gpu})" for gpu in gpus]}, "training on cuda: H100."),
    ):  # fmt: skip
        changed = present_trials(study, whole).assign(**changes)
        found = summary.sentence(study, changed, len(study.all_cells()))
        assert said in found and "1 dataset (200 test examples)" in found
        assert len(summary.hardware(changed).rows) == 1


# -- warnings -------------------------------------------------------------------------------


def first(**changes: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Change columns of the first trial."""
    return lambda trials: trials.assign(
        **{name: trials[name].where(trials.index != 0, value) for name, value in changes.items()}
    )


def two_precisions(trials: pd.DataFrame) -> pd.DataFrame:
    """Add a problem with another precision, which is allowed."""
    return pd.concat([trials, trials.assign(problem="digits_weak_film", precision="bfloat16")])


def best_at_the_highest_rate(trials: pd.DataFrame) -> pd.DataFrame:
    cell = (trials["problem"] == trials["problem"][0]) & (trials["cell"] == trials["cell"][0])
    best = trials["best"].where(~cell, trials["learning_rate"] == 0.1)
    return trials.assign(best=best.astype(bool))


FIRST = "digits_strong_film/eps1_epochs2_B64_C0.1, η = 0.001, seed 1: "
EXCEEDS = "1 of 32 private trials exceed"


FEW_RATES = "The best learning rate is at an end of its grid in 1 of 10 tuned cells"
ENDS = "digits_film: of 8 tuned cells with 0.001, 0.1 as ends, 0 at the lowest, 1 at the highest"
PARTS = "digits_strong_film: of 10 planned cells, 1 without trials, 1 with some of them"


@pytest.mark.parametrize(
    ("change", "severity", "text", "names"),
    [
        (first(certified_epsilon=1.0), "pass", "The certified ε of 32 private trials is between", []),
        (first(certified_epsilon=math.nextafter(1, 2)), "fail", EXCEEDS, [f"{FIRST}certified_epsilon 1"]),
        (first(certified_epsilon=math.nan), "fail", EXCEEDS, [f"{FIRST}certified_epsilon nan"]),
        (first(certified_epsilon=math.inf), "fail", EXCEEDS, [f"{FIRST}certified_epsilon inf"]),
        (first(delta=1e-4), "fail", "1 of 32 private trials were trained for another δ",
         [f"{FIRST}delta 0.0001"]),
        (first(diverged=True), "note", "1 of 40 trials ended", [f"{FIRST}accuracy 0.5"]),
        (first(nonfinite_examples=7), "note", "7 per-example", [f"{FIRST}nonfinite_examples 7"]),
        (lambda trials: trials[5:], "note", "The study is not", [PARTS]),
        (two_precisions, "", "Some problems", []),
        (first(precision="bfloat16"), "note", "Some problems", ["digits_strong_film: bfloat16, float32"]),
        (best_at_the_highest_rate, "note", FEW_RATES, [ENDS]),
    ],
)  # fmt: skip
def test_warnings_name_what_they_are_about(
    whole: Paths,
    trials: pd.DataFrame,
    change: Callable[[pd.DataFrame], pd.DataFrame],
    severity: str,
    text: str,
    names: list[str],
) -> None:
    def of(some: pd.DataFrame) -> list[Notice]:
        return [each for each in warnings(STUDY, whole, some) if each.text.startswith(text)]

    found = of(change(trials))
    assert [each.severity for each in found] == ([severity] if severity else [])
    assert [list(each.names) for each in found] == ([names] if severity else [])
    assert not names or of(trials) == []
    if text == FEW_RATES:
        rates = {"first": 0.001, "last": 0.1, "count": 3, "also": [1]}
        assert pasted(found[0].remedy) == {"digits_film": {"learning_rate": rates}}


def pasted(remedy: str) -> Any:
    """Return the sweeps of an advice, read as YAML, as if they were pasted into a study."""
    _, _, sweeps = remedy.partition(": ")
    return yaml.safe_load("\n".join(sweeps.split("; ")))


def test_the_best_c_and_b_at_an_end_of_their_grids_are_listed(
    whole: Paths, trials: pd.DataFrame, page: Page
) -> None:
    def of(some: pd.DataFrame) -> Notice:
        return next(each for each in warnings(STUDY, whole, some) if "best setting" in each.text)

    # By hand: C = 0.1 and 1 tie, so the smaller one is chosen. At ε = 1 all B tie too. Without privacy
    # B = 256, the last of the grid, is better.
    found = of(trials)
    assert found.names == [
        "digits_strong_film, ε = 1: C = 0.1, in a grid from 0.1 to 1",
        "digits_strong_film, ε = 1: B = 64, in a grid from 64 to full",
        "digits_strong_film, ε = 8: C = 0.1, in a grid from 0.1 to 1",
        "digits_strong_film, ε = 8: B = 64, in a grid from 64 to full",
        "digits_strong_film, ε = ∞: B = 256, in a grid from 64 to 256",
    ]
    assert "Of 3 best settings, 2 have the first or last C of the grid, and 3 the" in found.text
    assert pasted(found.remedy) == {
        "digits_film": {"clipping_bound": [0.01, 0.1, 1], "batch_size": [32, 64, "full"]},
        "digits_reference": {"batch_size": [64, 256, 1024]},
    }
    assert f"To mend it, {found.remedy}." in page.text("all-checks")
    # B = full wins, which no wider grid can exceed; C = 1 is the last.
    better = (trials["cell"] == "eps8_epochs2_Bfull_C1") & trials["best"]
    columns = ["macro_accuracy", "selection_accuracy"]
    other = trials.copy()
    other.loc[better, columns] += 0.2
    names = of(other[other["epsilon"] == 8]).names
    assert [name.partition(": ")[2] for name in names] == ["C = 1, in a grid from 0.1 to 1"]


@pytest.mark.parametrize(
    ("prepared", "names"),
    [
        ({"duplicates": []}, []),
        ({"duplicates": ["row 1 = row 7"]}, ["Digits: 1 of 200 test examples"]),
        ({"test_counts": [0, 200, 0, 0]}, ["Digits: zero, two, three of 4 classes"]),
        (
            {"cut": {"test": {"texts": 3, "share_of_tokens": 0.125}}},
            ["Digits: 3 of 200 test texts, 12.5 % of the tokens"],
        ),
    ],
)
def test_warnings_of_the_test_set(empty: Paths, prepared: dict[str, Any], names: list[str]) -> None:
    write_dataset(empty, "digits", [500, 300, 100, 100], **prepared)
    assert [name for each in of_data(STUDY, empty) for name in each.names] == names


# -- reproducibility, downloads, escaping ---------------------------------------------------


def test_equal_results_in_another_folder_give_equal_bytes(page: Page, paths: Paths) -> None:
    source = written(STUDY, paths, paths.results / "small.yaml").source
    assert source == page.source.replace("studies/small.yaml", "small.yaml")
    assert str(paths.results) not in source
    assert "Paths(" not in source


HOSTILE = " ".join(
    [
        *("<script>alert(1)</script>", '"><img src=x onerror="alert(1)">'),
        *("</title></style><script>alert(1)</script>", "' onmouseover='alert(1)"),
        *("{{ 7 * 7 }}{% raw %}", "<!-- & &lt; -->"),
        "![x](http://example.org/x.png) [y](javascript:alert(1))",
    ]
)


def test_texts_of_a_study_are_escaped(page: Page, empty: Paths) -> None:
    content = study_content()
    content["title"] = HOSTILE
    content["datasets"]["digits"] |= {"title": HOSTILE, "description": HOSTILE}
    content["backbones"]["strong"]["title"] = HOSTILE
    content["methods"]["film"]["title"] = HOSTILE
    caption = HOSTILE.replace("{", "{{").replace("}", "}}")  # braces hold words of captions
    content["figures"]["squares"] |= {"caption": caption, "section": HOSTILE}
    content["figures"]["squares"]["panels"][0]["title"] = HOSTILE
    content["tables"]["rules"]["caption"] = caption
    study = study_of(content)
    recorded = {"device": HOSTILE, "precision": HOSTILE}
    write_trials(study, empty, **recorded, versions=json.dumps({HOSTILE: HOSTILE}))
    write_targets(empty)
    table_numbers()["rules"].assign(condition=HOSTILE, unit=HOSTILE, verdict=HOSTILE).to_csv(
        empty.table("rules", "csv"), index=False
    )
    hostile = written(study, empty)
    tags = Counter(tag for tag, _ in hostile.elements)
    assert tags.keys() <= {tag for tag, _ in page.elements}
    assert tags["script"] == 1
    assert not any(name.startswith("on") for _, found in hostile.elements for name in found)
    assert all(source.startswith("data:image/webp;base64,") for source in hostile.values("src"))
    allowed = ("#", "data:", "figures/", "tables/")
    assert all(link.startswith(allowed) for link in hostile.values("href"))
    # The title appears twice (head, heading), every other text at least once.
    assert hostile.text().count(HOSTILE) >= 10
    assert any(HOSTILE in (value or "") for value in hostile.values("alt"))


# -- two studies ----------------------------------------------------------------------------


def compared(folder: Path, *studies: tuple[list[float], float]) -> list[str]:
    """Compare two studies of some C; C = 1 is best, and each factor of ten loses two points."""
    found = []
    for place, (bounds, best) in enumerate(studies):
        grid = {"batch_size": [64, 256], "learning_rate": [0.01, 0.1], "seeds": 2}
        sweep = grid | {"epsilon": [1.0, 8.0], "clipping_bound": bounds}
        study = make_study({"digits_film": sweep}, backbones=["strong"])
        study = study.model_copy(update={"results": f"results {place}"})

        def outcome(cell: Cell, rate: float, seed: int, best: float = best) -> dict[str, Any]:
            lost = 0.02 * abs(math.log10(float(cell.clipping_bound))) + 0.1 * (cell.epsilon == 1)
            key = fingerprint([cell.problem, cell.name, rate, seed])
            accuracy = best - lost - 0.3 * (rate == 0.1) + 0.01 * seed
            return {"macro_accuracy": accuracy, "trial_key": key}

        found.append((study, Paths(folder / str(place))))
        write_cells(*found[-1], outcome)
    return [*summary.compare(*found)]


def test_settings_that_differ_and_best_accuracies_are_listed(tmp_path: Path) -> None:
    said = "\n".join(compared(tmp_path, ([0.1, 1.0], 0.5), ([1.0, 10.0], 0.525)))
    listed = said.partition("## Best accuracies")[0]
    assert "| sweeps.digits_film.clipping_bound | 0.1, 1 | 1, 10 |" in listed
    assert listed.count("\n| ") == 3  # head, rule, one setting
    # By hand: seeds 1 and 2 reach 51 and 52 % in the first study, 53.5 and 54.5 % in the second.
    row = next(line for line in said.splitlines() if line.startswith("| digits_strong_film | 8"))
    assert [cell.strip() for cell in row.strip("|").split("|")][2:] == [
        "51.5 % [51.0 %, 52.0 %]", "64, 1, 0.01", "54.0 % [53.5 %, 54.5 %]", "64, 1, 0.01", "+2.5",
    ]  # fmt: skip
    _, settings, best, _ = compared(tmp_path / "same", ([0.1, 1.0], 0.5), ([0.1, 1.0], 0.5))
    assert (settings, best.count(" +0.0 |")) == ("No setting differs.\n", 2)


# -- in a browser ---------------------------------------------------------------------------

SEEN = """
async () => {
  const folded = [...document.querySelectorAll("details.part")].map(part => !part.open);
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const image of document.images) image.loading = "eager";
  const scrolls = (each) =>
    each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
  const root = document.documentElement;
  const outside = [...document.querySelectorAll("body *")].filter(each =>
    each.getBoundingClientRect().right > root.clientWidth + 1 && !scrolls(each.parentElement));
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  return {
    folded,
    outside: outside.map(each => `${each.tagName} ${each.className}`),
    overflow: root.scrollWidth - root.clientWidth,
    images: document.images.length,
    broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.alt),
    dangling: [...document.querySelectorAll("a[href^='#']")].map(link => link.hash.slice(1))
      .filter(hash => !document.getElementById(hash)),
    navigation: getComputedStyle(document.querySelector("nav")).position,
  };
}
"""
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH")
@pytest.mark.slow
class TestInABrowser:
    @pytest.mark.parametrize("width", [390, 1280])
    def test_it_loads_fits_and_fetches_nothing(self, paths: Paths, width: int) -> None:
        paths.figure("curve", "png").unlink()
        written(STUDY, paths)
        fetched: list[str] = []
        with chromium(width, 800) as page:
            page.on("request", lambda request: fetched.append(request.url))
            page.goto(paths.report.as_uri())
            seen = page.evaluate(SEEN)
            assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"
            page.emulate_media(color_scheme="dark")
            channels = re.findall(r"\d+", page.evaluate(BACKGROUND))
            assert all(int(channel) < 50 for channel in channels)
            # On a phone, rows become blocks that fit, with every number behind its column's title.
            for name in (
                "Best settings of every problem and ε",
                "Cost of a wrong choice",
                "Sweeps",
            ):
                table = page.get_by_role("region", name=name, exact=True)
                assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0, name
                before = "getComputedStyle(each, '::before').content"
                labels = table.locator("td.number").evaluate_all(
                    f"all => all.map(each => [each.dataset.label, {before}])"
                )
                assert labels
                assert all((label in said) == (width == 390) for label, said in labels)
        # Three figures with thumbnails, none twice; the first section is open.
        assert (seen["images"], seen["folded"]) == (6, [False, True, True])
        assert seen["broken"] == seen["dangling"] == []
        assert [each for each in fetched if not each.startswith("data:")] == [paths.report.as_uri()]
        # Nothing is cut: elements wider than the window are inside scrolling ones.
        assert (seen["overflow"] <= 0, seen["outside"]) == (True, [])
        assert (seen["navigation"] == "sticky") == (width == 1280)

    def test_a_click_opens_the_numbers_of_a_figure(self, paths: Paths) -> None:
        write_targets(paths, width=1650)
        many = pd.DataFrame({"x": np.arange(3_000) / 7, "words": 'a, "b"', "trial_key": "k"})
        paths.figure("curve", "csv").write_text("x,y,title\n1,2.34567891,a\n3,,a\n")
        many.to_csv(paths.figure("noise", "csv"), index=False)
        written(STUDY, paths)
        with chromium(390, 844) as page:
            page.goto(paths.report.as_uri())
            curve, noise = page.locator("#target-curve"), page.locator("#target-noise")
            assert curve.locator("table.values").count() == 0
            curve.get_by_text("The numbers").click()
            curve.locator("table.values").wait_for()
            assert curve.locator("table.values td").all_inner_texts() == ["1", "2.3457", "3", ""]
            assert curve.get_by_text("In every row: title a.").is_visible()
            assert not noise.is_visible()
            page.locator(".gallery a[href='#target-noise']").click()
            noise.get_by_text("The numbers").click()
            noise.locator("table.values").wait_for()
            assert noise.locator("table.values td").count() == 3_000
            assert noise.locator("table.values td").nth(1).inner_text() == "0.14286"
            assert noise.get_by_text('In every row: words a, "b".').is_visible()
            # A figure fits the window. A click enlarges it: 5.5 points at 300 dpi are 9 pixels or more.
            image = curve.get_by_alt_text("Clipping curve, 1 panel: digits. Lines: all of it.")
            assert 300 < image.bounding_box()["width"] < 390  # type: ignore[index]
            image.click()
            assert image.bounding_box()["width"] / 1650 * 300 / 72 * 5.5 > 9  # type: ignore[index]
            assert page.evaluate("document.documentElement.scrollWidth") == 390
