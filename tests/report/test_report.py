"""The report: what it says, that it hides nothing, and that a browser shows it."""

import base64
import gzip
import io
import itertools
import json
import math
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import html5lib
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image
from tests.browser import CHROMIUM, chromium
from tests.synthetic import make_study, write_cells, write_dataset, write_gradient_norms

from dpsweep import report
from dpsweep.analysis.evidence import compare, evidence_table
from dpsweep.analysis.frames import UnreadableResultsError, write_problem
from dpsweep.base.files import fingerprint
from dpsweep.figures.tables.inputs import grids_of_sweeps
from dpsweep.report import summary
from dpsweep.report.checks import Check, _beyond, check_data, check_trials
from dpsweep.report.embed import download_content, picture
from dpsweep.report.found import best_settings, choice_costs, verdicts
from dpsweep.report.targets import links
from dpsweep.report.trials import read_trials
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.captions import how_chosen
from dpsweep.study.paths import Paths

STUDY_FILE = Path("studies/small.yaml")
FIGURES = ("squares", "curve", "classes", "noise")
TABLES = ("grid", "rules")

# -- a small study and results for it -------------------------------------------------------


def study_content() -> dict[str, Any]:
    """A study with four figures and two tables, as the content of its file."""
    line = {"label": "all of it", "epsilon": 8.0}
    grid = {"batch_size": [64, "full"], "learning_rate": [0.001, 0.01, 0.1], "seeds": 2}
    study = make_study(
        {
            "digits_film": grid | {"epsilon": [1.0, 8.0], "clipping_bound": [0.1, 1.0]},
            "digits_reference": grid
            | {"epsilon": [math.inf], "clipping_bound": "none", "batch_size": [64, 256]},
        },
        backbones=["strong"],
        figures={
            "squares": {
                "family": "heatmap", "section": "Difficulty", "caption": "Accuracy over C and B.",
                "panels": [{"title": "tight", "epsilon": 1.0}],
            },
            "curve": {
                "family": "clipping_curve", "section": "Difficulty", "caption": "Accuracy against C.",
                "panels": [{"title": "digits", "lines": [line]}],
            },
            "classes": {
                "family": "per_class", "section": "Classes", "caption": "Who is helped by clipping.",
                "baseline": 1.0, "panels": [{"title": "loose", "epsilon": 8.0}],
            },
            "noise": {
                "family": "noise_curve", "section": "Classes", "caption": "Noise against B.",
                "axes": [{"title": "by B", "quantity": "effective", "x": "batch_size"}],
            },
        },
        tables={
            "grid": {
                "family": "hyperparameter_grid", "section": "Set-up", "caption": "What was tried.",
            },
            "rules": {
                "family": "tuning_implications", "section": "Difficulty", "caption": "What follows.",
            },
        },
    )  # fmt: skip
    return study.model_dump()


def write_trials(study: Study, paths: Paths, **changes: Any) -> None:
    """Trials of every cell: three learning rates with seed 1, the best (0.01) with seed 2.

    ``changes`` are columns of the first trial of the first cell, which is private.
    """
    first = study.sweep_cells("digits_film")[0]

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        tuned = rate == 0.01
        return {
            "accuracy": 0.7 + 0.1 * seed if tuned else 0.5,
            "macro_accuracy": (0.6 if cell.batch_size == 256 else 0.4) + 0.1 * seed
            if tuned
            else 0.3,
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


def write_targets(paths: Paths) -> None:
    for name in FIGURES:
        paths.figure(name, "png").parent.mkdir(parents=True, exist_ok=True)
        pixels = np.linspace(0, 1, 330 * 1650).reshape(330, 1650)
        matplotlib.image.imsave(paths.figure(name, "png"), pixels, cmap="viridis")
        paths.figure(name, "csv").write_text("x,y\n1,2\n")
    for name, numbers in table_numbers().items():
        paths.table(name, "csv").parent.mkdir(parents=True, exist_ok=True)
        numbers.to_csv(paths.table(name, "csv"), index=False)
        paths.table(name, "md").write_text("another way of writing it\n")


def table_numbers() -> dict[str, pd.DataFrame]:
    """What stands in the CSVs of both tables: one rule is contradicted, another supported here."""
    rules = evidence_table(compare([]))
    rules.loc[0, ["effect", "lower_here", "upper_here", "verdict"]] = [
        -0.25, -0.5, -0.125, "contradicted",
    ]  # fmt: skip
    rules.loc[0, ["units", "in_favour", "against"]] = [9, 2, 7]
    rules.loc[0, ["smallest_visible_here", "needs"]] = [0.375, ""]
    rules.loc[1, "needs"] = "1 of 3 separate datasets, for other datasets"
    rules.loc[1, ["effect", "lower_here", "upper_here", "verdict"]] = [1.5, 1, 2, "supported here"]
    return {"grid": grids_of_sweeps(Study.model_validate(study_content())), "rules": rules}


@pytest.fixture
def study() -> Study:
    return Study.model_validate(study_content())


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


def written(study: Study, paths: Paths, study_file: Path = STUDY_FILE) -> str:
    report.write(study, study_file, paths)
    return paths.report.read_text(encoding="utf-8")


def reported(study: Study, paths: Paths, **changes: Any) -> "Page":
    """The page of a study of which everything is there; see `write_trials`."""
    write_trials(study, paths, **changes)
    write_targets(paths)
    return Page(written(study, paths))


@pytest.fixture
def page(study: Study, paths: Paths) -> "Page":
    return reported(study, paths)


# -- reading a page -------------------------------------------------------------------------


class Page:
    """A page as elements and text; whatever a browser would have to mend is an error."""

    def __init__(self, source: str) -> None:
        parser = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False)
        self.root = parser.parse(source)
        self.elements = [(each.tag, each.attrib) for each in self.root.iter()]

    def text(self, identifier: str | None = None) -> str:
        """The text of an element (or of the page), spaces and line ends collapsed."""
        within = self.root if identifier is None else self.root.find(f".//*[@id='{identifier}']")
        return " ".join("".join(within.itertext()).split())

    def values(self, attribute: str) -> list[str]:
        found = (attributes.get(attribute) for _, attributes in self.elements)
        return [value for value in found if value is not None]


def content_of(uri: str) -> bytes:
    return base64.b64decode(uri.partition(";base64,")[2])


def check_named(page: Page, title: str) -> str:
    """The text of the check with a title, from its status to the next check's title."""
    before, _, after = f" {page.text('all-checks')}".partition(f" {title} ")
    return before.rsplit(" ", 1)[1] + " " + after


# -- what the page holds --------------------------------------------------------------------


def test_the_page_is_well_formed_and_links_only_to_itself(paths: Paths, page: Page) -> None:
    identifiers = page.values("id")
    assert len(identifiers) == len(set(identifiers))
    # What is embedded is no path, and may be longer than a path can be.
    for link in (each for each in page.values("href") if not each.startswith("data:")):
        beside = (paths.drawn / unquote(link)).exists()
        assert link.removeprefix("#") in identifiers or beside
    assert all(source.startswith("data:image/webp;base64,") for source in page.values("src"))
    assert all(identifier in identifiers for identifier in page.values("aria-labelledby"))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))


def test_every_figure_and_table_stands_under_its_section(study: Study, page: Page) -> None:
    order = [name for name in page.values("id") if name.startswith(("section-", "target-"))]
    assert order == [
        "section-1", "target-squares", "target-curve", "target-rules",
        "section-2", "target-classes", "target-noise",
        "section-3", "target-grid",
    ]  # fmt: skip
    assert page.text("section-2") == "Classes"
    for name, figure in study.figures.items():
        assert figure.caption in page.text(f"target-{name}")
    assert "Harder dataset Try larger C (easier: smaller C)" in page.text("target-rules")


def test_how_settings_were_chosen_is_said_once_with_a_link_under_every_figure(
    study: Study, page: Page
) -> None:
    sentences = Counter(
        each for figure in study.figures.values() for each in how_chosen(study, figure)
    )
    # Four figures tune; marks of squares are not those of points.
    assert set(sentences.values()) >= {1, 4}
    for sentence, count in sentences.items():
        linked = sum(
            "How settings were chosen" in page.text(f"target-{name}")
            for name, figure in study.figures.items()
            if sentence in how_chosen(study, figure)
        )
        own = [name for name in study.figures if sentence in page.text(f"target-{name}")]
        assert page.text().count(sentence) == 1
        assert len(own) == (count == 1)
        assert linked == count


def test_figures_are_embedded_with_words_and_thumbnails(page: Page) -> None:
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    shown = [image for image in images if image["alt"]]
    assert [image["alt"] for image in shown] == [
        "Heatmap, 1 panel: tight.",  # the first figure opens the report too
        "Heatmap, 1 panel: tight.",
        "Clipping curve, 1 panel: digits. Lines: all of it.",
        "Per class, 1 panel: loose.",
        "Noise curve, 1 panel: by B.",
    ]
    for image in shown:
        assert Image.open(io.BytesIO(content_of(str(image["src"])))).size == (1650, 330)
    # A thumbnail stands in a link that names its figure, so its own alternative text is empty.
    thumbnails = [image for image in images if image["alt"] == ""]
    assert len(thumbnails) == len(FIGURES)
    links = page.values("href")
    assert all(f"#target-{name}" in links for name in FIGURES)


def test_an_embedded_picture_keeps_its_colours(tmp_path: Path) -> None:
    figure = Figure(figsize=(10, 3.5))
    squares, lines = figure.subplots(1, 2)
    squares.imshow(np.linspace(0, 1, 72).reshape(9, 8))
    squares.plot(3, 3, "*", color="#D1001C", markersize=4)
    for row, colour in enumerate(["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000"]):
        lines.plot([0, 1], [row, row / 2 + 1], color=colour, linewidth=1)
        lines.fill_between([0, 1], [row, row], [row + 0.4, row + 0.2], color=colour, alpha=0.2)
    figure.savefig(tmp_path / "figure.png", dpi=300)
    embedded = picture(tmp_path / "figure.png")
    seen = Image.open(io.BytesIO(content_of(embedded.uri))).convert("RGB")
    assert seen.size == (embedded.width, embedded.height) == (2100, 735)
    drawn = Image.open(tmp_path / "figure.png").convert("RGB")
    expected = np.asarray(drawn.resize(seen.size, Image.Resampling.LANCZOS), dtype=int)
    assert np.abs(expected - np.asarray(seen, dtype=int)).max() <= 16
    assert Image.open(io.BytesIO(content_of(embedded.thumbnail))).width == 320


def test_any_damage_of_a_picture_is_one_kind_of_error(tmp_path: Path) -> None:
    file = tmp_path / "noise.png"
    Image.effect_noise((300, 300), 50).save(file)
    whole = file.read_bytes()
    second = whole.index(b"IDAT", whole.index(b"IDAT") + 4)
    damaged = 0
    for position in (*range(60), *range(second - 8, second + 4), len(whole) - 20):
        broken = bytearray(whole)
        broken[position] ^= 0x55
        file.write_bytes(bytes(broken))
        try:
            picture(file)
        except OSError:
            damaged += 1
    assert damaged > 40


def test_a_missing_or_damaged_figure_is_named_and_the_rest_is_shown(
    study: Study, paths: Paths
) -> None:
    write_trials(study, paths)
    write_targets(paths)
    paths.figure("squares", "png").unlink()
    whole = paths.figure("curve", "png").read_bytes()
    paths.figure("curve", "png").write_bytes(whole[: len(whole) // 2])
    paths.figure("noise", "png").write_bytes(b"no picture")
    paths.table("rules", "csv").unlink()
    paths.table("grid", "csv").write_text("sweep\ndigits_film\n")
    source = written(study, paths)
    page = Page(source)
    assert "has not been drawn" in page.text("target-squares")
    assert "PNG is damaged" in page.text("target-curve")
    assert "PNG is damaged" in page.text("target-noise")
    assert "has not been written" in page.text("target-rules")
    assert "CSV is damaged" in page.text("target-grid")
    assert "5 figures and tables of 6 cannot be shown" in page.text("incomplete")
    images = [attributes["alt"] for tag, attributes in page.elements if tag == "img"]
    assert "Per class, 1 panel: loose." in images
    assert str(paths.results) not in source


def test_a_study_without_any_result_is_a_page_that_says_so(study: Study, paths: Paths) -> None:
    page = Page(written(study, paths))
    assert "none of the 10 planned cells has been trained yet" in page.text()
    assert "10 cells of 10 have no trial yet" in page.text("incomplete")
    assert "6 figures and tables of 6 cannot be shown" in page.text("incomplete")
    assert "Pass" not in page.text()
    assert check_named(page, "Completeness").startswith("Note")


def test_the_cells_behind_a_figure_are_listed_with_what_is_missing(
    study: Study, paths: Paths
) -> None:
    write_trials(study, paths)
    write_targets(paths)
    shutil.rmtree(paths.cell(Cell.parse("digits_strong_film", "eps1_epochs2_Bfull_C0.1")))
    measured = Cell.parse("digits_strong_film", "eps8_epochs2_B64_C1")
    write_gradient_norms(study, paths, measured, 0.01, [([0, 1], [1.0, 2.0])])
    page = Page(written(study, paths))
    assert "cells/digits_strong_film/" in page.text("target-squares")
    found, _, missing = page.text("target-squares").partition("Missing (1):")
    cells = re.findall(r"eps\S+_C\S+", found)
    assert sorted(cells) == sorted(
        cell.name
        for cell in study.cells(study.figures["squares"].panels[0])  # type: ignore[union-attr]
        if cell.name != "eps1_epochs2_Bfull_C0.1"
    )
    assert re.findall(r"eps\S+_C\S+", missing) == ["eps1_epochs2_Bfull_C0.1"]
    assert "Missing" not in page.text("target-classes").partition("Gradient norms")[0]
    norms = page.text("target-classes").partition("Gradient norms")[2]
    assert re.sub("-[0-9a-f]{10}", "", norms) == (
        ": gradnorms/digits_strong_film/eps8_epochs2_C1.parquet "
        "Missing (1): gradnorms/digits_strong_film/eps8_epochs2_C0.1.parquet"
    )


# -- what was found -------------------------------------------------------------------------


def test_what_was_found_comes_first_then_figures_then_checks_and_grids(page: Page) -> None:
    headings = ("found", "gallery", "results", "checks", "grids", "privacy", "configuration")
    assert [name for name in page.values("id") if name in headings] == list(headings)
    assert "incomplete" not in page.values("id")
    assert "unfinished" not in page.text()


def test_verdicts_are_those_of_the_table(study: Study, paths: Paths, page: Page) -> None:
    assert (
        "Lower ε: increase C contradicted −0.25 [−0.50, −0.12] points per halving of ε; an effect of 0.38 "
        "would have been seen 2 of 9 for, 7 against" in page.text()
    )
    assert (
        "Lower ε: decrease B supported here +1.50 [+1.00, +2.00] points per halving of ε (a verdict on "
        "other datasets needs more: 1 of 3 separate datasets)"
    ) in page.text()
    assert "Always: tune C, B and learning rate jointly not resolved no comparison" in page.text()
    coloured = [each.get("class") for tag, each in page.elements if tag == "span"]
    assert coloured.count("status fail") == 1
    rules = verdicts(study, paths)["rules"]
    assert [row["status"] for row in rules] == ["fail", "pass", *["open"] * 4]


def test_best_settings_are_chosen_by_the_one_rule(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    found = best_settings(study, read_trials(study, paths))
    # By hand: no private cell has B = 256, so all tie and the smallest B, then C, is taken. Seed 2
    # alone measures, as seed 1 chooses.
    tie = ["2", "0.1", "64", "0.01", "55.0 %", "50.0 to 60.0 %", "60.0 %", "2"]
    assert found.rows == [
        ["Digits", "ViT strong", "FiLM", "1", *tie],
        ["Digits", "ViT strong", "FiLM", "8", *tie],
        [
            *("Digits", "ViT strong", "FiLM", "∞", "2", "No clipping", "256", "0.01"),
            *("75.0 %", "70.0 to 80.0 %", "80.0 %", "2"),
        ],
    ]


def test_the_report_opens_with_what_the_best_problem_reaches(study: Study, paths: Paths) -> None:
    said = reported(study, paths).text("found-in-a-sentence")
    reached = "55.0 % (mean over 2 seeds, 50.0 to 60.0 %)"
    assert said == (
        f"The best macro accuracy at ε = 8 is {reached}: Digits, ViT strong, FiLM, with C = 0.1, B = 64, "
        "learning rate 0.01 and 2 epochs. "
        f"At ε = 1 the same problem reaches {reached}."
    )


def test_what_a_wrong_choice_costs(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    costs = choice_costs(study, read_trials(study, paths))
    # By hand: the first seed reaches 0.3 at a wrong rate, 0.5 or (B = 256) 0.7 at the right one; C
    # makes no difference, and there is none without clipping.
    assert [row[3:] for row in costs.rows] == [
        ["1", "0.0 (0.1)", "0.0 (64)", "20.0 (0.001)", "–"],
        ["8", "0.0 (0.1)", "0.0 (64)", "20.0 (0.001)", "–"],
        ["∞", "–", "20.0 (64)", "40.0 (0.001)", "–"],
    ]
    page = written(study, paths)
    assert re.findall(r'"--share: (.*?)"', page) == 2 * ["0.0", "0.0", "0.5"] + ["0.5", "1.0"]


def test_figures_of_a_former_study_are_named(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    write_targets(paths)
    title = "Figures of a former study"
    paths.figure("curve", "png").with_name(".partial-ab12curve.png").touch()  # a job was killed
    assert title not in written(study, paths)
    paths.figure("curve", "png").with_name("curve_eps0.5.png").touch()
    said = check_named(Page(written(study, paths)), title)
    assert said.startswith("Note") and "figures/curve_eps0.5.png" in said


def test_headings_say_what_a_figure_shows_and_of_what(page: Page) -> None:
    heading = "Accuracy map: Digits, ViT strong, ε = 1 squares"
    assert page.text("name-squares") == heading
    assert page.text("name-grid") == "Hyperparameter grids grid"


def test_what_failed_is_named_at_the_top_before_what_is_worth_knowing(
    study: Study, paths: Paths
) -> None:
    said = reported(study, paths, certified_epsilon=9.0, diverged=True).text("known")
    assert said.startswith("Fail Certified ε and its target")
    assert re.search(r"\d+ checks passed; \d+ notes", said)
    assert "Diverged" not in said


@pytest.mark.parametrize("partial", [True, False])
def test_missing_cells_are_said_at_the_top(study: Study, paths: Paths, partial: bool) -> None:
    write_trials(study, paths)
    write_targets(paths)
    shutil.rmtree(paths.cell(study.sweep_cells("digits_film")[0]))
    if partial:
        paths = Paths(paths.results, partial=True)
        paths.report.parent.mkdir()
        write_targets(paths)
    page = Page(written(study, paths))
    start = "Partial results of an unfinished study." if partial else "This report is incomplete."
    assert page.text("incomplete").startswith(f"{start} 1 cell of 10 has no trial yet.")
    identifiers = page.values("id")
    assert identifiers.index("incomplete") < identifiers.index("found")
    assert ('http-equiv="refresh"' in paths.report.read_text()) == partial


def test_files_are_links_where_they_lie_beside_the_report(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    write_targets(paths)
    paths.figure("noise", "pdf").write_bytes(b"%PDF")
    links = Page(written(study, paths)).values("href")
    assert {"figures/noise.pdf", "figures/noise.png", "tables/grid.csv"} <= set(links)
    assert "figures/curve.pdf" not in links
    assert "tables/grid.tex" not in links


def test_links_are_called_by_the_kinds_of_their_files(paths: Paths) -> None:
    for target, kinds in {
        "model_eps0.5": ["pdf", "png", "csv"],
        "rules": ["tex", "md", "csv", "comparisons.csv"],
    }.items():
        files = [paths.figure(target, kind) for kind in kinds]
        files[0].parent.mkdir(parents=True, exist_ok=True)
        for file in files:
            file.touch()
        assert [label for label, _ in links(paths, files)] == [kind.upper() for kind in kinds]


# -- the numbers ----------------------------------------------------------------------------


def test_the_summary_counts_cells_trials_and_hours(page: Page) -> None:
    assert (
        "2 sweeps over 1 dataset, 1 backbone and 1 method: 40 trials in 10 of 10 planned cells, "
        "60 min of training on a small CPU." in page.text()
    )
    # 14 November, 22:13:20, and 9 hours.
    assert "Newest results: 15 November 2023, 07:13 UTC" in page.text()


def test_the_gpus_of_a_machine_are_one_device(study: Study, paths: Paths) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        return {"device": f"cuda: H100 (GPU {seed % 2})"}

    write_cells(study, paths, outcome)
    trials = read_trials(study, paths)
    assert summary.sentence(study, trials).endswith(" of training on cuda: H100.")
    assert [row[0] for row in summary.hardware(trials).rows] == ["cuda: H100"]


def test_the_summary_says_how_many_examples_are_trained_on(study: Study, paths: Paths) -> None:
    content = study_content()
    content["training"] = content.get("training", {}) | {"select_on": "holdout"}
    held_out = Study.model_validate(content)
    for each in (study, held_out):
        grid = summary.inputs(each, read_trials(each, paths))["Datasets"]
        column = grid.header.index("Training examples N")
        names = [row[grid.header.index("Name")] for row in grid.rows]
        for name, row in zip(names, grid.rows, strict=True):
            full, used = each.datasets[name].train_size, each.train_size(name)
            of = "" if each is study else f" of {full:,}"
            assert row[column] == f"{used:,}{of}"
            assert (used < full) == (each is held_out)


def test_a_trial_that_two_sweeps_share_was_trained_once(paths: Paths) -> None:
    content = study_content()
    content["sweeps"]["digits_again"] = content["sweeps"]["digits_film"]
    page = reported(Study.model_validate(content), paths)
    assert "40 trials in 10 of 10 planned cells, 60 min of training" in page.text()
    assert "None: 40 trials" in check_named(page, "Diverged trials")


def test_equal_trials_of_two_cells_count_once_at_the_top_and_under_checks(
    study: Study, paths: Paths
) -> None:
    """As with data that has two names: the trials have one key, and the store has them once."""
    write_trials(study, paths, diverged=True)
    first, second, *_ = (paths.cell_trials(study, cell) for cell in study.all_cells())
    shutil.copy(first, second)
    page = Page(written(study, paths))
    assert "36 trials in 10 of 10 planned cells, 54 min of training" in page.text()
    assert "1 trial of 36 ended" in check_named(page, "Diverged trials")


def test_a_problem_reads_the_same_from_its_table_and_from_its_cells(
    study: Study, paths: Paths
) -> None:
    write_trials(study, paths)
    from_cells = written(study, paths)
    for problem in study.problems:
        write_problem(study, paths, problem)
    shutil.rmtree(paths.results / "cells")
    when = re.compile("<time.*?</time>")
    assert when.sub("", written(study, paths)) == when.sub("", from_cells)


def test_a_running_study_is_described_as_far_as_it_is(study: Study, paths: Paths) -> None:
    assert check_named(reported(study, paths), "Completeness").startswith("Pass")
    absent, partial, *_ = study.sweep_cells("digits_film")
    file = paths.cell_trials(study, partial)
    pd.read_parquet(file).iloc[1:].to_parquet(file)
    assert check_named(Page(written(study, paths)), "Completeness").startswith("Note")
    shutil.rmtree(paths.cell(absent))
    page = Page(written(study, paths))
    assert "35 trials in 9 of 10 planned cells" in page.text()
    finding = check_named(page, "Completeness")
    assert finding.startswith("Note")
    assert "digits_strong_film 10 1 1" in finding


def test_damaged_trials_are_an_error_that_names_the_file(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    file = paths.cell_trials(study, study.sweep_cells("digits_film")[0])
    file.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UnreadableResultsError, match=r"C0\.1/trials-\w+\.parquet: cannot be read"):
        report.write(study, STUDY_FILE, paths)


def check_of(study: Study, trials: pd.DataFrame, title: str) -> Check:
    (found,) = (each for each in check_trials(study, trials) if each.title == title)
    return found


GUARANTEE = "Certified ε and its target"
FIRST = ["digits_strong_film", "eps1_epochs2_B64_C0.1", "0.001", "1"]


@pytest.mark.parametrize(
    ("changes", "title", "status", "finding"),
    [
        ({"certified_epsilon": 1.0}, GUARANTEE, "pass", "True of all 32"),
        ({"certified_epsilon": math.nextafter(1, 2)}, GUARANTEE, "fail", "1 private trial of 32 exceed"),
        ({"certified_epsilon": math.nan}, GUARANTEE, "fail", "1 private trial of 32 exceed"),
        ({"certified_epsilon": math.inf}, GUARANTEE, "fail", "1 private trial of 32 exceed"),
        ({"delta": 1e-4}, "Private trials are calibrated to the study's δ", "fail", "1 private trial of 32"),
        ({"diverged": True}, "Diverged trials", "note", "1 trial of 40"),
        ({"nonfinite_examples": 7}, "Gradients that are not finite", "note", "7 per-example"),
    ],
)  # fmt: skip
def test_a_trial_that_breaks_a_promise_is_named(
    study: Study, paths: Paths, changes: dict[str, Any], title: str, status: str, finding: str
) -> None:
    write_trials(study, paths, **changes)
    check = check_of(study, read_trials(study, paths), title)
    assert check.status == status
    assert check.finding.startswith(finding)
    if check.evidence is not None:
        (row,) = check.evidence.rows
        assert row[:4] == FIRST


@pytest.mark.parametrize(("duplicates", "status"), [([], "pass"), (["row 1 = row 7"], "note")])
def test_test_examples_of_the_training_set_are_counted(
    study: Study, paths: Paths, duplicates: list[str], status: str
) -> None:
    write_dataset(paths, "digits", [500, 500], duplicates=duplicates)
    (check,) = check_data(study, paths)
    assert check.status == status
    if duplicates:
        assert check.evidence.rows == [["Digits", "1", "200"]]


def test_classes_without_a_test_example_are_named(study: Study, paths: Paths) -> None:
    write_dataset(paths, "digits", [500, 300, 200], test_counts=[0, 200, 0])
    duplicates, untested = check_data(study, paths)
    assert (duplicates.status, untested.status) == ("pass", "note")
    assert untested.title == "Classes without a test example"
    assert untested.evidence.rows == [["Digits", "zero, two", "3"]]


def test_a_problem_of_two_precisions_is_named(study: Study, paths: Paths) -> None:
    write_trials(study, paths)
    trials = read_trials(study, paths).assign(precision="float32")
    title = "Precision of problems"
    assert check_of(study, trials, title).status == "pass"
    # Two problems may differ, the trials of one should not.
    other = trials.assign(problem="digits_weak_film", precision="bfloat16")
    both = pd.concat([trials, other], ignore_index=True)
    assert check_of(study, both, title).status == "pass"
    trials.loc[0, "precision"] = "bfloat16"
    found = check_of(study, trials, title)
    assert found.status == "note"
    assert found.evidence.rows == [["digits_strong_film", "bfloat16, float32"]]


def test_the_best_learning_rate_at_an_end_of_its_grid_is_counted(
    study: Study, paths: Paths
) -> None:
    write_trials(study, paths)
    title = "Width of the learning-rate grids"
    trials = read_trials(study, paths)
    assert check_of(study, trials, title).status == "pass"
    cell = (trials["problem"] == trials["problem"][0]) & (trials["cell"] == trials["cell"][0])
    trials.loc[cell, "best"] = trials["learning_rate"][cell] == 0.001
    found = check_of(study, trials, title)
    assert "in 1 of 10 tuned cells" in found.finding
    assert found.evidence.rows == [["digits_film", "0.001, 0.1", "8", "1", "0"]]
    assert found.remedy == "add to the sweeps' learning_rate (digits_film: 0.0001)"


def test_a_note_says_how_to_mend_it(study: Study, paths: Paths) -> None:
    said = check_named(reported(study, paths), "Width of the grids of C and B")
    assert "To mend it, add to the sweeps (" in said


def test_the_best_c_and_b_at_an_end_of_their_grids_are_listed(study: Study, paths: Paths) -> None:
    # The accuracies are by hand: C = 0.1 and 1 are equal, so the smaller one is chosen. At ε = 1 all
    # B are equal too; without privacy B = 256 is better, the last of the grid.
    write_trials(study, paths)
    found = check_of(study, read_trials(study, paths), "Width of the grids of C and B")
    assert found.evidence.rows == [
        ["digits_strong_film", "1", "C", "0.1, 1", "0.1"],
        ["digits_strong_film", "1", "B", "64, full", "64"],
        ["digits_strong_film", "8", "C", "0.1, 1", "0.1"],
        ["digits_strong_film", "8", "B", "64, full", "64"],
        ["digits_strong_film", "∞", "B", "64, 256", "256"],
    ]
    assert "Of 3 best settings, 2 have the first or last C of the grid, and 3 the" in found.finding
    assert found.remedy == (
        "add to the sweeps (digits_film: clipping_bound 0.01, digits_film: batch_size 32, "
        "digits_reference: batch_size 1024)"
    )


def test_the_best_c_and_b_inside_their_grids_pass() -> None:
    assert _beyond([0.1, 1.0, 10.0], 1.0) is None
    assert _beyond([64, 256, "full"], "full") is None
    assert _beyond(["automatic"], "automatic") is None
    assert _beyond([1.0, 10.0], 10.0) == 100.0


def test_reference_accuracy_is_that_of_the_best_nonprivate_cell(page: Page) -> None:
    # By hand: B = 256 has macro accuracies 0.7 and 0.8 (mean 0.75), B = 64 has 0.5 and 0.6.
    assert (
        "Digits ViT strong FiLM 85.0 % 80.0 % to 90.0 % 75.0 % 25.0 % 2 "
        "digits_strong_film/epsinf_epochs2_B256_Cnone" in page.text()
    )


def test_without_nonprivate_trials_the_page_says_so(paths: Paths) -> None:
    content = study_content()
    del content["sweeps"]["digits_reference"]
    page = reported(Study.model_validate(content), paths)
    assert "There is no trial without privacy" in page.text()


def test_the_privacy_statement_names_the_guarantee_and_its_limits(page: Page) -> None:
    statement = page.text().partition("Privacy statement This study has ")[2]
    assert statement.startswith("32 private trials with target ε 1, 8 and 8 trials without")
    for word in ("1e-05", "adding or removing", "Poisson", "PRV", "tuning", "test set", "seed"):
        assert word in statement


# -- the same page for everyone -------------------------------------------------------------


def test_equal_results_give_equal_bytes_wherever_they_lie(
    study: Study, paths: Paths, tmp_path: Path
) -> None:
    write_trials(study, paths)
    write_targets(paths)
    first = written(study, paths, tmp_path / "small.yaml")
    elsewhere = Paths(tmp_path / "another" / "place")
    shutil.copytree(paths.results, elsewhere.results)
    assert written(study, elsewhere, tmp_path / "another" / "small.yaml") == first
    assert str(tmp_path) not in first
    assert "Paths(" not in first


def test_the_study_in_the_page_is_the_study(study: Study, paths: Paths, tmp_path: Path) -> None:
    page = Page(written(study, paths))
    (uri,) = (
        attributes["href"]
        for tag, attributes in page.elements
        if tag == "a" and attributes.get("download") == "study.yaml"
    )
    copy = tmp_path / "copy.yaml"
    copy.write_bytes(content_of(str(uri)))
    assert load_study(copy) == study
    assert "physical_batch: 256" in copy.read_text()  # a default, which the study file leaves out


@pytest.mark.parametrize("rows", [10, 30_000])
def test_a_download_is_the_file(rows: int) -> None:
    content = ("x,y\n" + "1,2\n" * rows).encode()
    offered = download_content("numbers.csv", content)
    assert offered.uri is not None
    stored = content_of(offered.uri)
    assert stored[4:8] == b"\0\0\0\0" or not offered.name.endswith(".gz")  # no time of day
    assert (gzip.decompress(stored) if offered.name.endswith(".gz") else stored) == content
    assert len(stored) < 110_000


def test_what_is_too_large_is_named_with_its_size(study: Study, paths: Paths) -> None:
    write_targets(paths)
    noise = np.random.default_rng(0).integers(0, 256, 800_000, dtype=np.uint8).tobytes()
    paths.figure("noise", "csv").write_bytes(base64.b64encode(noise))
    page = Page(written(study, paths))
    assert "CSV (1.1 MB): too large to be inside this page" in page.text("target-noise")
    assert paths.report.stat().st_size < 1_000_000


# -- hostile words --------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(1)">',
    "</title></style><script>alert(1)</script>",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- & &lt; -->",
    "![x](http://example.org/x.png) [y](javascript:alert(1))",
]


@pytest.mark.parametrize("words", HOSTILE)
def test_words_of_a_study_stay_words(paths: Paths, words: str) -> None:
    content = study_content()
    harmless = Page(written(Study.model_validate(content), paths))
    content["title"] = words
    content["datasets"]["digits"]["title"] = words
    content["datasets"]["digits"]["description"] = words
    content["backbones"]["strong"]["title"] = words
    content["backbones"]["strong"]["weights"] = {"kind": "file", "path": words}
    content["methods"]["film"]["title"] = words
    content["figures"]["squares"] |= {"caption": words, "section": words}
    content["figures"]["squares"]["panels"][0]["title"] = words
    content["tables"]["rules"]["caption"] = words
    study = Study.model_validate(content)
    write_trials(study, paths, device=words, precision=words, versions=json.dumps({words: words}))
    write_targets(paths)
    table_numbers()["rules"].assign(condition=words, unit=words, verdict=words).to_csv(
        paths.table("rules", "csv"), index=False
    )
    page = Page(written(study, paths))
    allowed = {tag for tag, _ in harmless.elements} | {"img", "td", "tr", "th", "label", "input"}
    assert {tag for tag, _ in page.elements} <= allowed | {"figure", "time"}
    attributes = {name for _, found in page.elements for name in found}
    assert not any(name.startswith("on") for name in attributes)
    assert all(source.startswith("data:image/webp;base64,") for source in page.values("src"))
    assert all(
        link.startswith(("#", "data:", "figures/", "tables/")) for link in page.values("href")
    )
    # Title twice (head, heading), and every other place once or more.
    assert page.text().count(" ".join(words.split())) >= 10
    assert any(words in (value or "") for value in page.values("alt"))


# -- in a browser ---------------------------------------------------------------------------

SEEN = """
async () => {
  const folded = [...document.querySelectorAll("details.part")].map(part => !part.open);
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const image of document.images) image.loading = "eager";
  const scrolls = (each) =>
    each && (getComputedStyle(each).overflowX === "auto" || scrolls(each.parentElement));
  const width = document.documentElement.clientWidth;
  const outside = [...document.querySelectorAll("body *")].filter(each =>
    each.getBoundingClientRect().right > width + 1 && !scrolls(each.parentElement));
  await Promise.all([...document.images].map(image => image.decode().catch(() => {})));
  const root = document.documentElement;
  return {
    folded,
    outside: outside.map(each => `${each.tagName} ${each.className}`),
    overflow: root.scrollWidth - root.clientWidth,
    images: document.images.length,
    broken: [...document.images].filter(image => !image.naturalWidth).map(image => image.alt),
    dangling: [...document.querySelectorAll("a[href^='#']")].map(link => link.hash.slice(1))
      .filter(hash => !document.getElementById(hash)),
    background: getComputedStyle(document.body).backgroundColor,
    navigation: getComputedStyle(document.querySelector("nav")).position,
  };
}
"""


def look(paths: Paths, width: int, scheme: Literal["light", "dark"] = "light") -> dict[str, Any]:
    """Open the report in headless Chromium, and return what it shows and fetches."""
    fetched: list[str] = []
    with chromium(width, 800) as page:
        page.on("request", lambda request: fetched.append(request.url))
        page.emulate_media(color_scheme=scheme)
        page.goto(paths.report.as_uri())
        seen: dict[str, Any] = page.evaluate(SEEN)
    return seen | {"fetched": [each for each in fetched if not each.startswith("data:")]}


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or google-chrome on the PATH")
class TestInABrowser:
    @pytest.mark.parametrize("width", [390, 1280])
    def test_it_loads_fits_and_fetches_nothing(
        self, study: Study, paths: Paths, width: int
    ) -> None:
        write_trials(study, paths, certified_epsilon=9.0, diverged=True)
        write_targets(paths)
        paths.figure("curve", "png").unlink()
        written(study, paths)
        seen = look(paths, width)
        # Three figures with their thumbnails, and the first one above.
        assert seen["images"] == 7
        assert seen["broken"] == seen["dangling"] == []
        assert seen["fetched"] == [paths.report.as_uri()]
        # Nothing is cut off: what is wider than the window lies in what scrolls.
        assert seen["overflow"] <= 0
        assert seen["outside"] == []
        # The first section of figures is open.
        assert seen["folded"] == [False, True, True]
        assert (seen["navigation"] == "sticky") == (width == 1280)

    def test_tables_of_settings_fit_a_laptop(self, paths: Paths) -> None:
        content = study_content()
        content["datasets"]["digits"]["title"] = "CIFAR-100 (10%)"
        content["backbones"]["strong"]["title"] = "ViT-Tiny, block 6"
        content["sweeps"]["digits_film"]["epsilon"] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
        study = Study.model_validate(content)
        write_trials(study, paths)
        written(study, paths)
        with chromium(1280, 900) as page:
            page.goto(paths.report.as_uri())
            page.locator("summary", has_text="Sweeps (").click()
            for name in ("Best settings of every problem and ε", "Sweeps"):
                table = page.get_by_role("region", name=name, exact=True)
                assert table.get_by_role("columnheader", name="Seeds").count() == 1
                assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0

    def test_a_phone_shows_whole_settings_and_costs(self, study: Study, paths: Paths) -> None:
        reported(study, paths)
        with chromium(390, 844) as page:
            page.goto(paths.report.as_uri())
            for name in ("Best settings of every problem and ε", "Cost of a wrong choice"):
                table = page.get_by_role("region", name=name, exact=True)
                assert table.evaluate("each => each.scrollWidth - each.clientWidth") <= 0
                # Every number stands behind the title of its column.
                numbers = table.locator("td.number").evaluate_all(
                    "all => all.map(each => [each.dataset.label, getComputedStyle(each, '::before').content])"
                )
                assert numbers
                assert all(label in before for label, before in numbers)

    def test_a_click_opens_the_numbers_of_a_figure(self, study: Study, paths: Paths) -> None:
        reported(study, paths)
        many = pd.DataFrame({"x": np.arange(30_000) / 7, "words": 'a, "b"', "trial_key": "k"})
        paths.figure("curve", "csv").write_text("x,y,title\n1,2.34567891,a\n3,,a\n")
        many.to_csv(paths.figure("noise", "csv"), index=False)
        written(study, paths)
        with chromium(390, 844) as page:
            page.goto(paths.report.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            curve = page.locator("#target-curve")
            assert curve.locator("table.values").count() == 0
            curve.get_by_text("The numbers").click()
            curve.locator("table.values").wait_for()
            assert curve.locator("table.values td").all_inner_texts() == ["1", "2.3457", "3", ""]
            assert curve.get_by_text("In every row: title a.").is_visible()
            noise = page.locator("#target-noise")
            assert not noise.is_visible()
            page.locator(".gallery a[href='#target-noise']").click()
            noise.get_by_text("The numbers").click()
            noise.locator("table.values").wait_for()
            assert noise.locator("table.values td").count() == 30_000
            assert noise.locator("table.values td").nth(1).inner_text() == "0.14286"
            assert noise.get_by_text('In every row: words a, "b".').is_visible()
            # Letters are legible: 5.5 points at 300 dpi are 9 pixels or more. A click enlarges it further.
            image = curve.get_by_alt_text("Clipping curve, 1 panel: digits. Lines: all of it.")
            assert image.bounding_box()["width"] / 1650 * 300 / 72 * 5.5 > 9  # type: ignore[index]
            image.click()
            assert image.bounding_box()["width"] > 900  # type: ignore[index]
            assert page.evaluate("document.documentElement.scrollWidth") == 390

    def test_long_words_do_not_widen_a_phone(self, paths: Paths) -> None:
        content = study_content()
        words = "unbreakable" * 30
        content["title"] = words
        content["datasets"]["digits"]["title"] = words
        content["figures"]["squares"] |= {"caption": words, "section": words}
        content["figures"]["f" * 100] = content["figures"]["squares"]
        study = Study.model_validate(content)
        write_trials(study, paths, device=words)
        write_targets(paths)
        written(study, paths)
        assert look(paths, 360)["overflow"] <= 0

    def test_it_is_dark_where_the_reader_wants_it_dark(self, study: Study, paths: Paths) -> None:
        written(study, paths)
        assert look(paths, 360)["background"] == "rgb(255, 255, 255)"
        channels = re.findall(r"\d+", look(paths, 360, "dark")["background"])
        assert all(int(channel) < 50 for channel in channels)


def luminance(colour: str) -> float:
    """Relative luminance of a hexadecimal colour (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_text_has_contrast_in_light_and_dark(study: Study, paths: Paths) -> None:
    blocks = re.findall(r":root \{(.*?)\}", written(study, paths), flags=re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks[:2])
    pairs = [(text, page) for text in ("text", "quiet", "link") for page in ("page", "soft")]
    pairs += [(status, f"{status}-soft") for status in ("pass", "note", "fail")]
    for colours in (light, dark):
        for text, page in pairs:
            bright, dim = sorted((luminance(colours[text]), luminance(colours[page])))[::-1]
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, (text, page)
