"""A certified, tight and fast upper bound on epsilon by the PRV accountant.

The privacy random variable (PRV) of a mechanism is its privacy loss log(P/Q) at an outcome of P.
Gopi, Lee and Wutschitz 2021 ("Numerical Composition of Differential Privacy", theorem 5.5) compose
T of them by one FFT on a mesh over a window [-L, L] and bound the error in epsilon and in delta.
`prv_accountant` implements this; this module uses its discretisation, composition and inversion.
It replaces two parts, with which a tight bound would take seconds and gigabytes:

* the window. The library adds 3 to a Renyi bound on epsilon; at epsilon 0.25 this window is eight
  times wider than needed. Here L follows from Chernoff bounds on the tails of the composed privacy
  loss, which the theorem requires.
* the number format. The library evaluates the PRV in 80-bit floats. Here doubles are enough: cell
  masses telescope, the mean comes from Gauss-Legendre quadrature, and the bound includes an
  allowance for rounding.

The bound. Let Y be the privacy loss of a step, and S the sum of T of them, so that
delta(epsilon) = E max(0, 1 - exp(epsilon - S)). Y is rounded to a mesh of width h that keeps its mean.
The composition by an FFT over the window gives a delta' with

    delta(epsilon) <= delta'(epsilon - eta) + d,

where d is a thousandth of delta (`DELTA_ERROR_SHARE`), and eta 0.0005 times the target. The errors are

* 2 d/8: a step falls outside the window (counts twice);
* 2 d/12: rounding moves S by more than eta, by Hoeffding with h = eta / sqrt(T/2 log(12/d)) (twice);
* d/4: S - eta exceeds the window, wraps around and is lost.

They sum to 2d/3 <= d. Mass that leaves the window on the left reappears on the right, and can only
increase delta'. So the epsilon at which delta' is delta - d, plus eta, is an upper bound. An allowance for
rounding in double precision is added to d.

Both directions of add/remove adjacency are bounded: removing an example, (P, Q) = (mixture,
Gaussian), and adding one, (Gaussian, mixture). For one step, removing is the worse for every
epsilon >= 0; we know of no proof of this for composed steps, and of no case where it is not.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from prv_accountant.composers import Fourier
from prv_accountant.discretisers import CellCentred
from prv_accountant.domain import Domain
from scipy.special import logsumexp, ndtr, ndtri_exp

from dpsweep.privacy.sampling import CalibrationError

Floats = npt.NDArray[np.float64]
Direction = Literal["remove", "add"]

# Share of delta for truncation, discretisation and wrap-around errors. It raises epsilon by four
# parts in 10^5.
DELTA_ERROR_SHARE = 1e-3
# A mesh of this size takes about 1.5 s and 0.7 GB.
MAX_MESH_SIZE = 2**21
# Allowance for rounding in delta, per composed step and once for the transforms. A test compares with
# 80-bit arithmetic: the errors are more than ten times smaller.
_ROUNDING_PER_STEP = 2.0**-47
_ROUNDING_PER_TRANSFORM = 2.0**-43
# Limit on the panels of an integral over the outcomes of a step, which takes a tenth of a second.
_MOST_PANELS = 2**15


@dataclass(frozen=True)
class PrivacyLoss:
    """The privacy loss of one Poisson-subsampled Gaussian step, as a random variable.

    Outcomes x follow the mixture (1-q) N(0, sigma^2) + q N(1, sigma^2) for "remove" and
    N(0, sigma^2) for "add"; the loss is +-log((1-q) + q exp((2x-1) / (2 sigma^2))).
    """

    sigma: float
    q: float
    direction: Direction

    def loss(self, x: Floats) -> Floats:
        """Return the privacy loss of outcomes."""
        mixture = np.logaddexp(
            math.log1p(-self.q), math.log(self.q) + (2 * x - 1) / (2 * self.sigma**2)
        )
        return np.asarray(mixture if self.direction == "remove" else -mixture)

    def outcome(self, loss: Floats) -> Floats:
        """Invert `loss`; return -inf for losses that the mixture cannot reach."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            ratio = np.expm1(loss if self.direction == "remove" else -loss) + self.q
            x = self.sigma**2 * np.log(ratio / self.q) + 0.5
        return np.where(ratio > 0, x, -np.inf)

    def cdf(self, loss: Floats) -> Floats:
        """Return the probability of a loss of at most this."""
        x = self.outcome(loss)
        if self.direction == "add":  # the loss falls with x
            return np.asarray(ndtr(-x / self.sigma))
        return np.asarray((1 - self.q) * ndtr(x / self.sigma) + self.q * ndtr((x - 1) / self.sigma))

    def log_density(self, x: Floats) -> Floats:
        """Return the log density of the outcomes, without the constant -log(sigma sqrt(2 pi))."""
        base = -0.5 * (x / self.sigma) ** 2
        if self.direction == "add":
            return base
        return base + self.loss(x)

    def support(self, t: float) -> tuple[float, float]:
        """Return the range of outcomes in which exp(t loss) times the density is not negligible.

        Both factors are Gaussians times powers of exp(x / sigma^2). So the peak lies within |t| + 1
        of 0, and all mass but 10^-32 lies within 12 sigma of the peaks.
        """
        return -abs(t) - 12 * self.sigma, abs(t) + 1 + 12 * self.sigma

    def affordable(self, t: float) -> bool:
        """Return whether an integral over `support` needs at most `_MOST_PANELS` panels."""
        low, high = self.support(t)
        return _panels(low, high, self.sigma) <= _MOST_PANELS

    def extremes(self, log_probability: float) -> tuple[float, float]:
        """Return a, b with Pr[loss < -a] and Pr[loss > b] at most exp(log_probability) each."""
        reach = -float(ndtri_exp(log_probability)) * self.sigma
        # Outcomes lie stochastically between N(0, sigma^2) and N(1, sigma^2).
        low, high = self.loss(np.array([-reach, reach + (self.direction == "remove")]))
        return (-low, high) if self.direction == "remove" else (-high, low)


@dataclass(frozen=True)
class _TruncatedLoss:
    """A privacy loss conditioned on lying in [low, high], with the interface that `CellCentred` uses."""

    base: PrivacyLoss
    low: float
    high: float
    pm_inf: float = 0.0

    def probability(self, low: npt.NDArray[Any], high: npt.NDArray[Any]) -> Floats:
        """Return the masses of adjacent cells.

        Each upper edge is the next lower edge. Each edge is evaluated once, so the masses sum to 1.
        """
        edges = np.append(low, high[-1]).clip(self.low, self.high).astype(np.float64)
        masses = np.diff(self.base.cdf(edges))
        return np.asarray(masses / masses.sum())

    def mean(self) -> float:
        ends = np.sort(self.base.outcome(np.array([self.low, self.high])))
        low, high = self.base.support(0.0)
        x, log_weight = quadrature(max(ends[0], low), min(ends[1], high), self.base.sigma)
        weight = np.exp(log_weight + self.base.log_density(x))
        return float(weight @ self.base.loss(x) / weight.sum())


def quadrature(low: float, high: float, sigma: float) -> tuple[Floats, Floats]:
    """Return nodes and log weights of composite Gauss-Legendre quadrature on [low, high].

    Panels are short compared with both scales of the integrands: sigma of the densities, and
    pi sigma^2, the distance of the loss's singularities from the real axis.
    """
    nodes, weights = np.polynomial.legendre.leggauss(16)
    panels = math.ceil(_panels(low, high, sigma))
    half = (high - low) / (2 * panels)
    centres = low + half * (2 * np.arange(panels) + 1)
    return (centres[:, None] + half * nodes).ravel(), np.tile(np.log(half * weights), panels)


def _panels(low: float, high: float, sigma: float) -> float:
    return (high - low) / min(sigma, 2 * sigma**2)


def _tails(loss: PrivacyLoss, steps: int, log_probability: float) -> tuple[float, float]:
    """Return a, b with Pr[S < -a] and Pr[S > b] at most exp(log_probability) each.

    S is the sum of the losses of `steps` steps. Chernoff: Pr[S > b] <= exp(T K(t) - t b) for every
    t > 0, where K is the cumulant generating function of one step; likewise on the left. Every t
    gives a valid bound, so a grid is enough: around the optimum of a Gaussian S, and below it.
    """
    x, log_weight = quadrature(*loss.support(0.0), loss.sigma)
    weight = np.exp(log_weight + loss.log_density(x))
    weight /= weight.sum()
    values = loss.loss(x)
    deviation = math.sqrt(steps * float(weight @ (values - weight @ values) ** 2))
    gaussian_optimum = math.sqrt(-2 * log_probability) / deviation

    def bound(t: float) -> float:
        x, log_weight = quadrature(*loss.support(t), loss.sigma)
        cumulant = logsumexp(log_weight + loss.log_density(x) + t * loss.loss(x)) - math.log(
            loss.sigma * math.sqrt(2 * math.pi)
        )
        return float(steps * cumulant - log_probability) / abs(t)

    grid = gaussian_optimum * np.geomspace(0.02, 1.5, 24)
    if grid[0] > 1:  # tiny sampling rate: S is far from Gaussian, and its best t is far smaller
        grid = np.append(grid, np.geomspace(1, grid[0], 24, endpoint=False))
    # For an extreme sigma and sampling rate, the best t may take minutes and gigabytes.
    affordable = [t for t in grid if loss.affordable(t)]
    if not affordable:
        raise CalibrationError(
            f"noise multiplier {loss.sigma:.6g} and sampling rate {loss.q:.3g} are too extreme to integrate"
        )
    return min(bound(-t) for t in affordable), min(bound(t) for t in affordable)


def prv_epsilon(
    noise_multiplier: float, sampling_rate: float, steps: int, delta: float, epsilon_error: float
) -> float:
    """Return a certified upper bound on epsilon, the worse of adding and removing an example.

    >>> f"{prv_epsilon(1.0, 0.01, 1000, 1e-5, 0.01):.2f}"
    '1.84'

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, per step.
        sampling_rate: probability that an example takes part in a step, in (0, 1).
        steps: number of steps that are composed.
        delta: of the (epsilon, delta) guarantee.
        epsilon_error: largest excess of the bound over the exact epsilon, apart from the effect of
            `DELTA_ERROR_SHARE`. Time and memory grow with its inverse. If the mesh would exceed
            `MAX_MESH_SIZE`, the error and the bound are larger.

    Raises:
        CalibrationError: the accountant failed numerically, or delta is too small for the steps.
    """

    def bound(direction: Direction, error: float) -> float:
        loss = PrivacyLoss(noise_multiplier, sampling_rate, direction)
        try:
            upper = _directed_epsilon(loss, steps, delta, error)
        except (RuntimeError, ValueError, OverflowError, AssertionError) as error_found:
            raise CalibrationError(f"{failure}: {error_found}") from error_found
        if not math.isfinite(upper):
            raise CalibrationError(f"{failure}: it returned {upper}")
        return upper

    failure = (
        f"the PRV accountant failed at noise multiplier {noise_multiplier:.6g}, "
        f"sampling rate {sampling_rate:.6g}, {steps} steps, delta {delta}"
    )
    remove = bound("remove", epsilon_error)
    # In most cases adding has a much smaller epsilon, and a coarse bound shows this.
    add = bound("add", 10 * epsilon_error)
    return max(remove, add if add <= remove else bound("add", epsilon_error))


@dataclass(frozen=True)
class ErrorBudget:
    """Probabilities of the errors in composing T privacy losses on a mesh (theorem 5.5).

    Attributes:
        delta: largest total addition to delta.
        steps: T.
    """

    delta: float
    steps: int

    @property
    def step_tail(self) -> float:
        """Probability that the loss of one step lies beyond the window, on one side."""
        return self.delta / (16 * self.steps)

    @property
    def discretisation(self) -> float:
        """Probability that the mesh moves the sum by more than the error in epsilon, in one direction."""
        return self.delta / 12

    @property
    def sum_tail(self) -> float:
        """Probability that the sum lies beyond the window, on one side."""
        return self.delta / 4

    @property
    def cells(self) -> float:
        """Largest shift of the sum by the mesh, in cells, except with probability `discretisation`.

        Hoeffding: T independent errors of mean 0, each between minus and plus half a cell.
        """
        return math.sqrt(self.steps / 2 * math.log(1 / self.discretisation))

    @property
    def spent(self) -> float:
        """Largest addition to delta.

        Truncation and the mesh change the sum under both neighbours, so they count twice. A sum that
        wraps around on the left can only raise delta.
        """
        cut_off = self.steps * 2 * self.step_tail
        return 2 * cut_off + 2 * self.discretisation + self.sum_tail


def smallest_delta(steps: int) -> float:
    """Return the smallest delta that is provable with the allowance for rounding."""
    return _rounding(steps) / DELTA_ERROR_SHARE / 10


def _rounding(steps: int) -> float:
    return _ROUNDING_PER_STEP * steps + _ROUNDING_PER_TRANSFORM


def _directed_epsilon(loss: PrivacyLoss, steps: int, delta: float, epsilon_error: float) -> float:
    """Return the certified upper bound on epsilon for one direction of adjacency."""
    budget = ErrorBudget(DELTA_ERROR_SHARE * delta, steps)
    rounding = _rounding(steps)
    if delta < smallest_delta(steps):
        raise CalibrationError(
            f"double precision cannot resolve it: use a delta of at least {smallest_delta(steps):.1e}"
        )
    cells = budget.cells
    # The window must leave room for this error, and for half a cell per step: matching the mean of
    # the discretised loss may shift it by so much.
    room = cells + steps / 2
    if 4 * room > MAX_MESH_SIZE:
        raise CalibrationError(f"{steps} steps are too many for a mesh of {MAX_MESH_SIZE} cells")
    reach = max(
        *loss.extremes(math.log(budget.step_tail)),
        *_tails(loss, steps, math.log(budget.sum_tail)),
    )
    mesh = max(epsilon_error / cells, reach / (MAX_MESH_SIZE / 2 - room))
    window = reach + room * mesh
    domain = Domain.create_aligned(-window, window, mesh)
    step = CellCentred().discretise(
        _TruncatedLoss(loss, float(domain.t_min()), float(domain.t_max())), domain
    )
    composed = Fourier([step]).compute_composition([steps])
    _, _, upper = composed.compute_epsilon(delta, budget.delta + rounding, mesh * cells)
    return float(upper)
