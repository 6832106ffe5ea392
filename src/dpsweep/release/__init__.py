"""Models that may be released under their guarantee: training, certificate, card, verification.

A release is one folder::

    certificate.json     the guarantee, and every number that proves it
    model.safetensors    the privately trained parameters
    frozen.safetensors   all other parameters, which depend on public data only
    README.md            the model card, made from the certificate
    tokenizer.json       for a network that reads text: its tokenizer, in the format of the library tokenizers
"""

from dpsweep.base.errors import DpsweepError
from dpsweep.study.datasets import KindName

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
