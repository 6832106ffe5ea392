"""How good is the advice of `dpsweep recommend`, and is there a better rule?

    python -m benchmarks.evidence.recommend inputs           # features of all pairs
    python -m benchmarks.evidence.recommend train            # what is missing of the grid; can be killed
    python -m benchmarks.evidence.recommend train --hidden   # the same of the hidden pairs
    python -m benchmarks.evidence.recommend judge            # then python -m benchmarks.tables

The pairs of an encoder and data are the sweeps of recommend.yaml, each at epsilon 0.5, 2 and 8. A rule reads
no accuracy, and its constants come from other data sets than those it is judged on. It is compared with a
cross-fitted search: what one seed chooses in the whole grid, the others measure.

The pairs of `HIDDEN` were named before any rule was tried.
"""

import math
import time
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.base.files import atomic_path, read_json, write_json
from dpsweep.cli import stages
from dpsweep.privacy import Sampling
from dpsweep.privacy.accountants import gaussian_noise_multiplier
from dpsweep.privacy.calibration import noise_multiplier
from dpsweep.recommend import rule
from dpsweep.recommend.rule import ProblemFacts, facts_of_sweep, learning_rate, recommend
from dpsweep.study import Paths, load_study
from dpsweep.study.cells import FeatureSource
from dpsweep.training.features import open_features

STUDY = Path(__file__).with_suffix(".yaml")
TRIALS = RESULTS / "recommend.parquet"
RESULT = RESULTS / "recommend.json"
EPSILONS = (0.5, 2.0, 8.0)
HIDDEN = ("mnist_scattering", "cifar-tenth_lite")
"""Not looked at until the rule is fixed: data and an encoder that no other pair has."""
BOUNDS = (0.15, 0.6)
"""Clipping bounds of the grid, in units of G."""
RATES = tuple(2.0**power for power in range(-2, 6))
"""Learning rates of the grid, in units of 1 / (G sqrt(T))."""
_SMALL, _BLOCK = 3000, 2048  # examples


def pairs() -> dict[str, bool]:
    """Return the pairs by name, and whether they are hidden.

    >>> list(pairs().values()).count(True), len(pairs())
    (2, 14)
    """
    return {name: name in HIDDEN for name in load_study(STUDY).sweeps}


@cache
def facts(pair: str, epsilon: float) -> ProblemFacts:
    """Return what a rule may know about a pair."""
    study = load_study(STUDY)
    (epochs,) = study.sweeps[pair].epochs
    return facts_of_sweep(study, pair, epsilon, epochs)


def sizes(train_size: int) -> list[int]:
    """Return the batch sizes of the grid.

    >>> sizes(1347), sizes(5000)
    ([64, 256, 1347], [128, 512, 2048, 5000])
    """
    first = 64 if train_size < _SMALL else 128
    return [first * 4**power for power in range(9) if first * 4**power < train_size * 0.8] + [
        train_size
    ]


def prepare_inputs(chosen: Iterable[str]) -> None:
    """Prepare data and networks of pairs, and compute features, where they are missing."""
    study = load_study(STUDY)
    paths = Paths(Path(study.results))
    for pair in chosen:
        parts = study.sweeps[pair]
        done = {
            paths.dataset(parts.dataset): partial(stages.prepare_dataset, parts.dataset),
            paths.backbone(parts.backbone): partial(stages.prepare_backbone, parts.backbone),
            paths.features(parts.dataset, parts.backbone): partial(
                stages.compute_features, parts.dataset, parts.backbone
            ),
        }
        for name in {parts.backbone, study.datasets[parts.dataset].tokenizer} - {None}:
            if study.backbones[name].reads_with and not paths.tokenizer(name).exists():
                stages.prepare_tokenizer(name, STUDY)
        for folder, stage in done.items():
            if not (folder / "metadata.json").exists():
                print(f"{time.strftime('%H:%M')} {folder}", flush=True)
                stage(STUDY)


class Data:
    """Features of a pair, with a constant one for the bias, in memory.

    Attributes:
        train: float32 (N, d + 1), and `test` likewise.
        classes: K.
    """

    def __init__(self, pair: str):
        study = load_study(STUDY)
        parts = study.sweeps[pair]
        opened = open_features(
            study, Paths(Path(study.results)), FeatureSource(parts.dataset, parts.backbone)
        )
        self.train, self.test = (
            torch.nn.functional.pad(torch.from_numpy(np.array(each)), (0, 1), value=1.0)
            for each in (opened.train_inputs, opened.test_inputs)
        )
        self.labels, self.test_labels = (
            torch.from_numpy(np.array(each, dtype=np.int64))
            for each in (opened.train_labels, opened.test_labels)
        )
        self.classes = len(opened.metadata.classes)


def clipped_sums(
    weights: Tensor, inputs: Tensor, labels: Tensor, bounds: Tensor, classes: int
) -> Tensor:
    """Return the sums of clipped gradients of several linear classifiers at once.

    Args:
        weights: (M, K, d) of the classifiers.
        inputs: (n, d).
        labels: (n,).
        bounds: (M,) clipping bounds.
        classes: K.

    Returns:
        (M, K, d). The gradient of an example is the outer product of its error and its input, whose norm
        is the product of their norms.
    """
    logits = (inputs @ weights.flatten(0, 1).T).unflatten(1, (len(weights), classes))
    errors = logits.softmax(-1)
    errors.sub_(torch.nn.functional.one_hot(labels, classes)[:, None])
    norms = errors.norm(dim=-1) * inputs.norm(dim=1, keepdim=True)
    errors.mul_((bounds / norms.clamp_min(1e-12)).clamp_max(1)[..., None])
    return (errors.flatten(1).T @ inputs).unflatten(0, (len(weights), classes))


@torch.no_grad()
def train(
    data: Data, sampling: Sampling, sigma: float, settings: Sequence[tuple[float, float]], seed: int
) -> list[float]:
    """Train heads with DP-Adam from zero and return their macro accuracies on the test set.

    The settings see the same batches and the same noise, so that their differences scatter less.

    Args:
        data: features.
        sampling: N, B and T.
        sigma: the noise multiplier.
        settings: (clipping bound, learning rate) of each head.
        seed: of batches and noise.
    """
    random = torch.Generator().manual_seed(seed)
    bounds, rates = torch.tensor(settings).T
    shape = (data.classes, data.train.shape[1])
    weights, first, second = (torch.zeros(len(settings), *shape) for _ in range(3))
    whole, size = sampling.units, sampling.batch_size
    for step in range(1, sampling.steps + 1):
        drawn = torch.arange(whole)
        if size < whole:
            drawn = (torch.rand(whole, generator=random) < size / whole).nonzero()[:, 0]
        noise = sigma * torch.randn(shape, generator=random)
        gradient = bounds[:, None, None] * noise
        for part in drawn.split(_BLOCK):
            gradient += clipped_sums(
                weights, data.train[part], data.labels[part], bounds, data.classes
            )
        gradient /= size
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
        weights -= (rates / (1 - 0.9**step))[:, None, None] * first / root
    found = (data.test @ weights.flatten(0, 1).T).unflatten(1, (len(settings), data.classes))
    right = (found.argmax(-1) == data.test_labels[:, None]).double()
    by_class = [right[data.test_labels == each].mean(0) for each in data.test_labels.unique()]
    accuracies: list[float] = torch.stack(by_class).mean(0).tolist()
    return accuracies


def train_settings(
    pair: str, epsilon: float, size: int, settings: Sequence[tuple[float, float]], seed: int
) -> list[dict[str, Any]]:
    """Train some settings of a problem, and return a row for each."""
    known = facts(pair, epsilon)
    sampling = Sampling(known.train_size, size, known.steps(size))
    sigma = noise_multiplier(epsilon, known.delta, sampling)
    accuracies = train(_data(pair), sampling, sigma, settings, seed)
    return [
        {
            **{"pair": pair, "epsilon": epsilon, "batch_size": size, "seed": seed},
            **{"clipping_bound": bound, "learning_rate": rate, "macro_accuracy": accuracy},
        }
        for (bound, rate), accuracy in zip(settings, accuracies, strict=True)
    ]


@cache
def _data(pair: str) -> Data:
    return Data(pair)


def grid(known: ProblemFacts, size: int) -> list[tuple[float, float]]:
    """Return the clipping bounds and learning rates of the grid for a batch size."""
    unit = learning_rate(known.gradient_norm, known.steps(size))
    return [(bound * known.gradient_norm, rate * unit) for bound in BOUNDS for rate in RATES]


def kept() -> pd.DataFrame:
    """Return all trials so far."""
    return pd.read_parquet(TRIALS) if TRIALS.exists() else pd.DataFrame()


def keep(rows: Iterable[dict[str, Any]]) -> None:
    """Add trials to the kept ones."""
    with atomic_path(TRIALS) as file:
        trials = pd.concat([kept(), pd.DataFrame(rows)], ignore_index=True)
        trials.to_parquet(file, compression="zstd", index=False)


def train_grid(chosen: Sequence[str], seeds: Iterable[int]) -> None:
    """Train what is missing of the grid."""
    trials = kept()
    keys = ["pair", "epsilon", "batch_size", "seed"]
    done = (
        set(trials.loc[trials["grid"], keys].itertuples(index=False, name=None))
        if len(trials)
        else set()
    )
    for seed in seeds:
        for pair in chosen:
            for epsilon in EPSILONS:
                known = facts(pair, epsilon)
                for size in sizes(known.train_size):
                    if (pair, epsilon, size, seed) in done:
                        continue
                    started = time.process_time()
                    rows = train_settings(pair, epsilon, size, grid(known, size), seed)
                    keep(row | {"grid": True} for row in rows)
                    best = max(rows, key=lambda row: row["macro_accuracy"])
                    print(
                        f"{pair} {epsilon:g} B={size} seed {seed}: {best['macro_accuracy']:.3f}, "
                        f"{time.process_time() - started:.1f} s",
                        flush=True,
                    )
            _data.cache_clear()


class Problem:
    """A pair at an epsilon, with its trials and what a rule may know.

    Args:
        known: for a rule.
        data: the name of its data set.
        trials: rows of (batch_size, clipping_bound, learning_rate, seed, macro_accuracy).
    """

    def __init__(self, known: ProblemFacts, data: str, trials: pd.DataFrame):
        self.known, self.data = known, data
        self._seeds = sorted(trials["seed"].unique())
        keys = ["batch_size", "clipping_bound", "learning_rate"]
        self._table = trials.pivot_table(values="macro_accuracy", index=keys, columns="seed") * 100

    def searched(self) -> float:
        """Accuracy of what one seed chooses in the whole grid, measured by the others."""
        repeated = self._table[self._table.notna().sum(axis=1) > 1]
        # In the stored sweeps the first seed trains all rates, and the others repeat the best one.
        choosing = [seed for seed in self._seeds if self._table[seed].notna().all()]
        return float(
            np.mean([repeated.loc[repeated[seed].idxmax()].drop(seed).mean() for seed in choosing])
        )

    def accuracy(self, size: int, bound: float, rate: float, seed: int | None = None) -> float:
        """Accuracy of a setting, between those that were trained: on logarithmic axes of B and the rate.

        C is that of the nearest cell. Without a seed it is the mean over all.
        """
        sizes = self._table.index.get_level_values(0).unique().to_numpy()
        values = [
            self._at(each, bound, rate * self.unit(each) / self.unit(size), seed) for each in sizes
        ]
        return float(np.interp(math.log(size), np.log(sizes), values))

    def unit(self, size: int) -> float:
        """Return the unit of learning rates for a batch size."""
        return learning_rate(self.known.gradient_norm, self.known.steps(size))

    def _at(self, size: int, bound: float, rate: float, seed: int | None) -> float:
        cells = self._table.loc[size]
        bounds = cells.index.get_level_values(0).unique().to_numpy()
        cell = cells.loc[bounds[np.abs(np.log(bounds / bound)).argmin()]]
        found = (cell.mean(axis=1) if seed is None else cell[seed]).dropna()
        return float(np.interp(math.log(rate), np.log(found.index), found))

    def small_grid(self) -> float:
        """Accuracy of what one seed chooses in the small grid, measured by the others."""
        made = recommend(self.known)
        settings = [
            (size, made.clipping_bound, rate)
            for size, rates in made.small_grid.items()
            for rate in rates
        ]
        found = pd.DataFrame(
            {seed: [self.accuracy(*each, seed) for each in settings] for seed in self._seeds}
        )
        return float(
            np.mean([found.loc[found[seed].idxmax()].drop(seed).mean() for seed in self._seeds])
        )


def trained_problems(hidden: bool) -> dict[tuple[str, float], Problem]:
    """Return the problems that `train` has trained with two seeds or more, by pair and epsilon."""
    names, study = pairs(), load_study(STUDY)
    return {
        (pair, epsilon): Problem(facts(pair, epsilon), study.sweeps[pair].dataset, rows)
        for (pair, epsilon), rows in kept().groupby(["pair", "epsilon"])
        if names[pair] == hidden and rows["seed"].nunique() > 1
    }


HEADS = (
    ("frozen-features-local", "frozen_features", (4, 8, 16)),
    ("fashion-mnist", "fashion/fashion-mnist", (10,)),
)
"""Studies of docs/findings.md that train heads, their trials and their epochs."""
FILM = (("film", "film/*_film", (2, 4)),)
"""The study of FiLM, where the network is in the loop; no constant of the rule comes from it."""


def stored_problems(
    studies: Iterable[tuple[str, str, tuple[int, ...]]], epsilons: Sequence[float]
) -> dict[tuple[str, float], Problem]:
    """Return problems of docs/findings.md, by pair and epsilon."""
    found = {}
    for name, files, epochs in studies:
        study = load_study(REPOSITORY / "studies" / f"{name}.yaml")
        trials = pd.concat(map(pd.read_parquet, sorted(RESULTS.glob(f"{files}.parquet"))))
        flat = trials["clipping"] == "flat"
        adam = trials["optimizer"].str.contains("adam")
        chosen = trials[
            flat & adam & trials["epochs"].isin(epochs) & trials["epsilon"].isin(epsilons)
        ]
        for keys, rows in chosen.groupby(["dataset", "backbone", "epochs", "epsilon"]):
            dataset, backbone, passes, epsilon = keys
            sweep = next(
                each
                for each, parts in study.sweeps.items()
                if (parts.dataset, parts.backbone) == (dataset, backbone)
            )
            known = facts_of_sweep(study, sweep, epsilon, passes)
            pair = f"{dataset}, {study.backbones[backbone].title}, {passes} epochs"
            found[pair, epsilon] = Problem(known, dataset, rows)
    return found


@cache
def approximate_noise(epsilon: float, delta: float, sampling: Sampling) -> float:
    """Return the noise multiplier by the central limit theorem of Bu, Dong, Long and Su (2020).

    Rules compare batch sizes, so ratios count; calibrating every size of every problem takes hours.
    """
    total = gaussian_noise_multiplier(epsilon, delta)
    steps, rate = sampling.steps, sampling.batch_size / sampling.units
    if rate == 1:
        return total * math.sqrt(steps)
    return 1 / math.sqrt(math.log1p((1 / (total * rate)) ** 2 / steps))


def earlier_rule(known: ProblemFacts) -> tuple[int, float, float]:
    """Return B, C and the rate by the rule of version 0.1: nearly the least noise, at least 20 steps."""
    sizes = [32 * 2**power for power in range(20) if 32 * 2**power < known.train_size]
    allowed = [size for size in [*sizes, known.train_size] if known.steps(size) >= 20]
    best = allowed[-1]

    def noise(size: int) -> float:
        sampling = Sampling(known.train_size, size, known.steps(size))
        sigma = approximate_noise(known.epsilon, known.delta, sampling)
        return math.sqrt(sampling.steps) * sigma

    least = noise(best)
    for size in reversed(allowed[:-1]):
        if noise(size) > 1.05 * least:
            break
        best = size
    norm = known.gradient_norm
    return best, 0.15 * norm, learning_rate(norm, known.steps(best))


def judge(problems: dict[tuple[str, float], Problem], grids: bool) -> list[dict[str, Any]]:
    """Return what the rule loses on every problem, and where B and the rate lie."""
    rows = []
    for (pair, epsilon), problem in problems.items():
        made, searched = recommend(problem.known), problem.searched()
        accuracy = problem.accuracy(made.batch_size, made.clipping_bound, made.learning_rate)
        row = {
            "pair": pair,
            "epsilon": epsilon,
            "batch_size": made.batch_size,
            "steps": made.steps,
            "searched": searched,
            "loss": searched - accuracy,
            "earlier": searched - problem.accuracy(*earlier_rule(problem.known)),
            "small_grid": searched - problem.small_grid() if grids else None,
        }
        rows.append(
            {key: round(each, 2) if isinstance(each, float) else each for key, each in row.items()}
        )
        print(row, flush=True)
    return rows


def main() -> None:
    """Train or judge."""
    parser = command_line(__doc__)
    parser.add_argument("what", choices=("inputs", "train", "judge"))
    parser.add_argument(
        "--hidden", action="store_true", help="the hidden pairs in place of the others"
    )
    parser.add_argument("--pairs", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    chosen = options.pairs or [name for name, hidden in pairs().items() if hidden == options.hidden]
    match options.what:
        case "inputs":
            prepare_inputs(chosen)
        case "train":
            train_grid(chosen, range(1, options.seeds + 1))
        case _:
            rule.noise_multiplier = approximate_noise
            rows = judge(trained_problems(hidden=False), grids=True)
            rows += judge(stored_problems(HEADS, EPSILONS), grids=False)
            hidden = judge(trained_problems(hidden=True), grids=True)
            in_the_loop = judge(stored_problems(FILM, (1.0, 8.0)), grids=False)
            found = {"pairs": rows, "hidden": hidden, "in_the_loop": in_the_loop}
            write_json(RESULT, read_json(RESULT) | found)


if __name__ == "__main__":
    main()
