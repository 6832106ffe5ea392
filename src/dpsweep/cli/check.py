"""Check a study before anything runs: its file, its local data, its networks, its texts."""

from collections.abc import Generator, Iterator

from dpsweep.analysis.power import outlook
from dpsweep.base.units import count
from dpsweep.data.prepare import inspect
from dpsweep.data.prepared import DatasetError, PreparedDataset
from dpsweep.planning.check import drawn_texts, notes, problems, used_datasets
from dpsweep.study import Study, StudyError
from dpsweep.study.config import HubSource
from dpsweep.study.messages import shorten
from dpsweep.study.paths import Paths
from dpsweep.study.targets import PerClass
from dpsweep.study.trials import trials_per_cell

_FEW = 5  # targets, whose reasons are told unasked


def check(study: Study, paths: Paths, seconds: float, every_target: bool = False) -> Iterator[str]:
    """Yield what there is to say, line by line.

    Args:
        study: the study.
        paths: its files.
        seconds: how long the first steps of networks are tried; 0 looks at no network.
        every_target: say of each target that is not drawn what the study lacks for it.

    Raises:
        StudyError: in the end, naming everything that would fail.
    """
    yield from _sizes(study, every_target)
    yield from outlook(study)
    wrong = list(problems(study, paths))
    classes: dict[str, list[str]] = {}
    for name in used_datasets(study):
        if any(each.startswith(f"datasets.{name}.") for each in wrong):
            continue  # a file that is missing has been named
        try:
            found = _classes(study, paths, name)
        except DatasetError as error:
            wrong.append(str(error))
            continue
        if found is not None:
            classes[name] = found
            yield f"{name}: {len(found)} classes, and sizes as the study says"
        elif isinstance(study.datasets[name].source, HubSource):
            yield f"{name}: looked at when it is fetched, before anything is trained"
    if seconds:
        wrong += yield from _networks(study, seconds)
    wrong += _unwritable(study, classes)
    for note in notes(study, paths):
        yield f"note: {note}"
    if wrong:
        raise StudyError("\n".join(wrong))


def _sizes(study: Study, every_target: bool) -> Iterator[str]:
    cells = trials = 0
    for cell in study.all_cells():
        cells += 1
        trials += trials_per_cell(study, study.sweep_of(cell))
    for name, sweep in study.sweeps.items():
        rates = len(sweep.learning_rates)
        yield (
            f"  {name}: {count(len(study.sweep_cells(name)), 'cell')}, "
            f"{count(rates, 'learning rate')}, {count(sweep.seeds, 'seed')}"
        )
    yield (
        f"{count(len(study.sweeps), 'sweep')}, {count(cells, 'cell')}, {count(trials, 'trial')} "
        f"({study.training.selection}), {count(len(study.figures), 'figure')}, "
        f"{count(len(study.tables), 'table')}"
    )
    yield from _undrawn(study, every_target)


def _undrawn(study: Study, every_target: bool) -> Iterator[str]:
    """Yield what the study draws, by name, and how much it does not; or each of that with the reason."""
    reasons = study.targets.reasons()
    if not reasons:
        return
    yield f"drawn: {', '.join([*study.figures, *study.tables]) or 'nothing'}"
    undrawn = len(study.targets.undrawn)
    if undrawn > _FEW and not every_target:
        yield f"not drawn: {undrawn} targets that need other roles or cells; --all lists them"
        return
    for reason, names in reasons.items():
        yield f"not drawn: {', '.join(names)}"
        yield from (f"  {each}" for each in reason.split("; "))


def _classes(study: Study, paths: Paths, dataset: str) -> list[str] | None:
    """The names of a dataset's classes, as prepared or as its local source has them."""
    folder, section = paths.dataset(dataset), study.datasets[dataset]
    if (folder / "metadata.json").exists():
        found = PreparedDataset.open(folder).metadata
        declared = section.classes, section.train_size, section.test_size
        if (len(found.classes), found.train_size, found.test_size) == declared:
            return list(found.classes)
    return inspect(dataset, section)


def _networks(study: Study, seconds: float) -> Generator[str, None, list[str]]:
    # It takes seconds to import.
    from dpsweep.training.first_step import try_first_steps

    found = try_first_steps(study, seconds)
    yield (
        f"networks: {found.outlined} fit their data and methods; a first step of {found.tried} was tried, "
        "with random weights"
    )
    yield from (f"note: {each}" for each in found.notes)
    if found.untried:
        yield (
            f"note: no time was left for a first step of {shorten(found.untried)}; give it more: "
            "--seconds 300"
        )
    return found.problems


def _unwritable(study: Study, classes: dict[str, list[str]]) -> list[str]:
    """Find text that the figures cannot write: titles, and names of classes where they draw these."""
    # It takes a second to import.
    from dpsweep.figures.fonts import UnwritableTextError, require_fonts

    texts = drawn_texts(study)
    for figure in study.figures.values():
        if isinstance(figure, PerClass):
            for panel in figure.panels:
                texts += classes.get(panel.problem.dataset, [])
    try:
        require_fonts(texts)
    except UnwritableTextError as error:
        return [f"figures: {error}"]
    return []
