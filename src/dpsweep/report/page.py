"""The report: one page with all results of a study."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import yaml

from dpsweep.analysis.frames import is_private, newest_results, present_trials
from dpsweep.base.files import DamagedFileError, write_text
from dpsweep.base.units import rounded_up, texts_in
from dpsweep.release import CERTIFICATE, budget_in_words
from dpsweep.release.ledger import Account, account
from dpsweep.release.unaccounted import planned_cells
from dpsweep.report import summary
from dpsweep.report.embed import download_content, render
from dpsweep.report.targets import TargetView, sections, shared_sentences
from dpsweep.report.warnings import warnings
from dpsweep.study import Study
from dpsweep.study.fingerprints import report_fingerprint, write_settings
from dpsweep.study.messages import group_by_message
from dpsweep.study.paths import Paths
from dpsweep.tables.text import TextTable
from dpsweep.tables.tuning_implications import TuningImplications


def write(study: Study, study_file: Path, paths: Paths, lacking: Sequence[str] = ()) -> None:
    """Write the report of a study: one self-contained HTML file.

    It shows the results that exist and names those that are missing. Equal results, with equal file times,
    give equal bytes.

    Args:
        study: the study.
        study_file: its file, to be named; of an absolute path, only the file name is shown.
        paths: its files; the report is ``paths.report``.
        lacking: a line for every output that is missing or belongs to another version of the
            study, for the head of the page.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    trials = present_trials(study, paths)
    once = summary.each_once(trials)
    private = once[is_private(once)]
    trained = set(zip(trials["problem"], trials["cell"], strict=True))
    planned = planned_cells(study, trained)
    grouped = sections(study, paths, trained)
    targets = [target for section in grouped.values() for target in section]
    configuration = study_yaml(study)
    page = render(
        "page.html.j2",
        script="numbers.js",
        study=study,
        partial=paths.partial,
        lacking=lacking,
        study_file=study_file.name if study_file.is_absolute() else study_file.as_posix(),
        sentence=summary.sentence(study, trials, len(planned)),
        newest_results=newest_results(study, paths),
        inputs=summary.inputs(study, trials),
        hardware=summary.hardware(trials),
        software=summary.software(trials),
        verdicts=_verdicts(study, targets),
        finding=summary.finding(study, trials),
        best=summary.best_settings(study, paths, trials),
        costs=summary.choice_costs(study, trials),
        warnings=warnings(study, paths, trials),
        said=summary.choice_sentences(study, trials),
        habit=summary.HABIT,
        explore=paths.explore.exists(),
        sections=grouped,
        not_drawn=group_by_message(study.targets.undrawn.items()),
        shared_sentences=shared_sentences(grouped),
        figures=[target for target in targets if target.is_figure],
        target_count=len(targets),
        absent=[target.name for target in targets if target.reason],
        planned_cells=len(planned),
        missing_cells=sum((cell.problem, cell.name) not in trained for cell in planned),
        trial_count=len(once),
        private_count=len(private),
        epsilons=sorted(set(private["epsilon"].astype(float))),
        account=(spent := account(study, paths) if study.release else None),
        budget=budget_in_words(study, paths),
        released=spent and _released(spent),
        worth=_worth(paths),
        ledger=paths.ledger.name,
        configuration=configuration,
        configuration_download=download_content("study.yaml", configuration.encode()),
    )
    write_text(paths.report, page)
    write_settings(paths.report, report_fingerprint(study))


def _verdicts(study: Study, targets: Iterable[TargetView]) -> dict[str, Counter[str]]:
    """Return the number of rules with each verdict, by the table of tuning rules."""
    return {
        each.name: Counter(row[each.rows.header.index("Verdict")] for row in each.rows.rows)
        for each in targets
        if each.rows and isinstance(study.tables.get(each.name), TuningImplications)
    }


def _worth(paths: Paths) -> list[str]:
    """Return what the study's own release is worth, in sentences; none without one of today's format."""
    if (paths.release / CERTIFICATE).exists():
        # It imports torch.
        from dpsweep.release.card import sentences  # noqa: PLC0415

        with suppress(DamagedFileError):  # `verify` says what is wrong
            return sentences(paths.release)
    return []


def _released(spent: Account) -> TextTable:
    rows = [
        {
            "Day (UTC)": line.day or "unknown",
            "Certificate": line.model.certificate[:12],
            "ε": rounded_up(line.model.epsilon),
            "δ": rounded_up(line.model.delta),
            "Setting": "fixed" if line.model.noise else "the best of several, covered by ε",
        }
        for line in spent.lines
    ]
    return TextTable.of(rows, "llrrl")


def study_yaml(study: Study) -> str:
    """Return the study as YAML with its defaults, without what no sweep uses.

    `dpsweep.study.load_study` reads a study with the same cells back.
    """
    content = study.model_dump(exclude_none=True)
    trained = {(each.dataset, each.backbone, each.method) for each in study.problems.values()}
    content["references"] = [
        each
        for each in content["references"]
        if (each["dataset"], each["backbone"], each["method"]) in trained
    ]
    parts = ("datasets", "backbones", "methods")
    used = set(texts_in({key: value for key, value in content.items() if key not in parts}))
    # A dataset names the backbone of its tokenizer, and a backbone the dataset of its pretraining.
    for _ in parts:
        kept = {part: {k: v for k, v in content[part].items() if k in used} for part in parts}
        used |= set(texts_in(kept))
    content |= kept
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
