"""A first study of a dataset that was looked at: short, with comments, ready to check and to edit."""

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpsweep.base.files import write_text
from dpsweep.config import Backbone
from dpsweep.config.backbones import IDENTITY
from dpsweep.config.cells import number
from dpsweep.config.messages import NAME_PATTERN, unknown
from dpsweep.recommend.rule import recommend
from dpsweep.recommend.situation import first_situations
from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.find import IN_CLONE, PROJECT, named_study, packaged_studies

_IMAGE_SIZE = 224  # of networks that the base study trains on no images
_EPSILONS, _EPOCHS = [1, 8], 8
_BOUNDS = (1, 4)  # in units of the recommended C: still below most norms, for the figures about C
_EMBEDDING = "embedding"
_PLAIN = re.compile(r"[A-Za-z0-9./~-][\w./~-]*")


@dataclass(frozen=True)
class FoundDataset:
    """Facts found in a dataset."""

    kind: str
    """image, text or embedding"""
    source: dict[str, Any]
    """the key ``source`` of its section"""
    classes: list[str]
    train_counts: list[int]
    """training examples of each class"""
    test_counts: list[int]
    skipped: int = 0
    """examples that cannot be used"""
    reading: str = ""
    """how it was read, for people"""
    dimension: int | None = None
    """of embeddings"""

    @property
    def train_size(self) -> int:
        """The number of training examples."""
        return sum(self.train_counts)

    @property
    def test_size(self) -> int:
        """The number of test examples."""
        return sum(self.test_counts)


def new_study(
    study_file: Path,
    base: str,
    found: FoundDataset,
    backbones: Sequence[str] = (),
    head: bool = False,
    release_epsilon: float | None = None,
) -> Study:
    """Write a study of a dataset that was looked at (`dpsweep.recommend.look`).

    Args:
        study_file: the file to write; its name becomes that of the dataset.
        base: the study that it extends: its file, or the name of one that comes with dpsweep.
        found: the dataset.
        backbones: of the extended study, the weaker first; by default the one that its roles name.
        head: whether only a head trains, on features of the frozen backbones.
        release_epsilon: of a study of private data, which releases a model and sweeps nothing.

    Raises:
        StudyError: the file exists, or what was found makes no valid study; nothing is left then.
    """
    if study_file.exists():
        raise StudyError(f"{study_file}: exists already; allowed: the name of a new file")
    base_file = named_study(base, Path())
    draft = draft_study(
        study_file, base_file, load_study(base_file), found, backbones, head, release_epsilon
    )
    write_text(study_file, draft)
    try:
        return load_study(study_file)
    except StudyError:
        study_file.unlink()
        raise


def draft_study(
    file: Path,
    base_file: Path,
    base: Study,
    found: FoundDataset,
    backbones: Sequence[str] = (),
    head: bool = False,
    release_epsilon: float | None = None,
) -> str:
    """Write a study of one dataset, with the base study's main method or a head on frozen features.

    Args:
        file: where the study will be written; its name becomes that of the dataset.
        base_file: the study that it extends.
        base: that study.
        found: the dataset.
        backbones: of the base study, the weaker first; by default the one that its figures are about.
        head: whether only a head trains, on features of the frozen backbones, which takes no GPU.
        release_epsilon: of a study of private data, which releases a model and sweeps nothing.

    Returns:
        The text of the file.

    Raises:
        StudyError: the name cannot be used, there are other backbones than one or two, one is
            unknown, or the base study binds no role for this kind of data.
    """
    name = file.stem
    if not re.match(NAME_PATTERN, name):
        raise StudyError(
            f"{file}: found the name {name!r}; allowed: letters, digits, '.', '_' and '-', with a "
            "letter or digit first"
        )
    text = found.kind == "text"
    identity = _identity(found)
    if found.kind == "embedding":
        method, networks, image_size = "head", {_EMBEDDING: Backbone.model_validate(identity)}, None
    else:
        method, chosen = _chosen(base_file, base, text, backbones)
        image_size = _image_size(base, chosen[0], method)
        networks = {each: base.backbones[each] for each in chosen}
    method = "head" if head else method
    size, delta = found.train_size, _delta(base, found.train_size)
    classes = max(2, len(found.classes))  # fewer are refused later, by the study
    private = release_epsilon is not None
    if release_epsilon is None:
        grid = partial(_first_grid, classes=classes, train_size=size, delta=delta)
    else:
        networks = dict([*networks.items()][-1:])
        grid = partial(
            _one_setting, classes=classes, train_size=size, delta=delta, epsilon=release_epsilon
        )
    grids = {backbone: grid(section) for backbone, section in networks.items()}
    environment = Environment(  # noqa: S701 (YAML)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = _yaml
    return environment.get_template("draft.yaml.j2").render(
        title=re.sub(r"[-_.]+", " ", name).strip().capitalize(),
        name=name,
        file=file,
        extends=_extended(base_file, file),
        base=base,
        delta=delta,
        found=found,
        image_size=image_size,
        head=head,
        grids=grids,
        identity=identity,
        method=method,
        epsilons=[release_epsilon] if private else _EPSILONS,
        private=private,
        epochs=_EPOCHS,
        roles={
            "datasets": {"text" if text else "main": name},
            "backbones": dict(
                zip(("text",) if text else ("weak", "strong"), networks, strict=False)
            ),
            "methods": {"text" if text else "main": method},
        },
    )


def _identity(found: FoundDataset) -> dict[str, Any]:
    """The section of the network that reads embeddings.

    Each is normalised by itself: then the norm of its gradient is known, whatever network it is from.
    """
    library, architecture = IDENTITY
    return {
        **{"title": "Embedding", "library": library, "architecture": architecture},
        # A number alone would become 0.
        "arguments": {"dimension": found.dimension}
        | ({"transformation": "layer-norm"} if found.dimension != 1 else {}),
        "weights": {"kind": "none"},
    }


def _extended(base_file: Path, file: Path) -> str:
    """Name the base study for ``extends``: by its name outside of a clone, else by its path."""
    if not (IN_CLONE and file.resolve().is_relative_to(PROJECT)):
        for name, packaged in packaged_studies().items():
            if base_file == packaged:
                return name
    return Path(os.path.relpath(base_file, file.parent)).as_posix()


def _chosen(
    base_file: Path, base: Study, text: bool, backbones: Sequence[str]
) -> tuple[str, list[str]]:
    """The method and the backbones, which the base study's roles say where nobody asks for others."""
    roles = base.roles
    default = roles.backbones.text if text else roles.backbones.weak
    method = roles.methods.text if text else roles.methods.main
    chosen = list(backbones) or [default or ""]
    if method is None or not all(chosen):
        part = "text" if text else "main method and weak backbone"
        raise StudyError(
            f"{base_file}: roles: nothing is bound to {part}; bind it, or extend another"
        )
    for each in chosen:
        if each not in base.backbones:
            raise StudyError(f"--backbone: {unknown(each, base.backbones)}")
    if len(chosen) > (1 if text else 2):
        raise StudyError(
            f"--backbone: found {', '.join(chosen)}; allowed: one, or for images two, the weaker first"
        )
    return method, chosen


def _image_size(base: Study, backbone: str, method: str) -> int:
    """The size that a backbone is made for, or that of a sweep of the base study that trains its like."""
    arguments = base.backbones[backbone].arguments
    if own := arguments.get("image_size", arguments.get("img_size")):
        return int(own)
    sweeps = list(base.sweeps.values())
    alike = [each for each in sweeps if (each.backbone, each.method) == (backbone, method)]
    alike += [each for each in sweeps if each.backbone == backbone]
    alike += [each for each in sweeps if each.method == method]
    return (base.datasets[alike[0].dataset].image_size if alike else None) or _IMAGE_SIZE


def _delta(base: Study, train_size: int) -> float:
    """Return another delta where that of the base study is not below 1/N, which protects nobody."""
    if base.privacy.delta * train_size < 1:
        return base.privacy.delta
    return float(10.0 ** -(math.floor(math.log10(train_size)) + 1))


def _one_setting(
    backbone: Backbone, classes: int, train_size: int, delta: float, epsilon: float
) -> dict[str, Any]:
    """The recommended setting alone, for a release."""
    (situation,) = first_situations(backbone, classes, train_size, delta, [epsilon], _EPOCHS)
    one = recommend(situation)
    return {
        "batch_size": ["full" if one.batch_size == train_size else one.batch_size],
        "clipping_bound": [float(f"{one.clipping_bound:.2g}")],
        "learning_rate": [float(f"{one.learning_rate:.2g}")],
    }


def _first_grid(backbone: Backbone, classes: int, train_size: int, delta: float) -> dict[str, Any]:
    """The small grids of every epsilon together, batch sizes at least a factor of three apart."""
    made = [
        recommend(each)
        for each in first_situations(backbone, classes, train_size, delta, _EPSILONS, _EPOCHS)
    ]
    sizes: list[int] = []
    for each in sorted(set().union(*(one.small_grid for one in made))):
        if not sizes or each >= 3 * sizes[-1] or each == train_size:
            sizes.append(each)
    rates = [rate for one in made for found in one.small_grid.values() for rate in found]
    first, last = (float(f"{rate:.2g}") for rate in (min(rates), max(rates)))
    return {
        "batch_size": ["full" if each == train_size else each for each in sizes],
        "clipping_bound": [float(f"{made[0].clipping_bound * each:.2g}") for each in _BOUNDS],
        "learning_rate": {"first": first, "last": last, "count": _steps_of_two(last / first)},
    }


def _steps_of_two(ratio: float) -> int:
    """How many values lie a factor of two apart, or a little less, between ends with that ratio."""
    return math.ceil(math.log2(ratio) - 0.1) + 1


def _yaml(found: Any) -> str:
    """A value as a person would write it: text in quotes only where YAML needs them."""
    match found:
        case dict():
            return f"{{{', '.join(f'{key}: {_yaml(value)}' for key, value in found.items())}}}"
        case list():
            return f"[{', '.join(map(_yaml, found))}]"
        case str() if _PLAIN.fullmatch(found) and yaml.safe_load(found) == found:
            return found
        case str():
            return json.dumps(found, ensure_ascii=False)
        case None:
            return "null"
    return number(found)
