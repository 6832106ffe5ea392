"""A first study of a dataset that no study describes yet."""

from collections.abc import Sequence
from pathlib import Path

from dpsweep.base.files import write_text
from dpsweep.recommend.draft import FoundDataset, draft_study
from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.find import named_study


def new_study(
    study_file: Path,
    base: str,
    found: FoundDataset,
    backbones: Sequence[str] = (),
    head: bool = False,
) -> Study:
    """Write a study of a dataset that was looked at (`dpsweep.recommend.look`).

    Args:
        study_file: the file to write; its name becomes that of the dataset.
        base: the study that it extends: its file, or the name of one that comes with dpsweep.
        found: the dataset.
        backbones: of the extended study, the weaker first; by default the one that its roles name.
        head: whether only a head trains, on features of the frozen backbones.

    Raises:
        StudyError: the file exists, or what was found makes no valid study; nothing is left then.
    """
    if study_file.exists():
        raise StudyError(f"{study_file}: exists already; allowed: the name of a new file")
    base_file = named_study(base, Path())
    draft = draft_study(study_file, base_file, load_study(base_file), found, backbones, head)
    write_text(study_file, draft)
    try:
        return load_study(study_file)
    except StudyError:
        study_file.unlink()
        raise
