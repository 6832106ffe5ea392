"""Three families of figures of per-example gradient norms: distribution by epoch, histogram, mean by step."""

from __future__ import annotations

from typing import Any

from dpsweep.analysis import frames, statistics
from dpsweep.base.lazy import matplotlib, np, pd, sns
from dpsweep.figures import style
from dpsweep.study import Paths, Study, choice, targets
from dpsweep.study.grid import Panel, Selection

_CELL = ["problem", "epsilon", "epochs", "clipping_bound", "batch_size", "learning_rate"]

DISTRIBUTION_COLUMNS = [
    "panel", "title", *_CELL, "epoch", "quantity", "norm", "value", "full_batch",
]  # fmt: skip

HISTOGRAM_COLUMNS = [
    "panel", "title", *_CELL, "lower", "upper", "share", "share_above_bound", "full_batch",
]  # fmt: skip

TRACE_COLUMNS = [
    "panel", "title", "problem", "epsilon", "epochs", "batch_size", "clipping_bound",
    "learning_rate", "seed", "step", "mean_gradient_norm", "mean_gradient_norm_smooth",
    "running_mean_over", "full_batch",
]  # fmt: skip

_DECADES = (-16, 10)  # range of the density's grid; well learnt examples have tiny gradients

_STEP = 0.02  # step of the density's grid, in decades of the norm

_BIN = 0.05  # width of a bin of the histogram, in decades of the norm

_VIOLINS_IN_A_ROW = 50

_QUANTILES = (0.25, 0.5, 0.75)

_MANY_STEPS = 100  # with more steps, the line is a running mean over about 2 % of them


class _GradientNorms(targets.Figure):
    """A figure of per-example gradient norms at the best batch size, with a panel for each problem."""

    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs", "clipping_bound")

    panels: targets.Panels

    def gradient_norms(self) -> list[Selection]:
        """Return the selections of all panels."""
        return list(self.panels)


class GradientNormDistribution(_GradientNorms):
    """Distribution of per-example gradient norms after every epoch, a panel per problem.

    A frame for `draw` has columns ``epoch``, ``quantity`` (density, quantile or share above C), ``norm``,
    ``value``, ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "gradient_norm_distribution"
    title = "Gradient norms by epoch"

    keys = ("epoch", "quantity", "norm", "value")
    needs = ("clipping_bound",)

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return the distribution of every panel and epoch, in one long frame.

        In rows with ``quantity`` = density, ``value`` is the density of log10(norm) at ``norm``. In rows with
        quantile, a share ``value`` of the examples has norms below ``norm``. In rows with share above C,
        ``value`` is that share. Zero and infinite norms have no finite logarithm, and count in the share and
        the quantiles only. A NaN counts nowhere.
        """

        def of_panel(panel: Panel) -> pd.DataFrame:
            norms = frames.load_gradient_norms(study, paths, [panel], missing=missing)
            if norms.empty:
                return norms
            every = [
                _distribution(group).assign(epoch=epoch) for epoch, group in norms.groupby("epoch")
            ]
            return pd.concat(every).assign(**_of_the_cell(study, panel, norms))

        return frames.stack_panels(self.panels, of_panel, DISTRIBUTION_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a violin for every epoch with quartiles and median, and C as a line."""
        panels = [panel for _, panel in numbers.groupby("panel")]
        violins = sum(panel["epoch"].nunique() for panel in panels)
        rows = -(-violins // _VIOLINS_IN_A_ROW)
        columns = -(-len(panels) // rows)
        drawing = style.panels_figure(columns, height=2.1 * rows + 0.3)
        grid = drawing.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for index, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            last = index % columns == columns - 1 or index == len(panels) - 1
            _draw_violins(axes, panel, name_bound=last)
            chosen = style.write_chosen(panel.iloc[0]).split(", ")
            small = chosen if columns > 3 else [", ".join(chosen)]
            style.title(axes, panel["title"].iloc[0], *small)
            if index + columns >= len(panels):
                axes.set_xlabel("Epoch")
                axes.tick_params(labelbottom=True)
            if index % columns == 0:
                axes.set_ylabel(style.log_label("Per-example gradient norm", panels=3))
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        style.note(
            drawing,
            "Every violin is as wide as the others: it shows the shape of a distribution. Bar: quartiles; "
            "point: median.",
        )
        return drawing


def _of_the_cell(study: Study, panel: Panel, norms: pd.DataFrame) -> dict[str, Any]:
    """Return the settings of the trial whose norms were measured: the same in every row."""
    first = norms.iloc[0]
    full = study.train_size(panel.problem.dataset)
    return {name: first[name] for name in _CELL} | {"full_batch": first["batch_size"] == full}


def _distribution(norms: pd.DataFrame) -> pd.DataFrame:
    """Return density, quantiles and share above C of the norms of one epoch."""
    grid = np.round(np.arange(*_DECADES, _STEP), 2)
    values = norms["norm"].to_numpy(dtype=np.float64)
    known = values[~np.isnan(values)]
    bound = float(norms["clipping_bound"].iloc[0])
    density = statistics.log_density(values, grid)
    drawn = _support(density)
    parts = [
        ("density", 10 ** grid[drawn], density[drawn]),
        ("quantile", np.quantile(known, _QUANTILES) if known.size else np.nan, _QUANTILES),
        ("share above C", bound, [float(np.mean(known > bound)) if known.size else np.nan]),
    ]
    return pd.concat(
        pd.DataFrame({"quantity": quantity, "norm": norm, "value": value})
        for quantity, norm, value in parts
    )


def _support(density: np.ndarray) -> slice:
    """Return the slice from the first to the last visible point: above 2 % of the largest density."""
    visible = np.flatnonzero(density > 0.02 * np.nanmax(density, initial=0.0))
    return slice(visible[0], visible[-1] + 1) if visible.size else slice(0)


def _draw_violins(axes: matplotlib.axes.Axes, numbers: pd.DataFrame, name_bound: bool) -> None:
    for epoch, here in numbers.groupby("epoch"):
        density = here[here["quantity"] == "density"]
        # Equal widths: with equal areas, one narrow distribution would make all others very thin.
        half = 0.44 * density["value"] / density["value"].max()
        axes.fill_betweenx(
            density["norm"], epoch - half, epoch + half, color=style.look().easy, alpha=0.45, linewidth=0,
        )  # fmt: skip
    quantiles = numbers[numbers["quantity"] == "quantile"]
    quartiles = quantiles.pivot(index="epoch", columns="value", values="norm")
    quartiles = quartiles.reindex(columns=list(_QUANTILES))
    axes.vlines(quartiles.index, quartiles[0.25], quartiles[0.75], color="black", linewidth=0.9)
    sns.scatterplot(
        x=quartiles.index, y=quartiles[0.5], color="white", edgecolor="black", linewidth=0.7, s=5,
        zorder=3, ax=axes,
    )  # fmt: skip
    bound = numbers["clipping_bound"].iloc[0]
    axes.axhline(bound, color=style.look().hard, linestyle="--", linewidth=1)
    if name_bound:
        axes.annotate(
            f"C = {style.write_value(bound)}", (1.0, bound), (2, 0),
            xycoords=axes.get_yaxis_transform(), textcoords="offset points",
            ha="left", va="center", size=style.look().points(7), color=style.look().hard,
        )  # fmt: skip
    axes.set(xlabel="", ylabel="")
    style.log_axis(axes, "y")
    first, last = int(numbers["epoch"].min()), int(numbers["epoch"].max())
    axes.set_xticks(sorted({first, (first + last) // 2, last}))
    axes.set_xticks(range(first, last + 1), minor=True)
    axes.grid(axis="x", visible=False)


class GradientNormHistogram(_GradientNorms):
    """Histogram of per-example gradient norms after the last epoch, a panel per problem.

    A frame for `draw` has columns ``lower`` and ``upper`` (edges of bins), ``share``, ``share_above_bound``
    and ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "gradient_norm_histogram"
    title = "Gradient norms after training"

    keys = ("lower",)
    needs = ("upper", "share", "share_above_bound", "clipping_bound")

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per bin: the share of all examples whose norm is in [lower, upper).

        All panels have the same bins, of equal width in the logarithm. Zero and non-finite norms are not in a
        bin, but count among all examples.
        """
        norms_of = [
            frames.load_gradient_norms(study, paths, [panel], epoch="last", missing=missing)
            for panel in self.panels
        ]
        logs = [_logarithms(norms) for norms in norms_of]
        known = np.concatenate(logs) if any(map(len, logs)) else np.zeros(1)
        first, last = np.floor(known.min() / _BIN), np.floor(known.max() / _BIN)
        # Edges are whole multiples of the width, so that they do not depend on the data's extremes.
        edges = np.round(np.arange(first, last + 2) * _BIN, 10)
        parts = []
        for index, (panel, norms, values) in enumerate(
            zip(self.panels, norms_of, logs, strict=True)
        ):
            if norms.empty:
                continue
            bins = {
                "lower": 10 ** edges[:-1],
                "upper": 10 ** edges[1:],
                "share": np.histogram(values, edges)[0] / len(norms),
            }
            parts.append(
                pd.DataFrame(bins).assign(
                    panel=index,
                    title=panel.title,
                    share_above_bound=float((norms["norm"] > norms["clipping_bound"]).mean()),
                    **_of_the_cell(study, panel, norms),
                )
            )
        return frames.stack(parts, HISTOGRAM_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a panel for each problem with a shared horizontal axis, and C as a line.

        Each panel has its own vertical axis: a spike in one would flatten the others.
        """
        drawing, panels = style.panels(numbers, height=2.1, sharex=True)
        for (axes,), panel in panels:
            # On a logarithmic axis, seaborn expects the logarithms of the bins' edges.
            axes.set_xscale("log")
            edges = np.log10([*panel["lower"], panel["upper"].iloc[-1]])
            middles = np.sqrt(panel["lower"] * panel["upper"])
            sns.histplot(
                x=middles, weights=panel["share"], bins=list(edges), element="step", linewidth=0,
                color=style.look().easy, alpha=0.6, ax=axes,
            )  # fmt: skip
            style.log_axis(axes, "x")
            axes.set_ylim(0, 1.35 * panel["share"].max())  # room for the text above the bars
            bound = panel["clipping_bound"].iloc[0]
            above = style.write_percentage(panel["share_above_bound"].iloc[0])
            axes.axvline(bound, color=style.look().hard, linestyle="--", linewidth=1)
            axes.text(
                0.03, 0.97, f"C = {style.write_value(bound)}\n{above} above",
                transform=axes.transAxes, va="top", size=style.look().points(7), color=style.look().hard,
            )  # fmt: skip
            axes.set(xlabel=style.log_label("Gradient norm", len(panels)), ylabel="")
            axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=4))
            style.title(axes, panel["title"].iloc[0], style.write_chosen(panel.iloc[0]))
        drawing.axes[0].set_ylabel("Share of examples")
        if len(panels) > 1:
            style.note(drawing, style.DIFFERENT_AXES)
        return drawing


def _logarithms(norms: pd.DataFrame) -> np.ndarray:
    values = norms["norm"].to_numpy(dtype=np.float64)
    logs: np.ndarray = np.log10(values[np.isfinite(values) & (values > 0)])
    return logs


class NormTrace(targets.Figure):
    """Mean per-example gradient norm at every optimizer step, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``step`` and ``mean_gradient_norm``; optional ``panel``,
    ``title``, ``mean_gradient_norm_smooth`` with ``running_mean_over`` (steps), ``batch_size``,
    ``learning_rate``.
    """

    family = "norm_trace"
    title = "Mean gradient norm by step"
    tunes = True
    reads_steps = True
    single = ("epochs",)

    panels: targets.Panels

    keys = ("epsilon", "step")
    needs = ("mean_gradient_norm",)

    def compute(self, study: Study, paths: Paths, missing: targets.Missing = None) -> pd.DataFrame:
        """Return one row per step of every (panel, epsilon), of the first seed of the best cell."""

        def of_panel(panel: Panel) -> pd.DataFrame:
            cells = {cell.name: cell for cell in panel.cells()}
            chosen = choice.choose(
                frames.load_trials(study, paths, cells.values(), missing), by=["epsilon"]
            )
            traces = []
            for row in chosen.to_dict("records"):
                steps = frames.load_steps(study, paths, [cells[row["cell"]]], missing)
                trace = steps[steps["trial_key"] == row["trial_key"]].sort_values("step")
                norms = trace["mean_gradient_norm"].to_numpy(dtype=float)
                window = 1 if norms.size <= _MANY_STEPS else 2 * (norms.size // 100) + 1
                traces.append(
                    trace[["step", "mean_gradient_norm"]].assign(
                        mean_gradient_norm_smooth=statistics.running_mean(norms, window),
                        running_mean_over=window,
                        full_batch=row["full_batch"],
                        **{name: row[name] for name in [*_CELL, "seed"]},
                    )
                )
            return frames.stack(traces, TRACE_COLUMNS[2:])

        return frames.stack_panels(self.panels, of_panel, TRACE_COLUMNS)

    def plot(self, numbers: pd.DataFrame) -> matplotlib.figure.Figure:
        """Draw a line for every epsilon; with many steps, a thin line and a thick running mean."""
        colours = style.colours_by(numbers["epsilon"])
        budgets = style.write_epsilons(colours)
        columns = 2 if numbers["panel"].nunique() == 1 else 1
        height = 2.1 + 0.14 * -(-len(colours) // columns)
        drawing, panels = style.panels(numbers, height, wide=True, sharey=True)
        for (axes,), panel in panels:
            style.draw_smoothed(axes, panel, "step", "mean_gradient_norm", colours, "epsilon", 0.25)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(nbins=6, integer=True))
            axes.set(xlabel="Optimizer step")
            entries = {
                f"{budgets[line['epsilon']]} ({style.write_chosen(line)})".removesuffix(
                    " ()"
                ): colours[line["epsilon"]]
                for _, line in panel.drop_duplicates("epsilon").iterrows()
            }
            style.legend_above(axes, panel["title"].iloc[0], style.legend_lines(entries), columns)
        drawing.axes[0].set_ylabel("Mean gradient norm")
        window = int(numbers["running_mean_over"].max())
        if window > 1:
            style.note(drawing, f"Thin: every step. Thick: running mean over up to {window} steps.")
        return drawing
