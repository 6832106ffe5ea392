"""Result files as tidy frames: trials, optimizer steps, gradient norms; and checks of frames from users.

Every loader takes an optional list ``missing``. Without it, an absent file is an error whose message
names the command that makes the file. With it, absent files are added to the list, and the frame contains
the present ones: so a running study can be inspected.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dpsweep import TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import (
    UnreadableResultsError,
    atomic_path,
    fingerprint,
    read_checked_json,
    read_rows,
    write_rows,
)
from dpsweep.study import Cell, Paths, Study, fingerprints
from dpsweep.study.grid import Panel, Selection
from dpsweep.study.targets import Missing

# The columns that the statistics use; all other columns of trials.parquet are in the problem's table.
TRIAL_COLUMNS = [
    "dataset", "backbone", "method", "optimizer", "epsilon", "delta", "epochs", "batch_size",
    "full_batch", "train_size", "steps", "clipping", "clipping_bound", "learning_rate", "seed",
    "best", "noise_multiplier", "macro_accuracy", "selection_accuracy", "diverged", "trial_key",
]  # fmt: skip
REPORT_COLUMNS = [
    "epsilon", "delta", "epochs", "batch_size", "clipping_bound", "passes",
    "learning_rate", "seed", "best", "certified_epsilon", "accuracy", "macro_accuracy",
    "selection_accuracy", "diverged", "nonfinite_examples", "wall_seconds", "device",
    "precision", "versions", "trial_key",
]  # fmt: skip
"""The columns that the pages of a study show."""
STEP_COLUMNS = ["trial_key", "learning_rate", "seed", "step", "mean_gradient_norm"]
NORM_COLUMNS = ["epoch", "label", "norm", "head_norm", "batch_size", "learning_rate", "trial_key"]


class MissingResultsError(DpsweepError):
    """Absent results that a figure or table needs."""


def load_trials(
    study: Study,
    paths: Paths,
    cells: Iterable[Cell],
    missing: Missing = None,
    also: Sequence[str] = (),
) -> pd.DataFrame:
    """Read the trials of cells: one row per trial, in the order of the cells.

    Columns are those of ``trials.parquet`` that the statistics need, those of ``also``, and ``problem``
    and ``cell`` (the cell's name). ``clipping_bound`` is NaN for automatic and no clipping.

    Args:
        study: the study.
        paths: its files.
        cells: the cells to read; each is read once.
        missing: absent files are added to it; see the module.
        also: further columns.

    Raises:
        FormerResultsError: a cell was trained for other data, weights or noise than the current ones, and
            ``missing`` is None.
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column, or no trial is marked best.
    """
    tables = {
        (cell.problem, cell.name): paths.cell_trials(study, cell) for cell in dict.fromkeys(cells)
    }
    frame = read_all(
        tables, [*TRIAL_COLUMNS, *also, *MADE_FROM], ["problem", "cell"], missing, "trained cell"
    )
    frame = current_trials(study, paths, frame, missing).drop(columns=MADE_FROM)
    chosen = frame.groupby(["problem", "cell"], sort=False)["best"].any()
    for key in chosen.index[~chosen.to_numpy(dtype=bool)]:
        raise UnreadableResultsError(
            f"{tables[key]}: no trial is marked best; make it again (stored trials are not trained "
            "twice)",
            (tables[key],),
        )
    return frame


def load_steps(
    study: Study, paths: Paths, cells: Iterable[Cell], missing: Missing = None
) -> pd.DataFrame:
    """Read the optimizer steps of cells: one row per (trial, step), with ``problem`` and ``cell``.

    Args:
        study: the study.
        paths: its files.
        cells: of the study.
        missing: absent files are added to it; see the module.

    Raises:
        FormerResultsError: a file is of other trials than the current ones, and ``missing`` is None.
        MissingResultsError: a cell has not been trained, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column.
    """
    measured = {
        (cell.problem, cell.name): (paths.cell_steps(study, cell), [cell]) for cell in cells
    }
    tables = of_todays_trials(study, paths, measured, missing)
    return read_all(tables, STEP_COLUMNS, ["problem", "cell"], missing, "trained cell")


def load_gradient_norms(
    study: Study,
    paths: Paths,
    selections: Iterable[Selection],
    epoch: Literal["every", "last"] = "every",
    missing: Missing = None,
) -> pd.DataFrame:
    """Read per-example gradient norms: one row per (problem, epsilon, epochs, C, epoch, example).

    Batch sizes compete for one file, which holds the norms of the best one: so the batch size is a result.

    Args:
        study: the study.
        paths: its files.
        selections: the cells to read; each file is read once.
        epoch: whether to read the norms after every epoch, or after the last one only.
        missing: absent files are added to it; see the module.

    Raises:
        FormerResultsError: a file is of other trials than the current ones, and ``missing`` is None.
        MissingResultsError: the norms have not been measured, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column.
    """
    keys = dict.fromkeys(
        (cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound)
        for selection in selections
        for cell in selection.cells()
    )
    measured: dict[tuple[Any, ...], tuple[Path, list[Cell]]] = {}
    for problem, epsilon, epochs, bound in keys:
        # A rule without a bound gets NaN. Two such rules have different keys, because NaN != NaN.
        number = float("nan") if isinstance(bound, str) else bound
        measured[problem, epsilon, epochs, number] = (
            paths.gradient_norms(study, problem, epsilon, epochs, bound),
            study.competing_cells(problem, epsilon, epochs, bound),
        )
    tables = of_todays_trials(study, paths, measured, missing)
    names = ["problem", "epsilon", "epochs", "clipping_bound"]
    return read_all(tables, NORM_COLUMNS, names, missing, "gradient norms", epoch == "last")


def check_measured(
    study: Study, paths: Paths, cells: Iterable[Cell], chosen: "pd.Series[str]", norms: pd.DataFrame
) -> None:
    """Check that gradient norms are those of the chosen trials.

    Args:
        study: the study.
        paths: its files.
        cells: those with the trials.
        chosen: keys of trials, by C.
        norms: as `load_gradient_norms` reads them.

    Raises:
        UnreadableResultsError: they are of another trial.
    """
    first = norms.drop_duplicates("clipping_bound")
    for bound, measured in zip(first["clipping_bound"], first["trial_key"], strict=True):
        if measured != (best := chosen.get(bound)):
            cell = next(cell for cell in cells if cell.clipping_bound == bound)
            file = paths.gradient_norms(study, cell.problem, cell.epsilon, cell.epochs, bound)
            raise UnreadableResultsError(
                f"{file}: the gradient norms are of trial {measured}, but the best trial of "
                f"{cell.problem} at C = {bound} is {best}",
                (file,),
            )


def of_todays_trials(
    study: Study,
    paths: Paths,
    measured: Mapping[tuple[Any, ...], tuple[Path, Sequence[Cell]]],
    missing: Missing,
) -> dict[tuple[Any, ...], Path]:
    """Return the files that measure current trials; files without a trained cell are not checked.

    Args:
        study: the study.
        paths: its files.
        measured: files with a column ``trial_key``, and the cells that each measures, by key.
        missing: files of other trials are added to it; see the module.

    Raises:
        FormerResultsError: a file measures another trial, and ``missing`` is None.
    """
    present = {file: cells for file, cells in measured.values() if file.exists()}
    cells = dict.fromkeys(cell for some in present.values() for cell in some)
    trained = [cell for cell in cells if paths.cell_trials(study, cell).exists()]
    trials = load_trials(study, paths, trained, [])
    keys: dict[Any, set[str]] = {}
    for problem, name, key in trials[["problem", "cell", "trial_key"]].itertuples(index=False):
        keys.setdefault((problem, name), set()).add(key)
    former = []
    for file, some in present.items():
        known = [cell for cell in some if cell in trained]
        allowed = set().union(*(keys.get((cell.problem, cell.name), set()) for cell in known))
        found = set(read_rows(file, ["trial_key"]).column("trial_key").unique().to_pylist())
        if known and not found <= allowed:
            former.append(file)
    if former and missing is None:
        raise FormerResultsError(
            f"{len(former)} of {len(present)} files measure trials that the study no longer has; "
            f"the first is {former[0]}",
            tuple(former),
        )
    if missing is not None:
        missing += former
    return {key: file for key, (file, _) in measured.items() if file not in former}


def stack(frames: Iterable[pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """Concatenate frames, with these columns and those of `seed_columns`.

    Frames without rows are left out: their columns have no types, and would change those of the result.
    """
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=list(columns))
    rows = pd.concat(filled, ignore_index=True)
    return rows[[*columns, *seed_columns(rows)]]


def stack_panels(
    panels: Sequence[Panel], numbers: Callable[[Panel], pd.DataFrame], columns: Sequence[str]
) -> pd.DataFrame:
    """Compute the numbers of each panel, and `stack` them with ``panel`` (its index) and ``title``."""
    frames = [
        numbers(panel).assign(panel=place, title=panel.title) for place, panel in enumerate(panels)
    ]
    return stack(frames, columns)


def seed_columns(points: pd.DataFrame) -> list[str]:
    """Return the names of the columns with one seed's values: ``seed_1``, ``seed_2``, ..."""
    return [name for name in points.columns if name.startswith("seed_")]


_TEXTS = {
    *("panel", "title", "label", "clipping", "class_name"),
    *("quantity", "rule", "effect", "difficulty"),
}


def plain(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Return a copy of a frame in which the named columns have NumPy types: numbers, or texts.

    Raises:
        ValueError: a column of numbers contains something else.
    """
    copy = frame.reset_index(drop=True)
    for column in dict.fromkeys(each for each in columns if each in frame):
        values = copy[column].astype(object).mask(copy[column].isna(), math.nan)
        try:
            copy[column] = values if column in _TEXTS else pd.to_numeric(values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"column {column}: {error}; allowed: numbers") from None
    return copy


def in_order(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sort a frame by its key columns; rows whose ``clipping`` is not flat may lack a key.

    Raises:
        ValueError: a row lacks a key, or two rows have equal keys.
    """
    for column in keys:
        if (frame[column].isna() & (frame["clipping"] == "flat")).any():
            raise ValueError(
                f"column {column}: found a row without a value; allowed: one in each row"
            )
    twice = frame.loc[frame.duplicated(keys), keys].to_dict("records")
    if twice:
        row = ", ".join(f"{column} {value}" for column, value in twice[0].items())
        raise ValueError(f"found two rows of {row}; allowed: one")
    return frame.sort_values(keys, kind="stable")


def write_problem(study: Study, paths: Paths, problem: str) -> None:
    """Write all trials of a problem, with every column, as one table (the aggregate stage).

    Raises:
        DpsweepError: see `load_trials`.
    """
    cells = study.problem_cells(problem)
    load_trials(study, paths, cells)
    tables = []
    for cell in cells:
        table = read_rows(paths.cell_trials(study, cell))
        for name, value in (("problem", cell.problem), ("cell", cell.name)):
            table = table.append_column(name, pa.array([value] * table.num_rows, pa.string()))
        tables.append(table)
    table = pa.concat_tables(tables, promote_options="permissive")
    write_rows(paths.problem(problem), table)
    settings = fingerprints.problem_fingerprint(study, problem)
    fingerprints.write_settings(paths.problem(problem), settings)


def present_files(files: dict[Any, Path], missing: Missing, what: str) -> dict[Any, Path]:
    """Return the files that exist.

    Args:
        files: by any keys.
        missing: absent files are added to it; see the module.
        what: the content of a file, for the message about absent ones.

    Raises:
        MissingResultsError: a file is absent, and ``missing`` is None.
    """
    present = {key: file for key, file in files.items() if file.exists()}
    absent = [file for key, file in files.items() if key not in present]
    if missing is not None:
        missing += absent
    elif absent:
        shown = "".join(f"\n  {file}" for file in absent[:5])
        more = f"\n  ... and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise MissingResultsError(
            f"{len(absent)} {what} file(s) missing:{shown}{more}", (absent[0],)
        )
    return present


def read_all(
    files: dict[tuple[Any, ...], Path],
    columns: list[str],
    key_columns: list[str],
    missing: Missing,
    what: str,
    last_epoch: bool = False,
) -> pd.DataFrame:
    """Read columns of parquet files into one frame, with key columns before them.

    Args:
        files: to read, by the values of their key columns.
        columns: to read.
        key_columns: names of the key columns.
        missing: absent files are added to it; see the module.
        what: the content of a file, for the message about absent ones.
        last_epoch: whether to keep only the rows of the largest ``epoch`` of each file.

    Raises:
        MissingResultsError: a file is absent, and ``missing`` is None.
        UnreadableResultsError: a file lacks a column, or cannot be read.
    """
    tables = []
    for key, file in present_files(files, missing, what).items():
        table = read_rows(file, columns)
        if last_epoch:
            epochs = table.column("epoch")
            table = table.filter(pc.equal(epochs, pc.max(epochs)))
        constants = [pa.array([value] * table.num_rows) for value in key]
        tables.append(
            pa.Table.from_arrays([*constants, *table.columns], names=[*key_columns, *columns])
        )
    if not tables:
        return pd.DataFrame(columns=[*key_columns, *columns])
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return frame


def write_numbers(numbers: pd.DataFrame, file: Path) -> None:
    """Write a frame as a CSV with full precision, atomically."""
    with atomic_path(file) as partial_file:
        numbers.to_csv(partial_file, index=False, lineterminator="\n")


def read_numbers(file: Path, words: dict[str, type[str]] | None = None) -> pd.DataFrame:
    """Read a CSV of dpsweep: empty fields are NaN in columns of numbers, and '' in columns of text.

    Args:
        file: the CSV.
        words: columns of text that may look like numbers.
    """
    numbers = pd.read_csv(file, dtype=words, keep_default_na=False, na_values=[""])
    text = numbers.select_dtypes(["object", "string"]).columns
    numbers[text] = numbers[text].fillna("")
    return numbers


def present_trials(
    study: Study, paths: Paths, columns: Sequence[str] = REPORT_COLUMNS
) -> pd.DataFrame:
    """Read all trials of the study's cells that exist so far.

    A problem is read from its table or, if there is none for the present settings, from its cells.

    Returns:
        One row per trial, in the order of the study's problems, with ``columns``, ``problem`` and ``cell``
        (the cell's name). With units of several rows there is ``unit_accuracy`` too.

    Raises:
        FormerResultsError: trials were made with other data, weights or noise than the present ones; partial
            paths leave them out.
        UnreadableResultsError: a file is damaged or lacks a column.
    """
    frames = [_read_problem(study, paths, name, columns) for name in study.problems]
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=[*columns, "problem", "cell"])
    return pd.concat(filled, ignore_index=True)


def _read_problem(study: Study, paths: Paths, problem: str, columns: Sequence[str]) -> pd.DataFrame:
    of_units = study.datasets[study.problems[problem].dataset].has_units
    columns = [*columns, *(["unit_accuracy"] if of_units else [])]
    read, files = list(dict.fromkeys([*columns, *COMPARED])), _files(study, paths, problem)
    if files == [paths.problem(problem)]:
        trials = read_all({(): files[0]}, [*read, "problem", "cell"], [], None, "table")
    else:
        cells: dict[tuple[Any, ...], Path] = {(problem, file.parent.name): file for file in files}
        trials = read_all(cells, read, ["problem", "cell"], None, "trained cell")
    found = current_trials(study, paths, trials, [] if paths.partial else None)
    return found[[*columns, "problem", "cell"]]


def _files(study: Study, paths: Paths, problem: str) -> list[Path]:
    """Return the table of a problem, or the files of its cells that exist."""
    table, settings = paths.problem(problem), fingerprints.problem_fingerprint(study, problem)
    if table.exists() and fingerprints.has_settings(table, settings):
        return [table]
    cells = (paths.cell_trials(study, cell) for cell in study.problem_cells(problem))
    return [file for file in cells if file.exists()]


def is_private(trials: pd.DataFrame) -> pd.Series:
    """Return True for trials with a finite epsilon."""
    return trials["epsilon"].astype(float) < math.inf


def newest_results(study: Study, paths: Paths) -> datetime | None:
    """Return when the newest file of `present_trials` was written (UTC), or None without files."""
    files = [file for name in study.problems for file in _files(study, paths, name)]
    times = [file.stat().st_mtime for file in files]
    return datetime.fromtimestamp(max(times), UTC) if times else None


# -- trials of other data, weights, noise or sources than the study's -----------------------------

MADE_FROM = ["data_checksum", "classes_checksum", "backbone_checksum", "trainer_version"]
"""Columns of ``trials.parquet`` that identify the inputs of a trial."""
COMPARED = ["train_size", "steps", "noise_multiplier", *MADE_FROM]
"""Columns that must agree with the current study and prepared files."""


class FormerResultsError(DpsweepError):
    """Results of other data, weights or noise than the current ones."""


def current_trials(
    study: Study, paths: Paths, trials: pd.DataFrame, missing: Missing = None
) -> pd.DataFrame:
    """Return the trials that were trained for the current data, weights and noise.

    N and T are compared with the study. Sigma and the checksums of data, classes and weights are compared
    with the prepared files that exist.

    Args:
        study: the study.
        paths: its files.
        trials: a row per trial, with ``problem``, ``cell`` (the cell's name) and `COMPARED`.
        missing: the files of outdated trials are added to it, and their rows left out.

    Raises:
        FormerResultsError: a trial is outdated, and ``missing`` is None.
    """
    inputs = cache(lambda problem: dict(_inputs(study, paths, problem)))
    noise = cache(_read)
    differing: dict[Cell, str] = {}
    rows = trials[["problem", "cell", *COMPARED]].drop_duplicates()
    for problem, name, *found in rows.itertuples(index=False, name=None):
        cell, dataset = Cell.parse(problem, name), study.problems[problem].dataset
        steps = study.steps(dataset, cell.epochs, cell.batch_size)
        file = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        required = inputs(problem) | {
            "train_size": (study.train_size(dataset), "the study"),
            "steps": (steps, "the study"),
            "noise_multiplier": (noise(file).get("noise_multiplier"), file),
        }
        for column, value in zip(COMPARED, found, strict=True):
            expected, source = required.get(column, (None, ""))
            if expected is not None and value != expected:
                differing.setdefault(cell, f"{column} {value}; {source} has {expected}")
    if not differing:
        return trials
    files = [paths.cell_trials(study, cell) for cell in differing]
    if missing is None:
        count = trials[["problem", "cell"]].drop_duplicates().shape[0]
        raise FormerResultsError(
            f"{len(files)} of {count} cells were trained for other data, weights or noise than the "
            f"study has now; the first is {files[0]}: found {next(iter(differing.values()))}",
            tuple(files),
        )
    missing += files
    former = {(cell.problem, cell.name) for cell in differing}
    kept = [each not in former for each in zip(trials["problem"], trials["cell"], strict=True)]
    return trials[kept]


def _inputs(
    study: Study, paths: Paths, problem: str
) -> Iterator[tuple[str, tuple[Any, str | Path]]]:
    """Yield columns of a problem's trials, each with the required value and its source."""
    parts = study.problems[problem]
    yield "trainer_version", (TRAINER_VERSION, "this version of dpsweep")
    checksums = {}
    for part, column, folder in (
        ("dataset", "data_checksum", paths.dataset(parts.dataset)),
        ("backbone", "backbone_checksum", paths.backbone(parts.backbone)),
    ):
        file = folder / "metadata.json"
        if content := _read(file):
            checksums[part] = content["checksum"]
            yield column, (content["checksum"], file)
            if part == "dataset":
                yield "classes_checksum", (fingerprint(content["classes"]), file)
    if study.features(problem) is None:
        return
    # Trials read the features instead of the dataset; their metadata records the data and weights.
    file = paths.features(parts.dataset, parts.backbone) / "metadata.json"
    if content := _read(file):
        former = [part for part in checksums if checksums[part] != content["features"][part]]
        value = f"features of another {former[0]}" if former else content["checksum"]
        yield "data_checksum", (value, file)


def _read(file: Path) -> dict[str, Any]:
    """Return the content of a prepared file; empty if absent, because users remove data to save space."""
    try:
        return read_checked_json(file)
    except FileNotFoundError:
        return {}


_COLUMN = "trainer_sources"


def other_sources(study: Study, paths: Paths) -> str:
    """Return a sentence with the number of cells that have trials of other sources; '' for none.

    Only file footers are read, so thousands of cells take a second. Trials without recorded sources are
    ignored. Files that are not parquet are ignored too: loading them reports the error.
    """
    current, trained, former = fingerprints.sources(*fingerprints.TRAINER), 0, 0
    for cell in study.all_cells():
        file = paths.cell_trials(study, cell)
        if file.exists():
            trained += 1
            former += bool(_recorded(file) - {current, ""})
    if not former:
        return ""
    return (
        f"{former:,} of {trained:,} trained cells have trials of another version of the trainer's code. They "
        f"are used; to train them again, remove {paths.results / 'cells'} and {paths.trials}"
    )


def _recorded(file: Path) -> set[str]:
    """Return the smallest and largest checksum in a file of trials (equal if there is only one)."""
    try:
        metadata = pq.read_metadata(file)
    except (OSError, pa.ArrowException):
        return set()
    columns = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    ends = [each.statistics for each in columns if each.path_in_schema == _COLUMN]
    return {end for each in ends if each is not None for end in (each.min, each.max)}
