"""Functions for notebooks: each draws a family of figures from any frame.

The docstring of a function lists the columns of its frame, as in the CSV of such a figure. The function
returns a figure of matplotlib. Without the columns for panels or lines there is one panel or line.

>>> import pandas as pd
>>> frame = pd.DataFrame({"clipping_bound": [0.1, 1, 10], "centre": [0.6, 0.7, 0.5]})
>>> drawing = clipping_curve(frame)
>>> drawing.savefig("curve.pdf")  # doctest: +SKIP
>>> drawing.axes[-1].get_xlabel()
'Clipping bound C (log scale)'
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import matplotlib.figure
import numpy as np
import pandas as pd

from dpsweep.analysis.frames import in_order, plain
from dpsweep.config.style import Style
from dpsweep.figures import families, style
from dpsweep.figures.drawing import plot

_PANEL: dict[str, Any] = {"panel": 0, "title": "", "clipping": "flat", "full_batch": False}
_CHOSEN = dict.fromkeys(("batch_size", "learning_rate", "clipping_bound"), np.nan)
_WITHIN = ("panel", "line", "records")
Absent = Mapping[str, Any | Callable[[pd.DataFrame], Any]]


def _drawn(
    family: type[families.Figure],
    frame: pd.DataFrame,
    keys: str,
    values: str,
    absent: Absent,
    look: Style | None,
    **options: Any,
) -> matplotlib.figure.Figure:
    """Draw a frame as a figure of a family.

    Args:
        family: the family.
        frame: the rows, in any order.
        keys: the columns, separated by spaces, that distinguish the rows of a line.
        values: the other required columns.
        absent: defaults of optional columns: values, or functions of the frame.
        look: colours and sizes.
        options: of the family.

    Raises:
        ValueError: the frame cannot be drawn.
    """
    needed = [*keys.split(), *values.split()]
    lacking = [column for column in needed if column not in frame]
    if lacking or frame.empty:
        found = f"no column {', '.join(lacking)}" if lacking else "no row"
        raise ValueError(f"the frame has {found}; {family.family} needs {', '.join(needed)}")
    full = plain(frame, [*needed, *_PANEL, *absent])
    for column, value in {**_PANEL, **absent}.items():
        if column not in full:
            full[column] = value(full) if callable(value) else value
    if keys:
        full = in_order(full, [*(each for each in _WITHIN if each in full), *keys.split()])
    with style.style(look):
        return plot(family.model_construct(**options), full)


def _lines(value: str) -> dict[str, Any]:
    """Return defaults of optional columns of lines; ``value`` is the column of the points."""
    return _CHOSEN | {
        "label": "all",
        "line": lambda frame: pd.factorize(frame["label"])[0],
        **{"minimum": lambda frame: frame[value], "maximum": lambda frame: frame[value]},
        **{"repeats": 1, "difficulty": None, "as_good": False},
    }


def heatmap(
    frame: pd.DataFrame,
    *,
    x: Literal["clipping_bound", "epsilon"] = "clipping_bound",
    y: Literal["batch_size", "clipping_bound"] = "batch_size",
    colour_scale: Literal["shared", "panel"] = "shared",
    look: Style | None = None,
) -> matplotlib.figure.Figure:
    """Draw accuracy over two axes, with a square for each row of the frame.

    Args:
        frame: columns ``x``, ``y`` and ``macro_accuracy``; optional ``panel`` and ``title`` (of problems
            side by side), ``full_batch`` (whether the batch is the training set), ``learning_rate``,
            ``as_good`` (squares with a frame) and, if ``y`` is not the batch size, ``batch_size``.
        x: the column along the horizontal axis.
        y: the column along the vertical axis.
        colour_scale: one for all panels, or one for each.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    values = "macro_accuracy batch_size"
    absent, options = _CHOSEN | {"as_good": False}, {"x": x, "y": y, "colour_scale": colour_scale}
    return _drawn(families.Heatmap, frame, f"{x} {y}", values, absent, look, **options)


def clipping_curve(
    frame: pd.DataFrame,
    *,
    quantity: Literal["accuracy", "difference"] = "accuracy",
    look: Style | None = None,
) -> matplotlib.figure.Figure:
    """Draw accuracy against the clipping bound, with strips of the chosen settings.

    Args:
        frame: columns ``clipping_bound`` and ``centre`` (the accuracy, or its difference to the best);
            optional ``panel``, ``title``, ``label`` (of a line), ``minimum``, ``maximum``, ``repeats``,
            ``seed_1``, ``seed_2``, ... (accuracies of repeats), ``batch_size``, ``learning_rate``,
            ``as_good`` (points with a ring) and ``difficulty`` (easy, medium or hard: the colour).
        quantity: the meaning of ``centre``, for the axis label.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, absent = "clipping_bound", _lines("centre")
    return _drawn(families.ClippingCurve, frame, keys, "centre", absent, look, quantity=quantity)


def method_comparison(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw accuracy of methods against ε, as a difference to the best method.

    Args:
        frame: columns ``epsilon``, ``label`` (the method) and ``centre`` (the difference); optional
            ``panel``, ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``batch_size``,
            ``learning_rate`` and ``clipping_bound``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    absent = _lines("centre")
    return _drawn(families.MethodComparison, frame, "epsilon", "label centre", absent, look)


def optimal_batch_size(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw the best batch size against the number of epochs, with a line for each ε.

    Args:
        frame: columns ``epsilon``, ``epochs``, ``mean_batch_size`` and ``train_size``; optional ``panel``,
            ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``learning_rate`` and
            ``clipping_bound``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, values = "epsilon epochs", "mean_batch_size train_size"
    absent = _lines("mean_batch_size") | {"as_good_smallest": np.nan, "as_good_largest": np.nan}
    return _drawn(families.OptimalBatchSize, frame, keys, values, absent, look)


def gradient_norm_distribution(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw violins of per-example gradient norms, one for each epoch.

    Args:
        frame: columns ``epoch``, ``quantity`` (density, quantile or share above C), ``norm``, ``value``,
            ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, values = "epoch quantity norm value", "clipping_bound"
    return _drawn(families.GradientNormDistribution, frame, keys, values, _CHOSEN, look)


def gradient_norm_histogram(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw histograms of per-example gradient norms.

    Args:
        frame: columns ``lower`` and ``upper`` (edges of bins), ``share``, ``share_above_bound`` and
            ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    values = "upper share share_above_bound clipping_bound"
    return _drawn(families.GradientNormHistogram, frame, "lower", values, _CHOSEN, look)


def norm_trace(frame: pd.DataFrame, *, look: Style | None = None) -> matplotlib.figure.Figure:
    """Draw the mean gradient norm at each step, with a line for each ε.

    Args:
        frame: columns ``epsilon``, ``step`` and ``mean_gradient_norm``; optional ``panel``, ``title``,
            ``mean_gradient_norm_smooth`` with ``running_mean_over`` (steps), ``batch_size``,
            ``learning_rate``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    absent = _CHOSEN | {
        "mean_gradient_norm_smooth": lambda frame: frame["mean_gradient_norm"],
        "running_mean_over": 1,
    }
    keys, values = "epsilon step", "mean_gradient_norm"
    return _drawn(families.NormTrace, frame, keys, values, absent, look)


def per_class(
    frame: pd.DataFrame,
    *,
    baseline: float = 1.0,
    rows: Sequence[Literal["retained_weight", "accuracy_difference"]] = (
        "retained_weight",
        "accuracy_difference",
    ),
    look: Style | None = None,
) -> matplotlib.figure.Figure:
    """Draw the retained gradient weight and the change of accuracy of each class, from easy to hard.

    Args:
        frame: columns ``class``, ``class_name``, ``class_rank`` (from easy to hard; NaN without test
            examples), ``clipping_bound`` and, as ``rows`` need them, ``relative_retained_weight`` and
            ``accuracy_difference``; optional their running means (``..._smooth``) with
            ``running_mean_over`` (classes), ``panel``, ``title``, ``batch_size``, ``learning_rate``.
        baseline: the clipping bound for comparison, which the frame must contain.
        rows: the quantities, from top to bottom.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    columns = {
        "retained_weight": "relative_retained_weight",
        "accuracy_difference": "accuracy_difference",
    }
    shown = [columns[row] for row in rows]
    absent = _CHOSEN | {
        **{f"{each}_smooth": (lambda frame, each=each: frame[each]) for each in shown},
        **{"running_mean_over": 1, "relative_retained_weight": np.nan},
    }
    keys, values = "clipping_bound class", " ".join(["class_name", "class_rank", *shown])
    frame = plain(frame, ["clipping_bound"])
    bounds = sorted({*frame.get("clipping_bound", [])})
    if bounds and baseline not in bounds:
        raise ValueError(f"baseline: found {baseline:g}; allowed: {', '.join(map(str, bounds))}")
    options = {"baseline": baseline, "rows": list(rows), "retained_weight_of": "trainable"}
    return _drawn(families.PerClass, frame, keys, values, absent, look, **options)


def noise_curve(
    frame: pd.DataFrame, *, axes: Sequence[families.NoiseAxes], look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw noise against batch size or steps, coloured by the loss of accuracy.

    Args:
        frame: columns ``axes`` (a position in the argument of this name), ``epsilon``, ``epochs``,
            ``batch_size``, ``steps``, ``noise`` and ``accuracy_difference``; optional ``full_batch``,
            ``clipping_bound``, ``learning_rate``.
        axes: title, quantity and horizontal axis of each axes.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, values = "axes epsilon epochs batch_size", "steps noise accuracy_difference"
    options = {"axes": list(axes), "minimum_steps": {}}
    return _drawn(families.NoiseCurve, frame, keys, values, _CHOSEN, look, **options)


def attacker_curves(frame: pd.DataFrame, *, look: Style | None = None) -> matplotlib.figure.Figure:
    """Draw the true positive rate of the best membership attacker against its false positive rate.

    Args:
        frame: columns ``epsilon``, ``false_positive_rate`` and ``true_positive_rate``; optional ``records``
            (of one person), ``panel``, ``title``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    frame = plain(frame, ["records"])
    records = sorted(frame["records"].astype(int).unique()) if "records" in frame else [1]
    keys, values = "epsilon false_positive_rate", "true_positive_rate"
    absent, options = {"records": 1}, {"records": records}
    return _drawn(families.AttackerCurves, frame, keys, values, absent, look, **options)


def error_decomposition(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw the error of a private gradient sum against the clipping bound, split into bias and noise.

    Args:
        frame: columns ``epoch``, ``clipping_bound``, ``bias``, ``noise``, ``error`` and ``best_bound``;
            optional ``smallest`` and ``largest`` (of draws), ``panel``, ``title``, ``batch_size``,
            ``learning_rate``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, values = "epoch clipping_bound", "bias noise error best_bound"
    return _drawn(families.ErrorDecomposition, frame, keys, values, _CHOSEN | _range("error"), look)


def optimal_clipping_trace(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw the clipping bound with the smallest error and the median norm after each epoch, by ε.

    Args:
        frame: columns ``epsilon``, ``epoch``, ``best_bound`` and ``median_norm``; optional ``smallest`` and
            ``largest`` (of draws), ``panel``, ``title``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, values = "epsilon epoch", "best_bound median_norm"
    return _drawn(families.OptimalClippingTrace, frame, keys, values, _range("best_bound"), look)


def privacy_effects(frame: pd.DataFrame, *, look: Style | None = None) -> matplotlib.figure.Figure:
    """Draw the best clipping bound against ε: the effects of noise alone, of gradients alone, and of both.

    Args:
        frame: columns ``rule`` (C* or scale-free C), ``effect`` (both, noise alone, gradients alone),
            ``epsilon`` and ``best_bound``; optional ``smallest`` and ``largest`` (of draws), ``panel``,
            ``title``.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    keys, absent = "rule effect epsilon", _range("best_bound")
    return _drawn(families.PrivacyEffectsFigure, frame, keys, "best_bound", absent, look)


def predicted_clipping(
    frame: pd.DataFrame, *, look: Style | None = None
) -> matplotlib.figure.Figure:
    """Draw predicted clipping bounds against measured ones, and the loss of each rule.

    Args:
        frame: columns ``rule``, ``epsilon``, ``predicted``, ``measured``, ``mean_lost`` and ``settings``
            (the number in the mean); optional ``mean_lost_upper``, ``rank_correlation`` and its interval.
        look: colours and sizes.

    Raises:
        ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
    """
    values = "rule epsilon predicted measured mean_lost settings"
    names = ("", "_lower", "_upper")
    absent = {f"rank_correlation{name}": np.nan for name in names} | {"mean_lost_upper": np.nan}
    return _drawn(families.PredictedClipping, frame, "", values, absent, look)


def _range(value: str) -> dict[str, Any]:
    """Return defaults of the range of draws."""
    return {each: (lambda frame: frame[value]) for each in ("smallest", "largest")}
