"""A first study of a dataset that no study describes yet."""

from collections.abc import Sequence
from pathlib import Path

from dpsweep.base.files import write_text
from dpsweep.recommend.draft import FoundDataset, draft_study
from dpsweep.study import Study, StudyError, load_study


def new_study(
    study_file: Path, base_file: Path, found: FoundDataset, backbones: Sequence[str] = ()
) -> Study:
    """Write a study of a dataset that was looked at (`dpsweep.recommend.look`).

    Args:
        study_file: the file to write; its name becomes that of the dataset.
        base_file: the study that it extends.
        found: the dataset.
        backbones: of the extended study, the weaker first; by default the one that its roles name.

    Raises:
        StudyError: the file exists, or what was found makes no valid study; nothing is left then.
    """
    if study_file.exists():
        raise StudyError(f"{study_file}: exists already; allowed: the name of a new file")
    write_text(
        study_file, draft_study(study_file, base_file, load_study(base_file), found, backbones)
    )
    try:
        return load_study(study_file)
    except StudyError:
        study_file.unlink()
        raise
