"""A private training as one object, whose batches, noise and number of steps are those of its calibration.

Whoever joins the parts (`PoissonSampler`, `GaussianNoise`, `PrivateOptimizer`) by hand can give them other
numbers than the accountant had, or one secret to two trainings: the difference of two models that were
trained with the same noise is the gradient of one person. Here neither is possible.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from dpsweep.base.errors import integer
from dpsweep.base.files import fingerprint
from dpsweep.base.formatting import rounded_up
from dpsweep.gradients import make_engine
from dpsweep.privacy.calibration import PrivacyTarget, proven_epsilon, verify
from dpsweep.privacy.noise import Calibration
from dpsweep.study.clipping import Clipping
from dpsweep.study.datasets import ROWS_PER_UNIT
from dpsweep.training import physical, processes
from dpsweep.training.optimizer import MicroBatch, PrivateOptimizer, StepStatistics
from dpsweep.training.randomness import GaussianNoise, Indices, PoissonSampler, new_secret

# Identity of the noise of the training that took steps with a parameter.
_TRAINED_BY = WeakIdKeyDictionary()


class Batch(NamedTuple):
    """The examples that one step has sampled; not private.

    Attributes:
        rows: their sorted indices, int64; there may be none. With units, those of a unit stand together.
        inputs: of all N examples, or of all rows.
        labels: of all N examples, or of all rows, int64.
    """

    rows: Indices
    inputs: Any
    labels: Tensor


class PrivateTraining:
    """Differentially private training of a classifier with exactly the steps that were calibrated.

    >>> from dpsweep import FlatClipping, PrivateTraining, calibrate
    >>> inputs, labels = torch.randn(100, 5), torch.randint(3, (100,))
    >>> noise = calibrate(epsilon=2, delta=1e-3, train_size=100, batch_size=10, steps=4)
    >>> model = torch.nn.Linear(5, 3)
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> training = PrivateTraining(model, sgd, clipping=FlatClipping(1.0), calibration=noise)
    >>> for batch in training.batches(inputs, labels):
    ...     statistics = training.step(batch)
    >>> training.steps_taken, training.epsilon_spent == noise.certified_epsilon
    (4, True)

    Sampling and noise come from a secret that each object draws from the operating system. So two
    trainings never share noise, and none can be repeated but by its own state (`state_dict`).

    In a process group of torch.distributed, each process makes one object: they share the secret of the
    first process, and train one model together (see docs/library.md).

    Attributes:
        model: the network.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clipping: Clipping,
        calibration: Calibration,
        engine: str = "auto",
        autocast: torch.dtype | None = None,
        physical_batch: int | None = None,
        units: npt.ArrayLike | None = None,
        rows_per_unit: int = ROWS_PER_UNIT,
    ) -> None:
        """Verify the calibration, draw the secret, and prepare engine, sampler and noise.

        Args:
            model: maps a tensor of inputs to logits; see `dpsweep.make_engine`.
            optimizer: of torch, over exactly the trainable parameters of the model.
            clipping: scales the gradients of the examples.
            calibration: of `dpsweep.calibrate`.
            engine: for per-example gradients; see `dpsweep.make_engine`.
            autocast: dtype of the passes; see `dpsweep.make_engine`.
            physical_batch: the most examples on the device at once; halved when memory runs out.
            units: whose row each is, integers or names of shape (rows,): then epsilon protects a unit, with
                all of its rows, and N, B and the calibration count units. None: each row is a unit.
            rows_per_unit: the most rows of a unit in a step; its gradient is their mean.

        Raises:
            CalibrationError: the numbers of the calibration do not belong together.
            ValueError: see `PrivateOptimizer` and `PoissonSampler`.
            UnsupportedModelError: see `dpsweep.make_engine`.
        """
        verify(calibration)
        self._calibration = calibration
        self.model = model
        self._clipping = clipping
        self._engine, self._autocast = engine, autocast
        self._units, self._rows_per_unit = units, rows_per_unit
        self._use_secret(processes.on_first(new_secret))
        self._optimizer = self._private(optimizer)
        rows = self._sampler.most_rows
        usual = rows * physical.usual_batch(calibration.batch_size, calibration.train_size)
        on_the_cpu = self._device.type == "cpu"
        size = physical.ON_THE_CPU if on_the_cpu else usual
        if physical_batch is not None:
            size = integer("physical_batch", physical_batch, least=1)
        self._physical = physical.PhysicalBatch(processes.smallest(size), smallest=rows)
        self._batch: Batch | None = None
        self._labels: str | None = None

    @property
    def calibration(self) -> Calibration:
        """N, B, the number of steps, the noise multiplier and the proven epsilon."""
        return self._calibration

    @property
    def steps_taken(self) -> int:
        """The number of steps so far."""
        return self._optimizer.steps

    @property
    def epsilon_spent(self) -> float:
        """Proven epsilon of the steps so far, at the delta of the calibration."""
        return self.epsilon_after(self.steps_taken)

    def epsilon_after(self, steps: int) -> float:
        """Return the epsilon that is proven for a number of steps, also of more than were calibrated.

        Raises:
            CalibrationError: no accountant can compute it.
            ValueError: the number is no integer, or below 0.
        """
        steps = integer("steps", steps, least=0)
        noise = self.calibration
        if steps == noise.steps:
            return noise.certified_epsilon
        if steps == 0:
            return 0.0
        # The accountant's mesh needs the order of magnitude of its result.
        about = noise.epsilon * math.sqrt(steps / noise.steps)
        if math.isinf(about):
            return math.inf
        target = PrivacyTarget(about, noise.delta, replace(noise.sampling, steps=steps))
        return proven_epsilon(target, noise.noise_multiplier)

    def batches(self, inputs: Any, labels: Any, steps: int | None = None) -> Iterator[Batch]:
        """Hand out the batches of the next steps; `step` takes each of them.

        Args:
            inputs: of all N training examples: a tensor, an array, or an object of yours with a length
                that returns inputs for an array of rows (so files can be read when they are needed).
            labels: their class numbers, (N,).
            steps: how many; without it, all that are left.

        Raises:
            ValueError: inputs are a list, or there are not N inputs and labels (with units: one for each
                row), more steps than were calibrated, or other labels than those of earlier batches. (Other
                inputs are not noticed: they may be augmented anew.)
        """
        if isinstance(inputs, list | tuple):
            raise ValueError(
                f"inputs: found a {type(inputs).__name__}; expected a tensor, an array, or an object that "
                "returns inputs for an array of rows, such as torch.tensor(inputs)"
            )
        units = self._sampler.units
        rows, said = self.calibration.train_size, "the noise was calibrated for"
        if units is not None:
            rows, said = len(units), "units name"
        for name, values in (("inputs", inputs), ("labels", labels)):
            if len(values) != rows:
                raise ValueError(
                    f"{name}: found {len(values)} examples, expected {rows}, as {said}"
                )
        left = self.calibration.steps - self.steps_taken
        steps = max(left, 1) if steps is None else integer("steps", steps, least=0)
        if steps > left:
            self._refuse(self.steps_taken + steps)
        labels = labels if isinstance(labels, Tensor) else torch.from_numpy(np.asarray(labels))
        found = processes.digest([labels])
        if self.steps_taken and self._labels not in (None, found):
            raise ValueError(
                "labels: found others than those of the steps so far; epsilon is of one data set, and noise "
                "must not be drawn again for another: make a new training"
            )
        self._labels = found
        return self._hand_out(inputs, labels, self.steps_taken + steps)

    def _hand_out(self, inputs: Any, labels: Tensor, end: int) -> Iterator[Batch]:
        for step in range(self.steps_taken, end):
            if step != self.steps_taken:
                raise ValueError(
                    f"a batch was handed out for step {step}, but {self.steps_taken} steps were taken: call "
                    "`step` with each batch"
                )
            self._batch = Batch(self._sampler.batch(step), inputs, labels)
            yield self._batch

    def step(self, batch: Batch, *more: object) -> StepStatistics:
        """Take one step with the batch that was handed out last.

        If it fails, neither the parameters nor the optimizer have changed, and it may be called again. After
        Ctrl-C, call `batches` again: a step that may have changed parameters counts.

        Returns:
            Statistics of the batch, which are not private.

        Raises:
            ValueError: this batch was not handed out last, its step was taken, or there is another argument.
            DoesNotFitError: not even one example fits in memory.
            UnsupportedModelError: see `PrivateOptimizer.step`.
        """
        # Taken before it is compared, so that of two threads one has it.
        expected, self._batch = self._batch, None
        if more or expected is None or batch is not expected:
            self._batch = expected
            if self.steps_taken == self.calibration.steps:
                self._refuse(self.steps_taken + 1)
            raise ValueError(
                "a step takes the batch that `batches` handed out last, and each batch once "
                "(for batch in training.batches(inputs, labels): training.step(batch)): the noise is "
                "calibrated for batches that are drawn anew, not for chosen ones"
            )
        try:
            self._refuse_other_training()
            return self._physical.fit(lambda size: self._optimizer.step(self._parts(batch, size)))
        except Exception:
            self._batch = batch
            raise

    def _refuse_other_training(self) -> None:
        mine = self._noise.identity
        for parameter in self._optimizer.engine.parameters.values():
            if _TRAINED_BY.get(parameter, mine) != mine:  # type: ignore[no-untyped-call]
                raise ValueError(
                    "another private training has taken steps with this model, and epsilon is of one: "
                    "make a new model, or train copy.deepcopy(model) and add up both epsilons"
                )
            _TRAINED_BY[parameter] = mine

    def _parts(self, batch: Batch, size: int) -> physical.MicroBatches:
        units = self._sampler.units

        def load(rows: Indices) -> MicroBatch:
            inputs = torch.as_tensor(batch.inputs[rows]).to(self._device)
            labels = batch.labels[rows].to(self._device)
            part = inputs, labels, torch.ones_like(labels, dtype=torch.bool)
            return part if units is None else (*part, units[rows])

        ids = batch.rows if units is None else units[batch.rows]
        return physical.MicroBatches(
            [batch.rows[some] for some in physical.parts_of_units(ids, size)], load
        )

    def _refuse(self, steps: int) -> NoReturn:
        noise = self.calibration
        proven, cost = (
            rounded_up(each, 4) for each in (noise.certified_epsilon, self.epsilon_after(steps))
        )
        raise ValueError(
            f"the noise was calibrated for {noise.steps} steps (epsilon {proven}); "
            f"{steps} steps would cost epsilon {cost} at delta {noise.delta:g}: "
            f"calibrate with steps={steps}, and train from the start"
        )

    def use_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Continue with another torch optimizer, or after a change of which parameters train.

        Steps are counted on and the noise continues, so epsilon stays that of all steps together.

        Raises:
            ValueError: see `PrivateOptimizer`.
            UnsupportedModelError: see `dpsweep.make_engine`.
        """
        private = self._private(optimizer)
        private.load_state_dict(private.state_dict() | {"steps": self.steps_taken})
        self._optimizer = private

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that a resumed training needs; `torch.save` can write it.

        It contains the **secret** of sampling and noise. Whoever has it and the model can take the noise
        away: keep it where you keep the training data, and delete it when the training is done.
        """
        state = copy.deepcopy(
            {
                "settings": self._settings(),
                "secret": self._secret,
                "labels": self._labels,
                "parameters": {
                    name: each.detach() for name, each in self._optimizer.engine.parameters.items()
                },
                "optimizer": self._optimizer.state_dict(),
            }
        )
        return state | {"digest": _digest(state)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a training from its ``state_dict()``: later steps equal those of an uninterrupted one.

        The model's parameters are loaded too. The state's noise moves here: the training that it is from
        cannot go on beside this one.

        Raises:
            ValueError: the state is of a training with other settings, or was changed; nothing has been
                loaded.
            DoesNotFitError: the state does not fit in the device's memory.
        """
        given = state.get("settings", {})
        if differing := [
            f"{name}: found {given.get(name)}, expected {value}"
            for name, value in self._settings().items()
            if given.get(name) != value
        ]:
            raise ValueError(f"the state is of another training ({'; '.join(differing)})")
        if state.get("digest") != _digest({k: v for k, v in state.items() if k != "digest"}):
            raise ValueError("the state is not as state_dict() returned it: load an unchanged one")
        before = self._secret
        self._use_secret(state["secret"])
        try:
            private = self._private(self._optimizer.optimizer)
            private.load_state_dict(copy.deepcopy(state["optimizer"]))
        except BaseException:
            self._use_secret(before)
            raise
        self._optimizer, self._batch, self._labels = private, None, state["labels"]
        with torch.no_grad():
            for name, parameter in private.engine.parameters.items():
                parameter.copy_(state["parameters"][name])
                _TRAINED_BY[parameter] = self._noise.identity

    def __reduce__(self) -> NoReturn:
        """Refuse copies and pickles: both would draw the same noise."""
        raise TypeError(
            "a private training is not copied, because both would share their noise; make a new one, or "
            "save its state_dict()"
        )

    @property
    def _device(self) -> torch.device:
        return next(iter(self._optimizer.engine.parameters.values())).device

    def _use_secret(self, secret: bytes) -> None:
        self._secret = secret
        self._noise = GaussianNoise("noise", secret=secret)
        self._sampler = PoissonSampler(
            *(self.calibration.sampling, "sampling"),
            secret=secret,
            units=self._units,
            rows_per_unit=self._rows_per_unit,
        )

    def _private(self, optimizer: torch.optim.Optimizer) -> PrivateOptimizer:
        return PrivateOptimizer(
            optimizer,
            make_engine(self._engine, self.model, autocast=self._autocast),
            self._clipping,
            noise_multiplier=self.calibration.noise_multiplier,
            expected_batch_size=self.calibration.batch_size,
            noise=self._noise,
        )

    def _settings(self) -> dict[str, Any]:
        """Return what a state must agree with, in plain values."""
        optimizer, units = self._optimizer.optimizer, self._sampler.units
        return {
            **asdict(self.calibration),
            "units": units if units is None else fingerprint([self._rows_per_unit, units.tolist()]),
            "clipping": {"rule": type(self._clipping).__name__, **vars(self._clipping)},
            "optimizer": f"{type(optimizer).__name__} {optimizer.defaults}",
            "parameters": {
                name: f"{tuple(each.shape)} {each.dtype}"
                for name, each in self._optimizer.engine.parameters.items()
            },
        }


def _digest(state: dict[str, Any]) -> str:
    """Return a checksum of everything in a state."""
    leaves, structure = tree_flatten(state)
    contents = [
        processes.digest([each]) if isinstance(each, Tensor) else repr(each) for each in leaves
    ]
    return fingerprint([str(structure), *contents])
