"""The account of private data: the ledger of releases, their joint epsilon, and what is left of a budget.

Each released model on the same data spends its own epsilon, and the best of several models reveals more
than a single one. So each release adds a line, and its certificate names the earlier releases. Moving a
release away does not change its line. The ledger does not protect against users who delete it, or who
copy the data to a place without a ledger.

A line contains a checksum of the data, which is not private, so the ledger must not be published.

A call writes its line, syncs it to the disk, and then moves its folder to the final place. So an
incomplete line, after a power cut, belongs to a call that made no model.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from dpsweep.base import files
from dpsweep.base.formatting import rounded_down, rounded_up
from dpsweep.data.prepared import DatasetError, read_metadata
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.accountants import composed_epsilon, total_delta
from dpsweep.release import ReleaseError
from dpsweep.release.certificate import Certificate, ReleasedModel, ReleasePlan, Releases
from dpsweep.study import Paths, Study
from dpsweep.study.datasets import Origins, origins, overlap
from dpsweep.study.release import Budget

log = logging.getLogger(__name__)


class LedgerEntry(BaseModel):
    """One release."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    data: str
    """Checksum of the prepared dataset."""
    origins: Origins
    """Sources of its examples."""
    model: ReleasedModel
    day: str = ""
    """Day of the release, in UTC; empty in older lines."""
    previous: str
    """Fingerprint of the previous line; empty in the first line."""


class Ledger:
    """The releases so far; use `open_ledger` to add one.

    Args:
        file: lines of JSON, each with its fingerprint. The last line may be unfinished: a whole entry
            without a line break counts, and an incomplete entry does not.

    Raises:
        ReleaseError: a line was edited, damaged or removed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lines: list[LedgerEntry] = []
        self._head = ""
        *lines, last = (file.read_bytes() if file.exists() else b"").split(b"\n")
        self._needs_end = _is_json(last)
        self._unfinished = b"" if self._needs_end else last
        for number, content in enumerate([*lines, last] if self._needs_end else lines, start=1):
            self._read(f"{file}: line {number}", content)

    def _read(self, where: str, content: bytes) -> None:
        """Add the entry of a line."""
        try:
            read = json.loads(content)
            line = files.parsed(LedgerEntry, Path(where), files.checked(Path(where), read))
        except files.DamagedFileError as error:
            raise ReleaseError(str(error)) from None
        except ValueError as error:
            raise ReleaseError(f"{where}: damaged: {error}") from None
        if line.previous != self._head:
            raise ReleaseError(
                f"{where}: found one that follows {line.previous or 'no other'}, expected one that follows "
                f"{self._head or 'no other'}; a line was edited or taken out"
            )
        self._lines.append(line)
        self._head = read["fingerprint"]

    def repair(self) -> None:
        """End the last line with a line break, or move an incomplete entry to a file beside the ledger."""
        if self._needs_end:
            log.warning("%s: ended its last line", self._file)
            _append(self._file, b"\n")
        elif self._unfinished:
            aside = self._file.with_name(f"{self._file.name}.unfinished")
            log.warning(
                "%s: ends in an incomplete line of a call that was killed before it made its model; moved "
                "the line to %s",
                *(self._file, aside),
            )
            _append(aside, self._unfinished + b"\n")
            os.truncate(self._file, self._file.stat().st_size - len(self._unfinished))
        self._needs_end, self._unfinished = False, b""

    def released(self, data: str, origins: Origins) -> list[ReleasedModel]:
        """Return the released models on a dataset, oldest first.

        Args:
            data: checksum of the dataset.
            origins: sources of its examples; models on other data that may share examples count too.
        """
        return [line.model for line in self.lines_of(data, origins)]

    def lines_of(self, data: str, origins: Origins) -> list[LedgerEntry]:
        """Return the ledger entries of these models; see `released`."""
        return _lines_of(self._lines, data, origins)

    def line_of(self, certificate: str) -> LedgerEntry | None:
        """Return the line of a certificate, by its fingerprint; None if there is none."""
        return next((each for each in self._lines if each.model.certificate == certificate), None)

    def before(self, line: LedgerEntry) -> list[ReleasedModel]:
        """Return the models released before an entry on data that may share examples with its data."""
        earlier = self._lines[: self._lines.index(line)]
        return [each.model for each in _lines_of(earlier, line.data, line.origins)]

    def add(self, data: str, origins: Origins, model: ReleasedModel) -> None:
        """Add a line; see `LedgerEntry`."""
        day = datetime.now(UTC).date().isoformat()
        line = LedgerEntry(data=data, origins=origins, model=model, day=day, previous=self._head)
        content = files.with_fingerprint(line.model_dump(mode="json"))
        _append(self._file, json.dumps(content).encode() + b"\n")
        self._lines.append(line)
        self._head = content["fingerprint"]


def _lines_of(lines: Sequence[LedgerEntry], data: str, origins: Origins) -> list[LedgerEntry]:
    return [line for line in lines if line.data == data or overlap(line.origins, origins)]


def _append(file: Path, written: bytes) -> None:
    with file.open("ab") as stream:
        stream.write(written)
        stream.flush()
        os.fsync(stream.fileno())
    files.sync_folder(file.parent)


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def ledger_mistakes(certificate: Certificate, own: str, ledger: Ledger) -> Iterator[str]:
    """Compare a certificate with its line of a ledger and with the earlier lines; yield the differences.

    Args:
        certificate: the certificate.
        own: its fingerprint.
        ledger: the ledger beside the study that made the model.
    """
    line = ledger.line_of(own)
    if line is None:
        yield (
            "the ledger has no line of this certificate, which was forged or made elsewhere; allowed: the "
            "ledger of where it was made (--ledger FILE), or none (--no-ledger)"
        )
        return
    if line.model != certificate.in_ledger(own):
        yield "the ledger has another epsilon, delta, noise or unit for this certificate"
    expected, found = ledger.before(line), certificate.releases.earlier
    if found != expected:
        yield (
            f"releases.earlier: found {len(found)} models, expected the {len(expected)} that the ledger "
            "names before, in its order and with their fingerprints"
        )


@contextmanager
def open_ledger(file: Path) -> Iterator[Ledger]:
    """Read a ledger and lock it against other calls until the end of this context.

    Raises:
        ReleaseError: see `Ledger`.
        OSError: the file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(file, "another call adds to the ledger"):
        ledger = Ledger(file)
        ledger.repair()
        yield ledger


# -- composition ---------------------------------------------------------------------------


def joint_epsilon(models: Sequence[ReleasedModel], delta: float) -> float:
    """Return the joint epsilon of models at a joint delta.

    Args:
        models: the models, in any order.
        delta: of all models together.

    Returns:
        The epsilon; infinity if the deltas of guarantees without noise sum to more than the joint delta.
    """
    if not models:
        return 0.0
    if len(models) == 1 and models[0].delta <= delta:
        return models[0].epsilon
    return composed_epsilon(
        [each.noise for each in models if each.noise is not None],
        [(each.epsilon, each.delta) for each in models if each.noise is None],
        delta,
    )


def released_together(earlier: list[ReleasedModel], new: ReleasedModel) -> Releases:
    """Return the earlier models with the joint epsilon and delta of these and a new one.

    Raises:
        CalibrationError: the deltas sum to 1 or more, so there is no guarantee, or an earlier model protects
            another unit.
    """
    if others := [each for each in earlier if each.unit != new.unit]:
        raise CalibrationError(
            f"releases: found {len(others)} earlier on the same data with unit: {others[0].unit or 'row'}, "
            f"and this one with unit: {new.unit or 'row'}; allowed: one unit for all, because their epsilons "
            "are different guarantees, which have no joint one"
        )
    models = [*earlier, new]
    delta = total_delta(each.delta for each in models)
    if delta >= 1:
        raise CalibrationError(
            f"releases: found deltas that are {delta:g} together; allowed: below 1"
        )
    return Releases(earlier=earlier, joint_epsilon=joint_epsilon(models, delta), joint_delta=delta)


def refuse_beyond_budget(
    study: Study, earlier: Sequence[ReleasedModel], new: ReleasedModel
) -> None:
    """Refuse a release if all releases on its data would together exceed the study's budget.

    Args:
        study: the study; without a section ``budget`` nothing is refused.
        earlier: the earlier releases.
        new: the new release.

    Raises:
        ReleaseError: they would exceed it.
    """
    budget, left = study.budget, _left(study, earlier)
    if budget is None or left is None or new.epsilon <= left:
        return
    joint = joint_epsilon([*earlier, new], budget.delta)
    if joint > budget.epsilon:
        others = f" with {len(earlier)} earlier on the same data" if earlier else ""
        raise ReleaseError(
            f"release.epsilon: found {rounded_up(new.epsilon)}, which{others} makes epsilon "
            f"{rounded_up(joint, 4)} at delta {budget.delta:g}; allowed: up to the study's budget of "
            f"{rounded_down(budget.epsilon)} together, of which epsilon {rounded_down(left, 4)} is left. "
            "Nothing was released"
        )


@dataclass(frozen=True)
class Account:
    """All releases on the data of a study's section `release`.

    Attributes:
        lines: their ledger entries, oldest first.
        epsilon: of all together.
        delta: of all together.
        left: largest epsilon of a next release at the study's delta within its budget, by basic
            composition; None without a budget.
    """

    lines: list[LedgerEntry]
    epsilon: float
    delta: float
    left: float | None


def account(study: Study, paths: Paths) -> Account:
    """Return the releases on the data of a study's section `release`.

    Before the data are prepared, releases are found by where their data come from.

    Raises:
        ReleaseError: the ledger is damaged.
        StudyError: the study has no such section.
    """
    dataset = ReleasePlan(study).sweep.dataset
    try:
        data = read_metadata(paths.dataset(dataset)).checksum
    except DatasetError:
        data = ""
    lines = Ledger(paths.ledger).lines_of(data, origins(study.datasets[dataset].source))
    models = [line.model for line in lines]
    delta = total_delta(each.delta for each in models)
    return Account(lines, joint_epsilon(models, delta), delta, _left(study, models))


def rest_in_words(study: Study, budget: Budget, paths: Paths) -> str:
    """Return sentences on a study's budget and the rest of it.

    Raises:
        ReleaseError: the ledger is damaged.
    """
    left = account(study, paths).left
    begin = f"The study's budget is ε = {budget.epsilon:g} at δ = {budget.delta:g}."
    next_one = f"at δ = {study.privacy.delta:g}"
    if not left:
        return f"{begin} By basic composition nothing is left for a next model {next_one}."
    return (
        f"{begin} By basic composition a next model may have at least ε = {rounded_down(left)} {next_one}; "
        "one beyond the budget is refused before it is trained."
    )


def _left(study: Study, models: Sequence[ReleasedModel]) -> float | None:
    budget, delta = study.budget, study.privacy.delta
    if budget is None:
        return None
    rest = total_delta([budget.delta, -delta])
    if rest < 0 or (models and rest == 0):
        return 0.0
    return max(0.0, budget.epsilon - joint_epsilon(models, rest))
