"""Notes beside prepared files with a hash of their settings, which is checked when they are read.

Prepared data, networks and tokenizers are large, so other settings overwrite them. Snakemake makes them again
if their section changes; if its records are lost, the notes still detect files of former settings.
"""

from pathlib import Path
from typing import Literal

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import read_json, write_json
from dpsweep.study.fingerprints import prepared_fingerprint
from dpsweep.study.paths import Paths
from dpsweep.study.study import Study

Kind = Literal["dataset", "backbone", "tokenizer"]


def note_settings(study: Study, paths: Paths, kind: Kind, name: str) -> None:
    """Write the note of a prepared file.

    Args:
        study: the study.
        paths: its files.
        kind: the kind of the prepared file.
        name: its name in the study.
    """
    write_json(_note(paths, kind, name), prepared_fingerprint(study, kind, name))


def check_settings(study: Study, paths: Paths, kind: Kind, name: str) -> None:
    """Refuse a file that was prepared for other settings; accept one without a note.

    Args:
        study: the study.
        paths: its files.
        kind: the kind of the prepared file.
        name: its name in the study.

    Raises:
        DpsweepError: the study has other settings now.
    """
    note = _note(paths, kind, name)
    if note.exists() and read_json(note) != prepared_fingerprint(study, kind, name):
        file = _file(paths, kind, name)
        raise DpsweepError(f"{file}: was prepared for other settings of {name}", (file,))


def _file(paths: Paths, kind: Kind, name: str) -> Path:
    if kind == "tokenizer":
        return paths.tokenizer(name)
    folder = paths.dataset(name) if kind == "dataset" else paths.backbone(name)
    return folder / "metadata.json"


def _note(paths: Paths, kind: Kind, name: str) -> Path:
    return _file(paths, kind, name).with_suffix(".made_for.json")
