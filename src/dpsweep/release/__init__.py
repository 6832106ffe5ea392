"""Models that may be released under their guarantee: training, certificate, card, verification.

A release is one folder::

    certificate.json     the guarantee, and every number that it rests on
    model.safetensors    the parameters that were trained privately
    frozen.safetensors   all others, which depend on public data only
    README.md            the model card, made from the certificate
    tokenizer.json       of a network that reads text, as the library tokenizers reads it
"""

from dpsweep.base.errors import DpsweepError
from dpsweep.config.datasets import KindName

CERTIFICATE = "certificate.json"
TRAINED = "model.safetensors"
FROZEN = "frozen.safetensors"
CARD = "README.md"
TOKENIZER = "tokenizer.json"


def binary_files(kind: KindName) -> list[str]:
    """Return the files of a release whose checksums its certificate has."""
    return [TRAINED, FROZEN, *([TOKENIZER] if kind == "text" else [])]


class ReleaseError(DpsweepError):
    """A model that cannot be released, or a release that cannot be believed."""
