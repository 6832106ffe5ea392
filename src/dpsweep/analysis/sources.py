"""Find trials that were trained by other source code than today's.

A trial counts as it is until the trainer's version is raised: most edits of the sources change no result. But
an edit of a clipping rule does, and nobody may think of the version. So trials record a checksum of the
sources, and whoever reads them says how many have another.
"""

from pathlib import Path

import pyarrow.parquet as pq
from pyarrow import ArrowException

from dpsweep.study import Study
from dpsweep.study.fingerprints import TRAINER, sources
from dpsweep.study.paths import Paths

_COLUMN = "trainer_sources"


def other_sources(study: Study, paths: Paths) -> str:
    """Say in a sentence how many cells have trials of other sources than those of today; '' for none.

    Only the ends of the files are read, so that thousands of cells take a second. Trials that record no
    sources are passed over, and so are files that are no parquet: their readers say so.
    """
    today, trained, former = sources(*TRAINER), 0, 0
    for cell in study.all_cells():
        file = paths.cell_trials(study, cell)
        if file.exists():
            trained += 1
            former += bool(_recorded(file) - {today, ""})
    if not former:
        return ""
    return (
        f"{former:,} of {trained:,} trained cells have trials of other sources of the trainer than those of "
        f"today, and count as they are; to train them again, remove {paths.results / 'cells'} and "
        f"{paths.trials}"
    )


def _recorded(file: Path) -> set[str]:
    """The first and the last of the checksums in a file of trials: the same, if there is only one."""
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
