"""What does honest tuning cost? Test accuracy at a total epsilon, by how the setting was found.

    python -m benchmarks.evidence.price studies/frozen-features.yaml 20newsgroups_minilm_head 8
    python -m benchmarks.evidence.price studies/demo.yaml digits_vit-weak_film 8

The arguments are a study whose data, networks and features are prepared (in its results folder, or in
``--results``), a sweep of it, and the epochs of a trial. A call that was stopped goes on where it was.
The result goes to benchmarks/results/price.json, the figure of all problems in it to docs/images.

The ways to come to a setting, each repeated with other randomness:

- a fixed habit: C = 1, B = 256 and a named learning rate;
- the recommendation, which reads no data;
- accounted tuning over a broad grid, and over the small grid around the recommendation, as
  ``dpsweep release`` does it: a tenth of the examples is held out, and scores have noise;
- the best of the broad grid by test accuracy, without an account: what is often reported.

Settings that nothing was chosen for on the data train on all examples.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from scipy.stats import t

from benchmarks.common import REPOSITORY, RESULTS, command_line, commit
from dpsweep.base.files import read_json, write_json
from dpsweep.config import Release
from dpsweep.figures import style
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import Calibration
from dpsweep.privacy.calibration import calibrate
from dpsweep.recommend.rule import RATES, recommend
from dpsweep.recommend.situation import situation_of
from dpsweep.release import ReleaseError
from dpsweep.release.section import Candidate, ReleasePlan
from dpsweep.release.train import select_privately, train_and_score, tuning_noise
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths
from dpsweep.training.context import TrialContext
from dpsweep.training.features import open_inputs
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.specification import specify

RESULT = RESULTS / "price.json"
IMAGE = REPOSITORY / "docs" / "images" / "price"
EPSILONS = [1.0, 2.0, 4.0, 8.0]
BROAD = {
    "batch_size": [512, "full"],
    "clipping_bound": [0.1, 1.0, 10.0],
    "learning_rate": [0.001, 0.004, 0.016, 0.064, 0.256, 1.024],
}
"""The same for every problem: it knows nothing of them."""
SMALL_TRIALS, BROAD_TRIALS = 3, 10
"""Expected numbers of trials: what ``dpsweep release`` does by default, and more for more settings."""
BEST = "best of the broad grid, no account"
AGAIN = f"{BEST}, trained again"


class Problem:
    """A problem with its cells and trainings."""

    def __init__(self, study: Study, paths: Paths, sweep: str, epochs: int) -> None:
        self.study, self.sweep, self.epochs = study, sweep, epochs
        self.parts = study.sweeps[sweep]
        self._data = open_inputs(study, paths, self.parts.problem.name)
        self._backbone = PreparedBackbone.open(paths.backbone(self.parts.backbone))
        method = study.methods[self.parts.method]
        self._context = cache(lambda share: TrialContext(self._data, self._backbone, method, share))
        self.noise = cache(
            lambda epsilon, schedule: calibrate(epsilon, study.privacy.delta, *schedule)
        )

    def release(self, epsilon: float, values: dict[str, Any], **tuning: Any) -> Release:
        """The section of a study that says so."""
        return Release.model_validate(
            {"sweep": self.sweep, "epsilon": epsilon, "epochs": [self.epochs], **values, **tuning}
        )

    def train(
        self, candidate: Candidate, noise: Calibration, release: Release, seed: int
    ) -> tuple[float, int]:
        """Return the macro accuracy on the test set, and the right answers on the held-out part."""
        (cell, rate), context = candidate, self._context(release.held_out)
        inputs = self._data, self._backbone, context.device
        spec = specify(self.study, cell, noise, *inputs, rate, seed)
        spec = replace(spec, holdout=len(context.holdout.labels))
        record, _, right = train_and_score(spec, context, b"")
        return float(record["macro_accuracy"]), right


def arms(problem: Problem, epsilon: float) -> Iterator[tuple[str, Release]]:
    """Every way to come to a setting, as a section of a study."""
    habit = {"batch_size": [256], "clipping_bound": [1.0]}
    for rate in (0.001, 0.01):
        name = f"habit: C = 1, B = 256, learning rate {rate:g}"
        yield name, problem.release(epsilon, habit | {"learning_rate": [rate]})
    made = recommend(situation_of(problem.study, problem.sweep, epsilon, problem.epochs))
    whole = problem.study.datasets[problem.parts.dataset].train_size

    def around(sizes: list[int], factors: list[float], **tuning: Any) -> Release:
        values = {
            "batch_size": ["full" if size == whole else size for size in sizes],
            "clipping_bound": [made.clipping_bound],
            "learning_rate": [factor * made.learning_rate for factor in factors],
        }
        return problem.release(epsilon, values, **tuning)

    private: dict[str, Any] = {"selection": "private"}
    small = around([*made.small_grid], [*RATES], **private, mean_trials=SMALL_TRIALS)
    yield "recommendation", around([made.batch_size], [1])
    yield "accounted tuning around it", small
    broad = problem.release(epsilon, BROAD, **private, mean_trials=BROAD_TRIALS)
    yield "accounted tuning, broad grid", broad
    yield BEST, problem.release(epsilon, BROAD, **private)


def fixed(problem: Problem, release: Release, repetitions: int) -> dict[str, Any]:
    """Train the one setting."""
    plan = ReleasePlan(problem.study, release)
    (candidate,) = plan.candidates
    noise = problem.noise(release.epsilon, plan.schedule(candidate[0]))
    found = [problem.train(candidate, noise, release, seed)[0] for seed in _seeds(repetitions)]
    return {"accuracy": found, "base_epsilon": release.epsilon, "trials": repetitions}


def tuned(problem: Problem, release: Release, repetitions: int) -> dict[str, Any]:
    """Tune with an account, and train nothing more."""
    try:
        noise = tuning_noise(problem.study, release)
    except ReleaseError as error:
        return {"refused": str(error)}
    plan = ReleasePlan(problem.study, release)
    accuracies, chosen, trials = [], [], 0
    for repetition in _seeds(repetitions):
        name = ("price", problem.sweep, release.model_dump_json(), repetition)
        seeds = numpy_stream(*name, "seeds")

        def train(candidate: Candidate, seeds: np.random.Generator = seeds) -> tuple[float, int]:
            nonlocal trials
            trials += 1
            _, size, steps = plan.schedule(candidate[0])
            seed = int(seeds.integers(2**31))
            return problem.train(candidate, noise.calibration(size, steps), release, seed)

        streams = numpy_stream(*name, "selection")
        winner = select_privately(plan.candidates, train, noise, streams)
        accuracies.append(winner.model)
        chosen.append(_plain(winner.candidate))
    spent = {"base_epsilon": noise.first_epsilon, "score_noise": noise.score_noise}
    return {"accuracy": accuracies, "chosen": chosen, "trials": trials} | spent


def best(problem: Problem, grid: Release, repetitions: int) -> dict[str, Any]:
    """Train the whole grid, and keep what is best on the test set; then train that once more."""
    release = grid.model_copy(update={"holdout_share": 0.0})
    plan = ReleasePlan(problem.study, release)
    noises = [problem.noise(release.epsilon, plan.schedule(each[0])) for each in plan.candidates]
    pairs = list(zip(plan.candidates, noises, strict=True))
    accuracy = np.array(
        [
            [problem.train(each, noise, release, seed)[0] for each, noise in pairs]
            for seed in _seeds(repetitions)
        ]
    )
    winners = accuracy.argmax(axis=1)
    return {
        "accuracy": accuracy.max(axis=1).tolist(),
        "again": np.roll(accuracy, -1, axis=0)[np.arange(repetitions), winners].tolist(),
        "chosen": [_plain(plan.candidates[winner]) for winner in winners],
        **{"trials": accuracy.size, "base_epsilon": release.epsilon},
    }


def _seeds(repetitions: int) -> range:
    return range(1, repetitions + 1)


def _plain(candidate: Candidate) -> list[Any]:
    cell, rate = candidate
    return [cell.batch_size, cell.clipping_bound, rate]


def pieces() -> list[dict[str, Any]]:
    """Read the finished pieces."""
    return list(read_json(RESULT)["pieces"]) if RESULT.exists() else []


def measure(problem: Problem, title: str, epsilon: float, repetitions: int) -> None:
    """Measure what is not there yet at a total epsilon; write after every piece."""
    for arm, release in arms(problem, epsilon):
        key = {"problem": problem.sweep, "epochs": problem.epochs, "epsilon": epsilon, "arm": arm}
        asked = key | {"release": release.model_dump(mode="json"), "repetitions": repetitions}
        if any(all(each[name] == asked[name] for name in asked) for each in pieces()):
            continue
        started = time.monotonic()
        way = best if arm == BEST else tuned if release.selection == "private" else fixed
        found = way(problem, release, repetitions)
        seconds = round(time.monotonic() - started, 1)
        piece = {"title": title} | asked | found | {"seconds": seconds, "commit": commit()}
        others = [each for each in pieces() if any(each[name] != key[name] for name in key)]
        write_json(RESULT, {"pieces": [*others, piece]})
        mean = np.mean(found.get("accuracy", math.nan))
        print(f"{problem.sweep} {epsilon:g} {arm}: {mean:.3f}, {seconds} s", flush=True)


def numbers() -> pd.DataFrame:
    """Mean macro accuracy of every way and its 95 % interval over repetitions, both in percent."""
    rows = []
    for piece in pieces():
        names = ("problem", "title", "epochs", "arm", "epsilon", "repetitions")
        row = {name: piece[name] for name in names}
        for arm, key in ((piece["arm"], "accuracy"), (AGAIN, "again")):
            if key in piece:
                found = 100 * pd.Series(piece[key])
                interval = t.ppf(0.975, len(found) - 1) * found.sem()
                rows.append(row | {"arm": arm, "accuracy": found.mean(), "interval": interval})
    return pd.DataFrame(rows)


def plot(found: pd.DataFrame) -> Figure:
    """Draw accuracy over the total epsilon, a panel for each problem and a line for each way."""
    drawing = style.panels_figure(found["problem"].nunique(), height=3.8)
    panels = drawing.subplots(1, found["problem"].nunique(), squeeze=False)[0]
    arms_drawn = list(found["arm"].unique())
    colours = dict(zip(arms_drawn, sns.color_palette("colorblind", len(arms_drawn)), strict=True))
    for axes, (_, mine) in zip(panels, found.groupby("problem", sort=False), strict=True):
        for arm, marker in zip(arms_drawn, style.MARKERS, strict=False):
            line = mine[mine["arm"] == arm].sort_values("epsilon")
            axes.errorbar(
                line["epsilon"], line["accuracy"], line["interval"], label=arm, color=colours[arm],
                marker=marker, capsize=2, linestyle="--" if "habit" in arm else "-",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{each:g}" for each in EPSILONS])
        axes.minorticks_off()
        axes.set_xlabel("Total ε")
        axes.set_ylabel("Macro accuracy in %")
        style.title(axes, "{title}\n{epochs} epochs".format_map(mine.iloc[0]))
    handles, labels = axes.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=min(2, len(panels)))
    return drawing


def draw() -> None:
    """Write the figure, and the numbers that it shows, to docs/images."""
    found = numbers()
    with style.style():
        style.save(plot(found), IMAGE.with_suffix(".pdf"), IMAGE.with_suffix(".png"))
    found.round(3).to_csv(IMAGE.with_suffix(".csv"), index=False, lineterminator="\n")


def main() -> None:
    """Measure a problem, and draw all that has been measured."""
    parser = command_line(__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("sweep")
    parser.add_argument("epochs", type=int)
    parser.add_argument("--results", type=Path, help="where the study is prepared")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--epsilon", type=float, nargs="+", default=EPSILONS, help="totals")
    options = parser.parse_args()
    study = load_study(options.study)
    torch.set_num_threads(study.training.threads)
    parts = study.sweeps[options.sweep]
    title = f"{study.datasets[parts.dataset].title}, {study.backbones[parts.backbone].title}"
    paths = Paths(options.results or Path(study.results))
    problem = Problem(study, paths, options.sweep, options.epochs)
    for epsilon in options.epsilon:
        measure(problem, title, epsilon, options.repetitions)
    draw()


if __name__ == "__main__":
    main()
