"""Hold two theorems against a softmax head on real features: steps and bounds in hindsight.

    python benchmarks/theory.py results/frozen-features/features/cifar100-10pct/vit-tiny

The argument is a folder of features, as `dpsweep compute-features` writes it. Two questions:

- Theorem 4.2 bounds the progress of one private SGD step. By how much is it too pessimistic?
- The bound of Koloskova et al. (2023) has a best clipping bound once its constants are measured: L, F0 of a
  training without privacy, the deviation of gradients. Is it the one that private SGD does best with?

For the second, private SGD is trained at every clipping bound and learning rate of a grid. The numbers go
to benchmarks/results/theory.json. They are not private.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import dpsweep
from dpsweep.data.prepared import PreparedDataset
from dpsweep.files import write_json
from dpsweep.theory import (
    ConvergenceBound,
    direction_optimal_clipping,
    measured_progress,
    mse_optimal_clipping,
    softmax_gram,
    softmax_smoothness,
)

RESULT = Path(__file__).parent / "results" / "theory.json"
DELTA = 1e-5
BATCH_SIZE, EPOCHS = 256, 8
EPSILONS = (0.25, 1.0, 8.0)
BOUNDS = (0.01, 1.0, 4.0, 8.0, 12.0, 16.0, 40.0)
# Of the normalised update: the learning rate of the standard one is this over C.
RATES = tuple(2.0**power for power in range(-4, 4))
PROGRESS_BOUNDS = (0.01, 0.1, 1.0, 4.0, 12.0, 40.0)
EVALUATED = 2000


class Problem:
    """Features and labels of a head that starts at zero."""

    def __init__(self, folder: Path) -> None:
        data = PreparedDataset.open(folder)
        self.name = str(Path(*folder.parts[-2:]))
        self.features = torch.from_numpy(np.array(data.train_inputs))
        self.labels = torch.from_numpy(np.array(data.train_labels))
        self.test = tuple(
            torch.from_numpy(np.array(each[:EVALUATED]))
            for each in (data.test_inputs, data.test_labels)
        )
        self.classes = len(data.metadata.classes)

    def layer(self) -> nn.Linear:
        """The head before training."""
        layer = nn.Linear(self.features.shape[1], self.classes)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def loss(self, layer: nn.Linear) -> float:
        """Mean cross entropy on the training set."""
        with torch.no_grad():
            return float(nn.functional.cross_entropy(layer(self.features), self.labels))

    def accuracy(self, layer: nn.Linear) -> float:
        """On the first test examples."""
        inputs, labels = self.test
        with torch.no_grad():
            return float((layer(inputs).argmax(1) == labels).double().mean())


def residuals(layer: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Predicted probabilities minus one-hot labels."""
    with torch.no_grad():
        found = layer(features).double().softmax(1)
    found[torch.arange(len(labels)), labels] -= 1
    return found.numpy()


def train(problem: Problem, noise: dpsweep.Calibration, bound: float, rate: float) -> nn.Linear:
    """Train by SGD with the normalised private update."""
    layer = problem.layer()
    optimizer = dpsweep.PrivateOptimizer(
        torch.optim.SGD(layer.parameters(), lr=rate),
        dpsweep.make_engine("linear", layer),
        dpsweep.FlatClipping(bound),
        noise_multiplier=noise.noise_multiplier,
        expected_batch_size=BATCH_SIZE,
        noise=dpsweep.GaussianNoise("theory", str(bound), str(rate)),
    )
    sampler = dpsweep.PoissonSampler(len(problem.labels), BATCH_SIZE, "theory")
    for step in range(1, noise.steps + 1):
        rows = torch.from_numpy(sampler.batch(step))
        keep = torch.ones(len(rows), dtype=torch.bool)
        optimizer.step([(problem.features[rows], problem.labels[rows], keep)])
    return layer


def smallest_loss(problem: Problem, iterations: int = 200) -> float:
    """The loss that training without privacy reaches: L-BFGS on the whole training set."""
    layer = problem.layer()
    optimizer = torch.optim.LBFGS(
        layer.parameters(), max_iter=iterations, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layer(problem.features), problem.labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return problem.loss(layer)


def progress(problem: Problem, layer: nn.Linear, sigma: float) -> list[dict[str, float]]:
    """One step from a head, at the step size 1/L, against Theorem 4.2."""
    some = slice(BATCH_SIZE)
    head = np.concatenate(
        [layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()[:, None]],
        axis=1,
    )
    found = measured_progress(
        problem.features[some].numpy(), problem.labels[some].numpy(), head, PROGRESS_BOUNDS, sigma
    )
    return [
        {"clipping_bound": bound, "bound": allowed, "measured": measured, "standard_error": error}
        for bound, allowed, measured, error in zip(
            PROGRESS_BOUNDS, found.bound, found.measured, found.standard_error, strict=True
        )
    ]


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    problem = Problem(parser.parse_args().features)
    size, width = problem.features.shape
    dimension = (width + 1) * problem.classes
    start = problem.layer()
    features, labels = problem.features[:BATCH_SIZE], problem.labels[:BATCH_SIZE]
    gradients = softmax_gram(features.numpy(), residuals(start, features, labels))
    everything = softmax_gram(
        problem.features.numpy(), residuals(start, problem.features, problem.labels)
    )
    mean_square = everything.sum() / size**2
    gap = problem.loss(start) - smallest_loss(problem)
    steps = dpsweep.optimizer_steps(size, BATCH_SIZE, EPOCHS, "round")
    result: dict[str, Any] = {
        "problem": problem.name,
        "privacy": "not private",
        "examples": size,
        "batch_size": BATCH_SIZE,
        "steps": steps,
        "parameters": dimension,
        "smoothness_of_the_mean_loss": softmax_smoothness(problem.features.numpy()) / size,
        "initial_gap": gap,
        "gradient_deviation": float(np.sqrt(np.trace(everything) / size - mean_square)),
        "epsilons": [],
    }
    for epsilon in EPSILONS:
        noise = dpsweep.calibrate(epsilon, DELTA, size, BATCH_SIZE, steps)
        sigma = noise.noise_multiplier
        accuracies = {
            bound: {rate: problem.accuracy(train(problem, noise, bound, rate)) for rate in RATES}
            for bound in BOUNDS
        }
        tuned = {bound: max(found.values()) for bound, found in accuracies.items()}
        best = max(tuned, key=lambda bound: tuned[bound])
        rate = max(accuracies[best], key=lambda rate: accuracies[best][rate])
        trained = train(problem, noise, best, rate)
        later = softmax_gram(features.numpy(), residuals(trained, features, labels))
        bound = ConvergenceBound(
            smoothness=result["smoothness_of_the_mean_loss"],
            initial_gap=gap,
            gradient_deviation=result["gradient_deviation"],
            noise_multiplier=sigma,
            dimension=dimension,
            batch_size=BATCH_SIZE,
            steps=steps,
        )
        result["epsilons"].append(
            {
                "epsilon": epsilon,
                "noise_multiplier": sigma,
                "accuracy": {str(each): round(value, 4) for each, value in tuned.items()},
                "rate_of_the_best": rate,
                "measured_best_bound": best,
                "koloskova_bound": bound.optimal_clipping(1e-3, 1e3),
                "start": _optima(gradients, sigma, dimension),
                "end": _optima(later, sigma, dimension),
                "progress_at_the_start": progress(problem, start, sigma),
                "progress_at_the_end": progress(problem, trained, sigma),
            }
        )
    write_json(RESULT, result)


def _optima(gram: np.ndarray, sigma: float, dimension: int) -> dict[str, float]:
    direction = direction_optimal_clipping(gram, sigma, dimension)
    return {
        "median_norm": float(np.median(np.sqrt(np.diagonal(gram)))),
        "theorem": mse_optimal_clipping(gram, sigma, dimension),
        "scale_free": direction.clipping_bound,
        "plateau_lower": direction.lower,
        "plateau_upper": direction.upper,
    }


if __name__ == "__main__":
    main()
