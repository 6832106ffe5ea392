"""One target to its three files."""

from dpsweep.analysis.measure import measure
from dpsweep.files import atomic_path, write_text
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.tables.printed import Printed


def write(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` with full precision, and ``.tex`` and ``.md`` as they are printed.

    The family's module has ``measure``, which computes the numbers, and ``show``, which writes
    them as text. With partial paths absent results are left out and counted in the caption.

    Raises:
        StudyError: the study has no such table.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    found = measure(study, paths, target, study.tables, "dpsweep.tables")
    printed: Printed = found.family.show(found.settings, found.numbers)
    caption = found.settings.caption
    if found.missing:
        files = "1 result file is" if found.missing == 1 else f"{found.missing} result files are"
        caption += f" Partial: {files} not there yet."
    write_text(paths.table(target, "tex"), printed.latex(caption, f"tab:{target}"))
    write_text(paths.table(target, "md"), printed.markdown(caption))
    with atomic_path(paths.table(target, "csv")) as file:
        found.numbers.to_csv(file, index=False, lineterminator="\n")
