"""Tables of a study's inputs: the grid of every sweep (Table A1), and the prepared datasets (Table A2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

from dpsweep.analysis import frames
from dpsweep.base.files import read_checked_json
from dpsweep.base.lazy import pd
from dpsweep.study import Paths, Study
from dpsweep.study.cells import number
from dpsweep.study.clipping import RULES
from dpsweep.study.datasets import HubSource
from dpsweep.study.networks import LoRA
from dpsweep.study.sweeps import Sweep
from dpsweep.study.targets import Missing, PrintedTable
from dpsweep.tables.text import TextTable, group_starts, superscript

_PRINTED = {
    "dataset": "Dataset", "backbone": "Model", "method": "Method", "subset": "Subset",
    "epsilon": "ε", "epochs": "Epochs", "batch_size": "Batch sizes B",
    "learning_rate": "Learning rates η", "clipping_bound": "Clipping bounds C", "seeds": "Seeds",
}  # fmt: skip
LISTS = ("epsilon", "epochs", "batch_size", "learning_rate", "clipping_bound")
"""Columns that contain the values of an axis, separated by spaces."""
_WIDTHS = [
    "p0.09", "p0.09", "p0.10", "r", "p0.08", "p0.07", "p0.11", "p0.11", "p0.12", "r",
]  # fmt: skip


class HyperparameterGrid(PrintedTable):
    """The grid of every sweep, from the study itself (Table A1)."""

    family = "hyperparameter_grid"
    title = "Hyperparameter grids"
    words = LISTS

    def frames(
        self, study: Study, paths: Paths, missing: Missing = None
    ) -> dict[str, pd.DataFrame]:
        """Return one row per sweep, in the order of the study; values of a list are separated by spaces."""
        rows = [_row(study, name, sweep) for name, sweep in study.sweeps.items()]
        return {"csv": pd.DataFrame(rows)}

    def layout(self, numbers: pd.DataFrame) -> TextTable:
        """Add a rule between datasets, and use small type because the grid has many columns."""
        shown = numbers[list(_PRINTED)].rename(columns=_PRINTED).astype(str)
        shown["Subset"] = [f"{share:g}" for share in numbers["subset"]]
        special = {"batch_size": _batch_sizes, "learning_rate": _rates}
        for name in LISTS:
            write = special.get(name, _values_text)
            shown[_PRINTED[name]] = [write(values.split()) for values in numbers[name]]
        return TextTable.of(
            shown.to_dict("records"),
            _WIDTHS,
            groups=group_starts(list(shown["Dataset"])),
            size="tiny",
        )


def _row(study: Study, name: str, sweep: Sweep) -> dict[str, object]:
    dataset = study.datasets[sweep.dataset]
    method = study.methods[sweep.method]
    title = method.title
    if isinstance(method, LoRA) and "rank" not in title.lower():
        title += f" (rank {method.rank})"
    return {
        "sweep": name,
        "dataset": dataset.title,
        "backbone": study.backbones[sweep.backbone].title,
        "method": f"{study.optimizer_title(sweep.problem.optimizer, sweep.epsilon)}, {title}",
        "subset": dataset.source.train_share if isinstance(dataset.source, HubSource) else 1.0,
        "epsilon": _joined(sweep.epsilon),
        "epochs": _joined(sweep.epochs),
        "batch_size": _joined(sweep.batch_size),
        "learning_rate": _joined(sweep.learning_rates),
        "clipping_bound": _joined(sweep.clipping_bounds),
        "seeds": sweep.seeds,
    }


def _joined(values: Sequence[float | str]) -> str:
    return " ".join(number(value) for value in values)


def _values_text(values: Sequence[str]) -> str:
    return ", ".join(_value(value) for value in values)


def _value(value: str) -> str:
    if value in RULES:
        return RULES[value].title
    if value in ("inf", "full"):
        return value.replace("inf", "∞")
    mantissa, _, exponent = f"{float(value):e}".partition("e")
    if int(exponent) <= -4 and float(mantissa) == 1:
        return f"10{superscript(int(exponent))}"
    return value


def _batch_sizes(values: Sequence[str]) -> str:
    """Return a range such as 2⁸–2¹⁴ + full for consecutive powers of two; otherwise the list."""
    exponents = [math.log2(int(value)) for value in values if value != "full"]
    steps = [larger - smaller for smaller, larger in itertools.pairwise(exponents)]
    if len(exponents) > 2 and exponents[0].is_integer() and set(steps) == {1.0}:
        first, last = (superscript(int(exponents[end])) for end in (0, -1))
        return f"2{first}–2{last}" + (" + full" if values[-1] == "full" else "")
    return _values_text(values)


def _rates(values: Sequence[str]) -> str:
    """Return [first, last] (count) for geometric rates; otherwise the list."""
    rates = [float(value) for value in values]
    ratios = [larger / smaller for smaller, larger in itertools.pairwise(rates)]
    if len(rates) > 2 and max(ratios) / min(ratios) < 1 + 1e-4:
        return f"[{_value(values[0])}, {_value(values[-1])}] ({len(rates)})"
    return _values_text(values)


class Datasets(PrintedTable):
    """Prepared datasets: sizes, classes, balance, source (Table A2)."""

    family = "datasets"
    title = "Datasets"
    words = ("revision", "description")

    def described_datasets(self, swept: Sequence[str]) -> Sequence[str]:
        """Return all of them."""
        return swept

    def frames(
        self, study: Study, paths: Paths, missing: Missing = None
    ) -> dict[str, pd.DataFrame]:
        """Return one row per dataset that sweeps train on, read from the prepared files.

        ``imbalance`` is the size of the largest training class divided by the size of the smallest one (1 is
        balanced, infinite if a class has no example).
        """
        files = {name: paths.dataset(name) / "metadata.json" for name in study.swept_datasets}
        rows = []
        for name, file in frames.present_files(files, missing, "prepared dataset").items():
            metadata = read_checked_json(file)
            counts = metadata["train_counts"]
            rows.append(
                {
                    "dataset": study.datasets[name].title,
                    "source": metadata["source"],
                    "revision": metadata["revision"],
                    "classes": len(metadata["classes"]),
                    "train_size": metadata["train_size"],
                    "test_size": metadata["test_size"],
                    "smallest_class": min(counts),
                    "largest_class": max(counts),
                    "imbalance": max(counts) / min(counts) if min(counts) else float("inf"),
                    "description": study.datasets[name].description,
                }
            )
        return {"csv": pd.DataFrame(rows)}

    def layout(self, numbers: pd.DataFrame) -> TextTable:
        """Lay out the datasets, with a comma in thousands and the range of class sizes."""
        return TextTable(
            header=["Dataset", "Source", "Classes", "Train", "Test", "Class sizes", "Description"],
            rows=[
                [
                    row["dataset"],
                    row["source"],
                    str(row["classes"]),
                    f"{row['train_size']:,}",
                    f"{row['test_size']:,}",
                    _sizes(row),
                    row["description"],
                ]
                for row in numbers.to_dict("records")
            ],
            columns=["l", "p0.15", "r", "r", "r", "p0.13", "p0.24"],
        )


def _sizes(row: dict[Hashable, Any]) -> str:
    if row["smallest_class"] == row["largest_class"]:
        return f"{row['largest_class']:,} each"
    return f"{row['smallest_class']:,}–{row['largest_class']:,}"
