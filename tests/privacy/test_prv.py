"""The certified bound against exact values, other accountants and higher precision."""

import math
from functools import partial

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from prv_accountant.composers import Fourier
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom, norm

from dpsweep.privacy import CalibrationError, prv
from dpsweep.privacy.accountants import pld_epsilon
from dpsweep.privacy.gaussian import gaussian_epsilon
from dpsweep.privacy.prv import prv_epsilon

DELTA = 1e-5
# (noise multiplier, sampling rate, steps): heavy and light tails, few and many steps.
SETTINGS = [
    (2.18, 256 / 87002, 2719),
    (0.6, 256 / 87002, 2719),
    (1.2, 0.04, 1000),
    (17.0, 65536 / 87002, 3),
    (0.95, 65536 / 87002, 3),
    (5.0, 64 / 1347, 42),
]


def one_step_delta(direction: str, epsilon: float, sigma: float, q: float) -> float:
    """Integrate the hockey-stick divergence between the mixture and the Gaussian."""

    def mixture(x: float) -> float:
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma)

    def gaussian(x: float) -> float:
        return norm.pdf(x, 0, sigma)

    first, second = (mixture, gaussian) if direction == "remove" else (gaussian, mixture)
    return quad(
        lambda x: max(first(x) - math.exp(epsilon) * second(x), 0),
        -12 * sigma,
        1 + 12 * sigma,
        limit=2000,
        epsabs=1e-13,
    )[0]


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (2.0, 0.5), (0.7, 0.9)])
def test_one_step_is_bounded_tightly_by_its_exact_epsilon(direction, sigma, q):
    exact = brentq(lambda e: one_step_delta(direction, e, sigma, q) / DELTA - 1, 0, 20, rtol=1e-9)
    loss = prv.PrivacyLoss(sigma, q, direction)
    bound = prv._directed_epsilon(loss, 1, DELTA, 1e-3 * exact)
    # delta_error, a thousandth of delta, costs a few parts in 10^5.
    assert exact * (1 + 0.99e-3) <= bound <= exact * (1 + 1.3e-3)


@pytest.mark.parametrize("steps", [2, 64])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampling_nearly_everything_is_the_analytic_gaussian(direction, steps):
    sigma = 4 * math.sqrt(steps)
    exact = gaussian_epsilon(DELTA, sigma, steps)
    loss = prv.PrivacyLoss(sigma, 1 - 1e-9, direction)
    bound = prv._directed_epsilon(loss, steps, DELTA, 1e-3 * exact)
    assert exact * (1 + 0.99e-3) <= bound <= exact * (1 + 1.2e-3)


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "epsilon"),
    [
        (1, 256 / 50000, 1568, 1.09941),
        (1, 256 / 87002, 2720, 0.79014),
        (2.5, 4096 / 87002, 176, 1.02462),
        (1.5, 0.04, 2250, 6.76879),
    ],
)
def test_reference_epsilons(sigma, q, steps, epsilon):
    assert pld_epsilon(sigma, q, steps, DELTA) == pytest.approx(epsilon, abs=1e-5)
    error = 1e-3 * epsilon
    bound = prv_epsilon(sigma, q, steps, DELTA, error)
    assert epsilon < bound < epsilon + 1.1 * error


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bound_exceeds_a_fine_privacy_loss_distribution_by_no_more_than_its_error(
    sigma, q, steps, direction
):
    interval = 2e-4 * pld_epsilon(sigma, q, steps, DELTA, 1e-3) / max(1, steps / 100) ** 0.5
    distribution = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=interval
    ).self_compose(steps)
    one_way = distribution._pmf_remove if direction == "remove" else distribution._pmf_add
    epsilon = one_way.get_epsilon_for_delta(DELTA)
    error = 2e-3 * epsilon
    bound = prv._directed_epsilon(prv.PrivacyLoss(sigma, q, direction), steps, DELTA, error)
    assert epsilon < bound < epsilon + 1.15 * error


def test_bound_is_the_one_of_the_librarys_own_accountant():
    sigma, q, steps, error = 2.18, 256 / 87002, 2719, 2.5e-3
    library = PRVAccountant(
        PoissonSubsampledGaussianMechanism(q, sigma),
        eps_error=error,
        delta_error=DELTA / 1000,
        max_self_compositions=steps,
    )
    assert prv_epsilon(sigma, q, steps, DELTA, error) == pytest.approx(
        library.compute_epsilon(DELTA, [steps])[2], rel=1e-5
    )


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_tail_bounds_hold_and_are_not_far_off(sigma, q, steps, direction, monkeypatch):
    probability = 1e-6
    loss = prv.PrivacyLoss(sigma, q, direction)
    low, high = prv._tails(loss, steps, math.log(probability))
    kept = _keep_composition(monkeypatch)
    prv._directed_epsilon(loss, steps, DELTA, 1e-2 * high)  # a window with tails of 2.5e-9
    losses, mass = kept["losses"], kept["mass"]
    assert mass[losses > high].sum() < probability
    assert mass[losses < -low].sum() < probability
    assert mass[losses > 0.7 * high].sum() > probability
    assert mass[losses < -0.7 * low].sum() > probability


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 0.9), (20.0, 0.5)])
def test_single_step_extremes_hold(sigma, q, direction):
    loss = prv.PrivacyLoss(sigma, q, direction)
    low, high = loss.extremes(math.log(1e-4))
    outcomes = np.random.default_rng(0).normal(0, sigma, 10**6)
    if direction == "remove":
        outcomes += np.random.default_rng(1).random(10**6) < q
    losses = loss.loss(outcomes)
    assert np.mean(losses > high) <= 1.5e-4
    assert np.mean(losses < -low) <= 1.5e-4


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "q", "steps"), [*SETTINGS, (4.155, 256 / 87002, 10875)])
def test_rounding_stays_far_below_its_allowance(sigma, q, steps, monkeypatch):
    kept = _keep_composition(monkeypatch)
    epsilon = pld_epsilon(sigma, q, steps, DELTA, 1e-3)
    prv._directed_epsilon(prv.PrivacyLoss(sigma, q, "remove"), steps, DELTA, 1e-3 * epsilon)
    step = kept["composer"].prvs[0]
    monkeypatch.undo()
    # The library evaluates this mechanism in 80 bits, and so everything after it.
    exact = PoissonSubsampledGaussianMechanism(q, sigma)
    half = step.domain.dt() / 2
    unshifted = step.domain.shift_left(step.domain.shifts()).ts()
    step.pmf = exact.probability(unshifted - half, unshifted + half)
    step.pmf /= step.pmf.sum()
    assert step.pmf.dtype == np.longdouble
    mass = Fourier([step]).compute_composition([steps]).pmf
    tails = [np.flip(np.flip(m).cumsum()) for m in (mass, kept["mass"])]
    beyond = kept["losses"] > 0.5 * epsilon
    difference = float(np.abs(tails[0] - tails[1])[beyond].max())
    allowance = prv._ROUNDING_PER_STEP * steps + prv._ROUNDING_PER_TRANSFORM
    assert difference < allowance / 10


def test_mean_of_a_truncated_loss_is_its_integral():
    loss = prv.PrivacyLoss(0.8, 0.05, "remove")
    low, high = -0.04, 0.9
    density = partial(_mixture, sigma=0.8, q=0.05)
    ends = loss.outcome(np.array([low, high]))

    def integral(f):
        return quad(f, *ends, epsabs=1e-15, epsrel=1e-13, limit=500)[0]

    expected = integral(lambda x: density(x) * float(loss.loss(np.array([x]))[0])) / integral(
        density
    )
    assert prv._TruncatedLoss(loss, low, high).mean() == pytest.approx(expected, rel=1e-11)


def test_outcome_inverts_loss():
    for direction in ("remove", "add"):
        loss = prv.PrivacyLoss(1.3, 0.2, direction)
        x = np.linspace(-3, 6, 50)
        assert loss.outcome(loss.loss(x)) == pytest.approx(x, abs=1e-9)


def test_a_coarse_mesh_loosens_the_bound_and_never_breaks_it(monkeypatch):
    sigma, q, steps = 2.18, 256 / 87002, 2719
    tight = prv_epsilon(sigma, q, steps, DELTA, 1e-3)
    monkeypatch.setattr(prv, "MAX_MESH_SIZE", 2**15)
    loose = prv_epsilon(sigma, q, steps, DELTA, 1e-3)
    assert tight * 1.01 < loose < tight * 1.1


@pytest.mark.parametrize(
    ("add_coarse", "add_fine", "expected"), [(0.9, 0.8, 1.0), (1.1, 0.95, 1.0), (1.3, 1.2, 1.2)]
)
def test_the_worse_direction_counts(add_coarse, add_fine, expected, monkeypatch):
    # Removing is the worse wherever we looked, so a real case cannot show this.
    def directed(loss, steps, delta, epsilon_error):
        if loss.direction == "remove":
            return 1.0
        return add_coarse if epsilon_error > 1e-3 else add_fine

    monkeypatch.setattr(prv, "_directed_epsilon", directed)
    assert prv_epsilon(1.0, 0.1, 10, DELTA, 1e-3) == expected


def test_a_delta_below_double_precision_is_refused():
    with pytest.raises(CalibrationError, match=r"use a delta of at least"):
        prv_epsilon(1.0, 0.01, 1000, 1e-13, 1e-3)


def test_too_many_steps_are_refused():
    with pytest.raises(CalibrationError, match="steps are too many"):
        prv_epsilon(1e3, 0.01, 2_000_000, 1e-3, 1e-3)


def _mixture(x: float, sigma: float, q: float) -> float:
    return float((1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 1, sigma))


def _keep_composition(monkeypatch):
    """Let `Fourier` compose as ever, and keep what it composed."""
    kept = {}
    compose = Fourier.compute_composition

    def keep(composer, steps):
        composed = compose(composer, steps)
        kept.update(
            composer=composer,
            losses=composed.domain.ts().astype(float),
            mass=composed.pmf.astype(float),
        )
        return composed

    monkeypatch.setattr(Fourier, "compute_composition", keep)
    return kept


@pytest.mark.parametrize("steps", [1, 7, 1000, 16384])
def test_all_errors_together_fit_in_their_share_of_delta(steps):
    """Of each part by its definition: what T steps, two sides and both neighbours make of it."""
    budget = prv.ErrorBudget(1e-8, steps)
    cut_off = sum(2 * budget.step_tail for _ in range(steps))
    assert budget.spent == pytest.approx(2 * cut_off + 2 * budget.discretisation + budget.sum_tail)
    assert 0.5 * budget.delta < budget.spent <= budget.delta


@pytest.mark.parametrize("steps", [100, 1000, 10**5])
def test_the_mesh_moves_a_sum_further_only_with_the_probability_of_its_budget(steps):
    """The worst errors of mean 0: half a cell up or down, each with probability 1/2."""
    budget = prv.ErrorBudget(1e-8, steps)

    def beyond(cells: float) -> float:
        return float(binom.sf(math.floor(steps / 2 + cells), steps, 0.5))

    assert beyond(budget.cells) <= budget.discretisation
    assert beyond(0.85 * budget.cells) > budget.discretisation


def test_the_bound_uses_its_budget_and_no_other_numbers(monkeypatch):
    sigma, q, steps = 2.18, 256 / 87002, 2719
    asked, given, rounded = [], [], []
    extremes, tails = prv.PrivacyLoss.extremes, prv._tails
    monkeypatch.setattr(
        prv.PrivacyLoss, "extremes", lambda it, log: asked.append(log) or extremes(it, log)
    )
    monkeypatch.setattr(prv, "_tails", lambda *rest: given.append(rest[1:]) or tails(*rest))
    kept = _keep_composition(monkeypatch)
    compute = prv.Fourier.compute_composition

    def compose(composer, steps):
        composed = compute(composer, steps)
        found = composed.compute_epsilon
        composed.compute_epsilon = lambda *rest: rounded.append(rest) or found(*rest)
        return composed

    monkeypatch.setattr(prv.Fourier, "compute_composition", compose)
    prv._directed_epsilon(prv.PrivacyLoss(sigma, q, "remove"), steps, DELTA, 1e-2)
    budget = prv.ErrorBudget(prv.DELTA_ERROR_SHARE * DELTA, steps)
    assert asked == [math.log(budget.step_tail)]
    assert given == [(steps, math.log(budget.sum_tail))]
    [(delta, in_delta, in_epsilon)] = rounded
    allowance = prv._ROUNDING_PER_STEP * steps + prv._ROUNDING_PER_TRANSFORM
    assert (delta, in_delta) == (DELTA, pytest.approx(budget.delta + allowance, rel=1e-12))
    mesh = float(np.diff(kept["losses"][:2])[0])
    assert in_epsilon >= budget.cells * mesh * (1 - 1e-9)
    assert in_epsilon == pytest.approx(1e-2)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_what_errors_may_add_to_delta_is_paid_for(share, monkeypatch):
    """A bound whose errors take half of delta is that of the other half."""
    sigma, q, steps = 2.18, 256 / 87002, 2719
    monkeypatch.setattr(prv, "DELTA_ERROR_SHARE", share)
    error = 1e-3
    expected = pld_epsilon(sigma, q, steps, (1 - share) * DELTA, 1e-5)
    bound = prv_epsilon(sigma, q, steps, DELTA, error)
    assert expected + 0.95 * error < bound < expected + 1.3 * error


def test_a_sum_that_is_far_from_gaussian_is_bounded() -> None:
    """Hardly any step is sampled: the tails of a Gaussian with this variance are far too long a window."""
    bound = prv_epsilon(0.25, 1e-7, 50, 1e-10, 0.01)
    close = pld_epsilon(0.25, 1e-7, 50, 1e-10, 1e-4)
    assert close <= bound <= close + 0.02
