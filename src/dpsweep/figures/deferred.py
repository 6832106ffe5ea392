"""What figures are computed and drawn with: imported on first use (`dpsweep.base.lazy`)."""

from typing import TYPE_CHECKING

from dpsweep.base.lazy import lazy

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import seaborn as sns
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    from dpsweep.analysis import predictions
    from dpsweep.analysis.frames import (
        load_gradient_norms,
        load_steps,
        load_trials,
        seed_columns,
        stack,
        stack_panels,
    )
    from dpsweep.analysis.predictions import Overlap, load_overlaps
    from dpsweep.analysis.statistics import (
        as_good_as_best,
        class_order,
        first_best,
        log_density,
        relative_retained_weight,
        retained_weight,
        running_mean,
    )
    from dpsweep.base.parquet import UnreadableResultsError
    from dpsweep.figures import lines, style
    from dpsweep.privacy.trade_off import mechanism_trade_off
    from dpsweep.study.choice import choose
    from dpsweep.theory import (
        ClippedSums,
        PrivacyEffects,
        direction_optimal_clipping,
        mean_squared_error,
        mse_optimal_clipping,
    )
else:
    _NAMES = {
        "matplotlib.artist": "Artist",
        "matplotlib.axes": "Axes",
        "matplotlib.cm": "ScalarMappable",
        "matplotlib.collections": "LineCollection",
        "matplotlib.colors": "Normalize",
        "matplotlib.figure": "Figure",
        "matplotlib.lines": "Line2D",
        "matplotlib.ticker": "FuncFormatter MaxNLocator",
        "dpsweep.analysis.frames": (
            "load_gradient_norms load_steps load_trials seed_columns stack stack_panels"
        ),
        "dpsweep.analysis.predictions": "Overlap load_overlaps",
        "dpsweep.analysis.statistics": (
            "as_good_as_best class_order first_best log_density relative_retained_weight retained_weight "
            "running_mean"
        ),
        "dpsweep.base.parquet": "UnreadableResultsError",
        "dpsweep.privacy.trade_off": "mechanism_trade_off",
        "dpsweep.study.choice": "choose",
        "dpsweep.theory": (
            "ClippedSums PrivacyEffects direction_optimal_clipping mean_squared_error "
            "mse_optimal_clipping"
        ),
    }
    np = lazy("numpy")
    npt = lazy("numpy.typing")
    pd = lazy("pandas")
    sns = lazy("seaborn")
    predictions = lazy("dpsweep.analysis.predictions")
    lines = lazy("dpsweep.figures.lines")
    style = lazy("dpsweep.figures.style")
    globals().update(
        {name: lazy(f"{module}:{name}") for module in _NAMES for name in _NAMES[module].split()}
    )

__all__ = [
    "Artist", "Axes", "ClippedSums", "Figure", "FuncFormatter", "Line2D", "LineCollection",
    "MaxNLocator", "Normalize", "Overlap", "PrivacyEffects", "ScalarMappable", "UnreadableResultsError",
    "as_good_as_best", "choose", "class_order", "direction_optimal_clipping", "first_best", "lines",
    "load_gradient_norms", "load_overlaps", "load_steps", "load_trials", "log_density",
    "mean_squared_error", "mechanism_trade_off", "mse_optimal_clipping", "np", "npt", "pd",
    "predictions", "relative_retained_weight", "retained_weight", "running_mean", "seed_columns", "sns",
    "stack", "stack_panels", "style",
]  # fmt: skip
