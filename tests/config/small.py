"""A small valid study that tests edit, and what holds for every complaint about one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.described import described

from dpsweep.study import Study, StudyError, load_study

DELETE = object()  # as the new value of an edit: take the key away

SMALL: dict[str, Any] = yaml.safe_load(
    """
title: Small
datasets:
  digits:
    title: Digits
    source: {kind: sklearn-digits}
    classes: 10
    train_size: 1347
    test_size: 450
    image_size: 8
  letters:
    title: Letters
    source: {kind: glyphs}
    classes: 62
    train_size: 18600
    test_size: 1860
    image_size: 8
backbones:
  random:
    title: Random
    architecture: vit_tiny_patch16_224
    weights: {kind: random}
  pretrained:
    title: Pretrained
    architecture: vit_tiny_patch16_224
    weights: {kind: pretrain, dataset: letters, epochs: 2}
methods:
  film: {kind: film}
  scratch: {kind: scratch}
  lora: {kind: lora, rank: 2, target_modules: [attn.qkv]}
sweeps:
  flat:
    dataset: digits
    backbone: pretrained
    method: film
    epsilon: [1, 8]
    epochs: [2, 4]
    batch_size: [64, 256, full]
    clipping_bound: [0.1, 1, 10]
    learning_rate: {first: 0.001, last: 0.1, count: 3}
    seeds: 2
  automatic:
    dataset: digits
    backbone: pretrained
    method: film
    epsilon: [1, 8]
    epochs: [2]
    batch_size: [64, full]
    clipping_bound: automatic
    learning_rate: [0.01, 0.1]
    seeds: 1
roles:
  datasets: {main: digits}
  backbones: {weak: pretrained}
  methods: {main: film}
figures:
  map:
    family: heatmap
    section: Main
    caption: A map.
    panels:
      - {title: Tight, epsilon: 1, epochs: 2}
  curve:
    family: clipping_curve
    section: Main
    caption: A curve.
    panels:
      - title: Both
        lines:
          - {label: loose, epsilon: 8, epochs: 2}
tables:
  compared:
    family: comparison
    section: Main
    caption: A table.
    rows: [epsilon]
    columns: [clipping]
    entries:
      - {epsilon: 1, epochs: 2}
"""
)

Edits = dict[str, Any]


def edited(edits: Edits) -> dict[str, Any]:
    """The small study with values replaced at slash-separated key paths."""
    study = copy.deepcopy(SMALL)
    for path, value in edits.items():
        *above, last = (int(key) if key.isdecimal() else key for key in path.split("/"))
        place: Any = study
        for key in above:
            place = place[key]
        if value is DELETE:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return study


def dumped(study: Any) -> str:
    """YAML, by libyaml where PyYAML has it."""
    return str(
        yaml.dump(study, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    )


def load_small(folder: Path, edits: Edits) -> Study:
    """Load the small study with edits, from a file."""
    path = folder / "study.yaml"
    path.write_text(dumped(described(edited(edits), folder)))
    return load_study(path)


def complaints(folder: Path, edits: Edits) -> list[str]:
    """The mistakes that an edit of the small study is refused with."""
    with pytest.raises(StudyError) as refused:
        load_small(folder, edits)
    return mistakes(refused.value)


def mistakes(error: StudyError) -> list[str]:
    """Check what holds for every message, and return its mistakes without line breaks."""
    title, *lines = str(error).splitlines()
    assert title.endswith("is not a valid study:")
    assert len(lines) < 24
    assert all(len(line) <= 80 for line in lines)
    for noise in ("Traceback", "pydantic", "http", "function-after", "literal["):
        assert noise not in str(error)
    # Whoever prints the exception with its causes shows no internals of the validation either.
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    found: list[str] = []
    for line in lines:
        if line.startswith("      "):
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
    return found
