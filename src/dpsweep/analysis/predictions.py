"""Measured overlaps of gradients, and the best clipping bounds that they predict. Not private.

Three predictions come from the gradients of a trial (`dpsweep.theory`), each the median over its epochs
and draws: C* of Theorem 4.1; C* with the noise of the problem's largest epsilon, so that only the shift of
the gradients has an effect (the paper's explanation); and the bound with the best direction, which matters
for scale-invariant optimizers.

Each prediction is rounded to the nearest value of the grid, on a logarithmic scale. Its loss is the accuracy
of the best bound of the grid minus the accuracy of this value. Correlations and losses have intervals over
problems (`dpsweep.analysis.statistics`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dpsweep import theory
from dpsweep.analysis.frames import load_trials, of_todays_trials, read_all
from dpsweep.analysis.statistics import jackknife
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.choice import choose
from dpsweep.study.clipping import RULES, nearest_to_one
from dpsweep.study.grid import Panel, Selection
from dpsweep.study.targets import Missing, named_rule

PRIVACY = "not private"
"""The value of the column ``privacy`` in every CSV made from these files."""
NOTE = "Not private: drawn from raw gradients of the training data."
"""The note under every figure made from these files."""

_BATCH = ["seed", "epoch", "draw"]
_SUMS = ["norm", "dot_smaller", "dot_larger", "dot_larger_units"]
_CONSTANT = [
    "examples", "batch_size", "noise_multiplier", "trainable_parameters", "learning_rate",
]  # fmt: skip


@dataclass(frozen=True)
class Overlap:
    """The gradients of one batch, at the start of a trial (epoch 0) or after an epoch.

    Attributes:
        cell: of the trial.
        seed: of the trial.
        epoch: from 0.
        draw: number of the batch, from 1.
        sums: of its gradients.
        examples: number of examples in the batch.
        batch_size: B, the expected batch size of the trial.
        noise_multiplier: sigma of the trial.
        dimension: d.
        learning_rate: of the trial.
    """

    cell: Cell
    seed: int
    epoch: int
    draw: int
    sums: theory.ClippedSums
    examples: int
    batch_size: int
    noise_multiplier: float
    dimension: int
    learning_rate: float

    def scaled(self, noise_multiplier: float) -> float:
        """Scale a noise multiplier to the size of this batch, so that noise per example stays the same."""
        return noise_multiplier * self.examples / self.batch_size

    def setting(
        self, noise_multiplier: float | None = None
    ) -> tuple[theory.ClippedSums, float, int]:
        """Return the arguments of the rules of `dpsweep.theory`: sums, noise multiplier and dimension.

        Args:
            noise_multiplier: sigma for a batch of size B, by default that of the trial.
        """
        sigma = self.noise_multiplier if noise_multiplier is None else noise_multiplier
        return self.sums, self.scaled(sigma), self.dimension

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the trial, by column."""
        return {
            "problem": self.cell.problem,
            "epsilon": self.cell.epsilon,
            "epochs": self.cell.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "trained_with_bound": self.cell.clipping_bound,
            "noise_multiplier": self.noise_multiplier,
            "privacy": PRIVACY,
        }

    def errors(self, bounds: np.ndarray) -> pd.DataFrame:
        """Return a row per bound: bias, noise and error of Theorem 4.1, as shares of |g|^2, and C*."""
        sums, noise_multiplier, dimension = self.setting()
        error = theory.mean_squared_error(sums, bounds, noise_multiplier, dimension)
        parts = {"bias": error.bias, "noise": error.noise, "error": error.total}
        return pd.DataFrame(
            {
                "epoch": self.epoch,
                "clipping_bound": bounds,
                **{name: part / sums.total_square for name, part in parts.items()},
                "best_bound": theory.mse_optimal_clipping(*self.setting()),
            }
        )

    def optima(self) -> dict[str, Any]:
        """Return the settings of the trial, C*, the median norm, and the scale-free C with its plateau."""
        direction, norms = theory.direction_optimal_clipping(*self.setting()), self.sums.norms
        return self.settings | {
            "trained_with_bound": float(self.cell.clipping_bound),
            "epoch": self.epoch,
            "best_bound": theory.mse_optimal_clipping(*self.setting()),
            "median_norm": float(np.median(norms)) if len(norms) else 0.0,
            "direction_bound": direction.clipping_bound,
            "plateau_lower": direction.lower,
            "plateau_upper": direction.upper,
        }


def effects(loose: Overlap, tight: Overlap) -> list[dict[str, Any]]:
    """Return the best bounds by C* and scale-free C: with noise and gradients of ``tight``, or one of them.

    Args:
        loose: a batch of a training with the largest epsilon, of which the other one is then taken.
        tight: the same batch in a training with another epsilon.
    """
    little, much = loose.scaled(loose.noise_multiplier), tight.scaled(tight.noise_multiplier)
    rules: dict[str, theory.Rule] = {
        "C*": theory.mse_optimal_clipping,
        "scale-free C": lambda *of: theory.direction_optimal_clipping(*of).clipping_bound,
    }
    rows = []
    for name, rule in rules.items():
        bounds = {
            "both": rule(tight.sums, much, tight.dimension),
            "noise alone": rule(loose.sums, much, tight.dimension),
            "gradients alone": rule(tight.sums, little, tight.dimension),
        }
        known = {"rule": name, "epsilon": tight.cell.epsilon}
        rows += [
            known | {"effect": effect, "best_bound": bound} for effect, bound in bounds.items()
        ]
    return rows


def load_overlaps(
    study: Study, paths: Paths, cells: Iterable[Cell], missing: Missing = None
) -> list[Overlap]:
    """Read the overlaps of cells, in their order, then by seed, epoch and draw.

    Args:
        study: the study.
        paths: its files.
        cells: of the study.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Raises:
        FormerResultsError: a file is of other trials than the current ones, and ``missing`` is None.
        MissingResultsError: overlaps have not been measured, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column.
    """
    measured = {(cell.problem, cell.name): (paths.theory(study, cell), [cell]) for cell in cells}
    files = of_todays_trials(study, paths, measured, missing)
    columns = [*_BATCH, *_SUMS, *_CONSTANT]
    frame = read_all(files, columns, ["problem", "cell"], missing, "overlap of gradients")
    groups = frame.groupby(["problem", "cell", *_BATCH], sort=False)
    return [_overlap(rows) for _, rows in groups]


def _overlap(rows: pd.DataFrame) -> Overlap:
    first = rows.iloc[0]
    return Overlap(
        cell=Cell.parse(first["problem"], first["cell"]),
        seed=int(first["seed"]),
        epoch=int(first["epoch"]),
        draw=int(first["draw"]),
        sums=theory.ClippedSums(*(rows[name].to_numpy(dtype=float) for name in _SUMS)),
        examples=int(first["examples"]),
        batch_size=int(first["batch_size"]),
        noise_multiplier=float(first["noise_multiplier"]),
        dimension=int(first["trainable_parameters"]),
        learning_rate=float(first["learning_rate"]),
    )


PREDICTIONS = ("C* (Theorem 4.1)", "C*, noise held fixed", "Scale-free C")
FIXED, HINDSIGHT = "C = 1, or nearest", "Best fixed C (hindsight)"
COLUMNS = [
    "rule", "problem", "title", "epsilon", "epochs", "batch_size", "predicted", "grid_bound", "measured",
    "accuracy", "best_accuracy", "lost", "plateau_lower", "plateau_upper", "measured_on_plateau",
    "rank_correlation", "rank_correlation_lower", "rank_correlation_upper", "mean_lost", "mean_lost_lower",
    "mean_lost_upper", "settings", "problems", "privacy",
]  # fmt: skip
_SETTING = ["title", "problem", "epsilon", "epochs", "batch_size"]

_Key = tuple[str, float, int]
"""A problem, an epsilon and a batch size."""


@dataclass(frozen=True)
class _Measured:
    """The accuracies of one problem at one epsilon and batch size, over the grid of clipping bounds."""

    setting: dict[str, Any]
    """Title, problem, epsilon, epochs and batch size, as in a row."""
    accuracy: dict[float, float]
    """Mean accuracy over repeats by clipping bound, with tuned learning rate."""
    best: float
    named: dict[str, float]
    """Accuracy by clipping rule without a bound, such as AUTO-S."""

    def nearest(self, bound: float) -> float:
        """Return the value of the grid nearest to a bound; the smallest value for 0."""
        if bound <= 0:
            return min(self.accuracy)
        return min(self.accuracy, key=lambda each: (abs(np.log(each / bound)), each))


def predicted_bounds(
    study: Study, paths: Paths, panels: Sequence[Panel], missing: Missing = None
) -> pd.DataFrame:
    """Return one row per (rule, problem, epsilon, batch size); rules are predictions and fixed rules.

    ``rank_correlation`` (Spearman, of predicted and measured bounds) and ``mean_lost`` summarise all rows of
    a rule, its ``settings``; 95% intervals are over its ``problems``. For a fixed rule, ``predicted`` is its
    bound, or NaN if it has none.

    Args:
        study: the study that has the cells.
        paths: its files.
        panels: the cells of each problem.
        missing: absent files are added to it and left out. If it is None, they are an error.

    Raises:
        MissingResultsError: a file is absent, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column, or no trial is marked best.
    """
    named: dict[str, dict[_Key, pd.DataFrame]] = {}
    for panel in panels:
        if (name := named_rule(panel)) is not None:
            found = named.setdefault(RULES[name].title, {})
            found |= _accuracies(study, paths, panel, missing)
    rows: list[dict[str, object]] = []
    measured: list[_Measured] = []
    for panel in panels:
        if named_rule(panel) is not None:
            continue
        of_panel = list(_measured(study, paths, panel, named, missing))
        measured += of_panel
        nearest = nearest_to_one(panel.values("clipping_bound"))
        at = panel.model_copy(update={"clipping_bound": [nearest]})
        overlaps = load_overlaps(study, paths, at.cells(), missing)
        for each in of_panel:
            rows += _predictions(each, overlaps, nearest)
    hindsight = _best_fixed(measured)
    rows += [_row(HINDSIGHT, each, hindsight) for each in measured]
    if not rows:
        return pd.DataFrame(columns=COLUMNS)
    frame = pd.DataFrame(rows)
    order = {name: place for place, name in enumerate((*PREDICTIONS, FIXED, *named, HINDSIGHT))}
    frame = frame.sort_values("rule", key=lambda names: names.map(order), kind="stable")
    frame = pd.concat([_summed_up(rows) for _, rows in frame.groupby("rule", sort=False)])
    return frame.assign(privacy=PRIVACY).reindex(columns=COLUMNS).reset_index(drop=True)


def _summed_up(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the summary columns of a rule to its rows."""
    correlation = jackknife(rows.dropna(subset=["predicted"]), _rank_correlation)
    lost = jackknife(rows, lambda some: some["lost"].mean())
    return rows.assign(
        rank_correlation=correlation.value,
        # The t interval of a correlation may exceed its range.
        rank_correlation_lower=np.clip(correlation.lower, -1, 1),
        rank_correlation_upper=np.clip(correlation.upper, -1, 1),
        mean_lost=lost.value,
        mean_lost_lower=lost.lower,
        mean_lost_upper=lost.upper,
        settings=len(rows),
        problems=rows["problem"].nunique(),
    )


def _rank_correlation(rows: pd.DataFrame) -> float:
    """Return Spearman's correlation of predicted and measured bounds; NaN if one of them is constant."""
    if rows["predicted"].nunique() < 2 or rows["measured"].nunique() < 2:
        return np.nan
    return float(stats.spearmanr(rows["predicted"], rows["measured"]).statistic)


def _accuracies(
    study: Study, paths: Paths, panel: Selection, missing: Missing
) -> dict[_Key, pd.DataFrame]:
    """Return the tuned cells of a panel."""
    trials = load_trials(study, paths, panel.cells(), missing)
    if trials.empty:
        return {}
    chosen = choose(trials, by=["problem", "epsilon", "batch_size", "clipping_bound"])
    chosen = chosen[chosen["selection_accuracy"].notna()]
    return {
        (str(first["problem"]), float(first["epsilon"]), int(first["batch_size"])): rows
        for _, rows in chosen.groupby(["problem", "epsilon", "batch_size"])
        for first in [rows.iloc[0]]
    }


def _measured(
    study: Study,
    paths: Paths,
    panel: Panel,
    named: dict[str, dict[_Key, pd.DataFrame]],
    missing: Missing,
) -> Iterable[_Measured]:
    for key, cells in _accuracies(study, paths, panel, missing).items():
        problem, epsilon, batch_size = key
        setting = panel.title, problem, epsilon, int(cells["epochs"].iloc[0]), batch_size
        yield _Measured(
            setting=dict(zip(_SETTING, setting, strict=True)),
            accuracy=dict(zip(cells["clipping_bound"], cells["centre"], strict=True)),
            best=float(cells["clipping_bound"].iloc[int(cells["selection_accuracy"].argmax())]),
            named={
                rule: float(known[key]["centre"].iloc[0])
                for rule, known in named.items()
                if key in known
            },
        )


def _predictions(
    measured: _Measured, overlaps: list[Overlap], fixed: float
) -> list[dict[str, object]]:
    epsilon, batch_size = measured.setting["epsilon"], measured.setting["batch_size"]
    overlaps = [each for each in overlaps if each.batch_size == batch_size]
    own = [each for each in overlaps if each.cell.epsilon == epsilon and each.sums.total_square > 0]
    rows = [_row(FIXED, measured, fixed)]
    rows += [_row(rule, measured, np.nan, value) for rule, value in measured.named.items()]
    if not own:
        return rows
    loose = max(overlaps, key=lambda each: each.cell.epsilon).noise_multiplier
    theorem = [theory.mse_optimal_clipping(*each.setting()) for each in own]
    held = [theory.mse_optimal_clipping(*each.setting(loose)) for each in own]
    best = [theory.direction_optimal_clipping(*each.setting()) for each in own]
    lower, upper = (
        float(np.median([getattr(each, end) for each in best])) for end in ("lower", "upper")
    )
    plateau = {
        "plateau_lower": lower,
        "plateau_upper": upper,
        "measured_on_plateau": lower <= measured.best <= upper,
    }
    predicted = (theorem, held, [each.clipping_bound for each in best])
    rows += [
        _row(rule, measured, float(np.median(bounds)))
        for rule, bounds in zip(PREDICTIONS, predicted, strict=True)
    ]
    return [row | plateau for row in rows]


def _row(
    rule: str, measured: _Measured, bound: float, accuracy: float | None = None
) -> dict[str, object]:
    chosen = np.nan if accuracy is not None else measured.nearest(bound)
    accuracy = measured.accuracy[chosen] if accuracy is None else accuracy
    best = measured.accuracy[measured.best]
    return {
        "rule": rule,
        **measured.setting,
        "predicted": bound,
        "grid_bound": chosen,
        "measured": measured.best,
        "accuracy": accuracy,
        "best_accuracy": best,
        "lost": best - accuracy,
    }


def _best_fixed(measured: list[_Measured]) -> float:
    """Return the bound with the highest mean accuracy over all problems."""
    bounds = sorted({bound for each in measured for bound in each.accuracy})
    if not bounds:
        return np.nan
    means = [np.mean([each.accuracy[each.nearest(bound)] for each in measured]) for bound in bounds]
    return bounds[int(np.argmax(means))]
