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
datasets: !replace
  $name:
    title: $title
$dataset
sweeps: !replace
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
    epsilon: [1, 8] # a tight and a loose privacy budget
    epochs: [8]
    batch_size: {batch_sizes} # of {train_size} examples; large batches are often better
    clipping_bound: [0.1, 1, 10]
    learning_rate: {rates} # tuned in every cell
    seeds: 3 # the best learning rate is repeated with each
"""


def draft_study(
    file: Path, base_file: Path, base: Study, found: FoundDataset, backbones: Sequence[str] = ()
) -> str:
    """Write a study of one dataset, which trains some backbones with the base study's main method.

    Args:
        file: where the study will be written; its name becomes that of the dataset.
        base_file: the study that it extends.
        base: that study.
        found: the dataset.
        backbones: of the base study, the weaker first; by default the one that its figures are about.

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
    alike = [_sweep_like(base, each, method) for each in chosen]
    return _STUDY.substitute(
        title=_scalar(re.sub(r"[-_.]+", " ", name).strip().capitalize()),
        name=name,
        file=file,
        count=len(found.classes),
        train_size=f"{found.train_size:,}",
        test_size=f"{found.test_size:,}",
        extends=_scalar(_extended(base_file, file)),
        privacy=_privacy(base, found.train_size),
        dataset=_dataset(base, found, chosen[0], alike[0]),
        sweeps=_sweeps(name, method, chosen, alike, found.train_size),
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


def _privacy(base: Study, train_size: int) -> str:
    """Another delta where that of the base study is not below 1/N, which protects nobody."""
    if base.privacy.delta * train_size < 1:
        return ""
    delta = 10.0 ** -(math.floor(math.log10(train_size)) + 1)
    return f"\nprivacy: {{delta: {number(delta)}}} # below one over the number of examples\n"


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
    name: str,
    method: str,
    backbones: Sequence[str],
    alike: Sequence[Sweep | None],
    train_size: int,
) -> str:
    rates = [_rates(sweep) for sweep in alike]
    text = f"  {name}_{backbones[0]}_{method}: &grid\n" + _SWEEP.format(
        name=name,
        backbone=backbones[0],
        method=method,
        batch_sizes=_scalar(_batch_sizes(train_size)),
        train_size=f"{train_size:,}",
        rates=rates[0],
    )
    for backbone, own in zip(backbones[1:], rates[1:], strict=True):
        changes = f", learning_rate: {own}" if own != rates[0] else ""
        text += f"  {name}_{backbone}_{method}: {{<<: *grid, backbone: {backbone}{changes}}}\n"
    return text.replace(" &grid\n", "\n") if len(backbones) == 1 else text


def _rates(sweep: Sweep | None) -> str:
    first, *_, last = sweep.learning_rates if sweep else [0.001, 0.02]
    return f"{{first: {number(first)}, last: {number(last)}, count: 4}}"


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
