"""What a reader of the report must know: broken guarantees, missing cells, divergence, narrow grids, data."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import pandas as pd

from dpsweep.analysis.frames import is_private, other_sources
from dpsweep.base.files import DamagedFileError, read_checked_json
from dpsweep.base.formatting import count
from dpsweep.release import planned_cells
from dpsweep.report.embed import percent, values
from dpsweep.report.summary import best_of
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.cells import number
from dpsweep.study.clipping import SMALLEST_BOUND
from dpsweep.study.messages import shorten
from dpsweep.study.section import Geometric

_LISTED_TRIALS = 40  # the trial files list them all
_PASTED = 5  # sweeps in an advice


class Notice(NamedTuple):
    """A sentence with the things that it is about; a ``note`` is no failure, but worth knowing."""

    severity: Literal["pass", "note", "fail"]
    text: str
    names: Sequence[str] = ()
    remedy: str = ""
    """an edit of the study that resolves it"""


def warnings(study: Study, paths: Paths, trials: pd.DataFrame) -> list[Notice]:
    """Return all warnings, failures first. Whether ε is proven is always said.

    Args:
        study: the study.
        paths: its files.
        trials: a row per trial, as `dpsweep.analysis.frames.present_trials` reads them.
    """
    once = trials.drop_duplicates("trial_key")  # sweeps may share a trial
    found = [*_completeness(study, trials), *of_data(study, paths)]
    if sources := other_sources(study, paths):
        found.append(Notice("note", f"{sources}."))
    if len(trials):
        private = _privacy(study, once[is_private(once)])
        rates, best = _rates_at_an_end(study, trials), _best_at_an_end(study, trials)
        found = [*private, *_training(study, once), *rates, *best, *found]
    return sorted(found, key=lambda each: ("fail", "note", "pass").index(each.severity))


def _of(trials: pd.DataFrame, column: str) -> list[str]:
    """Name the first of some trials, each with its value of a column."""
    return [
        f"{row['problem']}/{row['cell']}, η = {number(float(row['learning_rate']))}, "
        f"seed {row['seed']}: {column} {row[column]:.6g}"
        for row in trials.head(_LISTED_TRIALS).to_dict("records")
    ]


def _privacy(study: Study, private: pd.DataFrame) -> Iterator[Notice]:
    # Negated, because a missing certificate (NaN) must count as broken.
    broken = private[~(private["certified_epsilon"] <= private["epsilon"])]
    of_all = f"of {count(len(private), 'private trial')}"
    if len(broken):
        text = f"{len(broken):,} {of_all} exceed the target ε or have no certificate. Do not rely on their ε."
        yield Notice("fail", text, _of(broken, "certified_epsilon"))
    elif len(private):
        margin = 100 * (1 - private["certified_epsilon"] / private["epsilon"])
        text = (
            f"The certified ε {of_all} is between {margin.min():.2g} % and {margin.max():.2g} % below its "
            "target."
        )
        yield Notice("pass", text)
    others = private[private["delta"] != study.privacy.delta]
    if len(others):
        text = f"{len(others):,} {of_all} were trained for another δ than {study.privacy.delta:g}."
        yield Notice("fail", text, _of(others, "delta"))


def _completeness(study: Study, trials: pd.DataFrame) -> Iterator[Notice]:
    names = []
    with_trials = set(zip(trials["problem"], trials["cell"], strict=True))
    planned = planned_cells(study, with_trials)
    bracket = study.training.selection == "bracket"
    for name in study.problems:
        trained = trials.loc[trials["problem"] == name, "cell"].value_counts()
        cells = [cell for cell in planned if cell.problem == name]
        found = [int(trained.get(cell.name, 0)) for cell in cells]
        sweeps = map(study.sweep_of, cells)
        # A bracket may end before it has tried all rates.
        expected = [
            study.sweeps[each].seeds if bracket else study.trials_per_cell(each) for each in sweeps
        ]
        partial = sum(0 < there < all_ for there, all_ in zip(found, expected, strict=True))
        if partial or 0 in found:
            names.append(
                f"{name}: of {count(len(found), 'planned cell')}, {found.count(0):,} without trials, "
                f"{partial:,} with some of them"
            )
    if names:
        text = "The study is not finished; what is drawn is drawn from the trials that exist."
        yield Notice("note", text, names)


def _training(study: Study, trials: pd.DataFrame) -> Iterator[Notice]:
    if study.training.select_on == "test":
        text = (
            "Hyperparameters are chosen by accuracy on the test set, as in the paper: the accuracy of "
            "what was chosen is optimistic (select_on: holdout avoids that)."
        )
        yield Notice("note", text)
    of_all = f"of {count(len(trials), 'trial')}"
    if len(diverged := trials[trials["diverged"].astype(bool)]):
        text = (
            f"{len(diverged):,} {of_all} ended with parameters or a loss that are not finite. They are "
            "kept, with the accuracy that was measured."
        )
        yield Notice("note", text, _of(diverged, "accuracy"))
    if len(affected := trials[trials["nonfinite_examples"] > 0]):
        examples = count(int(affected["nonfinite_examples"].sum()), "per-example gradient")
        text = (
            f"{examples} that were not finite counted as zero, in {len(affected):,} {of_all}. The "
            "guarantee holds; the update is smaller."
        )
        yield Notice("note", text, _of(affected, "nonfinite_examples"))
    formats = trials.groupby("problem")["precision"].unique()
    if names := [f"{name}: {', '.join(sorted(of))}" for name, of in formats.items() if len(of) > 1]:
        text = (
            "Some problems compare trials of different number formats, as jobs ran on different devices; "
            "training.precision sets one."
        )
        yield Notice("note", text, names)


def of_data(study: Study, paths: Paths) -> Iterator[Notice]:
    """Warn of test examples that are training examples, of classes without one, and of texts that are cut."""
    duplicates, untested, cut = [], [], []
    for name in study.swept_datasets:
        title = study.datasets[name].title
        with suppress(FileNotFoundError, DamagedFileError):  # not prepared yet
            metadata = read_checked_json(paths.dataset(name) / "metadata.json")
            if same := len(metadata.get("duplicates", [])):
                duplicates.append(f"{title}: {same:,} of {metadata['test_size']:,} test examples")
            counted = zip(metadata["classes"], metadata["test_counts"], strict=True)
            if names := [each for each, examples in counted if not examples]:
                untested.append(
                    f"{title}: {shorten(names)} of {len(metadata['classes']):,} classes"
                )
            for split, found in metadata.get("cut", {}).items():
                cut.append(
                    f"{title}: {found['texts']:,} of {metadata[f'{split}_size']:,} {split} texts, "
                    f"{percent(found['share_of_tokens'])} of the tokens"
                )
    if duplicates:
        text = (
            "Some test examples duplicate training examples, so a network may know them by heart. The "
            "dataset's metadata.json names them; duplicates: refuse makes them an error."
        )
        yield Notice("note", text, duplicates)
    if untested:
        text = (
            "Some classes have no test example, so that nobody knows how accurate a model is on them. Macro "
            "accuracy is the mean over the others, and figures by class leave them out."
        )
        yield Notice("note", text, untested)
    if cut:
        text = "Some texts are longer than max_length, and networks read only their beginning."
        yield Notice("note", text, cut)


def _rates_at_an_end(study: Study, trials: pd.DataFrame) -> Iterator[Notice]:
    first = trials[trials["best"].astype(bool) & (trials["seed"] == 1)]
    sweeps = {(cell.problem, cell.name): study.sweep_of(cell) for cell in study.all_cells()}
    sweep_of = pd.Series(list(zip(first["problem"], first["cell"], strict=True))).map(sweeps)
    names, wider, at_end = [], dict[str, dict[str, list[float]]](), 0
    for name, sweep in study.sweeps.items():
        rates = sweep.learning_rates
        chosen = first.loc[sweep_of.to_numpy() == name, "learning_rate"]
        low, high = int((chosen == rates[0]).sum()), int((chosen == rates[-1]).sum())
        if len(rates) > 1 and low + high:
            at_end += low + high
            names.append(
                f"{name}: of {count(len(chosen), 'tuned cell')} with {values([rates[0], rates[-1]])} as "
                f"ends, {low:,} at the lowest, {high:,} at the highest"
            )
            ends = [rates[0]] * (low > 0) + [rates[-1]] * (high > 0)
            added = [float(f"{_beyond(rates, end):.2g}") for end in ends]
            wider[name] = {"learning_rate": added}
    if names:
        text = (
            f"The best learning rate is at an end of its grid in {at_end:,} of "
            f"{count(len(first), 'tuned cell')}; a wider grid might do better there."
        )
        yield Notice("note", text, names, _wider_sweeps(study, wider))


def _best_at_an_end(study: Study, trials: pd.DataFrame) -> Iterator[Notice]:
    chosen = best_of(trials)
    names, at_end = [], Counter[str]()
    wider = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
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
                at_end[symbol] += 1
                names.append(
                    f"{cell.problem}, ε = {values([cell.epsilon])}: {symbol} = {number(found)}, in a grid "
                    f"from {number(grid[0])} to {number(grid[-1])}"
                )
                added = round(beyond) if symbol == "B" else float(f"{beyond:.2g}")
                if added not in wider[name][key]:
                    wider[name][key].append(added)
    if names:
        text = (
            f"Of {count(len(chosen), 'best setting')}, {at_end['C']} have the first or last C of the grid, "
            f"and {at_end['B']} the first or last B; a wider grid might do better there, unless accuracy is "
            "flat."
        )
        yield Notice("note", text, names, _wider_sweeps(study, wider))


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


def _beyond(grid: Sequence[float | str], best: float | str) -> float | None:
    """Return the next value of a geometric grid beyond ``best``, or None if that is not at an end."""
    if isinstance(best, str) or len(grid) < 2 or best not in (grid[0], grid[-1]):
        return None
    nearest = grid[1] if best == grid[0] else grid[-2]
    return best / 2 if isinstance(nearest, str) else best**2 / nearest
