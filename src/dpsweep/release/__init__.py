"""Models that may be released under their guarantee: training, certificate, card, verification.

A release is one folder::

    certificate.json     the guarantee, and every number that proves it
    model.safetensors    the privately trained parameters
    frozen.safetensors   all other parameters, which depend on public data only
    README.md            the model card, made from the certificate
    tokenizer.json       for a network that reads text: its tokenizer, in the format of the library tokenizers
"""

from dpsweep.base.errors import DpsweepError
from dpsweep.study import Study
from dpsweep.study.datasets import KindName
from dpsweep.study.paths import Paths

CERTIFICATE = "certificate.json"
TRAINED = "model.safetensors"
FROZEN = "frozen.safetensors"
CARD = "README.md"
TOKENIZER = "tokenizer.json"


def binary_files(kind: KindName) -> list[str]:
    """Return the files of a release that have a checksum in its certificate."""
    return [TRAINED, FROZEN, *([TOKENIZER] if kind == "text" else [])]


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
