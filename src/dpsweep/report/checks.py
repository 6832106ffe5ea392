"""Checks for the report: privacy guarantee, completeness, divergence, width of the grids, data and files."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from dpsweep.analysis.row_checks import other_sources
from dpsweep.base.files import DamagedFileError, read_checked_json
from dpsweep.base.units import count
from dpsweep.report.embed import percent, values
from dpsweep.report.trials import is_private
from dpsweep.study import Cell, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.clipping import SMALLEST_BOUND
from dpsweep.study.messages import shorten
from dpsweep.study.paths import Paths
from dpsweep.study.section import Geometric
from dpsweep.study.trials import trials_per_cell
from dpsweep.tables.text import TextTable

_LISTED_TRIALS = 40  # the trial files list them all
_PASTED = 5  # sweeps in an advice


@dataclass(frozen=True)
class Check:
    """A check with its outcome; a ``note`` is not a failure, but worth knowing."""

    title: str
    status: Literal["pass", "note", "fail"]
    finding: str
    evidence: TextTable | None = None
    remedy: str = ""
    """an edit of the study that resolves it"""


def check_trials(study: Study, trials: pd.DataFrame) -> list[Check]:
    """Return all checks of trials, the privacy guarantee first; without trials, only that of completeness."""
    if trials.empty:
        return [_complete(study, trials)]
    once = trials.drop_duplicates("trial_key")  # sweeps may share a trial
    private = once[is_private(once)]
    return [
        _guarantee(private),
        _delta(study, private),
        _complete(study, trials),
        _selection(study),
        _diverged(once),
        _nonfinite(once),
        _precision(trials),
        _passes(once),
        _grid_edge(study, trials),
        _best_at_an_end(study, trials),
    ]


def check_data(study: Study, paths: Paths) -> list[Check]:
    """Check that test examples are not training examples, and that every class has a test example.

    There are no checks if no dataset is prepared.
    """
    title = "Test examples that are in the training set"
    rows, untested, cut = [], [], []
    prepared = 0
    for name in study.swept_datasets:
        with suppress(FileNotFoundError, DamagedFileError):  # not prepared yet
            metadata = read_checked_json(paths.dataset(name) / "metadata.json")
            prepared += 1
            if same := len(metadata.get("duplicates", [])):
                row = {"Dataset": study.datasets[name].title, "In both": f"{same:,}"}
                rows.append(row | {"Test examples": f"{metadata['test_size']:,}"})
            for split, found in metadata.get("cut", {}).items():
                row = {"Dataset": study.datasets[name].title, "Split": split}
                row |= {"Texts": f"{found['texts']:,} of {metadata[f'{split}_size']:,}"}
                cut.append(row | {"Tokens cut off": percent(found["share_of_tokens"])})
            counted = zip(metadata["classes"], metadata["test_counts"], strict=True)
            if names := [each for each, examples in counted if not examples]:
                row = {"Dataset": study.datasets[name].title, "Without one": shorten(names)}
                untested.append(row | {"Classes": f"{len(metadata['classes']):,}"})
    if not prepared:
        return []
    checks = []
    if untested:
        finding = (
            "Some classes have no test example, so that nobody knows how accurate a model is on them. Macro "
            "accuracy is the mean over the others, and figures by class leave them out."
        )
        table = TextTable.of(untested, "llr")
        checks = [Check("Classes without a test example", "note", finding, table)]
    if cut:
        finding = "Some texts are longer than max_length, and networks read only their beginning."
        checks.append(Check("Texts that are cut", "note", finding, TextTable.of(cut, "llrr")))
    if not rows:
        finding = "No test example has the inputs of a training example."
        return [Check(title, "pass", finding), *checks]
    finding = (
        "A network reads some test examples as the same pixels or text as a training example, and "
        "may have learned them by heart. The dataset's metadata.json names them; duplicates: refuse "
        "makes them an error."
    )
    return [Check(title, "note", finding, TextTable.of(rows, "lrr")), *checks]


def check_files(study: Study, paths: Paths) -> list[Check]:
    """List the files of figures and tables that belong to a former version of the study, if any."""
    drawn = {paths.figure(name, each) for name in study.figures for each in ("pdf", "png", "csv")}
    drawn |= {
        paths.table(name, each)
        for name, table in study.tables.items()
        for each in table.table_files
    }
    places = {paths.figure("any", "pdf").parent, paths.table("any", "md").parent}
    former = sorted(
        file.relative_to(paths.drawn).as_posix()
        for place in places
        if place.is_dir()
        for file in place.iterdir()
        if file not in drawn and not file.name.startswith(".")
    )
    if not former:
        return []
    finding = (
        f"{count(len(former), 'file')} in figures/ and tables/ are of a former version of this study. "
        "They are not in this report, and can be removed."
    )
    evidence = TextTable.of([{"File": name} for name in former], "l")
    return [Check("Figures of a former study", "note", finding, evidence)]


def check_sources(study: Study, paths: Paths) -> list[Check]:
    """Note if trials were trained by other sources of dpsweep than the present ones."""
    title, found = "All trials were trained by this version", other_sources(study, paths)
    return [Check(title, "note", f"{found}.")] if found else []


def _finding_by_value(
    title: str,
    status: Literal["note", "fail"],
    finding: str,
    trials: pd.DataFrame,
    column: str,
    heading: str,
) -> Check:
    """Make a check that lists trials, each with its value of a column."""
    rows = [
        {
            "Problem": str(row["problem"]),
            "Cell": str(row["cell"]),
            "Learning rate": number(float(row["learning_rate"])),
            "Seed": str(row["seed"]),
            heading: percent(row[column]) if column == "accuracy" else f"{row[column]:.6g}",
        }
        for row in trials.head(_LISTED_TRIALS).to_dict("records")
    ]
    if len(trials) > _LISTED_TRIALS:
        finding += f" The first {_LISTED_TRIALS} are listed."
    return Check(title, status, finding, TextTable.of(rows, "llrrr"))


def _guarantee(private: pd.DataFrame) -> Check:
    title = "Certified ε and its target"
    if private.empty:
        return Check(title, "note", "There is no private trial.")
    # Negated, because a missing certificate (NaN) must count as broken.
    broken = private[~(private["certified_epsilon"] <= private["epsilon"])]
    if len(broken):
        finding = (
            f"{count(len(broken), 'private trial')} of {len(private):,} exceed the target or have no "
            "certificate. Do not rely on these trials' ε."
        )
        return _finding_by_value(title, "fail", finding, broken, "certified_epsilon", "Certified ε")
    margin = 100 * (1 - private["certified_epsilon"] / private["epsilon"])
    finding = (
        f"True of all {count(len(private), 'private trial')}: the certificates are between "
        f"{margin.min():.2g} % and {margin.max():.2g} % below their target."
    )
    return Check(title, "pass", finding)


def _delta(study: Study, private: pd.DataFrame) -> Check:
    title, delta = "Private trials are calibrated to the study's δ", study.privacy.delta
    others = private[private["delta"] != delta]
    if others.empty:
        return Check(title, "pass" if len(private) else "note", f"δ = {delta:g}.")
    finding = (
        f"{count(len(others), 'private trial')} of {len(private):,} were trained for another δ "
        f"than {delta:g}."
    )
    return _finding_by_value(title, "fail", finding, others, "delta", "δ")


def _selection(study: Study) -> Check:
    if study.training.select_on == "test":
        finding = (
            "Hyperparameters are chosen by accuracy on the test set, as in the paper: the accuracy of "
            "what was chosen is optimistic (select_on: holdout avoids that)."
        )
        return Check("Selection", "note", finding)
    finding = (
        f"Hyperparameters are chosen on {100 * study.training.holdout_share:g} % of the training set, "
        "held out of training; N and the noise are those of the rest. Accuracies are on the test set."
    )
    return Check("Selection", "pass", finding)


def _complete(study: Study, trials: pd.DataFrame) -> Check:
    rows = []
    bracket = study.training.selection == "bracket"
    for name in study.problems:
        trained = trials.loc[trials["problem"] == name, "cell"].value_counts()
        cells = study.problem_cells(name)
        found = [int(trained.get(cell.name, 0)) for cell in cells]
        sweeps = map(study.sweep_of, cells)
        # A bracket may end before it has tried all rates.
        expected = [
            study.sweeps[each].seeds if bracket else trials_per_cell(study, each) for each in sweeps
        ]
        partial = sum(0 < there < all_ for there, all_ in zip(found, expected, strict=True))
        if partial or 0 in found:
            rows.append(
                {
                    "Problem": name,
                    "Cells planned": f"{len(found):,}",
                    "Cells without trials": f"{found.count(0):,}",
                    "Cells with some of their trials": f"{partial:,}",
                }
            )
    if not rows:
        return Check("Completeness", "pass", "Every planned cell has all its trials.")
    finding = "The study is not finished; what is drawn below is drawn from the trials that exist."
    return Check("Completeness", "note", finding, TextTable.of(rows, "lrrr"))


def _diverged(trials: pd.DataFrame) -> Check:
    title, diverged = "Diverged trials", trials[trials["diverged"].astype(bool)]
    if diverged.empty:
        finding = f"None: {count(len(trials), 'trial')} ended with finite parameters."
        return Check(title, "pass", finding)
    finding = (
        f"{count(len(diverged), 'trial')} of {len(trials):,} ended with parameters or a loss that are "
        "not finite. They are kept, with the accuracy that was measured."
    )
    return _finding_by_value(title, "note", finding, diverged, "accuracy", "Accuracy")


def _nonfinite(trials: pd.DataFrame) -> Check:
    title = "Gradients that are not finite"
    affected = trials[trials["nonfinite_examples"] > 0]
    if affected.empty:
        return Check(title, "pass", "None: every per-example gradient was finite.")
    examples = int(affected["nonfinite_examples"].sum())
    finding = (
        f"{count(examples, 'per-example gradient')} that were not finite counted as zero, in "
        f"{count(len(affected), 'trial')}. The guarantee holds; the update is smaller."
    )
    return Check(title, "note", finding)


def _precision(trials: pd.DataFrame) -> Check:
    title = "Precision of problems"
    found = trials.groupby("problem")["precision"].unique()
    rows = [
        {"Problem": str(name), "Precision": ", ".join(sorted(kinds))}
        for name, kinds in found.items()
        if len(kinds) > 1
    ]
    if not rows:
        return Check(title, "pass", "Trials of a problem ran in the same number format.")
    finding = (
        "Some problems compare trials of different number formats, as jobs ran on different devices; "
        "training.precision sets one."
    )
    return Check(title, "note", finding, TextTable.of(rows, "ll"))


def _passes(trials: pd.DataFrame) -> Check:
    ratio = trials["passes"] / trials["epochs"]
    within = bool(((ratio - 1).abs() <= 0.1).all())
    finding = (
        f"Realised passes T·q are between {percent(ratio.min())} and {percent(ratio.max())} of the "
        "planned epochs, because the number of steps is a whole number."
    )
    return Check("Passes over the data", "pass" if within else "note", finding)


def _grid_edge(study: Study, trials: pd.DataFrame) -> Check:
    title = "Width of the learning-rate grids"
    first = trials[trials["best"].astype(bool) & (trials["seed"] == 1)]
    names = {(cell.problem, cell.name): study.sweep_of(cell) for cell in study.all_cells()}
    sweep_of = pd.Series(
        [names.get(key) for key in zip(first["problem"], first["cell"], strict=True)], first.index
    )
    rows, wider, at_edge = [], dict[str, dict[str, list[float]]](), 0
    for name, sweep in study.sweeps.items():
        rates = sweep.learning_rates
        chosen = first.loc[sweep_of == name, "learning_rate"]
        low, high = int((chosen == rates[0]).sum()), int((chosen == rates[-1]).sum())
        if len(rates) > 1 and low + high:
            at_edge += low + high
            rows.append(
                {
                    "Sweep": name,
                    "Grid from, to": values([rates[0], rates[-1]]),
                    "Tuned cells": f"{len(chosen):,}",
                    "Best is the lowest": f"{low:,}",
                    "Best is the highest": f"{high:,}",
                }
            )
            ends = [rates[0]] * (low > 0) + [rates[-1]] * (high > 0)
            added = [float(f"{_beyond(rates, end):.2g}") for end in ends]
            wider[name] = {"learning_rate": added}
    if not rows:
        return Check(title, "pass", "No cell's best learning rate is at an end of its grid.")
    finding = (
        f"The best learning rate is at an end of its grid in {at_edge:,} of "
        f"{count(len(first), 'tuned cell')}; a wider grid might do better there."
    )
    remedy = _wider_sweeps(study, wider)
    return Check(title, "note", finding, TextTable.of(rows, "llrrr"), remedy)


def _wider_sweeps(study: Study, added: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return what to write in the study so that sweeps get further values: YAML, to be pasted.

    Args:
        study: with the sweeps.
        added: the further values, by sweep and key.
    """
    sweeps = []
    for name, keys in list(added.items())[:_PASTED]:
        axes = [f"{key}: {_axis(getattr(study.sweeps[name], key), keys[key])}" for key in keys]
        sweeps.append(f"{name}: {{{', '.join(axes)}}}")
    more = f"; likewise for {len(added) - _PASTED} more sweeps" if len(added) > _PASTED else ""
    return f"write under sweeps, which trains only what is new: {'; '.join(sweeps)}{more}"


def _axis(grid: list[Any] | Geometric, added: list[float]) -> str:
    """Return the YAML of an axis with further values; its own values stay."""
    if isinstance(grid, Geometric):
        ends = f"first: {number(grid.first)}, last: {number(grid.last)}, count: {grid.count}"
        return f"{{{ends}, also: {_axis(list(grid.also), added)}}}"
    # "full" is the last batch size.
    found = sorted([*grid, *added], key=lambda each: math.inf if isinstance(each, str) else each)
    return f"[{', '.join(map(number, found))}]"


def _best_at_an_end(study: Study, trials: pd.DataFrame) -> Check:
    title = "Width of the grids of C and B"
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    rows, wider = [], defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for best in chosen.to_dict("records"):
        cell = Cell.parse(best["problem"], best["cell"])
        name = study.sweep_of(cell)
        sweep = study.sweeps[name]
        for key, symbol, found, grid, smallest in (
            ("clipping_bound", "C", cell.clipping_bound, sweep.clipping_bounds, SMALLEST_BOUND),
            ("batch_size", "B", cell.batch_size, sweep.batch_size, 1.0),
        ):
            beyond = _beyond(grid, found)
            if beyond is not None and beyond >= smallest:
                rows.append(
                    {
                        "Problem": cell.problem,
                        "ε": values([cell.epsilon]),
                        "Axis": symbol,
                        "Grid from, to": values([grid[0], grid[-1]]),
                        "Best": number(found),
                    }
                )
                added = round(beyond) if symbol == "B" else float(f"{beyond:.2g}")
                if added not in wider[name][key]:
                    wider[name][key].append(added)
    if not rows:
        return Check(title, "pass", "No best C or B of a problem and ε is at an end of its grid.")
    of_bounds, of_sizes = (sum(row["Axis"] == symbol for row in rows) for symbol in ("C", "B"))
    finding = (
        f"Of {count(len(chosen), 'best setting')}, {of_bounds} have the first or last C of the grid, "
        f"and {of_sizes} the first or last B; a wider grid might do better there, unless accuracy is "
        "flat."
    )
    remedy = _wider_sweeps(study, wider)
    return Check(title, "note", finding, TextTable.of(rows, "lrlrr"), remedy)


def _beyond(grid: Sequence[float | str], best: float | str) -> float | None:
    """Return the next value of a geometric grid beyond ``best``, or None if that is not at an end."""
    if isinstance(best, str) or len(grid) < 2 or best not in (grid[0], grid[-1]):
        return None
    nearest = grid[1] if best == grid[0] else grid[-2]
    return best / 2 if isinstance(nearest, str) else best**2 / nearest
