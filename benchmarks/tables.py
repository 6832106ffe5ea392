"""Write the tables of docs/*.md from benchmarks/results/*.json.

    python -m benchmarks.tables

A table stands between two comments of a document and is replaced there; a result that has not
been measured yet becomes a line that says which command measures it.
"""

import argparse
import csv
import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import t

from dpsweep.analysis.predictions import HINDSIGHT, lost_more
from dpsweep.files import read_json, write_text
from dpsweep.planning.plan import Plan
from dpsweep.planning.status import Status
from dpsweep.study import load_study
from dpsweep.study.paths import Paths
from dpsweep.tables.write import read_numbers

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
DOCUMENTS = [REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
END = "<!-- end of table -->"
REFERENCE = "without privacy"
_SLOWEST = 15
CALIBRATION = ("calibration", "calibration_comparison")


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table whose columns but the first are numbers."""
    lines = [" | ".join(head), "|".join(["---", *["---:"] * (len(head) - 1)])]
    return (
        [f"| {line} |" for line in [lines[0]]]
        + [f"|{lines[1]}|"]
        + [f"| {' | '.join(row)} |" for row in rows]
    )


def where(environment: dict[str, Any]) -> str:
    """One line about what was measured with what."""
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    device = f"{environment['device']}, " if "device" in environment else ""
    load = environment.get("load_before")
    return (
        f"Measured on {device}Python {environment['python']}, {versions}"
        + (f"; load of the machine before the run: {load}" if load is not None else "")
        + "."
    )


def step_cost(result: dict[str, Any]) -> list[str]:
    """Ratios of time and memory to the step without privacy."""
    names = [name for name in result["rows"][0]["contenders"] if name != REFERENCE]
    rows = []
    for row in result["rows"]:
        contenders = row["contenders"]
        reference = contenders[REFERENCE]
        cells = [
            f"{row['title']} ({row['batch']})",
            row["setting"],
            f"{1000 * reference['seconds']:.0f} ms, {reference['megabytes']:.0f} MB",
        ]
        for name in names:
            measured = contenders.get(name)
            if measured is None:
                cells.append("")
            elif "failure" in measured:
                cells.append("fails")
            else:
                memory = measured["megabytes"] / reference["megabytes"]
                cells.append(f"{measured['ratio']:.2f}x, {memory:.2f}x")
        rows.append(cells)
    head = ["network, what trains (batch)", "precision", REFERENCE, *names]
    return [
        *grid(head, rows),
        "",
        "Time and peak memory of a step, as multiples of the same step without privacy. "
        + where(result["environment"]),
    ]


def cell(result: dict[str, Any]) -> list[str]:
    """Where the wall time of a cell goes."""
    rows = [
        [
            "compiled" if each["compiled"] else "as it is",
            f"{each['process_seconds']:.1f} s",
            f"{100 * each['share_of_steps_and_evaluation']:.1f} %",
            f"{each['other_seconds']:.1f} s",
            f"{each['examples_per_second']:,}",
        ]
        for each in result["cells"]
    ]
    head = ["two trials", "process", "steps and evaluation", "the rest", "examples per second"]
    size = result["cells"][0]["size"]
    return [
        *grid(head, rows),
        "",
        f"N = {size['train']:,}, {size['pixels']} x {size['pixels']} pixels, B = {size['batch']}, "
        f"{size['epochs']} epochs. " + where(result["environment"]),
    ]


def features(result: dict[str, Any]) -> list[str]:
    """What a head on cached features costs: a step beside others, and cells of 12 trials."""
    step, size = result["step"], result["size"]
    ours = step["seconds"]["cached features"]
    steps = [
        [name, f"{1000 * seconds:,.2f} ms", f"{seconds / ours:,.2f}x"]
        for name, seconds in step["seconds"].items()
    ]
    cells = [
        [
            "N (full batch)" if each["batch_size"] == "full" else f"{each['batch_size']:,}",
            f"{each['steps']:,}",
            f"{each['processor_seconds'] / each['trials']:.2f} s",
            f"{each['trial_seconds']:.2f} s",
            f"{each['cell_seconds']:.1f} s",
        ]
        for each in result["cells"]
    ]
    head = [
        "B",
        "steps of a trial",
        "processor time of a trial",
        "wall time of a trial",
        "cell of 12 trials",
    ]
    least = sum(seconds for name, seconds in step["seconds"].items() if name.endswith("alone"))
    count = next(
        each["steps"] for each in result["cells"] if each["batch_size"] == step["examples"]
    )
    return [
        *grid([f"private step of {step['examples']} examples", "wall time", "of ours"], steps),
        "",
        f"The network is ViT-Tiny on images of {step['pixels']} x {step['pixels']} pixels; all "
        f"alternate in one process. Sampling, noise and products take {1000 * least:.2f} ms together, "
        f"so {least * count:.1f} s of a trial of {count:,} steps.",
        "",
        *grid(head, cells),
        "",
        f"N = {size['train']:,}, {size['features']} features, {size['classes']} classes, {size['epochs']} "
        f"epochs, random features. {where(result['environment'])}",
    ]


def workflow(result: dict[str, Any]) -> list[str]:
    """What Snakemake needs before anything runs."""
    rows = [
        [name, f"{each['cpu_seconds']:.1f} s", f"{each['megabytes']:.0f} MB"]
        for name, each in result["calls"].items()
    ]
    return [
        *grid(["config.yaml, 5,728 cells", "processor time", "peak memory"], rows),
        "",
        f"With {result['outputs']:,} output files where everything is there. "
        + where(result["environment"]),
    ]


def selection(result: dict[str, Any]) -> list[str]:
    """What the search of the learning rate saves and loses."""
    rows = []
    for name, each in {**result["problems"], "both": result["all"]}.items():
        rows += [
            [
                f"{name}, {rule}",
                f"{each[f'{key}_trials_of_a_cell']:.1f}",
                f"{each[f'{key}_mean_loss']:.2f}",
                f"{each[f'{key}_largest_loss']:.2f}",
            ]
            for rule, key in (("repeat-best", "repeat_best"), ("bracket", "bracket"))
        ]
    head = ["problem, selection", "trials of a cell", "points lost, mean", "largest"]
    return [
        *grid(head, rows),
        "",
        f"{result['all']['choices']} choices of a learning rate, each against the rate with the best mean "
        "accuracy of all seeds.",
    ]


def demo(result: dict[str, Any]) -> list[str]:
    """What the demo costs, and how long its jobs need to get going."""
    beside, whole = result["seconds_beside_steps"], result["seconds_of_a_cell"]
    rows = [
        [
            f"everything: {result['figures']} figures, {result['tables']} tables, "
            f"{result['cells']:,} cells, {result['trials']:,} trials",
            f"{result['wall_seconds'] / 60:.1f} min",
            "",
        ],
        ["memory, all processes together", f"{result['peak_megabytes'] / 1e3:.1f} GB", ""],
        [
            "a cell, all but steps and evaluation: start-up, networks, writing",
            f"{beside['median']:.1f} s",
            f"{beside['largest']:.1f} s",
        ],
        ["a cell as a whole", f"{whole['median']:.1f} s", f"{whole['largest']:.1f} s"],
        [
            "of that, steps and evaluation",
            f"{100 * result['share_of_steps_and_evaluation']:.0f} %",
            "",
        ],
    ]
    return [
        *grid(["the demo", "median or total", "largest"], rows),
        "",
        f"On {result['environment']['cores']} cores. " + where(result["environment"]),
    ]


def calibration(result: dict[str, Any]) -> list[str]:
    """The calibrations of the paper's study, and other tools on a sample."""
    study, comparison = result["calibration"], result["calibration_comparison"]
    settings = comparison["settings"]
    rows = []
    for tool in settings[0]["tools"]:
        pairs = [(each["tools"][tool], each["tools"]["dpsweep"]) for each in settings]
        done = [pair for pair in pairs if "noise_multiplier" in pair[0]]
        excess = [measured["excess_percent"] for measured, _ in done]
        ratios = [measured["cpu_seconds"] / ours["cpu_seconds"] for measured, ours in done]
        rows.append(
            [
                tool,
                f"{len(done)} of {len(pairs)}",
                f"{statistics.median(ratios):.1f}x",
                f"{max(ratios):.0f}x",
                f"{statistics.median(excess):+.2f} %",
                f"{max(excess):+.2f} %",
            ]
        )
    head = ["tool", "settings solved", "time, median", "largest", "excess noise, median", "largest"]
    low, high = study["certified_over_target"]
    return [
        f"All {study['calibrations']} distinct calibrations of the paper's study, one after the other: "
        f"{study['cpu_seconds']:.0f} s of processor time, at most {study['slowest_cpu_seconds']:.1f} s each, "
        f"{study['peak_megabytes']:,} MB; certified epsilon is {math.floor(1e4 * low) / 1e4:.4f} to "
        f"{high:.4f} of its target.",
        "",
        *grid(head, rows),
        "",
        "Processor time as a multiple of dpsweep's, noise over the exact minimum; tools as they come "
        "([privacy.md](privacy.md) has the settings). " + where(comparison["environment"]),
    ]


def analysis(result: dict[str, Any]) -> list[str]:
    """Aggregating and drawing a complete study."""
    rows = [
        [each["task"], f"{each['cpu_seconds']:.1f} s", f"{each['peak_megabytes']:,} MB"]
        for each in result["tasks"][:4]
    ]
    rows.append(
        [
            "everything",
            f"{result['cpu_seconds']:.0f} s",
            f"{result['peak_megabytes_of_a_job']:,} MB a job",
        ]
    )
    return [
        *grid(["the slowest tasks", "processor time", "peak memory"], rows),
        "",
        f"{result['trials']:,} synthetic trials in {result['cells']:,} cells, {result['figures']} figures, "
        f"{result['tables']} tables; {result['wall_seconds']:.0f} s on the clock with "
        f"{result['jobs_at_a_time']} jobs at a time. " + where(result["environment"]),
    ]


def kills(result: dict[str, Any]) -> list[str]:
    """What became of killed runs, by what was killed and how, and of the histories that they make up."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for history in result["histories"]:
        for each in history["kills"]:
            kind = f"{each['victim']}, {each['signal']}" if "victim" in each else each["hit"]
            kinds.setdefault(kind, []).append(each)
    kinds = dict(sorted(kinds.items()))
    kinds["all kills"] = [each for found in kinds.values() for each in found]
    ends = [history["end"] for history in result["histories"]]
    kinds["ends of histories"] = ends
    rows = [
        [
            kind,
            f"{len(found)}",
            *(f"{sum(bool(each[what]) for each in found)}" for what in ("hangs", "left", "wrong")),
        ]
        for kind, found in kinds.items()
    ]
    failed = sum(bool(end["exit"]) for end in ends)
    return [
        *grid(["", "runs", "hangs", "a process is left", "an output differs"], rows),
        "",
        f"{failed} of {len(ends)} histories ended with a failure. "
        f"{_commits(result['histories'])} {where(result['environment'])}",
    ]


def _commits(pieces: list[dict[str, Any]]) -> str:
    """Where the pieces of a campaign were made."""
    found = dict.fromkeys(each.get("commit", "earlier commits") for each in pieces)
    return f"Made at {', '.join(found)}."


def histories(result: dict[str, Any]) -> list[str]:
    """How many histories ended as a fresh run, and what happened in them."""
    lived = result["histories"]
    events = [event.split(":")[0] for each in lived for event in each["events"]]
    wrong = sum(bool(each["wrong"]) for each in lived)
    counted = ", ".join(
        f"{name.replace('_', ' ')} {events.count(name)}" for name in sorted(set(events))
    )
    return [
        *grid(["histories", "not as a fresh run"], [[f"{len(lived)}", f"{wrong}"]]),
        "",
        f"Events: {counted}. {_commits(lived)} {where(result['environment'])}",
    ]


def plan() -> list[str]:
    """Cells, trials and estimated GPU hours of every target of the paper's study, from nothing."""
    study = load_study(REPOSITORY / "config.yaml")
    paths = Paths(REPOSITORY / "nowhere")  # a folder that is not there: nothing is done yet
    status = Status(study, paths)

    def row(name: str, targets: list[str]) -> list[str]:
        estimates = Plan(study, paths, targets, status=status).estimates().values()
        hours = sum(each.seconds for each in estimates) / 3600
        cells, trials = (
            sum(getattr(estimate, each) for estimate in estimates) for each in ("cells", "trials")
        )
        return [
            name,
            f"{cells:,}",
            f"{trials:,}",
            f"{hours:,.0f}" if hours >= 10 else f"{hours:.1f}",
        ]

    rows = [row("everything", ["all"])]
    rows += [row(f"`{name}`", [name]) for name in (*study.figures, *study.tables)]
    rows = [each for each in rows if each[1] != "0"]
    return grid(["target", "cells", "trials", "GPU hours (estimate)"], rows)


def noise_cost(result: dict[str, Any]) -> list[str]:
    """What noise with tails adds to a step."""
    rows = [
        [
            row["case"],
            f"{row['parameters']:,}",
            f"{step:.2f} s" if (step := row["step_seconds"]) >= 1 else f"{1000 * step:.1f} ms",
            f"{1000 * row['float32_noise_seconds']:.2f} ms",
            f"{1000 * row['noise_seconds']:.2f} ms",
            f"{row['added_percent']:+.2f} %",
        ]
        for row in result["rows"]
    ]
    head = [
        "step",
        "trainable parameters",
        "step, all of it",
        "float32 noise",
        "our noise",
        "added",
    ]
    return [*grid(head, rows), "", f"Measured on {result['device']}."]


def planted_bugs(result: dict[str, Any]) -> list[str]:
    """Which test sees which bug first."""
    rows = [
        [
            row["group"],
            row["bug"],
            "**survived**" if row["caught_by"] is None else f"`{row['caught_by']}`",
        ]
        for row in result["rows"]
    ]
    caught = sum(row["caught_by"] is not None for row in result["rows"])
    return [
        "| part | bug | the first test that fails |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"{caught} of {len(rows)} bugs are caught; the run takes {result['minutes']:.0f} minutes.",
    ]


def slowest_tests(result: dict[str, Any]) -> list[str]:
    """The tests that take longest, and how long the runs of pytest took."""
    rows = [[f"`{row['test']}`", f"{row['seconds']:.0f} s"] for row in result["tests"][:_SLOWEST]]
    runs = "; ".join(f"{run['outcome']} in {run['seconds'] / 60:.0f} min" for run in result["runs"])
    return [*grid(["test", "time"], rows), "", f"Runs of pytest: {runs}."]


def coverage(result: dict[str, Any]) -> list[str]:
    """How often each candidate interval contains the truth, over all scenarios."""

    def span(rows: list[dict[str, Any]], key: str) -> str:
        values = [100 * row[key] for row in rows]
        return f"{min(values):.0f} to {max(values):.0f} %"

    rows = []
    for name in dict.fromkeys(row["interval"] for row in result["rows"]):
        of_interval = [row for row in result["rows"] if row["interval"] == name]
        for kind in dict.fromkeys(row["kind"] for row in of_interval):
            mine = [row for row in of_interval if row["kind"] == kind]
            power = sum(row["power"] for row in mine) / len(mine)
            spans = [span(mine, key) for key in ("covers_here", "covers_elsewhere")]
            rows.append([name, kind, *spans, f"{100 * power:.0f} %"])
    scenarios = len({row["scenario"] for row in result["rows"]})
    return [
        *grid(
            ["interval", "effect", "covers this study", "covers other datasets", "mean power"], rows
        ),
        "",
        f"{scenarios} scenarios of {result['studies']} studies each, nominal 95 %; "
        f"{result['cpu_seconds']:.0f} s of processor time.",
    ]


def power(result: dict[str, Any]) -> list[str]:
    """What a study must have to see that the best C grows."""
    rows = []
    for scenario in dict.fromkeys(row["scenario"] for row in result["rows"]):
        mine = {
            row["interval"]: row
            for row in result["rows"]
            if row["scenario"] == scenario and row["kind"] == "location"
        }
        here, elsewhere = mine["here: t over comparisons"], mine["elsewhere: t over datasets"]
        rows.append(
            [
                scenario,
                f"{elsewhere['truth_elsewhere']:.2f}",
                f"{elsewhere['bias']:+.3f}",
                *(
                    f"{100 * each[key]:.0f} %"
                    for each, key in (
                        (here, "covers_here"),
                        (elsewhere, "covers_elsewhere"),
                        (elsewhere, "covers_elsewhere_without_noise"),
                    )
                ),
                *(
                    f"{100 * each['power']:.0f} % ({100 * each['power_after_holm']:.0f} %)"
                    for each in (here, elsewhere)
                ),
            ]
        )
    head = [
        "scenario: the first, but ...",
        "growth of C, decades",
        "bias",
        "coverage, this study",
        "other datasets",
        "the same without noise",
        "power, this study",
        "other datasets",
    ]
    return grid(head, rows)


def backbones(result: dict[str, Any]) -> list[str]:
    """The engine of every network and method, or what the method does not find."""
    nothing = {"film": "no normalisation layers", "lora": "no linear layers"}
    rows = [
        [
            f"`{row['network']}`" + (" (texts)" if row["library"] == "transformers" else ""),
            *(
                each.get("engine", nothing.get(name, "none"))
                for name, each in row["methods"].items()
            ),
        ]
        for row in result["rows"]
    ]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return [
        "| network | FiLM | LoRA | all parameters | head |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        f"{len(rows)} networks, with {versions}.",
    ]


def right_on_gpu(result: dict[str, Any]) -> list[str]:
    """The largest relative errors against the loop in float64, and what else was checked."""
    rows = [
        [piece["title"], setting, *(f"{error:.1e}" for error in errors.values())]
        for piece in result["pieces"]
        if "relative_errors" in piece
        for setting, errors in piece["relative_errors"].items()
    ]
    head = ["network, what trains", "engine", "sum", "norms", "sum, masked and spoilt"]
    head.append("length of one clipped gradient")
    said = []
    for piece in result["pieces"]:
        for setting, reason in piece.get("failures", {}).items():
            said.append(f"{piece['title']}, {setting}: not computed ({reason}).")
        if "draws" in piece:
            said.append(
                f"Noise: {piece['beyond_float32']} of {piece['draws']:,} draws beyond the largest of "
                f"float32, {piece['expected_beyond']:.0f} expected."
            )
        if "largest_relative_differences" in piece:
            found = piece["largest_relative_differences"]
            said.append(
                "Largest relative differences of parameters: "
                + ", ".join(f"{name} {value:.1e}" for name, value in found.items())
                + "."
            )
    return [*grid(head, rows), "", *said, where(result["environment"])]


def cifar100_on_gpu(result: dict[str, Any]) -> list[str]:
    """The best trial of every epsilon and rule of clipping."""
    rows = [
        [
            f"{best['epsilon']:g}",
            best["clipping"],
            f"{best['accuracy']:.3f}",
            f"{best['batch_size']:,}",
            f"{best['clipping_bound'] or ''}",
            f"{best['learning_rate']:g}",
            f"{best['examples_per_second']:,.0f}",
        ]
        for best in (piece["best"] for piece in result["pieces"])
    ]
    head = ["epsilon", "clipping", "accuracy", "B", "C", "learning rate", "examples per second"]
    rows.sort(key=lambda row: (row[1], float(row[0])))
    return [*grid(head, rows), "", where(result["environment"])]


def cell_on_gpu(result: dict[str, Any]) -> list[str]:
    """Where the wall time of a cell goes."""
    rows = [
        [
            "compiled" if each["compiled"] else "as it is",
            f"{each['process_seconds']:.1f} s",
            f"{100 * each['share_of_steps_and_evaluation']:.1f} %",
            f"{each['seconds_to_first_step']:.1f} s",
            f"{each['examples_per_second']:,}",
            f"{each.get('gigabytes', 0):.1f} GB",
        ]
        for each in result["pieces"]
    ]
    head = ["two trials", "process", "steps and evaluation", "to the first step"]
    size = result["pieces"][0]["size"]
    return [
        *grid([*head, "examples per second", "memory"], rows),
        "",
        f"N = {size['train']:,}, {size['pixels']} x {size['pixels']} pixels, B = {size['batch']}, "
        f"{size['epochs']} epochs. " + where(result["environment"]),
    ]


GPU = "make gpu"


def recommendation(result: dict[str, Any]) -> list[str]:
    """Mean regret of the recommendation and of habits, in points of macro accuracy."""
    sources = list(result["by_source"])
    rows = [
        [name, f"**{mean:.2f}**", *[_points(result["by_source"][each][name]) for each in sources]]
        for name, mean in result["mean"].items()
    ]
    return [
        *grid(["setting", "mean", *sources], rows),
        "",
        f"{result['problems']} problems, {result['without_reference']} more without a reference point of "
        "their optimizer. The mean counts each source of data the same.",
    ]


def price(result: dict[str, Any]) -> list[str]:
    """Accuracy by how a setting was found, with the half width of its 95 % interval."""
    lines: list[str] = []
    pieces = result["pieces"]
    epsilons = sorted({each["epsilon"] for each in pieces})
    for problem in dict.fromkeys(each["problem"] for each in pieces):
        found: dict[str, dict[float, str]] = {}
        for each in (piece for piece in pieces if piece["problem"] == problem):
            if "refused" in each:
                found.setdefault(each["arm"], {})[each["epsilon"]] = "refused"
            for arm, key in ((each["arm"], "accuracy"), (f"{each['arm']}, trained again", "again")):
                if key in each:
                    found.setdefault(arm, {})[each["epsilon"]] = _mean(each[key])
        first = next(each for each in pieces if each["problem"] == problem)
        rows = [
            [arm, *(values.get(epsilon, "-") for epsilon in epsilons)]
            for arm, values in found.items()
        ]
        lines += [
            f"**{first['title']}**, {first['epochs']} epochs, {first['repetitions']} repetitions:",
            "",
            *grid(["accuracy in %", *(f"ε = {epsilon:g}" for epsilon in epsilons)], rows),
            "",
        ]
    trials, seconds = (sum(each.get(name, 0) for each in pieces) for name in ("trials", "seconds"))
    commits = ", ".join(dict.fromkeys(each["commit"] for each in pieces))
    return [*lines, f"{trials:,} trials, {seconds / 60:.0f} minutes, at {commits}."]


def _mean(shares: list[float]) -> str:
    """A mean in percent, and the half width of the 95 % interval of Student's t."""
    spread = statistics.stdev(shares) / math.sqrt(len(shares))
    return (
        f"{100 * statistics.mean(shares):.1f} ± {100 * t.ppf(0.975, len(shares) - 1) * spread:.1f}"
    )


def _points(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def short(value: float) -> str:
    """A clipping bound or a norm in three digits."""
    return "∞" if math.isinf(value) else f"{value:.3g}"


def bounds_progress(result: dict[str, Any]) -> list[str]:
    """How often Theorem 4.2 promises a gain, and how loose it is."""
    rows = []
    for each in result["pieces"]:
        steps = [row for point in each["progress"] for row in point["bounds"]]
        gains = [row for row in steps if row["measured"][0] < 0]
        certain = [row for row in steps if row["theorem"][0] < 0]
        ratios = [row["measured"][0] / row["theorem"][0] for row in certain]
        tuned = [row["tuned_measured"] / row["tuned_bound"] for row in steps if row["tuned_bound"]]
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{len(gains)} of {len(steps)}",
                f"{len(certain)}",
                f"{min(ratios):.1f} to {max(ratios):.1f}" if ratios else "",
                f"{min(tuned):,.0f} to {max(tuned):,.0f}",
            ]
        )
    head = [
        "steps of size 1/L",
        "that gain",
        "with a gain that is certain",
        "measured over certain gain",
        "the same, tuned form",
    ]
    return grid(head, rows)


def bounds_choice(result: dict[str, Any]) -> list[str]:
    """The clipping bound of Koloskova et al. beside the one with the highest accuracy."""
    rows = []
    for each in result["pieces"]:
        swept, optimum = each["accuracy"], each["koloskova"]["optimum"]
        best = max(swept, key=lambda row: row["accuracy"])
        nearest = min(
            swept,
            key=lambda row: abs(math.log(row["clipping_bound"] / optimum["clipping_bound"])),
        )
        rows.append(
            [
                f"{each['title']}, ε = {each['epsilon']:g}",
                f"{short(best['clipping_bound'])} ({100 * best['accuracy']:.1f} %)",
                short(optimum["clipping_bound"]),
                f"{short(optimum['lower'])} to {short(optimum['upper'])}",
                f"{100 * (best['accuracy'] - nearest['accuracy']):.1f}",
                f"{optimum['gradient_norm']:.1f}",
                f"{each['koloskova']['measured_gradient_norms']['end']:.2f}",
            ]
        )
    head = [
        "DP-SGD",
        "measured best C (accuracy)",
        "C of the bound",
        "bound within a factor of 2",
        "points lost",
        "the bound there",
        "gradient at the end",
    ]
    ends = [row["at_an_end"] for each in result["pieces"] for row in each["accuracy"]]
    return [
        *grid(head, rows),
        "",
        f"B = {result['batch_size']}, {result['epochs']} epochs, {result['seeds']} seeds, step size tuned "
        f"for every C; in {sum(ends)} of {len(ends)} the best one is at an end of its grid. "
        + where(result["environment"]),
    ]


def theory_memory(result: dict[str, Any]) -> list[str]:
    """Peak memory of the theory stage, by method and batch."""
    rows = [
        [
            f"{each['method']}, {each['pixels']} x {each['pixels']}",
            f"{each['trainable_parameters']:,}",
            f"{batch['examples']:,}",
            f"{4 * batch['examples'] * each['trainable_parameters'] / 1e9:.2f} GB",
            f"{batch['megabytes'] / 1e3:.2f} GB",
        ]
        for each in result["pieces"].values()
        for batch in each["batches"]
    ]
    head = ["ViT-Tiny", "parameters that train", "batch", "all its gradients", "peak memory"]
    return [*grid(head, rows), "", where(result["environment"])]


TABLES: dict[str, tuple[str, str, Callable[[dict[str, Any]], list[str]]]] = {
    "step cost, CPU": ("step_cost_cpu.json", "make bench", step_cost),
    "step cost, GPU": ("gpu/step_*.json", GPU, step_cost),
    "right on a GPU": ("gpu/right_*.json", GPU, right_on_gpu),
    "CIFAR-100, GPU": ("gpu/cifar100_*.json", GPU, cifar100_on_gpu),
    "cell, CPU": ("cell_cpu.json", "make bench", cell),
    "cell, GPU": ("gpu/cell*.json", GPU, cell_on_gpu),
    "features": ("features.json", "python -m benchmarks.features", features),
    "backbones": ("backbones.json", "python -m benchmarks.backbones", backbones),
    "workflow": ("workflow.json", "make bench", workflow),
    "demo": ("demo.json", "python -m benchmarks.demo", demo),
    "analysis": ("analysis.json", "python -m benchmarks.analysis", analysis),
    "noise cost, CPU": ("noise_cost_cpu.json", "python -m benchmarks.noise_cost", noise_cost),
    "noise cost, GPU": ("gpu/noise_cost.json", GPU, noise_cost),
    "planted bugs": ("planted_bugs.json", "make planted-bugs", planted_bugs),
    "slowest tests": ("durations.json", "python -m benchmarks.durations run.log", slowest_tests),
    "coverage of intervals": ("verdicts.json", "python -m benchmarks.verdicts", coverage),
    "power of verdicts": ("verdicts.json", "python -m benchmarks.verdicts", power),
    "recommendation": (
        "recommend.json",
        "python -m benchmarks.recommend results/demo-dense/problems",
        recommendation,
    ),
    "progress of steps": ("bounds.json", "python -m benchmarks.bounds", bounds_progress),
    "memory of the theory": (
        "theory_memory.json",
        "python -m benchmarks.theory_memory",
        theory_memory,
    ),
    "bound of Koloskova et al.": ("bounds.json", "python -m benchmarks.bounds", bounds_choice),
    "price": (
        "price.json",
        "python -m benchmarks.price studies/frozen-features.yaml 20newsgroups_minilm_head 8",
        price,
    ),
    "selection": ("selection.json", "python -m benchmarks.selection", selection),
    "kills": ("kills.json", "python -m benchmarks.kills 300", kills),
    "kills on Slurm": ("kills_slurm.json", "python -m benchmarks.kills_slurm 50", kills),
    "histories": ("histories.json", "python -m benchmarks.histories 30", histories),
}


def audit() -> list[str]:
    """What the audit of the demo measured: results/demo/audit/audit.csv, copied to the results."""
    with (RESULTS / "audit.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {
        full: [row for row in rows if row["full_batch"] == full] for full in ("False", "True")
    }
    part, full = (columns[name][0] for name in ("False", "True"))
    return grid(
        [
            "claimed ε",
            f"measured, B = {part['batch_size']} (q = {float(part['sampling_rate']):.2f}, "
            f"T = {part['steps']})",
            f"measured, full batch (T = {full['steps']})",
        ],
        [
            [
                f"{float(one['epsilon']):g}",
                *(f"≥ {float(each['lower_bound']):.2f}" for each in (one, other)),
            ]
            for one, other in zip(*columns.values(), strict=True)
        ],
    )


THEORY = RESULTS / "theory"


def theory_effects(folder: Path = THEORY) -> list[str]:
    """C* after the last epoch, and what noise and gradients alone make of it."""
    traced = read_numbers(folder / "optimal_clipping.csv")
    traced = traced[traced["epoch"] == traced["epochs"]]
    traced = traced.sort_values(["title", "epsilon"], ascending=[True, False])
    effects = read_numbers(folder / "privacy_effects.csv")
    effects = (
        effects[effects["rule"] == "C*"].set_index(["title", "effect", "epsilon"]).sort_index()
    )
    rows = [
        [
            f"{row['title']}, ε = {row['epsilon']:g}",
            short(row["median_norm"]),
            short(row["best_bound"]),
            *(
                short(effects.loc[(row["title"], effect, row["epsilon"]), "best_bound"])
                for effect in ("noise alone", "gradients alone")
            ),
            short(row["direction_bound"]),
            f"{short(row['plateau_lower'])} to {short(row['plateau_upper'])}",
        ]
        for _, row in traced.iterrows()
    ]
    said = [
        _effects_said(str(title), members.iloc[0], members.iloc[-1], effects)
        for title, members in traced.groupby("title")
    ]
    head = ["", "median norm", "C\\*", "of its noise alone", "of its gradients alone"]
    return [*grid([*head, "scale-free C", "R within 2 %"], rows), "", *said]


def _effects_said(title: str, loose: pd.Series, tight: pd.Series, effects: pd.DataFrame) -> str:
    """What the noise alone and the gradients alone do to C*, between the largest and the smallest epsilon."""
    gradients, noise = (
        effects.loc[(title, effect)].drop(loose["epsilon"])
        for effect in ("gradients alone", "noise alone")
    )
    grown = (gradients["smallest"] > loose["largest"]).sum()
    fallen = (gradients["largest"] < loose["smallest"]).sum()
    factors = [
        (row["best_bound"] / loose["best_bound"], *_range(row, loose))
        for row in (noise.loc[tight["epsilon"]], gradients.loc[tight["epsilon"]])
    ]
    by_noise, by_gradients = (
        f"{short(x)} ({short(low)} to {short(high)})" for x, low, high in factors
    )
    by_size = [sorted(abs(math.log(end)) for end in ends) for _, *ends in factors]
    return (
        f"- {title}, from ε = {loose['epsilon']:g} to {tight['epsilon']:g}: the median norm is multiplied by "
        f"{tight['median_norm'] / loose['median_norm']:.2f}. The noise alone multiplies C\\* by {by_noise}, "
        f"the gradients alone by {by_gradients}."
        + (" The noise has the larger effect." if by_size[0][0] > by_size[1][1] else "")
        + f" The gradients alone raise C\\* beyond the range over batches at {grown} of the {len(gradients)} "
        f"smaller ε, as the paper says, and lower it beyond that range at {fallen}."
    )


def _range(row: pd.Series, loose: pd.Series) -> tuple[float, float]:
    """The smallest and the largest factor between batches."""
    return row["smallest"] / loose["largest"], row["largest"] / loose["smallest"]


def theory_rules(file: Path) -> list[str]:
    """What each rule for C loses, with intervals, and what can be told apart."""
    numbers = read_numbers(file)
    firsts = numbers.drop_duplicates("rule").set_index("rule")
    rows = []
    for rule, first in firsts.iterrows():
        correlation = _interval(*(first[f"rank_correlation{end}"] for end in ENDS), digits=2)
        lost = _interval(*(100 * first[f"mean_lost{end}"] for end in ENDS), digits=2)
        worst = 100 * numbers.loc[numbers["rule"] == rule, "lost"].max()
        cells = [_escaped(str(rule)), correlation, lost, f"{worst:.2f}"]
        rows.append([*cells, f"{first['settings']}", f"{first['problems']}"])
    head = ["rule", "rank correlation", "points lost, mean", "largest", "settings", "problems"]
    predictions = [str(rule) for rule in firsts.index[:3]]
    plateau = numbers.loc[numbers["rule"] == predictions[0], "measured_on_plateau"].astype(bool)
    pairs = [
        *((rule, HINDSIGHT) for rule in predictions),
        *itertools.combinations(predictions, 2),
    ]
    differences = {pair: lost_more(numbers, *pair) for pair in pairs}
    compared = [
        [
            f"{_escaped(rule)} − {_escaped(other)}",
            _interval(*(100 * each for each in found), digits=2),
        ]
        for (rule, other), found in differences.items()
    ]
    apart = sum(found.excludes_zero for found in differences.values())
    largest = 100 * max(abs(found.value) for found in differences.values())
    follow = sum(firsts.loc[rule, "rank_correlation_lower"] > 0 for rule in predictions)
    return [
        *grid(head, rows),
        "",
        *grid(["difference of two rules", "points lost, mean"], compared),
        "",
        f"- The rank correlation with the measured bound has an interval above 0 for {follow} of the three "
        "predictions.",
        f"- Of these {len(pairs)} differences of points lost, {apart} have an interval without 0. The "
        f"largest is {largest:.2f} points.",
        f"- The measured best bound lies on the plateau of R in {plateau.sum()} of {len(plateau)} settings.",
        *([_NOTHING] if not follow and not apart else []),
    ]


_NOTHING = (
    "- So nothing here shows that one of the three predicts the best C, or that one is better than another: "
    "neither the shift of the norms nor direction."
)
ENDS = ("", "_lower", "_upper")


def _interval(value: float, lower: float, upper: float, digits: int) -> str:
    """A number with its 95 % interval, as far as there is one."""
    if math.isnan(value):
        return ""
    text = f"{value:.{digits}f}"
    if not math.isnan(lower):
        text += f" [{lower:.{digits}f}, {upper:.{digits}f}]"
    return text.replace("-", "−")


def _escaped(rule: str) -> str:
    return rule.replace("*", "\\*")


def tables() -> dict[str, list[str]]:
    """The lines of every table, by the name that its place in a document has."""
    lines = {
        "plan": plan(),
        "audit": audit(),
        "theory, effects of privacy": theory_effects(),
        "theory, rules": theory_rules(THEORY / "predictions.csv"),
        "theory, rules in the demo": theory_rules(THEORY / "demo_predictions.csv"),
        "calibration": calibration(
            {name: read_json(RESULTS / f"{name}.json") for name in CALIBRATION}
        ),
    }
    for name, (file, command, render) in TABLES.items():
        found = sorted(RESULTS.glob(file))
        lines[name] = (
            render(_joined([read_json(path) for path in found]))
            if found
            else [f"*Open: not measured yet. `{command}` fills this in.*"]
        )
    return lines


def _joined(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The only result, or the pieces of one: what they have measured, and the rows of all."""
    if "piece" not in found[0]:
        return found[0]
    rows = [row for piece in found for row in piece.get("rows", [])]
    environment = found[0]["environment"]
    for piece in found:
        for key, value in piece["environment"].items():
            if key != "load_before" and value != environment[key]:
                raise ValueError(
                    f"one table from two machines: {found[0]['piece']} has {key} {environment[key]}, "
                    f"{piece['piece']} has {value}. Delete one of them and measure it again"
                )
    device = environment["device"]
    return {"environment": environment, "device": device, "pieces": found, "rows": rows}


def start(name: str) -> str:
    """The comment before a table."""
    return f"<!-- table: {name} -->\n"


def filled(document: str, lines: dict[str, list[str]]) -> str:
    """The document with every table that it has a place for as the results have it."""
    for name, table in lines.items():
        before, found, rest = document.partition(start(name))
        if found:
            _, _, after = rest.partition(END)
            document = before + found + "\n".join(table) + "\n" + END + after
    return document


def write_tables() -> None:
    """Replace the tables of all documents."""
    made = tables()
    for path in DOCUMENTS:
        write_text(path, filled(path.read_text(encoding="utf-8"), made))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    write_tables()
