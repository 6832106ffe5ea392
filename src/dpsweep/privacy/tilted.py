"""A certified upper bound on epsilon for targets that need too large a mesh in `dpsweep.privacy.prv`.

These targets have many steps, a small sampling rate, a small delta, or a large delta at a small epsilon. Two
methods make the mesh smaller and the sum of many steps precise enough:

* splitting losses. Every privacy loss is split between the two nearest points of the mesh so that its
  probabilities under both neighbours stay the same ("Connect the Dots", Doroshenko, Ghazi, Kamath, Kumar
  and Manurangsi 2022). Split losses can be merged again, so the result dominates the step, and the bound
  needs no allowance for the mesh. It exceeds epsilon by about T (t + 1) h^2 / 12 on a mesh of width h;
  theorem 5.5 of the PRV accountant needs h sqrt(T).
* an exponential tilt. Probabilities are multiplied by exp(t loss) before they are composed. The tilt t is
  chosen so that the sum of T losses lies around epsilon (the saddle point; Alghamdi et al. 2023, "The
  Saddle-Point Method in Differential Privacy"). Then the rounding and wrap-around errors of the fast
  Fourier transform are small compared with delta, even for a tiny delta.

The bound. A loss y between two points of the mesh is split between them so that E 1 and E exp(-Y) stay,
the probabilities under both neighbours. The split losses determine the unsplit ones, so their
delta(epsilon) = E max(0, 1 - exp(epsilon - S)) is at least the exact one. The FFT composes probabilities
times exp(t y - K(t)) with K(t) = log E exp(t Y), and the result is multiplied by exp(T K(t) - t s). Any
t >= 0 gives a valid bound. What is lost is added to delta: losses of single steps above the mesh, sums
above the window (a tilted probability by Chernoff) and rounding of the FFT. Sums below the window wrap
around, and can only increase delta.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.fft
from scipy.optimize import brentq
from scipy.special import logsumexp

from dpsweep.privacy.prv import Direction, Floats, PrivacyLoss, quadrature
from dpsweep.privacy.sampling import CalibrationError

DIRECTIONS: tuple[Direction, ...] = ("remove", "add")
# Share of delta for losses of single steps above the mesh.
_STEP_SHARE = 1e-5
# Tilted probability of a sum outside the window, on either side.
_OUTSIDE = 1e-8
# A mesh of this size, of one step or of the sum, takes half a second and 0.3 GB.
MAX_MESH_SIZE = 2**19
# Allowance for rounding in a tilted probability, per composed step and once for the transforms. A test
# compares with 80-bit arithmetic: the errors are more than five times smaller.
_ROUNDING_PER_STEP = 2.0**-49
_ROUNDING_PER_TRANSFORM = 2.0**-43
_LARGEST_EXPONENT = 600.0
# Largest mesh width as a share of epsilon. If a few steps lose almost all of epsilon, splitting adds an
# error that grows with the square of the width: at most 0.03 % at this width.
_FINEST = 1 / 100
# Nodes of the quadrature in each cell; wide cells are split first so that the densities are smooth in each.
_NODES = 4


def tilted_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, epsilon_error: float
) -> float:
    """Return a certified upper bound on epsilon, the worse of adding and removing an example.

    >>> f"{tilted_epsilon(1.0, 0.01, 1000, 1e-5, 0.001):.2f}"
    '1.83'

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1).
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        epsilon_error: approximate excess of the bound over the exact epsilon. It is larger if the mesh
            would exceed `MAX_MESH_SIZE`.

    Raises:
        CalibrationError: the accountant failed numerically.
    """
    remove, add = (PrivacyLoss(noise_multiplier, sampling_rate, each) for each in DIRECTIONS)
    bound = directed_epsilon(remove, steps, delta, epsilon_error)
    # In most cases adding has a much smaller epsilon, and a coarse bound shows this.
    if directed_epsilon(add, steps, delta, 10 * epsilon_error) <= bound:
        return bound
    return max(bound, directed_epsilon(add, steps, delta, epsilon_error))


def smallest_delta(steps: int) -> float:
    """Return the smallest delta that both accountants resolve for this number of steps.

    The second accountant, privacy loss distributions without a tilt, sets the limit.
    """
    return max(1e-12, 1e-14 * steps)


def mesh_width(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    epsilon_error: float,
    epsilon: float = math.inf,
) -> float:
    """Return a mesh width on which "connect the dots" raises epsilon by about ``epsilon_error``.

    Args:
        noise_multiplier: sigma.
        sampling_rate: q.
        steps: T.
        delta: of the guarantee.
        epsilon_error: allowed increase of epsilon.
        epsilon: its approximate value.
    """
    loss = PrivacyLoss(noise_multiplier, sampling_rate, "remove")
    width = _mesh_width(loss, steps, _chernoff_tilt(loss, steps, delta), epsilon_error)
    return min(width, _FINEST * epsilon)


def directed_epsilon(loss: PrivacyLoss, steps: int, delta: float, epsilon_error: float) -> float:
    """Return the certified upper bound on epsilon for one direction of adjacency.

    Args:
        loss: of one step, in that direction.
        steps: T.
        delta: of the guarantee.
        epsilon_error: allowed increase of epsilon by splitting losses.

    Raises:
        CalibrationError: the accountant failed numerically.
    """
    # Every tilt gives a valid bound. Start with Chernoff's tilt; a tilt that centres the sum at epsilon
    # gives the smallest error.
    t = _chernoff_tilt(loss, steps, delta)
    bound = _tilted_bound(loss, steps, delta, t, 10 * epsilon_error)
    # A bound of 0 or less needs no finer mesh: delta alone is enough.
    while 0 < bound < math.inf:
        t, width = _tilt_around(loss, steps, bound), _FINEST * bound
        finer = min(bound, _tilted_bound(loss, steps, delta, t, epsilon_error, width))
        # The mesh width fits the old bound. Repeat with a finer mesh if the new bound is far smaller.
        if finer > bound / 2:
            return finer
        bound = finer
    if bound <= 0:
        return bound
    raise CalibrationError(
        f"double precision cannot resolve delta {delta:g} at noise multiplier {loss.sigma:.6g}, sampling "
        f"rate {loss.q:.6g}, {steps} steps"
    )


def _tilted_bound(
    loss: PrivacyLoss,
    steps: int,
    delta: float,
    t: float,
    epsilon_error: float,
    widest: float = math.inf,
) -> float:
    beyond = _STEP_SHARE * delta  # probability that any step has a loss above the mesh
    low, high = loss.extremes(math.log(beyond / steps))
    width = min(_mesh_width(loss, steps, t, epsilon_error), widest)
    width = max(width, (low + high) / MAX_MESH_SIZE)
    first, mass = _discretised(loss, -low, high, width)
    losses = width * (first + np.arange(len(mass)))
    with np.errstate(divide="ignore"):
        exponent = np.log(mass) + t * losses
    total = float(logsumexp(exponent))
    tilted = np.exp(exponent - total)
    mean = float(tilted @ losses)
    deviation = math.sqrt(steps * float(tilted @ (losses - mean) ** 2))
    # Chernoff: the tilted sum lies below `start` with probability at most _OUTSIDE, and likewise above `end`.
    steepest = 1.5 * math.sqrt(-2 * math.log(_OUTSIDE)) / deviation
    orders = np.geomspace(min(1 / (losses[-1] - losses[0]), steepest), steepest, 12)

    def reach(order: float) -> float:
        moment = logsumexp(exponent - total + order * (losses - mean))
        return float(steps * moment - math.log(_OUTSIDE)) / abs(order)

    centre = steps * mean
    low, high = (min(reach(sign * order) for order in orders) for sign in (-1, 1))
    start, end = math.floor((centre - low) / width), math.ceil((centre + high) / width)
    size = scipy.fft.next_fast_len(end - start + 1, real=True)
    if size > 8 * MAX_MESH_SIZE:
        return _tilted_bound(loss, steps, delta, t, 4 * epsilon_error, 2 * widest)
    places = (first + np.arange(len(mass))) % size
    spectrum = scipy.fft.rfft(np.bincount(places, tilted, minlength=size)) ** steps
    composed = np.roll(scipy.fft.irfft(spectrum, size), -(start % size)).clip(min=0)
    sums = width * (start + np.arange(size))
    # Skip sums far below the centre, which would overflow the tilt: epsilon is larger.
    seen = t * (sums - centre) > -_LARGEST_EXPONENT
    sums, composed = sums[seen], composed[seen]
    # Probabilities of the sums under one neighbour and under the other, in units of exp(unit).
    unit = steps * total - t * centre
    tilt = np.exp(-t * (sums - centre))
    ratios = np.exp((sums - centre).clip(max=_LARGEST_EXPONENT))
    here = composed * tilt
    here_above, there_above = (np.flip(np.flip(each).cumsum()) for each in (here, here / ratios))
    # Sums above the window have a tilted probability of at most _OUTSIDE, times at most the last tilt.
    rounding = _ROUNDING_PER_STEP * steps + _ROUNDING_PER_TRANSFORM
    allowed = (
        (delta - beyond) * math.exp(min(-unit, _LARGEST_EXPONENT))
        - _OUTSIDE * tilt[-1]
        - rounding * tilt
    )
    # delta(epsilon) = here_above - exp(epsilon - centre) there_above falls with epsilon. Find the first cell
    # (sums[i - 1], sums[i]] with an upper end at which delta(epsilon) is allowed.
    meets = here_above - ratios * there_above <= np.append(allowed[0], allowed[:-1])
    (found,) = np.nonzero(meets)
    if not len(found):
        return math.inf
    index = max(int(found[0]), 1)
    ratio = (here_above[index] - allowed[index - 1]) / there_above[index]
    if not ratio > 0:  # allowed at the start of the window already
        return float(sums[index - 1])
    return float(max(sums[index - 1], centre + math.log(ratio)))


def _chernoff_tilt(loss: PrivacyLoss, steps: int, delta: float) -> float:
    """Return the t for which Chernoff's bound on the tail above the tilted mean is delta."""

    def excess(t: float) -> float:
        cumulant, mean = _moments(loss, steps, t)
        return cumulant - t * mean - math.log(delta)

    return _falling_root(loss, steps, excess)


def _tilt_around(loss: PrivacyLoss, steps: int, epsilon: float) -> float:
    """Return the t >= 0 for which the tilted sum has the mean epsilon; 0 if the mean is always larger."""
    return _falling_root(loss, steps, lambda t: epsilon - _moments(loss, steps, t)[1])


def _falling_root(loss: PrivacyLoss, steps: int, excess: Callable[[float], float]) -> float:
    """Return the approximate root of a falling function of the tilt, or the largest tilt if there is none."""
    if excess(0.0) <= 0:
        return 0.0
    weights, losses, _ = _tilted_nodes(loss, 0.0)
    deviation = math.sqrt(steps * float(weights @ (losses - weights @ losses) ** 2))
    largest = 1e3 * min(loss.sigma, 2 * loss.sigma**2)  # larger tilts would need long quadratures
    low, high = 0.0, min(1 / deviation, largest)
    while excess(high) > 0:
        if high >= largest:
            return high
        low, high = high, 1.5 * high
    return float(brentq(excess, low, high, rtol=1e-3, xtol=1e-12))


def _moments(loss: PrivacyLoss, steps: int, t: float) -> tuple[float, float]:
    """Return T K(t) = T log E exp(t loss), and the mean of the tilted sum, T K'(t)."""
    weights, losses, cumulant = _tilted_nodes(loss, t)
    return steps * cumulant, steps * float(weights @ losses)


def _tilted_nodes(loss: PrivacyLoss, t: float) -> tuple[Floats, Floats, float]:
    """Return weights and losses of a tilted step, and its cumulant K(t)."""
    x, log_weight = quadrature(*loss.support(t), loss.sigma)
    losses = loss.loss(x)
    exponent = log_weight + loss.log_density(x) + t * losses
    total = float(logsumexp(exponent))
    return np.exp(exponent - total), losses, total - math.log(loss.sigma * math.sqrt(2 * math.pi))


def _mesh_width(loss: PrivacyLoss, steps: int, t: float, epsilon_error: float) -> float:
    """Return a mesh width on which splitting losses raises epsilon by about ``epsilon_error``.

    A loss at a share u of its cell adds u (1 - u) h^2 to the second moment, and t (t + 1) / 2 times this
    to the cumulant.
    """
    weights, losses, _ = _tilted_nodes(loss, t)

    def error(width: float) -> float:
        share = losses / width % 1
        return steps * (t + 1) / 2 * width**2 * float(weights @ (share * (1 - share)))

    width = math.sqrt(8 * epsilon_error / (steps * (t + 1)))
    # At a small sampling rate most losses are near 0, and splitting hardly moves them: use wider cells.
    while error(1.25 * width) <= epsilon_error and 1.25 * width * (t + 1) < 0.25:
        width *= 1.25
    return width


def _discretised(loss: PrivacyLoss, low: float, high: float, width: float) -> tuple[int, Floats]:
    """Split the losses of a step between the points of a mesh, and keep both neighbours' probabilities.

    Losses below `low` are raised to `low`. Losses above `high` are left out.

    Returns:
        The index of the first point, and the probabilities of all points from it on.
    """
    first, last = math.floor(low / width), math.ceil(high / width)
    least, most = loss.support(0.0)
    rough = math.ceil(4 * (most - least) / min(loss.sigma, 2 * loss.sigma**2))
    edges = loss.outcome(width * np.arange(first, last + 1, dtype=np.float64)).clip(least, most)
    edges = np.unique(np.concatenate([np.linspace(least, most, rough + 1), edges]))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = np.diff(edges)[:, None] / 2
    x = (edges[:-1, None] + half * (1 + nodes)).ravel()
    losses = loss.loss(x)
    probability = (half * weights).ravel() * np.exp(loss.log_density(x))
    probability /= probability.sum()
    kept = losses < last * width
    losses, probability = losses[kept].clip(min=first * width), probability[kept]
    place = np.floor(losses / width).astype(np.int64).clip(min=first)
    # The shares of the two points also keep the mean of exp(-loss).
    upper = (np.expm1(place * width - losses) / math.expm1(-width)).clip(0, 1)
    size = last - first + 2
    mass = np.bincount(place - first, probability * (1 - upper), minlength=size)
    mass += np.bincount(place - first + 1, probability * upper, minlength=size)
    return first, np.asarray(mass, dtype=np.float64)
