"""Descriptions of figures and tables in Python: the paper's, and those of a study's own files."""

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from tests.study.small import SMALL

from dpsweep.cli.check import _undrawn
from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.fingerprints import target_fingerprint
from dpsweep.study.optimizers import BY_DEFAULT

MAP = """\
    from dpsweep import figures

    @figures.figure("Mine")
    def mine(grids):
        return figures.Heatmap(caption="Digits.", panels=[figures.Panel.of(grids.one().at(epsilon=1.0))])
"""


OWN = """\
    from dpsweep import figures

    class Own(figures.Figure):
        family = "own"

    @figures.figure("Mine")
    def mine():
        return Own(caption="Own.")

"""


def load(folder: Path, figures: object, **files: str) -> Study:
    """Load the small study with these figures, and with files of descriptions beside it."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    content = {key: value for key, value in SMALL.items() if key not in ("figures", "tables")}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content | {"figures": figures}))
    return load_study(path)


def test_a_study_has_its_own_figures_beside_or_in_place_of_the_papers(tmp_path: Path) -> None:
    study = load(tmp_path, "mine.py", mine=MAP)
    assert {"mine", "fig1_accuracy_heatmaps"} <= {*study.figures, *study.targets.undrawn}
    assert (study.figures["mine"].caption, study.figures["mine"].section) == ("Digits.", "Mine")
    assert "taba1_hyperparameter_grid" in study.tables
    same = MAP.replace(
        '@figures.figure("Mine")', '@figures.figure("Mine", name="fig3_gradnorm_distributions")'
    )
    study = load(tmp_path, "mine.py", mine=same)
    assert study.figures["fig3_gradnorm_distributions"].family == "heatmap"
    only = load(tmp_path, ["none", "mine.py"], mine=MAP)
    assert list(only.figures) == ["mine"]
    assert list(_undrawn(only, every_target=False)) == ["drawn: mine"]
    nothing = load(tmp_path, "none")
    assert (nothing.figures, nothing.tables, nothing.targets.undrawn) == ({}, {}, {})
    assert list(_undrawn(nothing, every_target=False)) == []


def test_a_series_has_a_figure_for_every_role_and_value(tmp_path: Path) -> None:
    text = """
        from dpsweep.study.targets import Words
        from dpsweep import figures
        from dpsweep.study.grid import neighbours

        @figures.figure("Mine", name="{method}_C{clipping_bound}", each={"method": ["main", "all"]})
        def by_bound(grids, method):
            grid = grids.one(method=method)
            grid = grid.at(epochs=2, epsilon=grid.epsilon)
            for bound in neighbours([grid]):
                panels = [
                    figures.Panel.of(grid.at(epsilon=epsilon, clipping_bound=bound))
                    for epsilon in reversed(grid.epsilon)
                ]
                say = Words(grids.study, panels)
                yield figures.GradientNormHistogram(caption=f"At {say.clipping_bound}.", panels=panels)
    """
    study = load(tmp_path, ["none", "mine.py"], mine=text)
    assert list(study.figures) == ["film_C0.1", "film_C1", "film_C10"]
    captions = [each.caption for each in study.figures.values()]
    assert captions == ["At C = 0.1.", "At C = 1.", "At C = 10."]
    titles = [panel.title for panel in study.figures["film_C1"].parts()]
    assert titles == ["ε = 8", "ε = 1"]
    assert study.targets.undrawn == {"<all>_C<clipping_bound>": "roles.methods.all is not bound"}


def test_parts_without_cells_are_left_out_with_their_reason(tmp_path: Path) -> None:
    text = """
        from dpsweep.study.targets import Words
        from dpsweep import figures

        @figures.figure("Mine")
        def mine(grids):
            found = grids.each({each: {"backbone": each} for each in ("strong", "weak")})
            panels = [figures.Panel.of(each.at(epsilon=8.0)) for each in found.values()]
            return figures.Heatmap(caption=f"{Words(grids.study, panels).backbone}.", panels=panels)

        @figures.figure("Mine")
        def strong(grids):
            found = grids.each({each: {"backbone": each} for each in ("strong", "weak")})
            return figures.Heatmap(caption="Strong.", panels=[figures.Panel.of(found["strong"])])
    """
    study = load(tmp_path, ["none", "mine.py"], mine=text)
    assert study.figures["mine"].caption == "Pretrained."
    unbound = "roles.backbones.strong is not bound"
    assert study.targets.undrawn == {"parts of mine": unbound, "strong": unbound}
    beside = load(tmp_path, "mine.py", mine=text)
    assert sorted(beside.targets.own_undrawn) == ["parts of mine", "strong"]
    assert len(beside.targets.undrawn) > 10
    said = list(_undrawn(beside, every_target=False))
    assert said[-2:] == ["not drawn: parts of mine, strong", f"  {unbound}"]


LINES = """\
    from dpsweep import figures

    @figures.figure("Mine")
    def mine(grids):
        at = grids.one().at(epsilon=1.0, epochs=grids.one().epochs[0])
        lines = [figures.Line.of(at.at(batch_size=size){label}) for size in at.batch_size]
        return figures.ClippingCurve(caption="Mine.", panels=[figures.LinePanel(lines=lines)])
"""


def test_lines_of_one_panel_have_different_labels(tmp_path: Path) -> None:
    """Lines are drawn by their labels: two with one label would become one zigzag."""
    study = load(tmp_path, "mine.py", mine=LINES.format(label=""))
    (panel,) = study.figures["mine"].parts()
    assert [line.label for line in panel.lines] == ["B = 64", "B = 256", "B = full"]
    same = load(tmp_path, "mine.py", mine=LINES.format(label=', label="One"'))
    assert "several lines are called One" in same.targets.undrawn["mine"]


def test_a_panel_of_equal_lines_is_left_out(tmp_path: Path) -> None:
    text = """
        from dpsweep import figures

        def curve(*panels):
            panels = [figures.LinePanel.of(grids) for grids in panels]
            return figures.ClippingCurve(caption="C.", quantity="accuracy", panels=panels)

        @figures.figure("Mine")
        def one(grids):
            grid = grids.one()
            ends = [grid.at(epsilon=max(grid.epsilon)), grid.at(epsilon=min(grid.epsilon))]
            return curve(ends, ends[::-1], ends[:1] * 2)

        @figures.figure("Mine")
        def none(grids):
            return curve([grids.one().at(epsilon=8.0)] * 2)
    """
    study = load(tmp_path, ["none", "mine.py"], mine=text)
    assert len(study.figures["one"].parts()) == 2
    reason = "digits_pretrained_film has one value of what is compared"
    assert study.targets.undrawn == {"parts of one": reason, "none": reason}


def own(change: str, to: str) -> str:
    """Return the file of `MAP` with another text in a place."""
    return MAP.replace(change, to)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef broken(:\n", "mine.py: SyntaxError: invalid syntax (mine.py, line 2)"),
        ("x = 1\n\n1 / 0\n", "mine.py, line 3: ZeroDivisionError: division by zero"),
        ("x = 1\nraise SystemExit(3)\n", "mine.py, line 2: SystemExit: 3"),
        (own("epsilon=1.0", "epsilom=1.0"), "line 5: epsilom: unknown axis; did you mean epsilon? allowed: "),
        (own("epsilon=1.0", "epsilon=3.0"), "epsilon: found 3; allowed (digits_pretrained_film): 1, 8"),
        (own("epsilon=1.0", "epsilon=[]"), "line 5: Panel: epsilon: found []; allowed: at least 1 item"),
        (own("return figures", "figures"), "line 3: mine: found null; allowed: a figure"),
        (
            MAP + "\n    @figures.figure('Mine', name='mine')\n    def again(grids):\n    "
            "    return mine(grids)\n",
            "line 7: again: found the name mine, which mine.py, line 3: mine has too; allowed: one that no",
        ),
        *(
            (own("Digits.", found), f"mine: caption: found {found}; allowed: an f-string")
            for found in ("{dataset}", "{say.tuned('batch_size')}", "{grid.epsilon[0]}")
        ),
        (
            MAP + "\n    @figure('Mine', name='other')\n    def mine(grids):\n        return mine(grids)\n",
            "mine.py: found two functions mine, in the lines 4 and 8; allowed: one,",
        ),
        (own('("Mine")', ""), "mine.py, line 3: TypeError: found section <function"),
        (
            own('@figures.figure("Mine")', '@figures.figure("Mine", each={"colour": "all"})'),
            'mine.py, line 3: mine: each: found "colour"; allowed: dataset, backbone, method, optimizer',
        ),
        (own("figures.Heatmap", "figures.ClippingCurve"), "a valid dictionary or instance of LinePanel"),
        (OWN, "line 8: TypeError: Can't instantiate abstract class Own with"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_file_and_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StudyError) as error:
        load(tmp_path, "mine.py", mine=text)
    assert said in " ".join(str(error.value).split())
    # Every study can be read without running its files.
    study = load_study(tmp_path / "study.yaml", figures=False)
    assert study.sweeps and not study.figures


def test_an_edit_changes_the_fingerprints_of_its_figures_only(tmp_path: Path) -> None:
    own = """
        from __future__ import annotations

        import pydantic

        from dpsweep import figures

        class Empty(figures.Heatmap):
            family = "empty"
            later: Later | None = None

        class Later(pydantic.BaseModel):
            ...

        @figures.figure("Mine")
        def other(grids):
            return Empty(caption="Nothing.", panels=[figures.Panel.of(grids.one().at(epsilon=1.0))])
    """

    def fingerprint(name: str, text: str) -> str:
        study = load(tmp_path, ["mine.py", "other.py"], mine=text, other=own + comment)
        return target_fingerprint(study, study.figures[name])

    comment, edited = "", MAP.replace("Digits.", "Digits, again.")
    before = {name: fingerprint(name, MAP) for name in ("mine", "other")}
    assert fingerprint("mine", edited) != before["mine"]
    # The code of a family of the study's own can be in any of its files.
    comment = "\n        # A comment.\n"
    assert fingerprint("mine", MAP) == before["mine"]
    assert fingerprint("other", MAP) != before["other"]


def test_all_that_a_figure_shows_is_in_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = load(tmp_path, ["none", "mine.py"], mine=MAP)
    (target,) = study.figures.values()
    before = target_fingerprint(study, target)

    def after(**sections: Any) -> str:
        return target_fingerprint(study.model_copy(update=sections), target)

    assert after(style=study.style.model_copy(update={"font_size": 9.0})) != before
    for kind in ("datasets", "backbones", "methods"):
        sections = getattr(study, kind)
        renamed = {
            name: each.model_copy(update={"title": "Another"}) for name, each in sections.items()
        }
        assert after(**{kind: renamed}) != before, kind
    assert after(title="Another") == before  # no figure shows it
    adam = [BY_DEFAULT["adam"].model_copy(update={"title": title}) for title in ("One", "Other")]
    assert after(optimizers={"adam": adam[0]}) != after(optimizers={"adam": adam[1]})
    monkeypatch.setattr(type(target), "further_settings", lambda _: {"references": [0.5]})
    assert after() != before
