"""One figure to its three files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from matplotlib.figure import Figure

from dpsweep.analysis.predictions import predicted_bounds
from dpsweep.figures import (
    accuracy_lines,
    attacker_curves,
    clipping_theory,
    gradient_norms,
    heatmap,
    noise_curve,
    per_class,
    style,
)
from dpsweep.figures.tables.write import write_numbers
from dpsweep.study import Study
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths


class Compute(Protocol):
    """Compute the numbers of a figure: the first function of a family."""

    def __call__(
        self, study: Study, paths: Paths, figure: Any, missing: list[Path] | None = None
    ) -> pd.DataFrame:
        """Read results, and return what is drawn.

        Args:
            study: the study that has the figure.
            paths: where its results lie.
            figure: of the family's class in `dpsweep.study.targets`; every selection names its cells.
            missing: absent files are added to it and left out. Where it is None, they are an error.

        Returns:
            The rows of the figure's CSV; none where nothing is there yet.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file does not hold what it should.
        """


FAMILIES: dict[str, tuple[Compute, Callable[[Any, pd.DataFrame], Figure]]] = {
    "attacker_curves": (attacker_curves.rates_of_attackers, attacker_curves.plot),
    "clipping_curve": (
        accuracy_lines.accuracy_by_clipping_bound,
        accuracy_lines.plot_clipping_curve,
    ),
    "gradient_norm_distribution": (
        gradient_norms.gradient_norm_densities,
        gradient_norms.plot_distribution,
    ),
    "gradient_norm_histogram": (gradient_norms.gradient_norm_shares, gradient_norms.plot_histogram),
    "heatmap": (heatmap.accuracy_over_grid, heatmap.plot),
    "method_comparison": (accuracy_lines.accuracy_by_method, accuracy_lines.plot_method_comparison),
    "noise_curve": (noise_curve.noise_of_runs, noise_curve.plot),
    "norm_trace": (gradient_norms.gradient_norms_by_step, gradient_norms.plot_trace),
    "optimal_batch_size": (
        accuracy_lines.best_batch_size_by_epochs,
        accuracy_lines.plot_optimal_batch_size,
    ),
    "error_decomposition": (clipping_theory.errors_by_bound, clipping_theory.plot_decomposition),
    "optimal_clipping_trace": (clipping_theory.optima_by_epoch, clipping_theory.plot_trace),
    "privacy_effects": (clipping_theory.optima_by_epsilon, clipping_theory.plot_effects),
    "predicted_clipping": (predicted_bounds, clipping_theory.plot_predictions),
    "per_class": (per_class.effects_on_classes, per_class.plot),
}
"""The functions of every family: one computes its numbers, one draws them."""


def draw(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` and, drawn from nothing but its numbers, ``.pdf`` and ``.png``.

    With partial paths absent results are left out and counted in the figure.

    Raises:
        DpsweepError: the study has no such figure.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    figure = pick("figure", target, study.figures)
    compute, _ = FAMILIES[figure.family]
    missing: list[Path] | None = [] if paths.partial else None
    numbers = compute(study, paths, figure, missing)
    with style.style():
        drawing = _plot(figure, numbers) if len(numbers) else style.empty_figure()
        style.say_missing(drawing, len(set(missing or ())))
        style.save(drawing, paths.figure(target, "pdf"), paths.figure(target, "png"))
    write_numbers(numbers, paths.figure(target, "csv"))


def _plot(figure: Any, numbers: pd.DataFrame) -> Figure:
    """Draw a figure's numbers, with texts of the user letter by letter."""
    shown = numbers.copy()
    for name in numbers:
        if pd.api.types.is_string_dtype(numbers[name]):
            shown[name] = numbers[name].map(style.literal, na_action="ignore")
    return FAMILIES[figure.family][1](style.literal_titles(figure), shown)
