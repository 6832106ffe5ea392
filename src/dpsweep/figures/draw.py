"""One target to its three files."""

from dpsweep.analysis.measure import measure
from dpsweep.figures import style
from dpsweep.files import atomic_path
from dpsweep.study import Study
from dpsweep.study.paths import Paths


def draw(study: Study, paths: Paths, target: str) -> None:
    """Write ``<target>.csv`` and, drawn from nothing but its numbers, ``.pdf`` and ``.png``.

    The family's module has ``measure``, which computes the numbers, and ``plot``, which draws
    them. With partial paths absent results are left out and counted in the figure.

    Raises:
        StudyError: the study has no such figure.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    found = measure(study, paths, target, study.figures, "dpsweep.figures")
    with style.style():
        drawing = (
            found.family.plot(found.settings, found.numbers)
            if len(found.numbers)
            else style.empty_figure()
        )
        style.say_missing(drawing, found.missing)
        style.save(drawing, paths.figure(target, "pdf"), paths.figure(target, "png"))
    with atomic_path(paths.figure(target, "csv")) as file:
        found.numbers.to_csv(file, index=False, lineterminator="\n")
