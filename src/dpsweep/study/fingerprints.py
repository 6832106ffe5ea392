"""Fingerprints: hashes of the parts of a study and the local files that an output is made for."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpsweep import DRAWING_VERSION, IMAGES_VERSION, TRAINER_VERSION
from dpsweep.base.files import fingerprint
from dpsweep.base.litter import walk
from dpsweep.study.config import (
    Backbone,
    Dataset,
    FolderSource,
    HubSource,
    TrainedTokenizer,
)
from dpsweep.study.config.section import Section
from dpsweep.study.study import Study
from dpsweep.study.table_targets import ComparisonTable, Table
from dpsweep.study.targets import Figure


def tokenizer_fingerprint(study: Study, backbone: str) -> str:
    """Hash of what the tokenizer of a backbone is made from."""
    tokenizer = study.backbones[backbone].reads_with
    parts: list[Any] = [tokenizer and _plain(tokenizer), _local_state(tokenizer)]
    if isinstance(tokenizer, TrainedTokenizer):
        source = study.datasets[tokenizer.dataset].source
        parts += [_plain(source), _local_state(source)]
    return fingerprint(parts)


def training_fingerprint(study: Study, sweep: str) -> str:
    """Hash of the settings whose change makes the jobs of a sweep's cells run again.

    Trials whose own key is still the same come from the store.

    The axes of the grid are left out: a longer axis adds cells and leaves the others alone.
    """
    grid = study.sweeps[sweep]
    return fingerprint(
        [trainer_fingerprint(study, grid.problem.name), grid.learning_rates, grid.seeds]
    )


def trainer_fingerprint(study: Study, problem: str) -> str:
    """Hash of how a problem is trained, whatever its grid."""
    parts = study.problems[problem]
    return fingerprint(
        {
            "trainer": TRAINER_VERSION,
            "delta": study.privacy.delta,
            "optimizer": parts.optimizer,
            "physical_batch": study.physical_batch(problem),
            "engine": study.engine(problem),
            "method": study.methods[parts.method].model_dump(mode="json", exclude={"engine"}),
            "training": study.training.model_dump(exclude={"checkpoint_minutes", "engine"}),
        }
    )


def target_fingerprint(study: Study, target: Figure | Table) -> str:
    """Hash of what a figure or table is drawn for: its own section, and those of what it draws.

    These are the sweeps that it selects from, with their datasets, backbones and methods; all of
    them for a table that selects nothing.
    """
    drawn = {study.sweep_of(cell) for each in target.selections() for cell in each.cells()}
    sweeps = {name: study.sweeps[name] for name in study.sweeps if name in drawn or not drawn}
    parts: dict[str, Any] = {"target": _plain(target), "drawing": DRAWING_VERSION}
    if isinstance(target, ComparisonTable):
        parts["references"] = [each.reference and _plain(each.reference) for each in target.entries]
    parts["sweeps"] = {name: _plain(sweep) for name, sweep in sweeps.items()}
    for kind in ("dataset", "backbone", "method"):
        sections = getattr(study, f"{kind}s")
        used = {getattr(sweep, kind) for sweep in sweeps.values()}
        parts[kind] = {name: _plain(sections[name]) for name in used}
    return fingerprint(parts)


def state_fingerprint(files: Iterable[Path]) -> str:
    """Hash of which files are there and when they were written: what a partial drawing depends on."""
    return fingerprint({str(file): file.stat().st_mtime_ns for file in files if file.exists()})


def source_fingerprint(section: Dataset | Backbone) -> str:
    """Hash of what a dataset or a backbone is prepared from, local files included.

    Files count by size and time of writing: reading hundreds of gigabytes would take too long.
    """
    part = section.source if isinstance(section, Dataset) else section.weights
    # Features are made from a backbone, and are an output of their own.
    plain = section.model_dump(mode="json", exclude={"features"})
    prepared_from: list[Any] = [plain, _local_state(part)]
    encoded_images = isinstance(section, Dataset) and section.kind == "image"
    if encoded_images and isinstance(part, HubSource | FolderSource):
        prepared_from.append(IMAGES_VERSION)
    return fingerprint(prepared_from)


def _local_state(section: Section | None) -> dict[str, tuple[int, int]]:
    """Size and time of writing of the local files that a part of the study names, by path."""
    named = (section.local_folders() | section.local_files()).values() if section else ()
    found = {}
    for place in (Path(path).expanduser() for path in named):
        for file in (place, *walk(place)):
            if file.is_file():
                state = file.stat()
                found[str(file)] = state.st_size, state.st_mtime_ns
    return found


def section_fingerprint(section: Any) -> str:
    """Hash of one part of the study, for example a dataset or a figure."""
    return fingerprint(_plain(section))


def _plain(section: Any) -> Any:
    return section.model_dump(mode="json")
