"""dpsweep: find and explain good hyperparameters for differentially private deep transfer learning.

The names below are for notebooks; docs/library.md shows how to use them. They are imported on first
use, because importing torch and the accountants takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsweep.gradients import make_engine
    from dpsweep.privacy.calibration import calibrate
    from dpsweep.release.verify import verify
    from dpsweep.study.cells import optimizer_steps
    from dpsweep.study.clipping import AutomaticClipping, FlatClipping
    from dpsweep.training.optimizer import PrivateOptimizer
    from dpsweep.training.private_training import PrivateTraining
    from dpsweep.training.randomness import GaussianNoise, PoissonSampler, microbatches, new_secret

__version__ = "0.2.0"

# Raise it when the result of a trial changes: stored trials of older versions are then trained again.
# Do not raise it if every result stays the same bit for bit.
TRAINER_VERSION = 6
# Raise it when the preparation of images changes: older images are then prepared again.
IMAGES_VERSION = 2

_MODULES = {
    "AutomaticClipping": "study.clipping",
    "FlatClipping": "study.clipping",
    "GaussianNoise": "training.randomness",
    "PoissonSampler": "training.randomness",
    "PrivateOptimizer": "training.optimizer",
    "PrivateTraining": "training.private_training",
    "calibrate": "privacy.calibration",
    "make_engine": "gradients",
    "microbatches": "training.randomness",
    "new_secret": "training.randomness",
    "optimizer_steps": "study.cells",
    "verify": "release.verify",
}

__all__ = [
    "AutomaticClipping",
    "FlatClipping",
    "GaussianNoise",
    "PoissonSampler",
    "PrivateOptimizer",
    "PrivateTraining",
    "calibrate",
    "make_engine",
    "microbatches",
    "new_secret",
    "optimizer_steps",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
