"""Models that may be released under their guarantee: training, certificate, card, verification.

A release is one folder::

    certificate.json     the guarantee, and every number that proves it
    model.safetensors    the privately trained parameters
    frozen.safetensors   all other parameters, which depend on public data only
    README.md            the model card, made from the certificate
    tokenizer.json       for a network that reads text: its tokenizer, in the format of the library tokenizers

Sweeps of private data have no account. They are refused without the user's permission, and their joint
epsilon is shown.
"""

import math
import os
from collections.abc import Collection, Iterable

from dpsweep.base.errors import DpsweepError
from dpsweep.base.formatting import count, rounded_up
from dpsweep.study import Cell, Paths, Study, StudyError
from dpsweep.study.datasets import shares_examples
from dpsweep.study.load import UNACCOUNTED, is_true
from dpsweep.study.messages import shorten

CERTIFICATE = "certificate.json"
TRAINED = "model.safetensors"
FROZEN = "frozen.safetensors"
CARD = "README.md"
TOKENIZER = "tokenizer.json"


class ReleaseError(DpsweepError):
    """A model that cannot be released, or a release that does not verify."""


def budget_in_words(study: Study, paths: Paths) -> str:
    """Return sentences on a study's budget and the rest of it; empty without a section `release`.

    Raises:
        ReleaseError: there is a budget, and the ledger is damaged.
    """
    if study.release is None:
        return ""
    if study.budget is None:
        return "The study names no budget. budget: {epsilon: 8, delta: 1e-5} refuses a release beyond it."
    # Accountants take a second.
    from dpsweep.release.ledger import rest_in_words  # noqa: PLC0415

    return rest_in_words(study, study.budget, paths)


# -- sweeps of private data ----------------------------------------------------------------


def private_sweeps(study: Study) -> list[str]:
    """Return the sweeps on data that is marked ``private`` or may share examples with such data."""
    marked = [each.source for each in study.datasets.values() if each.private]
    private = {
        name
        for name, dataset in study.datasets.items()
        if any(shares_examples(dataset.source, source) for source in marked)
    }
    return [name for name, sweep in study.sweeps.items() if sweep.dataset in private]


def epsilon_of_sweeps(study: Study, sweeps: Iterable[str]) -> float:
    """Return the approximate joint epsilon of all trials of some sweeps, at the study's delta.

    Each trial counts as the Gaussian mechanism with its epsilon and delta; mu^2 adds up (Dong, Roth and
    Su 2022, "Gaussian Differential Privacy", corollary 3.3).

    Args:
        study: the study.
        sweeps: names of its sweeps.
    """
    # It imports scipy, which takes a moment.
    from dpsweep.privacy import accountants  # noqa: PLC0415

    delta = study.privacy.delta
    squares = 0.0
    for name in sweeps:
        for cell in study.sweep_cells(name):
            if math.isinf(cell.epsilon):
                return math.inf
            mu = 1 / accountants.gaussian_noise_multiplier(cell.epsilon, delta)
            squares += study.trials_per_cell(name) * mu**2
    return accountants.gaussian_epsilon(delta, 1 / math.sqrt(squares)) if squares else 0.0


def price(study: Study) -> str:
    """Return a message on the epsilon of the sweeps of private data; empty if there are none."""
    sweeps = private_sweeps(study)
    if not sweeps:
        return ""
    trials = sum(len(study.sweep_cells(name)) * study.trials_per_cell(name) for name in sweeps)
    largest = max(cell.epsilon for name in sweeps for cell in study.sweep_cells(name))
    together = epsilon_of_sweeps(study, sweeps)
    alone = (
        "no privacy at all"
        if math.isinf(largest)
        else f"at most epsilon {rounded_up(largest)} each"
    )
    joint = "have no privacy" if math.isinf(together) else f"spend about epsilon {together:.3g}"
    return (
        f"{shorten(sweeps)}: {count(trials, 'trial')} on data marked private, with {alone}; their results "
        f"together {joint} at delta {study.privacy.delta:g}, and no account covers what is chosen by them"
    )


def refused_problems(study: Study) -> set[str]:
    """Return the problems that sweeps may not train: on private data, without the user's permission.

    Raises:
        DpsweepError: there are such sweeps, and the environment's permission is neither true nor false.
    """
    private = {study.sweeps[name].problem.name for name in private_sweeps(study)}
    allowed = private and is_true(UNACCOUNTED, os.environ.get(UNACCOUNTED, "false"))
    return set() if allowed else private


def planned_cells(study: Study, trained: Collection[tuple[str, str]]) -> list[Cell]:
    """Return the cells of a study without those of refused sweeps, but with all that were trained.

    Args:
        study: the study.
        trained: problem and name of each cell with a trial.
    """
    refused = refused_problems(study)
    return [
        cell
        for cell in study.all_cells()
        if cell.problem not in refused or (cell.problem, cell.name) in trained
    ]


def refuse_unaccounted(study: Study, problem: str) -> None:
    """Refuse to train a problem on private data without the user's permission.

    Raises:
        StudyError: its dataset is marked ``private``, or may share examples with such a dataset.
        DpsweepError: the environment's permission is neither true nor false.
    """
    if problem in refused_problems(study):
        raise StudyError(refusal(study))


def refusal(study: Study) -> str:
    """Return the message that refuses sweeps of private data, with their cost and the alternatives."""
    return (
        f"{price(study)}.\nallowed: a released model, whose epsilon covers its tuning (dpsweep run release); "
        "a sweep of similar public data; or --unaccounted (snakemake --config unaccounted=true), if you "
        "accept that"
    )
