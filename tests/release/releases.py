"""Tiny releases for several test files, and functions that forge them."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.training.tiny_study import tiny_sections

from dpsweep.base.files import checksum, read_checked_json, write_checked_json, write_text
from dpsweep.models.backbone import backbone_checksum
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED
from dpsweep.release.certificate import Certificate
from dpsweep.release.files import model_card
from dpsweep.release.train import write_release
from dpsweep.study import Study
from dpsweep.study.networks import Architecture
from dpsweep.study.paths import Paths

Content = dict[str, Any]
Change = Callable[[Content], Any]

FIXED: Content = {
    **{"sweep": "digits", "epsilon": 8.0, "epochs": [2], "batch_size": ["full"]},
    **{"clipping_bound": [1.0], "learning_rate": [0.01]},
}
PRIVATE = FIXED | {
    **{"selection": "private", "epochs": [1, 2], "clipping_bound": [0.1, 1.0]},
    **{"learning_rate": [0.003, 0.01], "holdout_share": 0.2},
}
SUBSAMPLED = FIXED | {"epsilon": 2.0, "batch_size": [64], "epochs": [1]}


def study(release: Content, delta: float = 1e-5, **more: Any) -> Study:
    sections = tiny_sections({}, {"kind": "film"})
    release_of = {"release": release, "privacy": {"delta": delta}}
    return Study.model_validate(sections | release_of | more)


def release(section: Content | Study, paths: Paths) -> Path:
    made = section if isinstance(section, Study) else study(section)
    return write_release(made, paths)


def value_at(content: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        content = content[key]
    return content


def put(*place: Any, value: Any = None, factor: float = 1.0) -> Change:
    """Return a change of one field: to a value, or by a factor."""

    def change(content):
        outer = value_at(content, place[:-1])
        outer[place[-1]] = factor * outer[place[-1]] if value is None else value

    return change


def seal(folder: Path, content: Content) -> None:
    """Write a certificate with its fingerprint, and its card if its numbers allow one."""
    write_checked_json(folder / CERTIFICATE, content)
    with contextlib.suppress(ValueError, ArithmeticError, LookupError):
        write_text(folder / CARD, model_card(Certificate.model_validate(content)))


def derive_checksums(content: Content, folder: Path) -> None:
    """Compute the checksums of the files and of the backbone again."""
    network = content["network"]
    architecture = Architecture.model_construct(
        library=network["library"], name=network["architecture"], arguments=network["arguments"]
    )
    network["backbone"] = backbone_checksum(
        architecture, network["mean"], network["std"], None, network["weights"]
    )
    content["files"] = {name: checksum(folder / name) for name in (TRAINED, FROZEN)}


def forge(folder: Path, change: Change = lambda _: None) -> None:
    """Change a certificate, and compute its checksums, fingerprint and card again."""
    content = read_checked_json(folder / CERTIFICATE)
    change(content)
    derive_checksums(content, folder)
    seal(folder, content)
