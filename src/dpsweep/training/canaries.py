"""Audited trials: training with canaries measures the privacy loss of one private training run.

An audited trial is a normal trial: `train_trial` with the study's sampler, engine, clipping and
optimizer. Its training set additionally has canaries, examples with a known gradient: the same single
coordinate of the trainable parameters at every step (a "Dirac canary"), longer than any clipping
bound. A coin of the auditor decides whether a canary is included. The auditor reads the canary's
coordinate in every released (clipped, summed, noised) gradient, and guesses the coin.

The auditor is the adversary of the definition, who knows everything except the coins of the
canaries, the steps that sampled them, and the noise. So the sum of the real examples is subtracted.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_json
from dpsweep.data.prepared import PreparedDataset
from dpsweep.gradients.engines import GradientEngine, GradientSum, Rows
from dpsweep.gradients.units import units_of
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import Calibration
from dpsweep.privacy.audit import (
    Coins,
    CurveOutcome,
    Floats,
    MeasuredNoise,
    likelihood_scores,
    plan_audit,
    right_guesses,
)
from dpsweep.privacy.calibration import calibrate_sampling
from dpsweep.study import Cell, Paths, Study
from dpsweep.study.clipping import Clipping
from dpsweep.study.networks import Method
from dpsweep.study.release import Audit
from dpsweep.study.section import Precision
from dpsweep.training.cell import check_size
from dpsweep.training.context import Examples, TrialContext
from dpsweep.training.device import default_device
from dpsweep.training.features import open_inputs
from dpsweep.training.randomness import new_secret, numpy_stream
from dpsweep.training.store import StoredTrial
from dpsweep.training.trial import TrialSpec, specify, train_trial

CANARY_NORM = 1e6
"""Norm of a canary's gradient before clipping; above every clipping bound."""


# Attributes of both measures that are written, and of the guesses.
_OF_BOTH = ("lower_bound", "noise_at_most", "confidence", "consistent")
_OF_GUESSES = ("guesses", "correct", "p_value")


class AuditError(DpsweepError):
    """An audit that cannot be run; the message names the remedy."""


class CanaryEngine(GradientEngine):
    """A gradient engine for micro-batches with canaries, which records the auditor's observations.

    A row with label ``classes + j`` is canary j. Its gradient is ``CANARY_NORM`` at its coordinate
    if it is included, and zero if not. The sign alternates from step to step, and the auditor
    reverses it: repeated noise then cancels, and fresh noise keeps its distribution.
    """

    def __init__(self, engine: GradientEngine, classes: int, included: Tensor, coordinates: Tensor):
        """Add canaries to an engine.

        Args:
            engine: computes the gradients of real examples.
            classes: the labels of real examples are below this number.
            included: the auditor's coins, shape (m,), bool.
            coordinates: of the canaries among all trainable parameters, shape (m,), int64,
                without repeats.
        """
        self.parameters = engine.parameters
        self.included = included
        self.observations: list[Tensor] = []
        self._engine = engine
        self._classes = classes
        self._coordinates = coordinates
        self._sign = 1
        self._real = self._seen = torch.zeros(())

    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """See ``GradientEngine``; all rows of a canary have its label."""
        assert clipping is not None  # noqa: S101 (norms of canaries are known)
        inputs, labels, mask, units = rows
        canary = labels >= self._classes
        real = labels.where(~canary, 0), mask & ~canary
        part = self._engine.clipped_sum(inputs, *real, clipping, units)
        numbers = (labels - self._classes).clamp(min=0)
        norms = CANARY_NORM * (mask & canary & self.included[numbers]).to(part.norms.dtype)
        if (found := units_of(units, mask)) is not None:
            norms, numbers = found.mean(norms), numbers[found.starts[:-1]]
        total = torch.cat([part.gradients[name].flatten() for name in self.parameters])
        self._real = self._real + total[self._coordinates]
        total.index_add_(
            0,
            self._coordinates[numbers],
            (self._sign * norms * clipping.factors(norms)).to(total.dtype),
        )
        pieces = torch.split(total, [each.numel() for each in self.parameters.values()])
        return GradientSum(
            gradients={
                name: piece.view_as(each)
                for (name, each), piece in zip(self.parameters.items(), pieces, strict=True)
            },
            norms=part.norms + norms,
            head_norms=part.head_norms,
            losses=part.losses,
            nonfinite=part.nonfinite,
        )

    def forget(self) -> None:
        """Reset the sum of the present step."""
        self._real = torch.zeros(())

    def observe(self, released: Tensor) -> None:
        """Read the noisy sum of a step, flat over all trainable parameters."""
        self._seen = self._sign * (released[self._coordinates] - self._real)

    def end_step(self) -> None:
        """Record the observation of a finished step."""
        self.observations.append(self._seen)
        self._real = torch.zeros(())
        self._sign = -self._sign


class CanaryContext(TrialContext):
    """A context with m canaries, N to N + m - 1, after its N training examples."""

    def __init__(
        self,
        data: PreparedDataset,
        backbone: PreparedBackbone,
        method: Method,
        canaries: int,
        coins: np.random.Generator,
        holdout: float = 0.0,
        device: torch.device | None = None,
    ):
        """Add ``canaries`` to the data; ``coins`` decide which of them are included."""
        super().__init__(data, backbone, method, holdout, device)
        self.canary_engine: CanaryEngine
        self._coins = coins
        self._canaries = canaries
        labels, rows, units = self.train.labels, self.train.rows, self.train.units
        # Where units have several rows, each canary has two, which count as one.
        each = 1 if units is None else 2
        numbers = torch.arange(canaries).repeat_interleave(each)
        if units is not None:
            units = np.concatenate([units, units.max() + 1 + numbers.numpy()])
        # The inputs of canaries are arbitrary, because their gradients do not depend on them.
        self.train = Examples(
            self.train.inputs,
            torch.cat([labels, self.classes + numbers.to(labels.device)]),
            torch.cat([rows, rows[numbers % len(rows)]]),
            units,
        )

    def engine(
        self, name: str, model: nn.Module, precision: Precision = "float32", compile: bool = False
    ) -> GradientEngine:
        """See ``TrialContext``; the engine becomes ``canary_engine``.

        Raises:
            AuditError: there are more canaries than coordinates.
        """
        engine = super().engine(name, model, precision, compile)
        size = sum(each.numel() for each in engine.parameters.values())
        if self._canaries > size:
            raise AuditError(
                f"audit.canaries: found {self._canaries}; allowed: at most {size}, the number of "
                "trainable parameters, because every canary needs a coordinate of its own"
            )
        included = self._coins.integers(2, size=self._canaries).astype(np.bool_)
        coordinates = self._coins.permutation(size)[: self._canaries]
        self.canary_engine = CanaryEngine(
            engine,
            self.classes,
            torch.from_numpy(included).to(self.device),
            torch.from_numpy(coordinates).to(self.device),
        )
        return self.canary_engine

    def drop_step(self) -> None:
        """See ``TrialContext``."""
        self.canary_engine.forget()


@dataclass(frozen=True)
class AuditedTrial:
    """The result of an audited trial.

    Attributes:
        included: the coins, shape (m,).
        observations: released gradients at the canaries' coordinates, with signs reversed and real
            examples subtracted, shape (T, m): 1 if the canary was included and sampled, else 0, plus
            noise.
        trial: the stored trial.
    """

    included: Coins
    observations: Floats
    trial: StoredTrial


def audit_trial(spec: TrialSpec, context: CanaryContext, secret: bytes = b"") -> AuditedTrial:
    """Train with canaries and observe every released gradient.

    Args:
        spec: the trial; its ``train_size`` counts all canaries, included or not, because each is
            sampled with the same probability as a real example.
        context: made for this trial.
        secret: for its sampling and noise, see `train_trial`.
    """

    def observe(*_: Any) -> None:
        engine = context.canary_engine
        gradients = [each.grad for each in engine.parameters.values() if each.grad is not None]
        released = torch.cat([each.flatten() for each in gradients])
        engine.observe(released * spec.batch_size)

    def end_step(*_: Any) -> None:
        context.canary_engine.end_step()

    # Torch calls the first hook before every step of an optimizer, when the gradients are final, and the
    # second one after it, but not if memory runs out and the step is repeated.
    hooks = [register_optimizer_step_pre_hook(observe), register_optimizer_step_post_hook(end_step)]
    try:
        trial, _ = train_trial(spec, context, None, math.inf, secret)
    finally:
        for hook in hooks:
            hook.remove()
    return AuditedTrial(
        included=context.canary_engine.included.cpu().numpy(),
        observations=torch.stack(context.canary_engine.observations).double().cpu().numpy(),
        trial=trial,
    )


def measure_setting(study: Study, paths: Paths, audit: Audit, cell: Cell) -> None:
    """Audit one setting and write the result.

    Args:
        study: the study.
        paths: its files; the dataset and the backbone must exist.
        audit: the study's section.
        cell: the setting. Its full batch has N + m examples.

    Raises:
        AuditError: the model has too few parameters for the canaries.
        CalibrationError: no noise gives the claimed epsilon.
        CellError: the prepared data has another size than in the study.
    """
    torch.set_num_threads(study.training.threads)
    device = default_device()
    sweep = study.sweeps[audit.sweep]
    data = open_inputs(study, paths, cell.problem)
    backbone = PreparedBackbone.open(paths.backbone(sweep.backbone))
    examples, holdout = study.train_size(sweep.dataset), study.holdout_share
    size = examples + audit.canaries
    sampling = study.privacy.sampling(size, cell.batch_size, cell.epochs)
    noise = calibrate_sampling(cell.epsilon, study.privacy.delta, sampling)
    spec = specify(study, cell, noise, data, backbone, device, audit.learning_rate, seed=1)
    # Releases train with a secret. The coins of their audit must be unpredictable too.
    secret = new_secret() if audit.randomness == "secret" else b""
    coins = numpy_stream(spec.key, "canaries", secret=secret)
    canaries = audit.canaries
    context = CanaryContext(
        data, backbone, study.methods[sweep.method], canaries, coins, holdout, device
    )
    check_size(noise, context, data)
    plan = plan_audit(noise, canaries, audit.guesses)
    audited = audit_trial(spec, context, secret)
    curve = lower_bound_from_curve(audited, noise, plan.guesses)
    measured = measure_noise(audited, noise)
    write_json(
        paths.audited(cell),
        {
            "sweep": audit.sweep,
            "epsilon": cell.epsilon,
            "batch_size": sampling.batch_size,
            "full_batch": cell.batch_size == "full",
            "sampling_rate": noise.sampling_rate,
            "examples": examples,
            "included_canaries": int(audited.included.sum()),
            "canaries": canaries,
            "curve": {name: getattr(curve, name) for name in (*_OF_BOTH, *_OF_GUESSES)}
            | {"noise_at_most": curve.noise_at_most if curve.lower_bound else None},
            "measured_noise": {name: getattr(measured, name) for name in _OF_BOTH},
            "power": {
                f"{share:g}": {"curve": power, "noise": measured.power(share)}
                for share, power in plan.power.items()
            },
            "consistent": curve.consistent and measured.consistent,
            "calibration": noise.to_dict(),
            "trial": audited.trial.record,
        },
    )


def lower_bound_from_curve(audited: AuditedTrial, noise: Calibration, guesses: int) -> CurveOutcome:
    """Guess an even number of coins of an audited trial; return the evidence against its noise."""
    scores = likelihood_scores(audited.observations, noise.noise_multiplier, noise.sampling_rate)
    correct = int(right_guesses(scores, audited.included)[guesses // 2 - 1])
    return CurveOutcome(noise, len(audited.included), guesses, correct)


def measure_noise(audited: AuditedTrial, noise: Calibration) -> MeasuredNoise:
    """Sum the observations of excluded canaries over the steps: they are pure noise."""
    return MeasuredNoise(noise, audited.observations[:, ~audited.included].sum(axis=0))
