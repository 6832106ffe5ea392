"""Tables of costs of steps, noise, cells and studies, and of the checks on a GPU."""

from statistics import median_low as median
from typing import Any

from benchmarks.common import REPOSITORY
from benchmarks.tables.markdown import columns, describe_environment, grid
from dpsweep.planning.plan import Plan, Status
from dpsweep.study import Paths, load_study

REFERENCE = "without privacy"
PRECISIONS = ("float32", "float64", "bfloat16")
Result = dict[str, Any]


def step_cost(result: Result) -> list[str]:
    """Return the ratios of time and memory to the step without privacy."""

    def ratios(row: Result, name: str) -> str:
        measured = row["contenders"].get(name)
        if measured is None or "failure" in measured:
            return "" if measured is None else "fails"
        memory = measured["megabytes"] / row["contenders"][REFERENCE]["megabytes"]
        return f"{measured['ratio']:.2f}x, {memory:.2f}x"

    def reference(row: Result) -> str:
        measured = row["contenders"][REFERENCE]
        return f"{1000 * measured['seconds']:.0f} ms, {measured['megabytes']:.0f} MB"

    rows = result["rows"]
    settings = dict.fromkeys(row["setting"] for row in rows)
    names = dict.fromkeys(name for row in rows for name in row["contenders"])
    shown = [
        (setting, name)
        for setting in settings
        for name in names
        if any(row["setting"] == setting and name in row["contenders"] for row in rows)
    ]
    networks = dict.fromkeys((row["title"], row["batch"]) for row in rows)
    found = {(row["title"], row["batch"], row["setting"]): row for row in rows}

    def cell(network: tuple[str, int], setting: str, name: str) -> str:
        row = found.get((*network, setting), {"contenders": {}})
        if name not in row["contenders"]:
            return ""
        return reference(row) if name == REFERENCE else ratios(row, name)

    head = [
        "network, what trains (batch)",
        *(name if len(settings) == 1 else f"{name}, {setting}" for setting, name in shown),
    ]
    body = [
        [f"{network[0]} ({network[1]})", *(cell(network, *column) for column in shown)]
        for network in networks
    ]
    said = (
        f"Time and peak memory of a step in {' and '.join(settings)}, as multiples of the same step "
        "without privacy. "
    )
    return [*grid(head, body), "", said + describe_environment(result["environment"])]


def noise_cost(result: Result) -> list[str]:
    """Return the cost of noise with full tails in a step."""

    def whole(row: Result) -> str:
        seconds = row["step_seconds"]
        return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"

    shown = {
        "step": "{case}",
        "trainable parameters": "{parameters:,}",
        "step, all of it": whole,
        "float32 noise": lambda row: f"{1000 * row['float32_noise_seconds']:.2f} ms",
        "our noise": lambda row: f"{1000 * row['noise_seconds']:.2f} ms",
        "added": "{added_percent:+.2f} %",
    }
    return [*columns(shown, result["rows"]), "", describe_environment(result["environment"])]


def plan() -> list[str]:
    """Return cells, trials and estimated GPU hours of the main targets of the paper's study."""
    study = load_study(REPOSITORY / "config.yaml")
    paths = Paths(REPOSITORY / "nowhere")  # a missing folder: no cell is done
    status = Status(study, paths)
    main = (name for name in (*study.figures, *study.tables) if name.startswith(("fig", "tab1")))
    named = {"everything": "all"} | {f"`{name}`": name for name in main}
    rows = []
    for title, name in named.items():
        estimates = Plan(study, paths, [name], status=status).estimates().values()
        hours = sum(each.seconds for each in estimates) / 3600
        cells, trials = (sum(getattr(e, each) for e in estimates) for each in ("cells", "trials"))
        rows.append([title, f"{cells:,}", f"{trials:,}", f"{hours:,.{0 if hours >= 10 else 1}f}"])
    return grid(["target", "cells", "trials", "GPU hours (estimate)"], rows)


# -- on a GPU ----------------------------------------------------------------------------------


def right_on_gpu(result: Result) -> list[str]:
    """Return the largest relative errors of the engines against the loop in float64, and other checks."""
    largest: dict[str, list[tuple[float, str]]] = {precision: [] for precision in PRECISIONS}
    for piece in result["pieces"]:
        for setting, errors in piece.get("relative_errors", {}).items():
            precision = setting.split(", ", 1)[1]
            largest[precision] += [(error, piece["title"]) for error in errors.values()]
    titles = {title for errors in largest.values() for _, title in errors}
    listed = ", ".join(
        f"{precision} {max(errors)[0]:.1e} ({max(errors)[1]}; median {median(errors)[0]:.1e})"
        for precision, errors in largest.items()
    )
    said = [
        f"Engines against the loop over single examples in float64, {len(titles)} networks and methods. "
        f"Largest relative error of a sum, a norm or a clipped gradient: {listed}."
    ]
    if refused := [
        f"{piece['title']}, {setting}"
        for piece in result["pieces"]
        for setting in piece.get("failures", {})
    ]:
        said.append(f"Not computed, because the engine has no rule: {'; '.join(refused)}.")
    for piece in result["pieces"]:
        for precision, names in piece.get("not_compared", {}).items():
            said.append(
                f"{piece['title']}, {precision}: the loop itself is too far off to compare "
                f"{' and '.join(names)}."
            )
        if "draws" in piece:
            drawn = (
                "Noise: {beyond_float32} of {draws:,} draws beyond the largest of float32, "
                "{expected_beyond:.0f} expected."
            )
            said.append(drawn.format_map(piece))
        if found := piece.get("largest_relative_differences"):
            listed = ", ".join(f"{name} {value:.1e}" for name, value in found.items())
            said.append(f"Largest relative differences of parameters: {listed}.")
    return [*said, describe_environment(result["environment"])]


def cifar100_on_gpu(result: Result) -> list[str]:
    """Return the best trial of every epsilon and clipping rule."""
    rows = [piece["best"] for piece in result["pieces"]]
    shown = {
        "epsilon": "{epsilon:g}",
        "clipping": "{clipping}",
        "accuracy": "{accuracy:.3f}",
        "B": "{batch_size:,}",
        "C": lambda row: str(row["clipping_bound"] or ""),
        "learning rate": "{learning_rate:g}",
        "examples per second": "{examples_per_second:,.0f}",
    }
    rows.sort(key=lambda row: (row["clipping"], row["epsilon"]))
    return [*columns(shown, rows), "", describe_environment(result["environment"])]


def cell_on_gpu(result: Result) -> list[str]:
    """Return the parts of the wall time of a cell."""
    shown = {
        "two trials": lambda each: "compiled" if each["compiled"] else "eager",
        "process": "{process_seconds:.1f} s",
        "steps and evaluation": lambda each: f"{100 * each['share_of_steps_and_evaluation']:.1f} %",
        "to the first step": "{seconds_to_first_step:.1f} s",
        "examples per second": "{examples_per_second:,}",
        "memory": lambda each: f"{each.get('gigabytes', 0):.1f} GB",
    }
    size = "N = {train:,}, {pixels} x {pixels} pixels, B = {batch}, {epochs} epochs. "
    said = size.format_map(result["pieces"][0]["size"]) + describe_environment(
        result["environment"]
    )
    return [*columns(shown, result["pieces"]), "", said]
