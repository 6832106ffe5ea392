"""The record of a trial: its columns, from which the written rows and the documentation follow.

``python -m dpsweep.study.records`` prints the table of docs/design.md.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

_MEANING = b"meaning"
_TYPE_NAMES = {
    pa.string(): "str",
    pa.int64(): "int",
    pa.float64(): "float",
    pa.bool_(): "bool",
    pa.list_(pa.float64()): "list of float",
}


def _column(name: str, kind: pa.DataType, meaning: str) -> pa.Field:
    return pa.field(name, kind, metadata={_MEANING: meaning.encode()})


TRIALS = pa.schema(
    [
        _column("dataset", pa.string(), "name in the study"),
        _column("backbone", pa.string(), "name in the study"),
        _column("method", pa.string(), "name in the study"),
        _column(
            "optimizer", pa.string(), "name in the study; `adam` and `sgd` have their defaults"
        ),
        _column("epsilon", pa.float64(), "target; `inf` is non-private"),
        _column("delta", pa.float64(), "of the (epsilon, delta) guarantee"),
        _column("epochs", pa.int64(), "E"),
        _column("batch_size", pa.int64(), "B, the expected batch size"),
        _column("full_batch", pa.bool_(), "B is N"),
        _column("train_size", pa.int64(), "N, the examples that are trained on"),
        _column("steps", pa.int64(), "T"),
        _column("sampling_rate", pa.float64(), "q = B/N"),
        _column("passes", pa.float64(), "passes over the data, T*q"),
        _column(
            "clipping", pa.string(), "`flat`, or the name of a rule: `automatic` (AUTO-S), `none`"
        ),
        _column("clipping_bound", pa.float64(), "C, NaN unless flat"),
        _column("learning_rate", pa.float64(), "of the optimizer"),
        _column("seed", pa.int64(), "1, 2, ..."),
        _column(
            "best",
            pa.bool_(),
            "the learning rate is the cell's best one (first seed, selection accuracy; smallest rate "
            "on ties)",
        ),
        _column("noise_multiplier", pa.float64(), "sigma"),
        _column("certified_epsilon", pa.float64(), "the epsilon that is proven for sigma"),
        _column(
            "accuracy",
            pa.float64(),
            "on the test set, at the end: of the average of parameters, if the optimizer has one; in [0, 1]",
        ),
        _column(
            "macro_accuracy", pa.float64(), "the same, mean over the classes that have an example"
        ),
        _column(
            "selection_accuracy",
            pa.float64(),
            "what every choice is made by: `macro_accuracy`, or the same on held-out training "
            "examples (`select_on: holdout`)",
        ),
        _column(
            "last_accuracy",
            pa.float64(),
            "`accuracy` of the parameters after the last step; the same where there is no average",
        ),
        _column("last_macro_accuracy", pa.float64(), "`macro_accuracy` of the same parameters"),
        _column("loss", pa.float64(), "mean cross entropy on the test set"),
        _column(
            "per_class_accuracy",
            pa.list_(pa.float64()),
            "on the test set; NaN for a class that has no example",
        ),
        _column("diverged", pa.bool_(), "parameters or loss not finite at the end"),
        _column(
            "mean_gradient_norm",
            pa.float64(),
            "mean over steps of the mean per-example norm before clipping",
        ),
        _column("clipped_fraction", pa.float64(), "share of sampled examples with norm > C"),
        _column("nonfinite_examples", pa.int64(), "per-example gradients that were zeroed"),
        _column("trainable_parameters", pa.int64(), "numbers that train"),
        _column("head_parameters", pa.int64(), "those of them in the classification head"),
        _column("wall_seconds", pa.float64(), "of training, without evaluation"),
        _column("examples_per_second", pa.float64(), "sampled examples over `wall_seconds`"),
        _column("device", pa.string(), "kind and name, for example `cpu: x86_64`"),
        _column(
            "precision", pa.string(), "of forward and backward passes: `float32` or `bfloat16`"
        ),
        _column(
            "physical_batch",
            pa.int64(),
            "most examples on the device at once: halved where memory ran out; at most B + 2√B on a GPU",
        ),
        _column("versions", pa.string(), "of Python and libraries, as JSON"),
        _column(
            "data_checksum", pa.string(), "of the dataset, or of the features, that it trained on"
        ),
        _column("classes_checksum", pa.string(), "of the list of its classes"),
        _column("backbone_checksum", pa.string(), "of the network that it began with"),
        _column("trainer_version", pa.int64(), "of the code that trained it"),
        _column(
            "trainer_sources", pa.string(), "checksum of the sources of this code; empty if unknown"
        ),
        _column("trial_key", pa.string(), "the trial's name in the store"),
    ]
)
"""Columns of ``trials.parquet``, one row per trial."""


def trial_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table with the columns of `TRIALS`.

    Raises:
        ValueError: a row has another set of columns.
        pyarrow.ArrowInvalid: a value is not of its column's type.
    """
    for row in rows:
        if different := row.keys() ^ set(TRIALS.names):
            raise ValueError(f"a trial's record lacks or should not have {sorted(different)}")
    return pa.Table.from_pylist(list(rows), schema=TRIALS)


def documentation() -> str:
    """The columns as a table in Markdown."""
    lines = ["| column | type | meaning |", "|---|---|---|"]
    for column in TRIALS:
        meaning = column.metadata[_MEANING].decode()
        lines.append(f"| `{column.name}` | {_TYPE_NAMES[column.type]} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(documentation())
