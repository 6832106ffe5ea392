"""Tables of a study: their numbers, and their texts in Markdown and LaTeX."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.synthetic import make_study, write_cells, write_dataset

from dpsweep.base.formatting import one_line
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.tables import write
from dpsweep.tables.compared_grids import TuningImplications
from dpsweep.tables.text import TextTable, group_starts, latex, superscript


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def table(family: str, **settings: Any) -> dict[str, Any]:
    return {"t": {"family": family, "caption": "Rates < 50 % & ε", "section": "s"} | settings}


def written(study: Study, paths: Paths) -> pd.DataFrame:
    write(study, paths, "t")
    check_latex(paths.table("t", "tex").read_text(encoding="utf-8"))
    return pd.read_csv(paths.table("t", "csv"))


def check_latex(text: str) -> None:
    """Check the structure of a table, because wrong structure fails in pdfLaTeX."""
    assert re.findall(r"\\begin\{(\w+)\}", text) == ["table", "tabular"]
    assert re.findall(r"\\end\{(\w+)\}", text) == ["tabular", "table"]
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    specification = re.search(r"\\begin\{tabular\}\{@\{\}(.*)@\{\}\}", text)
    assert specification is not None
    bare = re.sub(
        r">\{\\raggedright\\arraybackslash\}p\{[0-9.]+\\linewidth\}", "p", specification[1]
    )
    assert re.fullmatch(r"[lrp]+", bare)
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert rows
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == len(bare) - 1, row
        assert not re.search(r"(?<!\\)[%#_]", row), row
        assert not row.startswith("[")
    assert not re.search(r"[^\x00-\xff]", text), "pdfLaTeX does not read it"


def markdown_rows(paths: Paths) -> list[list[str]]:
    lines = paths.table("t", "md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {row.count("|") for row in rows} == {rows[0].count("|")}
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:1] + rows[2:]]


# -- text ----------------------------------------------------------------------------------

# Characters with a special meaning in some format.
MARKS = "$_*`~|\\<>&;#[](){}^%!-+=.'\"\n\r\t/:@ \u200b\x00\x07\x85\u2028ab1é"
TEXTS = st.one_of(st.text(), st.text(alphabet=MARKS))


def read_markdown(source: str) -> list[str]:
    """Return the texts of a page of Markdown without marks, by another parser than GitHub's."""
    found = []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(source):
        if token.type == "inline":
            children = token.children or []
            assert {child.type for child in children} <= {"text", "text_special"}, source
            found.append("".join(child.content for child in children))
    return found


@given(TEXTS, TEXTS)
def test_markdown_keeps_texts(cell: str, caption: str) -> None:
    caption = f"a{caption}"
    source = TextTable(["h", "i"], [[cell, "x"]], ["l", "l"]).markdown(caption)
    assert read_markdown(source) == [one_line(caption), "h", "i", one_line(cell), "x"]
    assert "$" not in re.sub(r"\\\$", "", source)  # GitHub would render mathematics


_OF_LATEX = re.compile(
    r"\\text(backslash|asciitilde|asciicircum|bar|asciigrave)\{\}|\\dots\{\}|\\([&%$#_{}])"
    r"|\$([<>-]|\\\w+|\^\{[\d-]+\}|\^\{\\circ\})\$|\{\}|([^\\&%$#_{}~^`])"
)
_MEANT = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "bar": "|", "asciigrave": "`"}


@given(st.text(alphabet="".join(set(MARKS) - set("\u200b"))))
def test_latex_keeps_texts(text: str) -> None:
    """A small parser reads LaTeX back; every special character must be part of a command for it."""
    source, read = latex(text), ""
    while source:
        found = _OF_LATEX.match(source)
        assert found, source
        word, mark, mathematics, letter = found.groups()
        read += _MEANT.get(word, "") + (mark or "") + (mathematics or "") + (letter or "")
        source = source[found.end() :]
    assert read == one_line(text)
    assert not re.search("--|''", latex(text))


def test_latex_of_plain_text() -> None:
    assert latex("ε ≤ 8 & 10 %, a_b") == r"$\varepsilon$ $\leq$ 8 \& 10 \%, a\_b"
    assert latex("2⁸–2¹⁴, 10⁻³") == r"2$^{8}$--2$^{14}$, 10$^{-3}$"
    assert latex(r"\x{y}") == r"\textbackslash{}x\{y\}"
    assert superscript(-14) == "⁻¹⁴"


def test_horizontal_rules_separate_groups() -> None:
    rows = [["a"], ["a"], ["b"]]
    assert group_starts([row[0] for row in rows]) == {2}
    text = TextTable(["h"], rows, ["l"], groups=frozenset({2})).latex("c", "l")
    assert text.count(r"\midrule") == 2


# -- the grid ------------------------------------------------------------------------------


SWEEPS = """
private: {epsilon: [0.25, 8.0], batch_size: [128, 256, 512, full], clipping_bound: [1.0e-5, 0.1, 42.0],
  learning_rate: {first: 0.001, last: 0.02, count: 8}, seeds: 3}
free: {epsilon: [.inf], clipping_bound: none, optimizer: sgd}
auto: {method: lora, batch_size: [64, 128, 512, full], clipping_bound: automatic,
  learning_rate: [0.1, 0.2, 0.3]}
"""


def test_the_hyperparameter_grid_lists_every_sweep(paths: Paths) -> None:
    study = make_study(yaml.safe_load(SWEEPS), tables=table("hyperparameter_grid"))
    numbers = written(study, paths).set_index("sweep")
    assert numbers.loc["private", "batch_size"] == "128 256 512 full"
    assert len(numbers.loc["private", "learning_rate"].split()) == 8
    assert numbers.loc["private", "clipping_bound"] == "1e-05 0.1 42"
    header, private, free, auto = markdown_rows(paths)
    assert header[3:] == [
        "Subset", "ε", "Epochs", "Batch sizes B", "Learning rates η", "Clipping bounds C", "Seeds",
    ]  # fmt: skip
    assert private == [
        "Digits", "ViT small", "DP-Adam, FiLM", "1", "0.25, 8", "2", "2⁷–2⁹ + full",
        "[0.001, 0.02] (8)", "10⁻⁵, 0.1, 42", "3",
    ]  # fmt: skip
    assert free[2:7] == ["SGD, FiLM", "1", "∞", "2", "100"]
    assert free[8] == "No clipping"
    assert auto[2] == "DP-Adam, LoRA (rank 1)"
    assert auto[6:9] == ["64, 128, 512, full", "0.1, 0.2, 0.3", "AUTO-S"]


# -- datasets ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "imbalance", "sizes"),
    [
        ([300, 100, 600], 6.0, "100–600"),
        ([500, 500], 1.0, "500 each"),
        ([999, 1, 0], math.inf, "0–999"),
    ],
)
def test_the_table_of_datasets_is_read_from_prepared_files(
    paths: Paths, counts: list[int], imbalance: float, sizes: str
) -> None:
    study = make_study({"s": {}}, tables=table("datasets"))
    write_dataset(paths, "digits", counts, source="some/source_1")
    row = written(study, paths).iloc[0]
    assert row[["train_size", "test_size", "classes"]].tolist() == [1000, 200, len(counts)]
    assert row["imbalance"] == imbalance
    assert markdown_rows(paths)[1] == [
        "Digits", "some/source_1", str(len(counts)), "1,000", "200", sizes, "Handwritten digits.",
    ]  # fmt: skip
    assert r"some/source\_1" in paths.table("t", "tex").read_text()


# -- comparison ----------------------------------------------------------------------------


REFERENCES: list[dict[str, Any]] = [
    {
        "dataset": "digits", "backbone": "small", "method": "film", "clipping_bound": "automatic",
        "epochs": 2,
    } | numbers
    for numbers in (
        {"epsilon": 1.0, "value": 0.3, "minimum": 0.29, "maximum": 0.36},
        {"epsilon": 8.0, "value": 0.4123},
    )
]  # fmt: skip


def comparison_study(*changes: dict[str, Any]) -> Study:
    """Return a study with a comparison table, and `REFERENCES` with each of some changes."""
    sweep = {"epsilon": [1.0, 8.0], "batch_size": [100, 200], "seeds": 2}
    study = make_study(
        {"flat": sweep, "auto": sweep | {"clipping_bound": "automatic"}},
        tables=table(
            "comparison",
            rows=["dataset", "epsilon"],
            columns=["clipping"],
            entries=[
                {"epsilon": epsilon, **bound}
                for bound in ({"clipping_bound": "automatic"}, {})
                for epsilon in (1.0, 8.0)
            ],
        ),
    )
    references = [each | change for each in REFERENCES for change in changes]
    return Study.model_validate(study.model_dump(exclude_none=True) | {"references": references})


def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    if cell.batch_size == 200:
        return {"macro_accuracy": 0.1}
    accuracy = (0.3 if cell.clipping_bound == "automatic" else 0.5) + 0.01 * cell.epsilon
    return {"macro_accuracy": accuracy + 0.1 * (seed == 2)}


def test_comparison_by_hand(paths: Paths) -> None:
    write_cells(comparison_study({}), paths, outcome)
    numbers = written(comparison_study({}), paths).set_index(["ε", "column"])
    first = numbers.loc[(1, "AUTO-S")]
    assert first[["macro_accuracy", "minimum", "maximum"]].tolist() == pytest.approx(
        [0.36, 0.31, 0.41]
    )
    assert first["difference"] == pytest.approx(0.06)
    assert bool(first["within_reference"]) is True
    second = numbers.loc[(8, "AUTO-S")]
    assert second["difference"] == pytest.approx(0.43 - 0.4123)
    assert pd.isna(second["within_reference"])  # the reference has no range
    assert numbers["reference"].notna().sum() == 2
    assert set(numbers["batch_size"]) == {100}
    header, one, eight = markdown_rows(paths)
    assert header == ["Dataset", "ε", "AUTO-S", "AUTO-S (paper)", "Tuned"]
    assert one == [
        "Digits", "1", "0.3600 [0.3100, 0.4100]", "0.3000 [0.2900, 0.3600]",
        "0.5600 [0.5100, 0.6100]",
    ]  # fmt: skip
    assert eight[3] == "0.4123"
    caption = paths.table("t", "md").read_text(encoding="utf-8").partition("|")[0]
    assert "Ours minus the paper's, in 2 of 2 numbers: mean +0.03" in caption
    assert ", from +0.0177 to +0.0600. 1 of 1 of our means lie within the range" in caption


def test_numbers_of_other_data_are_not_compared(paths: Paths) -> None:
    study = comparison_study({"dataset": "sun397"})
    write_cells(study, paths, outcome)
    assert written(study, paths)["reference"].isna().all()
    assert markdown_rows(paths)[0] == ["Dataset", "ε", "AUTO-S", "Tuned"]
    assert "paper" not in paths.table("t", "md").read_text(encoding="utf-8")


def test_means_outside_the_papers_range_are_marked_and_keep_full_precision(
    paths: Paths,
) -> None:
    accuracy = 1.1 / 3
    write_cells(comparison_study({}), paths, lambda cell, rate, seed: {"macro_accuracy": accuracy})
    numbers = written(comparison_study({}), paths)
    assert str(numbers["within_reference"][0]) == "False"
    assert f",{accuracy!r}," in paths.table("t", "csv").read_text()


# -- tuning implications -------------------------------------------------------------------


def test_comparisons_csv_has_every_comparison_behind_a_verdict(paths: Paths) -> None:
    # Two sweeps share every cell at epsilon 8, which counts once.
    grid = {"clipping_bound": [0.1, 1.0], "batch_size": [100, 200], "seeds": 2}
    study = make_study(
        {"s": grid | {"epsilon": [1.0, 8.0]}, "again": grid | {"epsilon": [8.0]}},
        tables=table("tuning_implications"),
    )
    write_cells(study, paths, outcome)
    numbers = written(study, paths).set_index("rule")
    found = pd.read_csv(paths.table("t", "comparisons.csv"))
    counts = found.dropna(subset=["effect"])["rule"].value_counts()
    assert counts.to_dict() == numbers["comparisons"][numbers["comparisons"] > 0].to_dict()
    assert counts["tune_jointly"] == 2
    first = found[found["rule"] == "lower_epsilon_larger_bound"].iloc[0]
    assert first["epsilon"] == "8, 1"
    assert first["found"] == "C = 0.1, C = 0.1"
    written_files = {file.name for file in paths.table("t", "csv").parent.glob("[!.]*")}
    assert written_files == {f"t.{suffix}" for suffix in study.tables["t"].table_files}


def test_methods_are_compared_by_seeds_that_did_not_choose(paths: Paths) -> None:
    # "Tuned" with B = 200 is best for the first seed; AUTO-S is better for the second.
    def lucky(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        if cell.clipping_bound == "automatic":
            return {"macro_accuracy": 0.6}
        return {"macro_accuracy": {1: 0.9, 2: 0.5}[seed] if cell.batch_size == 200 else 0.4}

    write_cells(comparison_study(), paths, lucky)
    numbers = written(comparison_study(), paths).set_index(["ε", "column"])
    assert numbers.loc[(1, "Tuned"), "macro_accuracy"] == pytest.approx(0.7)
    assert numbers.loc[(1, "Tuned"), "cross_fitted"] == pytest.approx(0.5)
    caption = paths.table("t", "md").read_text()
    assert (
        "Tuned has a higher accuracy than AUTO-S in 0 of 2 rows (mean difference −10.0 points)"
        in caption
    )


# -- all -----------------------------------------------------------------------------------


def test_every_field_of_a_rule_has_its_own_column() -> None:
    row = {
        "condition": "Lower ε", "implication": "Increase C", "effect_measured": "gain of a larger C",
        "unit": "points", "margin": 0.1, "threshold": 0.2, "effect": 0.25, "lower_here": -0.5,
        "upper_here": 0.75, "smallest_visible_here": 1.25, "lower_elsewhere": -1.5,
        "upper_elsewhere": 1.75, "smallest_visible_elsewhere": 2.25, "comparisons": 11,
        "units": 11, "in_favour": 7, "against": 4, "at_an_end": 5, "groups_of_datasets": 3, "needs": "",
        "verdict": "not resolved",
    }  # fmt: skip
    printed = TuningImplications(caption="Rules.").layout(pd.DataFrame([row]))
    assert dict(zip(printed.header, printed.rows[0], strict=True)) == {
        "Condition": "Lower ε",
        "Rule": "Increase C",
        "Measured": "gain of a larger C (points)",
        "Effect [this study]": "+0.25 [−0.50, +0.75]",
        "Other datasets": "[−1.50, +1.75]",
        "Margin": "0.1",
        "Visible": "1.25",
        "Comparisons": "11",
        "Units (for, against)": "11 (7, 4) in 3",
        "Verdict": "not resolved",
    }


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({}, 1),
        ({"batch_size": [100]}, 0),
        ({"clipping_bound": [1.0]}, 0),
        ({"epsilon": [math.inf]}, 0),
    ],
)
def test_only_grids_that_cross_batch_sizes_and_bounds_are_compared(
    changes: dict[str, Any], compared: int
) -> None:
    grid = {"epsilon": [1.0], "clipping_bound": [0.1, 1.0], "batch_size": [100, 200]}
    study = make_study({"s": grid | changes}, tables=table("tuning_implications"))
    assert len(study.tables) == compared
    if not compared:
        (reason,) = set(study.targets.undrawn.values())
        assert reason == "no sweep has two batch sizes and two clipping bounds"
