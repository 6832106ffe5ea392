"""The record of a trial: its columns, as listed in docs/files.md, and tables of rows.

``python -m dpsweep.study.records`` prints the table of docs/files.md.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

DOCUMENTATION = """\
| column | type | meaning |
|---|---|---|
| `dataset` | str | name in the study |
| `backbone` | str | name in the study |
| `method` | str | name in the study |
| `optimizer` | str | name in the study; `adam` and `sgd` have their defaults |
| `epsilon` | float | target; `inf` is non-private |
| `delta` | float | of the (epsilon, delta) guarantee |
| `epochs` | int | E |
| `batch_size` | int | B, the expected batch size |
| `full_batch` | bool | B is N |
| `train_size` | int | N, the examples that are trained on |
| `steps` | int | T |
| `sampling_rate` | float | q = B/N |
| `passes` | float | passes over the data, T*q |
| `clipping` | str | `flat`, or the name of a rule: `automatic` (AUTO-S), `none` |
| `clipping_bound` | float | C, NaN unless flat |
| `learning_rate` | float | of the optimizer |
| `seed` | int | 1, 2, ... |
| `best` | bool | the learning rate is the cell's best one (first seed, selection accuracy; smallest rate on ties) |
| `noise_multiplier` | float | sigma |
| `certified_epsilon` | float | the proven upper bound on epsilon at sigma |
| `accuracy` | float | on the test set, after training, in [0, 1]; of the averaged parameters if the optimizer averages |
| `macro_accuracy` | float | the same, as the mean over classes with test examples |
| `unit_accuracy` | float | only with units of several rows: share of the test units of which more than half of the rows are right; exactly half counts as wrong |
| `selection_accuracy` | float | decides every choice: `macro_accuracy`, or the same on held-out training examples (`select_on: holdout`) |
| `last_accuracy` | float | `accuracy` of the parameters after the last step; equal to `accuracy` without averaging |
| `last_macro_accuracy` | float | `macro_accuracy` of the same parameters |
| `loss` | float | mean cross entropy on the test set |
| `per_class_accuracy` | list of float | on the test set; NaN for a class without examples |
| `diverged` | bool | parameters or loss not finite at the end |
| `mean_gradient_norm` | float | mean over steps of the mean per-example norm before clipping |
| `clipped_fraction` | float | share of sampled examples with norm > C |
| `nonfinite_examples` | int | number of per-example gradients that were not finite, and set to zero |
| `trainable_parameters` | int | number of parameters that train |
| `head_parameters` | int | number of them in the classification head |
| `wall_seconds` | float | of training, without evaluation |
| `examples_per_second` | float | sampled examples over `wall_seconds` |
| `device` | str | kind and name, for example `cpu: x86_64` |
| `precision` | str | of forward and backward passes: `float32` or `bfloat16` |
| `physical_batch` | int | largest number of examples on the device at once; halved if memory ran out; at most B + 2√B on a GPU |
| `versions` | str | of Python and libraries, as JSON |
| `data_checksum` | str | of the training dataset, or of its features |
| `classes_checksum` | str | of the list of its classes |
| `backbone_checksum` | str | of the network before training |
| `trainer_version` | int | of the training code |
| `trainer_sources` | str | checksum of the sources of the training code; empty if unknown |
| `trial_key` | str | the trial's name in the store |
"""  # noqa: E501 (a row of Markdown is one line)
"""The columns as a table in Markdown; the schema is parsed from it."""

_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "list of float": pa.list_(pa.float64()),
}


def _column(row: str) -> pa.Field:
    name, kind, meaning = (cell.strip() for cell in row.strip("|").split("|"))
    return pa.field(name.strip("`"), _TYPES[kind], metadata={"meaning": meaning})


TRIALS = pa.schema([_column(row) for row in DOCUMENTATION.splitlines()[2:]])
"""The columns of ``trials.parquet``, which has one row per trial."""
_OF_UNITS = {"unit_accuracy"}
"""Columns that only trials on units of several rows have."""


def trial_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table with the columns of `TRIALS`.

    Raises:
        ValueError: a row has other columns.
        pyarrow.ArrowInvalid: a value does not have the type of its column.
    """
    for row in rows:
        if different := (row.keys() ^ set(TRIALS.names)) - (_OF_UNITS - row.keys()):
            raise ValueError(f"a trial's record lacks or should not have {sorted(different)}")
    absent = _OF_UNITS.difference(*rows)
    schema = pa.schema([each for each in TRIALS if each.name not in absent])
    return pa.Table.from_pylist(list(rows), schema=schema)


if __name__ == "__main__":
    sys.stdout.write(DOCUMENTATION)
