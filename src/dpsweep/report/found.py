"""What a study found, for the head of the report: verdicts, best settings, and what failed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpsweep.figures.tables.write import read_numbers
from dpsweep.report.checks import Check
from dpsweep.report.grid import Grid, percent, values
from dpsweep.study import Cell, Study
from dpsweep.study.cells import BatchSize, number
from dpsweep.study.choice import choose
from dpsweep.study.clipping import RULES, ClippingBound
from dpsweep.study.paths import Paths
from dpsweep.study.table_targets import TuningImplications

_BEST_COLUMNS = [
    "Dataset", "Backbone", "Method", "ε", "Epochs", "C", "B", "Learning rate", "Accuracy",
    "Cross-fitted", "Seeds",
]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What the study says of one tuning rule; ``status`` is the colour of the verdict."""

    rule: str
    effect: str
    votes: str
    verdict: str
    status: str


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of one table of tuning rules."""

    table: str
    rows: list[Verdict]


def verdicts(study: Study, paths: Paths) -> list[Verdicts]:
    """The verdicts of every table of tuning rules that has been written."""
    found = []
    for name, table in study.tables.items():
        file = paths.table(name, "csv")
        if isinstance(table, TuningImplications) and file.exists():
            try:
                rows = [_verdict(row) for _, row in read_numbers(file).iterrows()]
            except (KeyError, ValueError):
                continue  # the table says in its place that it is damaged
            found.append(Verdicts(name, rows))
    return found


def _verdict(row: "pd.Series[float]") -> Verdict:
    said = str(row["verdict"])
    status = {"supported": "pass", "contradicted": "fail"}.get(said.split(maxsplit=1)[0], "open")
    visible = float(row["smallest_visible_here"])
    effect, lower, upper = (float(row[name]) for name in ("effect", "lower_here", "upper_here"))
    text = "no comparison"
    if not math.isnan(effect):
        interval = "" if math.isnan(lower) else f" [{_signed(lower)}, {_signed(upper)}]"
        text = f"{_signed(effect)}{interval} {row['unit']}"
    if not math.isnan(visible):
        text += f"; an effect of {visible:.2f} would have been seen"
    needs = str(row["needs"])  # a column without any words is read as numbers that are absent
    if needs not in ("", "nan"):
        text += f" ({needs})"
    advice = str(row["implication"])
    return Verdict(
        f"{row['condition']}: {advice[0].lower()}{advice[1:]}",
        text,
        f"{row['in_favour']} for, {row['against']} against",
        said,
        status,
    )


def best_settings(study: Study, trials: pd.DataFrame) -> Grid | None:
    """The best cell of every problem and ε, all else tuned, as `dpsweep.study.choice` chooses.

    ``Accuracy`` is the mean macro accuracy over the seeds that chose, ``Cross-fitted`` that of seeds
    that did not choose.
    """
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    rows = []
    for name, problem in study.problems.items():
        for _, best in chosen[chosen["problem"] == name].iterrows():
            cell = Cell.parse(name, str(best["cell"]))
            rows.append(
                [
                    study.datasets[problem.dataset].title,
                    study.backbones[problem.backbone].title,
                    study.method_title(name),
                    values([cell.epsilon]),
                    str(cell.epochs),
                    bound_text(cell.clipping_bound),
                    batch_text(cell.batch_size, int(best["batch_size"])),
                    number(float(best["learning_rate"])),
                    percent(float(best["centre"])),
                    percent(float(best["cross_fitted"])),
                    str(best["repeats"]),
                ]
            )
    return Grid(_BEST_COLUMNS, rows, frozenset(_BEST_COLUMNS[3:])) if rows else None


def bound_text(bound: ClippingBound) -> str:
    """A clipping bound as a reader writes it: 0.1, AUTO-S, none."""
    return RULES[bound].title if isinstance(bound, str) else number(bound)


def batch_text(size: BatchSize, examples: int) -> str:
    """A batch size, and what the full batch comes to: 256, full (1,347)."""
    return f"full ({examples:,})" if size == "full" else number(size)


def to_know(checks: Sequence[Check]) -> list[Check]:
    """The checks that did not pass, those that failed first."""
    return sorted(
        (check for check in checks if check.status != "pass"),
        key=lambda check: check.status != "fail",
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")
