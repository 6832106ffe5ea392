"""What was prepared: sizes, classes, balance, source (Table A2)."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.analysis.frames import MissingResultsError
from dpsweep.base.files import read_checked_json
from dpsweep.figures.tables.text import TextTable
from dpsweep.study import Study
from dpsweep.study.inputs import swept_datasets
from dpsweep.study.paths import Paths


def prepared_datasets(
    study: Study, paths: Paths, missing: list[Path] | None = None
) -> pd.DataFrame:
    """One row per dataset that is trained on, read from the prepared files.

    ``imbalance`` is the size of the largest training class over that of the smallest (1 is
    balanced, infinite if a class has no example).

    Raises:
        MissingResultsError: a dataset has not been prepared, and ``missing`` is None.
    """
    rows = []
    for name in swept_datasets(study):
        file = paths.dataset(name) / "metadata.json"
        if not file.exists():
            if missing is None:
                raise MissingResultsError(f"{file} is missing", (file,))
            missing.append(file)
            continue
        metadata = read_checked_json(file)
        counts = metadata["train_counts"]
        rows.append(
            {
                "dataset": metadata["title"],
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
    return pd.DataFrame(rows)


def show(numbers: pd.DataFrame) -> TextTable:
    """Counts with thousands separated, balance as the ratio of class sizes."""
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
