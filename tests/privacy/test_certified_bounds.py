"""Both certified bounds (PRV, tilted) compared with exact values, other accountants, higher precision."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
import scipy.fft
from dp_accounting.pld import privacy_loss_distribution
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from prv_accountant.composers import Fourier
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import binom

from dpsweep.privacy import CalibrationError, prv, tilted
from dpsweep.privacy.accountants import pld_epsilon
from dpsweep.privacy.gaussian import gaussian_epsilon
from dpsweep.privacy.prv import PrivacyLoss, prv_epsilon
from dpsweep.privacy.tilted import (
    DIRECTIONS,
    directed_epsilon,
    mesh_width,
    smallest_delta,
    tilted_epsilon,
)

DELTA = 1e-5
COMMON = (2.18, 256 / 87002, 2719)
HEAVY = (0.6, 256 / 87002, 2719)
# (noise multiplier, sampling rate, steps): heavy and light tails, few and many steps.
SETTINGS = [COMMON, HEAVY, (0.95, 65536 / 87002, 3), (5.0, 64 / 1347, 42)]
MORE = [(1.2, 0.04, 1000), (17.0, 65536 / 87002, 3), (4.155, 256 / 87002, 10875)]
# With delta: few and many steps, small and large delta.
TILTED_SETTINGS = [
    (*COMMON, DELTA),
    (0.95, 65536 / 87002, 3, DELTA),
    (0.585, 8 / 50_000, 62_500, DELTA),
    (1.055, 0.1, 10, 0.1),
    (2.0, 1e-3, 10**6, 1e-7),
]
BOUNDS = {"prv": prv._directed_epsilon, "tilted": directed_epsilon}
LEAST = {"prv": 0.99e-3, "tilted": -1e-7}
"""The smallest relative excess of a bound over epsilon if the error is set to a thousandth."""
over_directions = pytest.mark.parametrize("direction", DIRECTIONS)


def normal(x: float, mean: float, sigma: float) -> float:
    """Return the normal density; scipy's function is thirty times slower for a single number."""
    return math.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))


def mixture(x: float, sigma: float, q: float) -> float:
    return (1 - q) * normal(x, 0, sigma) + q * normal(x, 1, sigma)


def one_step_delta(direction: str, epsilon: float, sigma: float, q: float) -> float:
    """Integrate the hockey-stick divergence between the mixture and the Gaussian."""

    def excess(x: float) -> float:
        first, second = mixture(x, sigma, q), normal(x, 0, sigma)
        if direction == "add":
            first, second = second, first
        return max(first - math.exp(epsilon) * second, 0)

    return quad(excess, -12 * sigma, 1 + 12 * sigma, limit=2000, epsabs=1e-13)[0]


@cache
def one_step_epsilon(direction: str, sigma: float, q: float, delta: float) -> float:
    def excess(epsilon: float) -> float:
        return one_step_delta(direction, epsilon, sigma, q) / delta - 1

    return brentq(excess, 0, 20, rtol=1e-9, xtol=1e-9)


# -- exact values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accountant", "direction", "sigma", "q", "delta"),
    [
        *(
            (*each, *step, DELTA)
            for each in itertools.product(BOUNDS, DIRECTIONS)
            for step in ((1.0, 0.1), (2.0, 0.5), (0.7, 0.9))
        ),
        # Epsilon is far smaller than the rare losses of a step, so a mesh for these would be too coarse.
        *(
            ("tilted", "remove", *each)
            for each in ((0.5, 3.6e-6, 3e-9), (0.4, 1e-6, 1e-9), (0.8, 1e-4, 1e-8))
        ),
    ],
)
def test_one_step_is_bounded_tightly_by_its_exact_epsilon(accountant, direction, sigma, q, delta):
    exact = one_step_epsilon(direction, sigma, q, delta)
    bound = BOUNDS[accountant](PrivacyLoss(sigma, q, direction), 1, delta, 1e-3 * exact)
    # PRV's error in delta, a thousandth of it, raises epsilon by a few parts in 10^5.
    most = 1.3e-3 if delta == DELTA else 1.2e-3
    assert exact * (1 + LEAST[accountant]) <= bound <= exact * (1 + most)


@pytest.mark.parametrize(
    ("accountant", "delta"), [("prv", DELTA), *(("tilted", d) for d in (0.1, DELTA, 1e-12, 1e-40))]
)
@pytest.mark.parametrize("steps", [2, 1000])
@over_directions
def test_a_sampling_rate_near_one_gives_the_analytic_gaussian(direction, steps, accountant, delta):
    sigma = 2 * math.sqrt(steps)
    exact = gaussian_epsilon(delta, sigma, steps)
    loss = PrivacyLoss(sigma, 1 - 1e-9, direction)
    bound = BOUNDS[accountant](loss, steps, delta, 1e-3 * exact)
    assert exact * (1 + LEAST[accountant]) <= bound <= exact * (1 + 1.2e-3)


def test_the_mean_of_a_truncated_loss_is_its_integral_and_outcomes_invert_losses():
    loss = PrivacyLoss(0.8, 0.05, "remove")
    low, high = -0.04, 0.9
    ends = loss.outcome(np.array([low, high]))

    def integral(f):
        return quad(f, *ends, epsabs=1e-15, epsrel=1e-13, limit=500)[0]

    expected = integral(lambda x: mixture(x, 0.8, 0.05) * float(loss.loss(np.array([x]))[0]))
    expected /= integral(lambda x: mixture(x, 0.8, 0.05))
    assert prv._TruncatedLoss(loss, low, high).mean() == pytest.approx(expected, rel=1e-11)
    x = np.linspace(-3, 6, 50)
    for each in (PrivacyLoss(1.3, 0.2, direction) for direction in DIRECTIONS):
        assert each.outcome(each.loss(x)) == pytest.approx(x, abs=1e-9)


# -- other accountants -------------------------------------------------------------------------


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


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS[1:])
@over_directions
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
    bound = prv._directed_epsilon(PrivacyLoss(sigma, q, direction), steps, DELTA, error)
    assert epsilon < bound < epsilon + 1.15 * error


@pytest.mark.parametrize(("sigma", "q", "steps", "delta"), TILTED_SETTINGS[1:])
def test_tilted_bound_agrees_with_a_fine_privacy_loss_distribution(sigma, q, steps, delta):
    error = 1e-3 * tilted_epsilon(sigma, q, steps, delta, 1e-3)
    bound = tilted_epsilon(sigma, q, steps, delta, error)
    # dp-accounting's mesh of the same kind is an upper bound too, with a tenth of the error.
    other = pld_epsilon(sigma, q, steps, delta, mesh_width(sigma, q, steps, delta, error / 10))
    assert other - error / 10 <= bound <= other + 2.5 * error


def test_bounds_agree_with_the_librarys_own_accountant_and_each_other():
    (sigma, q, steps), error = COMMON, 1e-2
    library = PRVAccountant(
        PoissonSubsampledGaussianMechanism(q, sigma),
        eps_error=error,
        delta_error=DELTA / 1000,
        max_self_compositions=steps,
    )
    assert prv_epsilon(sigma, q, steps, DELTA, error) == pytest.approx(
        library.compute_epsilon(DELTA, [steps])[2], rel=1e-5
    )
    setting = (*HEAVY, DELTA, 1e-3)
    assert tilted_epsilon(*setting) == pytest.approx(prv_epsilon(*setting), rel=5e-4)


def test_a_sum_that_is_far_from_gaussian_is_bounded() -> None:
    """With a tiny sampling rate, a window for the tails of a Gaussian with this variance is far too long."""
    bound = prv_epsilon(0.25, 1e-7, 50, 1e-10, 0.01)
    close = pld_epsilon(0.25, 1e-7, 50, 1e-10, 5e-4)
    assert close <= bound <= close + 0.02


# -- approximations loosen a bound and never break it ------------------------------------------


@pytest.mark.parametrize(
    ("module", "bound", "setting", "size", "least", "most"),
    [
        (prv, prv_epsilon, (*COMMON, DELTA, 1e-3), 2**15, 1.01, 1.1),
        (tilted, tilted_epsilon, (*HEAVY, DELTA, 1e-4), 2**11, 1, 1.2),
        (tilted, tilted_epsilon, (*HEAVY, DELTA, 1e-4), 2**13, 1, 1.2),
    ],
)
def test_a_coarse_mesh_loosens_the_bound(module, bound, setting, size, least, most, monkeypatch):
    tight = bound(*setting)
    monkeypatch.setattr(module, "MAX_MESH_SIZE", size)
    assert tight * least < bound(*setting) < tight * most


@pytest.mark.parametrize("t", [0.0, 0.5, 20.0])
def test_any_tilt_gives_a_bound(t):
    loss = PrivacyLoss(0.6, 256 / 87002, "remove")
    exact = directed_epsilon(loss, 2719, DELTA, 1e-3)
    assert tilted._tilted_bound(loss, 2719, DELTA, t, 1e-3) >= exact * (1 - 1e-3)


@pytest.mark.parametrize(
    ("module", "name", "bound", "coarse", "fine", "expected"),
    [
        (prv, "_directed_epsilon", prv_epsilon, 0.9, 0.8, 1.0),
        (prv, "_directed_epsilon", prv_epsilon, 1.1, 0.95, 1.0),
        (prv, "_directed_epsilon", prv_epsilon, 1.3, 1.2, 1.2),
        (tilted, "directed_epsilon", tilted_epsilon, 0.9, 0.9, 1.0),
        (tilted, "directed_epsilon", tilted_epsilon, 1.1, 1.1, 1.1),
    ],
)
def test_the_worse_direction_counts(module, name, bound, coarse, fine, expected, monkeypatch):
    # No real case is known in which adding is the worse, so the directions are replaced.
    def directed(loss, _steps, _delta, error):
        return 1.0 if loss.direction == "remove" else coarse if error > 1e-3 else fine

    monkeypatch.setattr(module, name, directed)
    assert bound(1.0, 0.1, 10, DELTA, 1e-3) == expected


@pytest.mark.parametrize(
    ("bound", "setting", "message"),
    [
        (prv_epsilon, (1.0, 0.01, 1000, 1e-13), r"use a delta of at least"),
        (prv_epsilon, (1e3, 0.01, 2_000_000, 1e-3), "steps are too many"),
        (tilted_epsilon, (0.35, 1e-8, 10**6, 1e-15), "cannot resolve delta 1e-15"),
    ],
)
def test_targets_beyond_double_precision_are_refused(bound, setting, message):
    with pytest.raises(CalibrationError, match=message):
        bound(*setting, 1e-3)
    assert smallest_delta(10**6) == pytest.approx(1e-8)


# -- tails ---------------------------------------------------------------------------------------


def _keep_composition(monkeypatch):
    """Record the results of `Fourier.compute_composition`."""
    kept = {}
    compose = Fourier.compute_composition

    def keep(composer, steps):
        composed = compose(composer, steps)
        losses, mass = composed.domain.ts().astype(float), composed.pmf.astype(float)
        kept.update(composer=composer, losses=losses, mass=mass)
        return composed

    monkeypatch.setattr(Fourier, "compute_composition", keep)
    return kept


@pytest.mark.parametrize(("sigma", "q", "steps"), SETTINGS)
@over_directions
def test_tail_bounds_hold_and_are_tight(sigma, q, steps, direction, monkeypatch):
    probability = 1e-6
    loss = PrivacyLoss(sigma, q, direction)
    low, high = prv._tails(loss, steps, math.log(probability))
    kept = _keep_composition(monkeypatch)
    prv._directed_epsilon(loss, steps, DELTA, 1e-2 * high)  # a window with tails of 2.5e-9
    losses, mass = kept["losses"], kept["mass"]
    assert mass[losses > high].sum() < probability < mass[losses > 0.7 * high].sum()
    assert mass[losses < -low].sum() < probability < mass[losses < -0.7 * low].sum()


@over_directions
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 0.9), (20.0, 0.5)])
def test_single_step_extremes_hold(sigma, q, direction):
    loss, runs = PrivacyLoss(sigma, q, direction), 300_000
    low, high = loss.extremes(math.log(1e-4))
    outcomes = np.random.default_rng(0).normal(0, sigma, runs)
    if direction == "remove":
        outcomes += np.random.default_rng(1).random(runs) < q
    losses = loss.loss(outcomes)
    assert np.mean(losses > high) <= 1.8e-4
    assert np.mean(losses < -low) <= 1.8e-4


@over_directions
def test_splitting_losses_keeps_the_probabilities_under_both_neighbours(direction):
    loss = PrivacyLoss(0.8, 0.05, direction)
    low, high = loss.extremes(-60.0)
    first, mass = tilted._discretised(loss, -low, high, 0.01)
    losses = 0.01 * (first + np.arange(len(mass)))
    assert mass.min() >= 0
    assert mass.sum() == pytest.approx(1, abs=1e-13)
    assert mass @ np.exp(-losses) == pytest.approx(1, abs=1e-12)


# -- rounding ------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("sigma", "q", "steps"), [*SETTINGS, *MORE])
def test_rounding_of_prv_stays_far_below_its_allowance(sigma, q, steps, monkeypatch):
    kept = _keep_composition(monkeypatch)
    epsilon = pld_epsilon(sigma, q, steps, DELTA, 1e-3)
    prv._directed_epsilon(PrivacyLoss(sigma, q, "remove"), steps, DELTA, 1e-3 * epsilon)
    step = kept["composer"].prvs[0]
    monkeypatch.undo()
    # The library evaluates this mechanism in 80 bits, and the later steps keep this precision.
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


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta"), [*TILTED_SETTINGS, (0.32, 1e-8, 10**6, 1e-8)]
)
def test_rounding_of_the_tilted_sum_stays_far_below_its_allowance(
    sigma, q, steps, delta, monkeypatch
):
    kept = {}
    rfft, irfft = scipy.fft.rfft, scipy.fft.irfft
    monkeypatch.setattr(scipy.fft, "rfft", lambda x: rfft(kept.setdefault("step", x)))
    monkeypatch.setattr(scipy.fft, "irfft", lambda f, n: kept.setdefault("sum", irfft(f, n)))
    loss = PrivacyLoss(sigma, q, "remove")
    tilted._tilted_bound(loss, steps, delta, tilted._chernoff_tilt(loss, steps, delta), 1e-2)
    power, spectrum = np.ones(1, np.clongdouble), rfft(kept["step"].astype(np.longdouble))
    for bit in f"{steps:b}":
        power = power * power * (spectrum if bit == "1" else 1)
    errors = np.cumsum(kept["sum"] - irfft(power, len(kept["step"])))
    allowance = tilted._ROUNDING_PER_STEP * steps + tilted._ROUNDING_PER_TRANSFORM
    assert float(errors.max() - errors.min()) < allowance / 5


# -- errors are subtracted from delta ----------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7, 1000, 16384])
def test_all_errors_together_fit_in_their_share_of_delta(steps):
    """Sum the parts by their definitions: over T steps, two sides and both neighbours."""
    budget = prv.ErrorBudget(1e-8, steps)
    cut_off = sum(2 * budget.step_tail for _ in range(steps))
    assert budget.spent == pytest.approx(2 * cut_off + 2 * budget.discretisation + budget.sum_tail)
    assert 0.5 * budget.delta < budget.spent <= budget.delta


@pytest.mark.parametrize("steps", [100, 1000, 10**5])
def test_the_mesh_exceeds_its_shift_with_at_most_the_budgeted_probability(steps):
    """Take the worst errors of mean 0: half a cell up or down, each with probability 1/2."""
    budget = prv.ErrorBudget(1e-8, steps)

    def beyond(cells: float) -> float:
        return float(binom.sf(math.floor(steps / 2 + cells), steps, 0.5))

    assert beyond(budget.cells) <= budget.discretisation < beyond(0.85 * budget.cells)


@pytest.fixture
def asked(monkeypatch):
    """Record the log probabilities that are passed to `PrivacyLoss.extremes`."""
    asked, extremes = [], PrivacyLoss.extremes
    monkeypatch.setattr(
        PrivacyLoss, "extremes", lambda it, log: asked.append(log) or extremes(it, log)
    )
    return asked


def test_the_bound_uses_only_the_numbers_of_its_budget(asked, monkeypatch):
    sigma, q, steps = COMMON
    given, rounded, tails = [], [], prv._tails
    monkeypatch.setattr(prv, "_tails", lambda *rest: given.append(rest[1:]) or tails(*rest))
    kept = _keep_composition(monkeypatch)
    compute = prv.Fourier.compute_composition

    def compose(composer, steps):
        composed = compute(composer, steps)
        found = composed.compute_epsilon
        composed.compute_epsilon = lambda *rest: rounded.append(rest) or found(*rest)
        return composed

    monkeypatch.setattr(prv.Fourier, "compute_composition", compose)
    prv._directed_epsilon(PrivacyLoss(sigma, q, "remove"), steps, DELTA, 1e-2)
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
def test_prv_subtracts_its_errors_from_delta(share, monkeypatch):
    """If errors take half of delta, the bound is the epsilon at the other half."""
    monkeypatch.setattr(prv, "DELTA_ERROR_SHARE", share)
    error = 1e-3
    expected = pld_epsilon(*COMMON, (1 - share) * DELTA, 1e-5)
    bound = prv_epsilon(*COMMON, DELTA, error)
    assert expected + 0.95 * error < bound < expected + 1.3 * error


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("_STEP_SHARE", 0.5),
        ("_OUTSIDE", 0.3),
        ("_ROUNDING_PER_STEP", 1e-6),
        ("_ROUNDING_PER_TRANSFORM", 3e-3),
    ],
)
def test_the_tilted_sum_subtracts_its_errors_from_delta(name, share, monkeypatch):
    """A far larger allowance for an error raises the bound instead of breaking it."""
    sigma, q, steps = COMMON
    exact = pld_epsilon(sigma, q, steps, DELTA, 1e-4)
    monkeypatch.setattr(tilted, name, share)
    bound = directed_epsilon(PrivacyLoss(sigma, q, "remove"), steps, DELTA, 1e-4 * exact)
    assert bound > exact * (1 + 2e-3)


@pytest.mark.parametrize("steps", [10, 2719])
def test_losses_above_the_mesh_share_their_part_of_delta_over_all_steps(steps, asked):
    directed_epsilon(PrivacyLoss(1.0, 0.01, "remove"), steps, DELTA, 1e-3)
    assert asked
    assert [steps * math.exp(each) for each in asked] == pytest.approx(
        [tilted._STEP_SHARE * DELTA] * len(asked)
    )
