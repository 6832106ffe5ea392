"""Results as tidy frames, and the paper's statistics of them. Modules are imported at their first use."""

from typing import TYPE_CHECKING

from dpsweep.base.lazy import submodules

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, "evidence", "frames", "predictions", "statistics")
