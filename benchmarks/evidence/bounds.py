"""Theorem 4.2 and the bound of Koloskova et al. (2023) on a linear head with real features.

    python -m benchmarks.evidence.bounds                      # features of studies/frozen-features.yaml
    python -m benchmarks.evidence.bounds --results FOLDER     # from another folder of results
    python -m benchmarks.evidence.bounds --picture            # the picture alone, from the committed numbers

A head is trained with DP-SGD, which is what both are about, for a grid of clipping bounds and learning
rates. At the start, in the middle and at the end of a training, private steps of a batch are held against
the theorem. The convergence bound is evaluated with constants that are measured afterwards, and the
clipping bound that it chooses is held against the one with the highest accuracy. Not private.

Results go to benchmarks/results/bounds.json, a piece for each problem and epsilon. A run that is stopped
goes on with the pieces that are missing; --again measures all of them. Two minutes on one core.
"""

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.common import REPOSITORY, RESULTS, command_line, commit, environment
from dpsweep.base.files import read_json, write_json
from dpsweep.data.prepared import PreparedDataset
from dpsweep.figures import style
from dpsweep.gradients import make_engine
from dpsweep.models.build import build_head
from dpsweep.privacy import Calibration
from dpsweep.privacy.calibration import calibrate
from dpsweep.study import load_study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.paths import Paths
from dpsweep.theory import (
    ClippedSums,
    ConvergenceBound,
    best_step_size,
    direction_optimal_clipping,
    measured_progress,
    mse_optimal_clipping,
    smallest_softmax_loss,
    softmax_gradient_deviation,
    softmax_gram,
    softmax_residuals,
    softmax_smoothness,
    tuned_progress_bound,
)
from dpsweep.training.optimizer import PrivateOptimizer
from dpsweep.training.randomness import GaussianNoise, PoissonSampler

STUDY = REPOSITORY / "studies" / "frozen-features.yaml"
RESULT = RESULTS / "bounds.json"
PICTURE = REPOSITORY / "docs" / "images" / "theory" / "bounds.png"

PROBLEMS = {
    ("cifar100-10pct", "vit-tiny"): "CIFAR-100 (10%), ViT-Tiny",
    ("20newsgroups", "minilm"): "20 Newsgroups, MiniLM",
}
EPSILONS = [0.25, 1.0, 8.0]
BATCH_SIZE, EPOCHS, SEEDS = 512, 4, 2
# Clipping bounds in units of the median gradient norm at the start.
BOUNDS = [0.01, 0.1, 0.3, 0.6, 1.0, 1.5, 3.0]
# Learning rates, in units of 1/L for a step that is as long as an unclipped one.
RATES = [0.3, 1.0, 3.0, 10.0, 30.0]
# Step sizes below 1/L, for the theorem; and around the best one of its tuned form.
PARTS = [1.0, 0.1, 0.01]
AROUND = [1.0, 3.0, 10.0, 30.0, 100.0]

Head = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Features of a dataset, in memory, and how a head is trained on them."""

    train: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]
    test: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]
    classes: int
    noise: Calibration

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weights with the bias in the last column."""
        return self.classes, self.train.shape[1] + 1


def train(problem: Problem, bound: float, rate: float, seed: int) -> tuple[float, dict[str, Head]]:
    """Train a head with DP-SGD.

    Args:
        problem: data and noise.
        bound: C.
        rate: of the normalised update, which is eta C where the paper's theory has eta.
        seed: of batches and noise.

    Returns:
        Macro accuracy on the test set, and the head at the start, in the middle and at the end.
    """
    head, noise = build_head(problem.train.shape[1], problem.classes), problem.noise
    optimizer = PrivateOptimizer(
        torch.optim.SGD(head.parameters(), lr=rate),
        make_engine("linear", head),
        FlatClipping(bound),
        noise_multiplier=noise.noise_multiplier,
        expected_batch_size=noise.batch_size,
        noise=GaussianNoise("bounds", seed, secret=b""),
    )
    sampler = PoissonSampler(noise.train_size, noise.batch_size, "bounds", seed, secret=b"")
    inputs, labels = torch.from_numpy(problem.train), torch.from_numpy(problem.labels)
    kept = {"start": weights(head)}
    for step in range(noise.steps):
        rows = torch.from_numpy(sampler.batch(step))
        optimizer.step([(inputs[rows], labels[rows], torch.ones(len(rows), dtype=torch.bool))])
        if step + 1 == noise.steps // 2:
            kept["middle"] = weights(head)
    kept["end"] = weights(head)
    with torch.no_grad():
        predicted = head(torch.from_numpy(problem.test)).argmax(1).numpy()
    right = predicted == problem.test_labels
    recalls = [right[problem.test_labels == each].mean() for each in range(problem.classes)]
    return float(np.mean(recalls)), kept


def weights(head: torch.nn.Linear) -> Head:
    """A copy of weights and bias, shape (classes, features + 1), float64."""
    both = torch.cat([head.weight, head.bias[:, None]], dim=1)
    return both.detach().double().numpy().copy()


def sweep(problem: Problem, bounds: list[float], rates: list[float]) -> list[dict[str, Any]]:
    """Accuracy of every clipping bound at its best learning rate.

    Args:
        problem: data and noise.
        bounds: C.
        rates: eta of a step as long as an unclipped one.
    """
    typical, rows = bounds[BOUNDS.index(1.0)], []
    for bound in bounds:
        tried = []
        for rate in rates:
            normalised = rate * max(bound, typical)
            accuracies = [train(problem, bound, normalised, seed)[0] for seed in range(SEEDS)]
            tried.append((float(np.mean(accuracies)), rate, normalised, accuracies))
        accuracy, rate, normalised, seeds = max(tried)
        rows.append(
            {
                "clipping_bound": bound,
                "accuracy": accuracy,
                "seeds": seeds,
                "rate": normalised,
                "at_an_end": rate in (rates[0], rates[-1]),
            }
        )
    return rows


def progress(problem: Problem, kept: dict[str, Head], bounds: list[float]) -> list[dict[str, Any]]:
    """Private steps of one batch against Theorem 4.2, at the start, in the middle and at the end.

    Changes are over ``|g|^2 / (2 L)``, what a step without clipping and noise is certain to gain at 1/L.
    """
    noise, rows = problem.noise, []
    batch = np.random.default_rng(0).choice(noise.train_size, noise.batch_size, replace=False)
    x, y = problem.train[batch], problem.labels[batch]
    smoothness, dimension = softmax_smoothness(x), problem.shape[0] * problem.shape[1]
    for when, head in kept.items():
        sums = ClippedSums.of(softmax_gram(x, softmax_residuals(x, y, head)))
        unit = sums.total_square / (2 * smoothness)
        fixed = (np.array(PARTS) / smoothness).tolist()
        direction = direction_optimal_clipping(sums, noise.noise_multiplier, dimension)
        row: dict[str, Any] = {
            "when": when,
            "mse_optimal": mse_optimal_clipping(sums, noise.noise_multiplier, dimension),
            "scale_free": direction.clipping_bound,
            "median_norm": float(np.median(sums.norms)),
            "bounds": [],
        }
        for bound in bounds:
            arguments = sums, bound, noise.noise_multiplier, dimension
            tuned = float(tuned_progress_bound(*arguments, smoothness))
            best_step = float(best_step_size(*arguments, smoothness))
            steps = [*fixed, *(each * best_step for each in AROUND if best_step > 0)]
            found = measured_progress(x, y, head, [bound], noise.noise_multiplier, steps, draws=8)
            measured, few = found.measured[:, 0] / unit, len(PARTS)
            row["bounds"].append(
                {
                    "clipping_bound": bound,
                    "theorem": (found.bound[:few, 0] / unit).tolist(),
                    "measured": measured[:few].tolist(),
                    "standard_error": (found.standard_error[:few, 0] / unit).tolist(),
                    "tuned_bound": tuned / unit,
                    "tuned_measured": float(measured.min()),
                }
            )
        rows.append(row)
    return rows


def koloskova(
    problem: Problem, kept: dict[str, Head], bounds: list[float], smallest_loss: float
) -> dict[str, Any]:
    """The convergence bound with measured constants, and where it is smallest."""
    noise = problem.noise
    deviations = [
        softmax_gradient_deviation(problem.train, problem.labels, head) for head in kept.values()
    ]
    bound = ConvergenceBound(
        smoothness=softmax_smoothness(problem.train) / noise.train_size,
        initial_gap=float(np.log(problem.classes)) - smallest_loss,
        # It must hold along the whole training.
        gradient_deviation=max(deviations),
        noise_multiplier=noise.noise_multiplier,
        dimension=problem.shape[0] * problem.shape[1],
        batch_size=noise.batch_size,
        steps=noise.steps,
    )
    gradients = []
    for head in kept.values():
        residuals = softmax_residuals(problem.train, problem.labels, head)
        inputs = np.concatenate([problem.train, np.ones((noise.train_size, 1))], axis=1)
        gradients.append(float(np.linalg.norm(residuals.T @ inputs) / noise.train_size))
    return asdict(bound) | {
        "deviations": dict(zip(kept, deviations, strict=True)),
        "optimum": asdict(bound.optimum(bounds[0] / 100, bounds[-1] * 100)),
        "measured_gradient_norms": dict(zip(kept, gradients, strict=True)),
    }


def piece(problem: Problem, smallest_loss: float) -> dict[str, Any]:
    """All about one problem at one epsilon."""
    started = time.process_time()
    start = np.zeros(problem.shape)
    residuals = softmax_residuals(problem.train, problem.labels, start)
    lengths = np.sqrt((problem.train.astype(np.float64) ** 2).sum(1) + 1)
    norm = float(np.median(np.linalg.norm(residuals, axis=1) * lengths))
    smoothness = softmax_smoothness(problem.train) / problem.noise.train_size
    bounds = [norm * each for each in BOUNDS]
    swept = sweep(problem, bounds, [each / smoothness for each in RATES])
    chosen = swept[BOUNDS.index(1.0)]
    _, kept = train(problem, chosen["clipping_bound"], chosen["rate"], seed=0)
    return {
        "start_norm": norm,
        "noise_multiplier": problem.noise.noise_multiplier,
        "train_size": problem.noise.train_size,
        "steps": problem.noise.steps,
        "smallest_loss": smallest_loss,
        "accuracy": swept,
        "progress": progress(problem, kept, bounds),
        "koloskova": koloskova(problem, kept, bounds, smallest_loss),
        "processor_seconds": time.process_time() - started,
    }


def measure(study_file: Path, results: Path | None, again: bool) -> None:
    """Measure the pieces that are missing.

    Raises:
        DatasetError: the results have no features; the message says which.
    """
    study = load_study(study_file)
    paths = Paths(results or Path(study.results))
    result = read_json(RESULT) if RESULT.exists() and not again else {"pieces": []}
    done = {(each["dataset"], each["epsilon"]) for each in result["pieces"]}
    for (dataset, backbone), title in PROBLEMS.items():
        if all((dataset, epsilon) in done for epsilon in EPSILONS):
            continue
        data = PreparedDataset.open(paths.features(dataset, backbone))
        arrays = [
            np.array(each)
            for each in (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels)
        ]
        classes, train_size = len(data.metadata.classes), data.metadata.train_size
        smallest = smallest_softmax_loss(arrays[0], arrays[1], classes)
        for epsilon in EPSILONS:
            if (dataset, epsilon) in done:
                continue
            steps = round(EPOCHS * train_size / BATCH_SIZE)
            noise = calibrate(epsilon, study.privacy.delta, train_size, BATCH_SIZE, steps)
            found = piece(Problem(*arrays, classes, noise), smallest)
            result["pieces"].append(
                {"dataset": dataset, "title": title, "epsilon": epsilon, "commit": commit()} | found
            )
            print(title, epsilon, f"{found['processor_seconds']:.0f} s", flush=True)
            result |= {
                "batch_size": BATCH_SIZE,
                "epochs": EPOCHS,
                "seeds": SEEDS,
                "parts": PARTS,
                "privacy": "not private",
                "environment": environment(
                    *("torch", "numpy", "scipy"),
                    device=f"one core, {platform.machine()}",
                    load=False,
                ),
            }
            write_json(RESULT, _short(result))


def _short(value: Any) -> Any:
    """The same with numbers of five digits."""
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def draw(result: dict[str, Any]) -> Figure:
    """Progress over C in the middle of training: a row for each problem, a column for each epsilon."""
    titles = list(dict.fromkeys(each["title"] for each in result["pieces"]))
    budgets = sorted({each["epsilon"] for each in result["pieces"]}, reverse=True)
    figure = style.panels_figure(len(budgets), height=3.6)
    grid = figure.subplots(len(titles), len(budgets), squeeze=False, sharey="row", sharex="row")
    for each in result["pieces"]:
        axes = grid[titles.index(each["title"]), budgets.index(each["epsilon"])]
        rows = next(row for row in each["progress"] if row["when"] == "middle")["bounds"]
        bounds = [row["clipping_bound"] for row in rows]
        for colour, measured, bound in (
            (style.HARD, [row["measured"][0] for row in rows], [row["theorem"][0] for row in rows]),
            (
                style.EASY,
                [row["tuned_measured"] for row in rows],
                [row["tuned_bound"] for row in rows],
            ),
        ):
            for values, line in ((measured, "-"), (bound, "--")):
                gain = np.array([-value if value < 0 else np.nan for value in values])
                axes.plot(bounds, gain, line, color=colour, marker="o", markersize=2)
        axes.set_yscale("log")
        style.log_axis(axes, "x")
        axes.set_title(f"{each['title']}, ε = {each['epsilon']:g}", fontsize=style.SMALL)
    for axes in grid[-1]:
        axes.set_xlabel("Clipping bound C\n(log scale)")
    for axes in grid[:, 0]:
        axes.set_ylabel("Gain over |g|² / (2L)\n(log scale)")
    handles = [
        Line2D([], [], color=style.HARD, label="step 1/L: measured"),
        Line2D([], [], color=style.HARD, linestyle="--", label="Theorem 4.2"),
        Line2D([], [], color=style.EASY, label="best step: measured"),
        Line2D([], [], color=style.EASY, linestyle="--", label="tuned form, R(C)"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4)
    style.note(
        figure,
        "One step of DP-SGD in the middle of training. No point: no gain, or none that is certain. Not "
        "private: drawn from raw gradients.",
    )
    return figure


def draw_picture(file: Path) -> None:
    """Write the picture of the committed numbers."""
    with style.style():
        drawn = draw(read_json(RESULT))
        file.parent.mkdir(parents=True, exist_ok=True)
        drawn.savefig(file, dpi=160, metadata={"Software": None})


def main() -> None:
    """Measure what is missing and draw."""
    parser = command_line(__doc__)
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--results", type=Path, help="instead of the folder that the study names")
    parser.add_argument("--again", action="store_true", help="measure all pieces again")
    parser.add_argument("--picture", action="store_true", help="draw the committed numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.picture:
        measure(options.study, options.results, options.again)
    draw_picture(PICTURE)


if __name__ == "__main__":
    main()
