"""Files that were prepared for other settings are refused, also without Snakemake's records."""

from pathlib import Path

import pytest
from tests.synthetic import make_study

from dpsweep.base.errors import DpsweepError
from dpsweep.study.fingerprints import Kind, check_settings, note_settings
from dpsweep.study.paths import Paths


@pytest.mark.parametrize(
    ("kind", "name", "section", "key", "value"),
    [
        ("dataset", "digits", "datasets", "image_size", 16),
        ("backbone", "small", "backbones", "mean", [0.1]),
    ],
)
def test_other_settings_are_refused(
    tmp_path: Path, kind: Kind, name: str, section: str, key: str, value: object
) -> None:
    study, paths = make_study({"a": {}}), Paths(tmp_path)
    check_settings(study, paths, kind, name)  # without a note
    note_settings(study, paths, kind, name)
    check_settings(study, paths, kind, name)
    sections = getattr(study, section)
    titled = {**sections, name: sections[name].model_copy(update={"title": "Other"})}
    check_settings(study.model_copy(update={section: titled}), paths, kind, name)
    edited = {**sections, name: sections[name].model_copy(update={key: value})}
    with pytest.raises(DpsweepError, match="prepared for other settings") as raised:
        check_settings(study.model_copy(update={section: edited}), paths, kind, name)
    assert raised.value.remake[0].name == "metadata.json"
