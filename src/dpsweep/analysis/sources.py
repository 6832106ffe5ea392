"""Detection of trials that were trained with other source code than the current one.

Trials stay valid until the trainer's version is raised, because most edits of the sources change no result.
But an edit of a clipping rule does, and its author may forget to raise the version. So trials record a
checksum of the sources, and readers report how many trials have a different one.
"""

from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import ArrowException

from dpsweep.study import Study
from dpsweep.study.fingerprints import TRAINER, sources
from dpsweep.study.paths import Paths

_COLUMN = "trainer_sources"


def other_sources(study: Study, paths: Paths) -> str:
    """Return a sentence with the number of cells that have trials of other sources; '' for none.

    Only file footers are read, so thousands of cells take a second. Trials without recorded sources are
    ignored. Files that are not parquet are ignored too: loading them reports the error.
    """
    current, trained, former = sources(*TRAINER), 0, 0
    for cell in study.all_cells():
        file = paths.cell_trials(study, cell)
        if file.exists():
            trained += 1
            former += bool(_recorded(file) - {current, ""})
    if not former:
        return ""
    return (
        f"{former:,} of {trained:,} trained cells have trials of other sources of the trainer than those of "
        f"today, and count as they are; to train them again, remove {paths.results / 'cells'} and "
        f"{paths.trials}"
    )


def _recorded(file: Path) -> set[str]:
    """Return the smallest and largest checksum in a file of trials (equal if there is only one)."""
    try:
        metadata = pq.read_metadata(file)
    except (OSError, ArrowException):
        return set()
    columns = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    ends = [each.statistics for each in columns if each.path_in_schema == _COLUMN]
    return {end for each in ends if each is not None for end in (each.min, each.max)}
