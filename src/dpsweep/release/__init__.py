"""Models that may be released under their guarantee: training, certificate, card, verification.

A release is one folder::

    certificate.json     the guarantee, and every number that it rests on
    model.safetensors    the parameters that were trained privately
    frozen.safetensors   all others, which depend on public data only
    README.md            the model card, made from the certificate
"""

from dpsweep.base.errors import DpsweepError

CERTIFICATE = "certificate.json"
TRAINED = "model.safetensors"
FROZEN = "frozen.safetensors"
CARD = "README.md"


class ReleaseError(DpsweepError):
    """A model that cannot be released, or a release that cannot be believed."""
