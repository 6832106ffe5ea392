"""A first study of a dataset that was looked at: short, with comments, ready to check and to edit."""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml

from dpsweep.recommend.situation import first_grids
from dpsweep.study import Study
from dpsweep.study.cells import number
from dpsweep.study.config import Sweep
from dpsweep.study.find import IN_CLONE, PROJECT, packaged_studies
from dpsweep.study.load import StudyError
from dpsweep.study.messages import NAME_PATTERN, unknown

_MAX_LENGTH = 128  # tokens; a number that does not depend on the texts
_IMAGE_SIZE = 224  # of networks that the base study trains on no images
_BATCH_SIZES = 3  # beside the full batch
_SMALLEST_BATCH = 8
_EPSILONS, _EPOCHS = [1, 8], 8
_PLAIN = re.compile(r"[A-Za-z0-9./~-][\w./~-]*")


@dataclass(frozen=True)
class FoundDataset:
    """Facts found in a dataset."""

    kind: str
    """image or text"""
    source: Mapping[str, Any]
    """the key ``source`` of its section"""
    classes: list[str]
    train_counts: list[int]
    """training examples of each class"""
    test_size: int
    skipped: int = 0
    """examples that cannot be used"""

    @property
    def train_size(self) -> int:
        """The number of training examples."""
        return sum(self.train_counts)


_STUDY = Template("""\
# $title: $count classes, $train_size training and $test_size test examples.
# Edit what you like, then:
#   dpsweep check $file
#   dpsweep plan $file
#   dpsweep run $file
extends: $extends
title: $title
results: results/$name
$privacy
# The learning rates of a cell rise to a peak and fall, so that 5 of 8 find it.
training: {selection: bracket}
datasets: !replace
  $name:
    title: $title
$dataset
${head}sweeps: !replace
$sweeps
# What stands for what in the figures and tables; `dpsweep check` lists what is drawn.
roles: !replace
  datasets: {$dataset_role: $name}
  backbones: {$backbone_roles}
  methods: {$method_role: $method}
""")

_SWEEP = """\
    dataset: {name}
    backbone: {backbone}
    method: {method}
    epsilon: {epsilons} # a tight and a loose privacy budget
    epochs: [{epochs}]
    batch_size: {batch_sizes} # of {train_size} examples; large batches are often better
    # As far as `dpsweep recommend` expects the best values from other data, and a factor around it.
    clipping_bound: {bounds}
    learning_rate: {{first: {first_rate}, last: {last_rate}, count: 8}} # tuned in every cell
    seeds: 3 # the best learning rate is repeated with each
"""


# Method and features of a head that trains on features of the backbones.
_HEAD = """\
# Only the head trains, on features that are computed once: a trial takes seconds.
methods:
  head: {kind: head}
backbones:
"""
_FEATURES = "  {backbone}: {{features: {{}}}}\n"


def draft_study(
    file: Path,
    base_file: Path,
    base: Study,
    found: FoundDataset,
    backbones: Sequence[str] = (),
    head: bool = False,
) -> str:
    """Write a study of one dataset, with the base study's main method or a head on frozen features.

    Args:
        file: where the study will be written; its name becomes that of the dataset.
        base_file: the study that it extends.
        base: that study.
        found: the dataset.
        backbones: of the base study, the weaker first; by default the one that its figures are about.
        head: whether only a head trains, on features of the frozen backbones, which takes no GPU.

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
    method, chosen = _chosen(base_file, base, text, backbones)
    alike = _sweep_like(base, chosen[0], method)
    method = "head" if head else method
    delta = _delta(base, found.train_size)
    return _STUDY.substitute(
        title=_scalar(re.sub(r"[-_.]+", " ", name).strip().capitalize()),
        name=name,
        file=file,
        count=len(found.classes),
        train_size=f"{found.train_size:,}",
        test_size=f"{found.test_size:,}",
        extends=_scalar(_extended(base_file, file)),
        privacy=f"\nprivacy: {{delta: {number(delta)}}} # below one over the number of examples\n"
        * (delta != base.privacy.delta),
        dataset=_dataset(base, found, chosen[0], alike),
        head=_HEAD * head + "".join(_FEATURES.format(backbone=each) * head for each in chosen),
        sweeps=_sweeps(base, name, method, chosen, found, delta),
        dataset_role="text" if text else "main",
        backbone_roles=", ".join(
            f"{role}: {each}"
            for role, each in zip(("text",) if text else ("weak", "strong"), chosen, strict=False)
        ),
        method_role="text" if text else "main",
        method=method,
    )


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


def _sweep_like(base: Study, backbone: str, method: str) -> Sweep | None:
    """A sweep of the base study that trains the same, or at least the same backbone or method."""
    for wanted in (
        {"backbone": backbone, "method": method},
        {"backbone": backbone},
        {"method": method},
    ):
        for sweep in base.sweeps.values():
            if all(getattr(sweep, key) == value for key, value in wanted.items()):
                return sweep
    return None


def _delta(base: Study, train_size: int) -> float:
    """Return another delta where that of the base study is not below 1/N, which protects nobody."""
    if base.privacy.delta * train_size < 1:
        return base.privacy.delta
    return float(10.0 ** -(math.floor(math.log10(train_size)) + 1))


def _dataset(base: Study, found: FoundDataset, backbone: str, alike: Sweep | None) -> str:
    lines = [
        f"source: {_flow(found.source)}",
        "# These are compared with what is found: noise is calibrated to the number of examples.",
        f"classes: {len(found.classes)}",
        f"train_size: {found.train_size}",
        f"test_size: {found.test_size}",
    ]
    if found.skipped:
        lines.append(f"corrupt: skip # {found.skipped} empty texts are left out")
    if found.kind == "text":
        lines = ["kind: text", *lines, f"tokenizer: {backbone}"]
        lines.append(f"max_length: {_MAX_LENGTH} # tokens; longer texts are cut")
    else:
        size = base.datasets[alike.dataset].image_size if alike else None
        lines.append(f"image_size: {size or _IMAGE_SIZE} # images are resized to a square")
    return "".join(f"    {line}\n" for line in lines)


def _sweeps(
    base: Study,
    name: str,
    method: str,
    backbones: Sequence[str],
    found: FoundDataset,
    delta: float,
) -> str:
    size = found.train_size
    batch_sizes = _batch_sizes(size)
    text = ""
    for backbone in backbones:
        bounds, rates = first_grids(
            base.backbones[backbone],
            max(2, len(found.classes)),  # fewer are refused later, by the study
            size,
            delta,
            _EPSILONS,
            _EPOCHS,
            [size if each == "full" else int(each) for each in batch_sizes],
        )
        text += f"  {name}_{backbone}_{method}:\n" + _SWEEP.format(
            name=name,
            backbone=backbone,
            method=method,
            epsilons=_scalar(_EPSILONS),
            epochs=_EPOCHS,
            batch_sizes=_scalar(batch_sizes),
            train_size=f"{size:,}",
            bounds=_scalar(bounds),
            first_rate=number(rates[0]),
            last_rate=number(rates[1]),
        )
    return text


def _batch_sizes(train_size: int) -> list[int | str]:
    """Powers of two up to half of the training set, each four times the one before, and full."""
    largest = int(math.log2(train_size / 2))
    sizes = [2**power for power in range(largest, 0, -2) if 2**power >= _SMALLEST_BATCH]
    return [*sorted(sizes[:_BATCH_SIZES] or [train_size // 2]), "full"]


def _flow(mapping: Mapping[str, Any]) -> str:
    """A mapping on one line."""
    return f"{{{', '.join(f'{key}: {_scalar(value)}' for key, value in mapping.items())}}}"


def _scalar(found: Any) -> str:
    """A value as a person would write it: text in quotes only where YAML needs them."""
    match found:
        case list():
            return f"[{', '.join(map(_scalar, found))}]"
        case str() if _PLAIN.fullmatch(found) and yaml.safe_load(found) == found:
            return found
        case str():
            return json.dumps(found, ensure_ascii=False)
        case None:
            return "null"
    return number(found)
