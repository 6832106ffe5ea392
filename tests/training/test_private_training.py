"""`PrivateTraining`: what is trained is what was calibrated, with noise that nothing else has."""

import copy
import io
import os
import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from tests.training.tiny_net import CLASSES, N, data, flat, net, private
from torch import Tensor, nn

from dpsweep.gradients import make_engine
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.calibration import calibrate
from dpsweep.study.clipping import AutomaticClipping, FlatClipping
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.private_training import PrivateTraining, _digest
from dpsweep.training.randomness import GaussianNoise, new_secret

DELTA = 1e-3


@cache
def noise(epsilon: float = 1.0, batch_size: int = 20, steps: int = 2, size: int = N) -> Calibration:
    return calibrate(epsilon, DELTA, size, batch_size, steps)


def training(
    calibration: Calibration | None = None, kind: Any = torch.optim.SGD, **settings: Any
) -> PrivateTraining:
    model, rate = settings.pop("model", None) or net(), settings.pop("rate", 0.5)
    given = {"clipping": FlatClipping(1.0), "calibration": calibration or noise()} | settings
    return PrivateTraining(model, kind(model.parameters(), lr=rate), **given)


def parameters(made: PrivateTraining) -> Tensor:
    return flat(made.model)


def run(made: PrivateTraining, steps: int | None = None, examples: Any = None) -> PrivateTraining:
    for batch in made.batches(*(examples or data()), steps=steps):
        made.step(batch)
    return made


def epsilon_by_dp_accounting(calibration: Calibration, steps: int) -> float:
    """Return epsilon by connect-the-dots, which the certificate does not use."""
    step = dp_event.PoissonSampledDpEvent(
        calibration.batch_size / N, dp_event.GaussianDpEvent(calibration.noise_multiplier)
    )
    return float(PLDAccountant().compose(step, steps).get_epsilon(DELTA))


# -- noise that nothing else has ---------------------------------------------------------------


def test_trainings_of_a_loop_share_neither_noise_nor_batches() -> None:
    """With shared noise, B times the difference of two updates is the gradient of one person exactly."""
    inputs, labels = data()
    other = labels.clone()
    other[7] = (labels[7] + 1) % CLASSES
    full = noise(1.0, N, 1)
    moved = [
        parameters(run(training(full, rate=1.0), examples=(inputs, each))) - parameters(training())
        for each in (labels, other)
    ]
    difference = N * (moved[0] - moved[1])
    # Two gradients of norm at most 1, beside the difference of two draws of noise in d dimensions.
    expected = full.noise_multiplier * np.sqrt(2 * len(difference))
    assert 0.5 * expected < float(difference.norm()) < 1.7 * expected
    assert 0.5 * expected > 2
    first, second = (next(training().batches(*data())).rows for _ in range(2))
    assert not np.array_equal(first, second)


def parts(stream: GaussianNoise) -> PrivateOptimizer:
    return private(net(), noise_multiplier=1.0, noise=stream)


def test_the_noise_belongs_to_one_optimizer() -> None:
    """Others are as in a loop over rates below one secret, and where the parts are made again."""
    secret = new_secret()
    public, stream = GaussianNoise("noise", secret=b""), GaussianNoise("noise", secret=secret)
    first, of_public = parts(stream), parts(public)
    first.step([])
    of_public.step([])
    again = parts(GaussianNoise("noise", secret=secret))
    for other in (parts(public), parts(stream), copy.deepcopy(first), again):
        with pytest.raises(ValueError, match="belongs to another optimizer"):
            other.step([])
    first.step([])
    parts(GaussianNoise("noise", 2, secret=secret)).step([])
    parts(GaussianNoise("noise", secret=new_secret())).step([])
    again.load_state_dict(first.state_dict())
    again.step([])
    with pytest.raises(ValueError, match="belongs to another optimizer"):
        first.step([])


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        ("another rate", "step 3 was added to another sum"),
        ("other labels", "labels: found others"),
        ("other inputs", "step 2 was added to another sum"),
        ("an edited step", "not as state_dict"),
        ("an edited parameter", "not as state_dict"),
        ("an edited step that is sealed again", "step 1 was added to another sum"),
    ],
)
def test_the_noise_of_a_step_is_added_to_one_sum(attack: str, message: str) -> None:
    """Otherwise the difference of two models is the gradient of one person."""
    calibration, (inputs, labels) = noise(1.0, 20, 4), data()
    made = run(training(calibration), 1)
    state = made.state_dict()
    run(made)
    edited = copy.deepcopy(state)
    if "step" in attack:
        edited["optimizer"]["steps"] = 0
    if "parameter" in attack:
        edited["parameters"]["head.bias"][0] += 1e-6
    if "sealed" in attack:
        del edited["digest"]
        edited["digest"] = _digest(edited)
    inputs = inputs.flip(1) if attack == "other inputs" else inputs
    labels = labels.flip(0) if attack == "other labels" else labels
    attacked = training(calibration)
    with pytest.raises(ValueError, match=message):
        attacked.load_state_dict(edited)
        if attack == "another rate":
            attacked._optimizer.optimizer.param_groups[0]["lr"] = 0.1
        run(attacked, examples=(inputs, labels))
    again = training(calibration)
    again.load_state_dict(state)
    assert torch.equal(parameters(run(again)), parameters(made))


def test_noise_of_another_deviation_is_not_added_to_the_same_sum() -> None:
    """The sum could be computed from both results."""
    stream, total = GaussianNoise("noise", secret=new_secret()), torch.ones(5).double()
    stream.add_to(total.clone(), 0, 2.0)
    stream.add_to(total.clone(), 0, 2.0)
    for other, deviation in ((total.clone(), 1.0), (total * 1.01, 2.0), (total[:4].clone(), 2.0)):
        with pytest.raises(ValueError, match="another sum"):
            stream.add_to(other, 0, deviation)
    stream.add_to(total * 1.01, 1, 2.0)


def test_a_step_that_failed_may_be_taken_with_another_sum() -> None:
    """Memory that ran out leaves another physical batch, and so another rounding."""
    private = parts(GaussianNoise("noise", secret=new_secret()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private.optimizer, "step", lambda: torch.empty(1)[2])
        with pytest.raises(IndexError):
            private.step([])
    inputs, labels = data()
    private.step([(inputs[:2], labels[:2], torch.tensor([True, True]))])
    assert private.steps == 1


def test_two_trainings_of_one_model_are_refused() -> None:
    """Neither epsilon would be that of the model."""
    model = net()
    first, second = training(model=model), training(model=model)
    run(first, 1)
    before, batch = parameters(first), next(second.batches(*data()))
    with pytest.raises(ValueError, match="another private training"):
        second.step(batch)
    assert torch.equal(parameters(first), before)
    second.load_state_dict(first.state_dict())  # resumed in a notebook
    run(second)
    with pytest.raises(ValueError, match="belongs to another optimizer"):
        first.step(next(first.batches(*data())))


def test_a_training_is_not_copied() -> None:
    made = training()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="share their noise"):
            duplicate(made)
    with pytest.raises(TypeError, match="two processes would share it"):
        pickle.dumps(GaussianNoise("noise", secret=new_secret()))
    assert pickle.loads(pickle.dumps(GaussianNoise("noise", secret=b"")))  # noqa: S301 (written here)


# -- what was calibrated is what is trained ----------------------------------------------------


def test_a_step_beyond_the_calibrated_ones_is_refused_with_its_epsilon() -> None:
    made = training()
    expected = epsilon_by_dp_accounting(noise(), 20)
    assert expected > 3
    with pytest.raises(ValueError, match=r"calibrated for 2 steps.* 20 steps would cost") as error:
        run(made, 20)
    said = float(str(error.value).split("would cost epsilon ")[1].split()[0])
    assert said == pytest.approx(expected, rel=2e-3)
    *_, last = (batch for batch in made.batches(*data()) if made.step(batch))
    before = parameters(made)
    for beyond in (lambda: made.step(last), lambda: made.batches(*data())):
        with pytest.raises(ValueError, match="3 steps would cost epsilon 1"):
            beyond()
    assert torch.equal(parameters(made), before)


def test_epsilon_spent_is_that_of_the_steps_taken() -> None:
    for batch_size in (20, N):
        calibration = noise(1.0, batch_size, 4)
        made = training(calibration)
        assert made.epsilon_spent == 0
        for batch in made.batches(*data()):
            made.step(batch)
            expected = epsilon_by_dp_accounting(calibration, made.steps_taken)
            assert made.epsilon_spent == pytest.approx(expected, rel=5e-3)
        assert made.epsilon_spent == calibration.certified_epsilon <= 1
    public = training(noise(np.inf))
    assert public.epsilon_spent == 0
    assert run(public, 1).epsilon_spent == np.inf
    with pytest.raises(ValueError, match="steps = -1: it must be at least 0"):
        public.epsilon_after(-1)


def test_data_of_another_size_or_kind_are_refused() -> None:
    inputs, labels = data(N + 1)
    made = training()
    for examples in (N // 2, N + 1):
        for given in ((inputs[:examples], labels[:N]), (inputs[:N], labels[:examples])):
            with pytest.raises(
                ValueError, match=f"found {examples} examples, expected {N}, as .* calibrated"
            ):
                made.batches(*given)
    for found in (inputs[:N].tolist(), tuple(inputs[:N])):
        with pytest.raises(ValueError, match=f"inputs: found a {type(found).__name__}; expected"):
            made.batches(found, labels[:N])
    assert made.steps_taken == 0


@pytest.mark.parametrize(
    "change", [{"steps": 20}, {"batch_size": 50}, {"noise_multiplier": 0.5}, {"train_size": 30}]
)
def test_a_changed_calibration_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError):
        training(replace(noise(), **change))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"calibration": 2.0}, "calibration: found 2.0; allowed: one of dpsweep.calibrate"),
        ({"clipping": 1.0}, "clipping: found 1.0; allowed: a rule"),
        ({"physical_batch": 0}, "physical_batch = 0: it must be at least 1"),
    ],
)
def test_arguments_of_another_kind_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        training(**settings)


def test_a_batch_is_used_once_and_in_order() -> None:
    made = training()
    batch = next(made.batches(*data()))
    made.step(batch)
    for other in (batch, batch._replace(rows=np.arange(N))):
        with pytest.raises(ValueError, match="each batch once"):
            made.step(other)
    one = next(made.batches(*data()))
    with pytest.raises(ValueError, match=r"for batch in training\.batches"):
        made.step(data())  # type: ignore[arg-type]
    made.step(one)
    passed = iter(training().batches(*data()))
    next(passed)
    with pytest.raises(ValueError, match="call `step` with each batch"):
        next(passed)


def test_an_interrupted_step_does_not_use_its_noise_again() -> None:
    made = training()
    torch_step = made._optimizer.optimizer.step

    def interrupted() -> None:
        torch_step()
        raise KeyboardInterrupt

    made._optimizer.optimizer.step = interrupted
    batch = next(made.batches(*data()))
    with pytest.raises(KeyboardInterrupt):
        made.step(batch)
    assert made.steps_taken == 1
    made._optimizer.optimizer.step = torch_step
    with pytest.raises(ValueError, match="each batch once"):
        made.step(batch)
    made.step(next(made.batches(*data())))
    assert made.steps_taken == 2


class Files:
    """Inputs that are read when they are needed."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return data()[0].numpy()[rows]


def test_inputs_may_be_arrays_or_read_when_needed_or_augmented() -> None:
    inputs, labels = data()
    first = training()
    state, ends = first.state_dict(), []
    for given in ((inputs, labels), (inputs.numpy(), labels.numpy()), (Files(), labels.tolist())):
        made = training()
        made.load_state_dict(state)
        ends.append(parameters(run(made, examples=given)))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])
    assert run(run(training(), 1), examples=(inputs + 0.1, labels)).steps_taken == 2


# -- resuming ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_a_resumed_training_ends_bit_for_bit_as_an_uninterrupted_one(kind: Any) -> None:
    calibration = noise(1.0, 20, 6)
    whole = run(training(calibration, kind), 2)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    in_memory = whole.state_dict()
    run(whole)
    for state in (torch.load(io.BytesIO(file.getvalue()), weights_only=True), in_memory):
        resumed = training(calibration, kind)
        resumed.load_state_dict(state)
        assert resumed.steps_taken == 2
        assert torch.equal(parameters(run(resumed)), parameters(whole))


def test_a_state_of_other_settings_is_refused() -> None:
    state = run(training(), 1).state_dict()
    others = {
        "noise_multiplier": training(noise(1.0, N, 4)),
        "batch_size": training(noise(1.0, N, 4)),
        "steps": training(noise(1.0, 20, 4)),
        "clipping": training(clipping=FlatClipping(2.0)),
        "clipping: ": training(clipping=AutomaticClipping()),
        "optimizer": training(kind=torch.optim.Adam),
        "optimizer: ": training(rate=0.1),
    }
    for name, other in others.items():
        before, batch = parameters(other), next(other.batches(*data())).rows
        with pytest.raises(ValueError, match=f"of another training.*{name}"):
            other.load_state_dict(state)
        assert torch.equal(parameters(other), before) and other.steps_taken == 0
        assert np.array_equal(next(other.batches(*data())).rows, batch)
    frozen = net()
    frozen[0].requires_grad_(False)
    sgd = torch.optim.SGD(frozen[1].parameters(), lr=0.5)
    other = PrivateTraining(frozen, sgd, clipping=FlatClipping(1.0), calibration=noise())
    with pytest.raises(ValueError, match=r"of another training.*parameters"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="of another training"):
        other.load_state_dict({})


def test_steps_add_noise_to_the_sum_also_with_another_optimizer() -> None:
    """The sum is of the loop over examples; the stream of noise goes on with another optimizer."""
    made = training(physical_batch=7, rate=1.0)
    secret, (inputs, labels) = made.state_dict()["secret"], data()
    for step in range(2):
        if step == 1:
            inputs = 0 * inputs
            made.model[0].requires_grad_(False)  # type: ignore[index]
            head = made.model[1].parameters()  # type: ignore[index]
            made.use_optimizer(torch.optim.SGD(head, lr=1.0))
        assert made.steps_taken == step
        batch = next(made.batches(inputs, labels))
        rows, mask = batch.rows, torch.ones(len(batch.rows), dtype=torch.bool)
        engine = make_engine("loop", made.model)
        found = engine.clipped_sum(inputs[rows], labels[rows], mask, FlatClipping(1.0)).gradients
        wanted = torch.cat([each.flatten() for each in found.values()]).double()
        stream = GaussianNoise("noise", secret=secret)
        stream.add_to(wanted, step, noise().noise_multiplier)
        before = parameters(made)
        assert int(made.step(batch).sampled_examples) == len(rows)
        moved = (before - parameters(made)).double()[-len(wanted) :]
        torch.testing.assert_close(moved, wanted / 20, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="3 steps would cost"):
        made.batches(inputs, labels)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_forked_process_cannot_draw_the_noise_of_its_parent(steps: int) -> None:
    """Both would take the step with the same noise, perhaps on other data."""
    made = training()
    batches = made.batches(*data())
    for _ in range(steps):
        made.step(next(batches))
    second = next(batches)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            made.step(second)
        except ValueError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert "the process that this one was forked from" in os.read(reader, 4096).decode()
    made.step(second)  # the parent goes on
    assert made.steps_taken == steps + 1


# -- units of privacy --------------------------------------------------------------------------

UNITS = np.repeat([3, 1, 9, 4, 0], [1, 2, 35, 10, 12])[np.random.default_rng(0).permutation(N)]


def of_units(units: Any = UNITS, rows_per_unit: int = 3) -> PrivateTraining:
    return training(noise(8.0, 2, 6, 5), units=units, rows_per_unit=rows_per_unit)


def test_the_update_is_that_of_clipped_means_by_hand() -> None:
    made, (inputs, labels) = of_units(), data()
    made._optimizer.noise_multiplier = 0.0
    for batch in made.batches(inputs, labels):
        before, chosen = parameters(made), UNITS[batch.rows]
        total = torch.zeros_like(before)
        for unit in set(chosen.tolist()):
            rows = torch.from_numpy(batch.rows[chosen == unit])
            loss = nn.functional.cross_entropy(made.model(inputs[rows]), labels[rows])
            mean = torch.autograd.grad(loss, list(made.model.parameters()))
            gradient = torch.cat([each.flatten() for each in mean])
            total += gradient * torch.clamp(1 / gradient.norm(), max=1.0)
        assert int(made.step(batch).sampled_examples) == len(set(chosen.tolist()))
        torch.testing.assert_close(parameters(made), before - 0.5 * total / 2)


def test_a_state_of_other_units_is_refused() -> None:
    state = of_units().state_dict()
    of_units().load_state_dict(state)
    for made in (of_units(UNITS[::-1]), of_units(rows_per_unit=4), of_units(None)):
        with pytest.raises(ValueError, match="state is of another training"):
            made.load_state_dict(state)


def test_a_unit_in_two_micro_batches_is_refused() -> None:
    made, (inputs, labels) = of_units(), data(4)
    part = inputs, labels, torch.ones(4, dtype=torch.bool)
    before = parameters(made)
    with pytest.raises(ValueError, match="rows of unit 7 in two micro-batches of a step"):
        made._optimizer.step([(*part, np.array([7, 7, 8, -1])), (*part, np.array([5, 7, -1, -1]))])
    assert torch.equal(parameters(made), before) and made.steps_taken == 0
