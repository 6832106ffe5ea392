"""Fingerprints: hashes of the settings, and local files, that an output depends on.

Prepared data, networks, figures and pages have one name for all settings, so other settings overwrite them.
A note beside each has a hash of the settings that it was made for: records of Snakemake are those of one
working folder, and can be lost.

The names of cells have two levels: the file has the fingerprint of the cell's settings, and each trial in it
the key of its own (`dpsweep.training.trial.TrialSpec`). A trial with a stored key does not train again.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpsweep import IMAGES_VERSION, TRAINER_VERSION
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import checksum, fingerprint, visible_files, write_text
from dpsweep.study.cells import Cell
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.datasets import Dataset, FolderSource, HubSource
from dpsweep.study.networks import Backbone
from dpsweep.study.section import Section
from dpsweep.study.targets import Target

if TYPE_CHECKING:
    from dpsweep.study.file import Study
    from dpsweep.study.paths import Paths

Kind = Literal["dataset", "backbone", "tokenizer"]


def tokenizer_fingerprint(study: "Study", backbone: str) -> str:
    """Return a hash of the settings and local files of a backbone's tokenizer."""
    section = study.backbones[backbone]
    tokenizer = section.reads_with
    parts: list[Any] = [tokenizer and _settings(tokenizer), _local_state(tokenizer)]
    if public := section.made_from.get("tokenizer"):
        source = study.datasets[public].source
        parts += [_settings(source), _local_state(source)]
    return fingerprint(parts)


class SettingsHash:
    """The ten hexadecimal digits in file names, which stand for the settings of a study's results.

    Other settings give another name, so a result of other settings is never read. The axes of the grid are
    left out, since a longer axis adds cells and keeps the others. So are titles and times of files.

    Args:
        study: the study.
    """

    def __init__(self, study: "Study") -> None:
        self._study = study
        self._sweep = cache(lambda name: _digits(training_fingerprint(study, name)))
        self.trainer: Callable[[str], str] = cache(
            lambda name: _digits(trainer_fingerprint(study, name))
        )
        """returns the digits for the training of a problem, whatever its learning rates and seeds are"""
        self._overlaps = cache(lambda cell: _digits([cell, _settings(study.theory)]))
        self.noise: Callable[[str], str] = cache(lambda name: _digits(noise_settings(study, name)))
        """returns the digits for the noise calibrations of a dataset"""

    def __reduce__(self) -> tuple[type["SettingsHash"], tuple["Study"]]:
        """Pickle without what was computed, for the processes that train a cell together."""
        return SettingsHash, (self._study,)

    def cell(self, cell: Cell) -> str:
        """Return the digits for the trials of a cell."""
        return self._sweep(self._study.sweep_of(cell))

    def gradient_norms(
        self, problem: str, epsilon: float, epochs: int, clipping_bound: ClippingBound
    ) -> str:
        """Return the digits for gradient norms, from those of all cells that compete for them.

        Args:
            problem: its name.
            epsilon: the target.
            epochs: E.
            clipping_bound: C, or the name of a rule.
        """
        competing = self._study.competing_cells(problem, epsilon, epochs, clipping_bound)
        return _digits([[each.name, self.cell(each)] for each in competing])

    def theory(self, cell: Cell) -> str:
        """Return the digits for the overlaps of the gradients of a cell."""
        return self._overlaps(self.cell(cell))


def _digits(parts: Any) -> str:
    return fingerprint(parts)[:10]


def training_fingerprint(study: "Study", sweep: str) -> str:
    """Return a hash of the settings of a sweep's cells, without its axes.

    After a change, trials with the same key as before still come from the store.
    """
    grid = study.sweeps[sweep]
    return fingerprint(
        [trainer_fingerprint(study, grid.problem.name), grid.learning_rates, grid.seeds]
    )


def trainer_fingerprint(study: "Study", problem: str) -> str:
    """Return a hash of the training, data and network of a problem, without its grid."""
    parts = study.problems[problem]
    backbone = study.backbones[parts.backbone]
    features = study.features(problem)
    return fingerprint(
        {
            "trainer": TRAINER_VERSION,
            "delta": study.privacy.delta,
            "step_rounding": study.privacy.step_rounding,
            "optimizer": study.optimizer(parts.optimizer).identity(),
            "physical_batch": study.physical_batch(problem),
            "engine": study.engine(problem),
            "method": study.methods[parts.method].identity(),
            "training": study.training.model_dump(exclude={"checkpoint_minutes", "engine", "gpus"}),
            "dataset": _data(study, parts.dataset),
            "backbone": _network(study, backbone),
            "features": features and _settings(features),
        }
    )


def _data(study: "Study", name: str) -> Any:
    """Return the settings of a prepared dataset: its section, and its tokenizer."""
    dataset = study.datasets[name]
    plain = dataset.model_dump(
        mode="json", exclude={"title", "description", "duplicates", "private"}
    )
    reader = dataset.tokenizer and _tokenizer(study, study.backbones[dataset.tokenizer])
    return [plain, IMAGES_VERSION if _encoded(dataset) else None, reader]


def _network(study: "Study", backbone: Backbone) -> Any:
    """Return the settings of a prepared backbone: section, tokenizer, data of its pretraining."""
    # Features are an output of their own.
    plain = backbone.model_dump(mode="json", exclude={"title", "features"})
    public = backbone.made_from.get("weights")
    return [plain, _tokenizer(study, backbone), public and _data(study, public)]


def _tokenizer(study: "Study", backbone: Backbone) -> Any:
    tokenizer, public = backbone.reads_with, backbone.made_from.get("tokenizer")
    return tokenizer and [_settings(tokenizer), public and _settings(study.datasets[public].source)]


def _encoded(dataset: Dataset) -> bool:
    """Return whether a dataset has encoded images, so that the version of the decoder matters."""
    return dataset.kind == "image" and isinstance(dataset.source, HubSource | FolderSource)


def prepared_fingerprint(study: "Study", kind: str, name: str) -> str:
    """Return a hash of the settings of a dataset, backbone or tokenizer, without times of files."""
    if kind == "dataset":
        return fingerprint(_data(study, name))
    backbone = study.backbones[name]
    return fingerprint(
        _network(study, backbone) if kind == "backbone" else _tokenizer(study, backbone)
    )


def noise_settings(study: "Study", dataset: str) -> Any:
    """Return the settings of noise calibration for a dataset, without epsilon, epochs and batch size."""
    return [_settings(study.privacy), study.train_size(dataset)]


def target_fingerprint(study: "Study", target: Target) -> str:
    """Return a hash of the settings of a figure or table.

    They are its own section and the sweeps that it selects from, with their datasets, backbones and
    methods; a table that selects nothing depends on all sweeps.
    """
    drawn = {study.sweep_of(cell) for each in target.selections() for cell in each.cells()}
    sweeps = {name: study.sweeps[name] for name in study.sweeps if name in drawn or not drawn}
    parts: dict[str, Any] = {
        "family": target.family,
        "target": _settings(target),
        "style": _settings(study.style),
        "sources": sources(*_DRAWING),
        **target.further_settings(),
    }
    if not type(target).__module__.startswith("dpsweep."):
        # The code that draws a family of the study's own is in one of its files.
        parts["own"] = [checksum(Path(file)) for file in study.figure_files]
    parts["sweeps"] = {name: _settings(sweep) for name, sweep in sweeps.items()}
    for kind in ("dataset", "backbone", "method"):
        sections = getattr(study, f"{kind}s")
        used = {getattr(sweep, kind) for sweep in sweeps.values()}
        parts[kind] = {name: _settings(sections[name]) for name in used}
    # An optimizer that the study does not define has no title that could change.
    optimizers = {sweep.problem.optimizer for sweep in sweeps.values()} & study.optimizers.keys()
    if optimizers:
        parts["optimizer"] = {name: _settings(study.optimizers[name]) for name in optimizers}
    return fingerprint(parts)


def problem_fingerprint(study: "Study", problem: str) -> str:
    """Return a hash of the cells of a problem and of their settings."""
    cells = study.problem_cells(problem)
    return fingerprint([[cell.name, study.settings_hash.cell(cell)] for cell in cells])


def report_fingerprint(study: "Study") -> str:
    """Return a hash of the whole study and of the code that writes the report and the other pages.

    Paths are left out: two clones can have one folder of results.
    """
    plain = study.model_dump(mode="json", exclude={"results", "described_in"})
    return fingerprint([plain, sources(*_WRITING)])


def audit_fingerprint(study: "Study") -> str:
    """Return a hash of the settings of the audit.

    Raises:
        ValueError: the study has no audit.
    """
    if study.audit is None:
        raise ValueError("the study has no section audit")
    left_out = {"epsilon", "batch_size"}
    if study.audit.randomness == "public":
        # The hash is the same as before this key was added.
        left_out.add("randomness")
    problem = study.sweeps[study.audit.sweep].problem
    audit = study.audit.model_dump(mode="json", exclude=left_out)
    noise = noise_settings(study, problem.dataset)
    return fingerprint([trainer_fingerprint(study, problem.name), noise, audit])


@cache
def sources(*parts: str) -> str:
    """Return a hash of source files of dpsweep.

    Args:
        parts: packages, or single modules, such as ``figures`` and ``study/choice.py``.
    """
    package = Path(__file__).parents[1]
    files = [file for part in parts for file in source_files(package / part)]
    return fingerprint([[file.relative_to(package).as_posix(), checksum(file)] for file in files])


def source_files(place: Path) -> list[Path]:
    """Return the source files and templates of a package, or a single module, sorted by name."""
    files = visible_files(place) if place.is_dir() else [place]
    return sorted(file for file in files if file.suffix in _SOURCES)


TRAINER = (
    "training",
    "gradients",
    "models",
    "data/examples.py",
    "data/prepared.py",
    "study/clipping.py",
)
"""The sources that a trial depends on. A trial records their hash; its key has `TRAINER_VERSION` only."""
_DRAWING = (
    "figures",
    "tables",
    "analysis",
    "theory.py",
    "privacy",
    "base",
    "study",
)
"""The sources that a figure or table depends on: `study` selects cells and writes captions."""
_WRITING = (*_DRAWING, "report", "release")
_SOURCES = (".py", ".j2", ".js", ".css", ".csv")


def source_fingerprint(section: Dataset | Backbone) -> str:
    """Return a hash of the settings and local files that a dataset or backbone is prepared from.

    Of files it uses size and time of writing, since reading hundreds of gigabytes would take too long.
    """
    part = section.source if isinstance(section, Dataset) else section.weights
    # Features are an output of their own.
    plain = section.model_dump(mode="json", exclude={"features", "private"})
    prepared_from: list[Any] = [plain, _local_state(part)]
    if isinstance(section, Dataset) and _encoded(section):
        prepared_from.append(IMAGES_VERSION)
    return fingerprint(prepared_from)


def _local_state(section: Section | None) -> dict[str, tuple[int, int]]:
    """Return size and time of writing of the local files that a section names, by path."""
    named = (section.local_folders() | section.local_files()).values() if section else ()
    found = {}
    for place in (Path(path) for path in named):
        for file in (place, *visible_files(place)):
            if file.is_file():
                state = file.stat()
                found[str(file)] = state.st_size, state.st_mtime_ns
    return found


def section_fingerprint(section: Any) -> str:
    """Return a hash of one section of the study, for example a dataset or a figure."""
    return fingerprint(_settings(section))


def _settings(section: Any) -> Any:
    return section.model_dump(mode="json")


def has_settings(file: Path, settings: str) -> bool | None:
    """Return whether a file was made for some settings, None if it has no note.

    Args:
        file: of a dataset or network its metadata; of a figure or table any of its files.
        settings: their hash.
    """
    note = _note(file)
    return note.read_text(encoding="utf-8") == settings if note.exists() else None


def write_settings(file: Path, settings: str) -> None:
    """Write the hash of the settings that a file was made for into a hidden file beside it."""
    write_text(_note(file), settings)


def _note(file: Path) -> Path:
    return file.with_name(f".{file.stem}.settings")


def note_settings(study: "Study", paths: "Paths", kind: Kind, name: str) -> None:
    """Write the note of a prepared file.

    Args:
        study: the study.
        paths: its files.
        kind: the kind of the prepared file.
        name: its name in the study.
    """
    write_settings(_file(paths, kind, name), prepared_fingerprint(study, kind, name))


def is_prepared(study: "Study", paths: "Paths", kind: Kind, name: str) -> bool:
    """Return whether a prepared file has the note of the study's settings, or none (see `check_settings`)."""
    settings = prepared_fingerprint(study, kind, name)
    return has_settings(_file(paths, kind, name), settings) is not False


def check_settings(study: "Study", paths: "Paths", kind: Kind, name: str) -> None:
    """Refuse a file that was prepared for other settings; accept one without a note.

    Args:
        study: the study.
        paths: its files.
        kind: the kind of the prepared file.
        name: its name in the study.

    Raises:
        DpsweepError: the study has other settings now.
    """
    if not is_prepared(study, paths, kind, name):
        file = _file(paths, kind, name)
        raise DpsweepError(f"{file}: was prepared for other settings of {name}", (file,))


def _file(paths: "Paths", kind: Kind, name: str) -> Path:
    if kind == "tokenizer":
        return paths.tokenizer(name)
    folder = paths.dataset(name) if kind == "dataset" else paths.backbone(name)
    return folder / "metadata.json"
