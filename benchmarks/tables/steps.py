"""Cost of steps and cells on the CPU, and of noise within a step."""

from typing import Any

from benchmarks.tables.markdown import grid, where

REFERENCE = "without privacy"


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


def noise_cost(result: dict[str, Any]) -> list[str]:
    """Cost of noise with full tails in a step."""
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


def features(result: dict[str, Any]) -> list[str]:
    """Cost of a head on cached features: a step beside others, and cells of 12 trials."""
    step, size = result["step"], result["size"]
    ours = step["seconds"]["cached features"]
    cells = [
        [
            "N (full batch)" if each["batch_size"] == "full" else f"{each['batch_size']:,}",
            f"{each['steps']:,}",
            f"{each['processor_seconds'] / each['trials']:.2f} s",
            f"{each['cell_seconds']:.1f} s",
        ]
        for each in result["cells"]
    ]
    least = sum(seconds for name, seconds in step["seconds"].items() if name.endswith("alone"))
    return [
        *grid(["B", "steps of a trial", "processor time of a trial", "cell of 12 trials"], cells),
        "",
        f"N = {size['train']:,}, {size['features']} features, {size['classes']} classes, {size['epochs']} "
        f"epochs, on one core. A step of {step['examples']} examples takes {1000 * ours:.2f} ms, of which "
        f"{1000 * least:.2f} ms are sampling, noise and the two float64 products; Opacus takes "
        f"{step['seconds']['Opacus on the same features'] / ours:.2f}x as long, the network in the loop "
        f"(ViT-Tiny, {step['pixels']} x {step['pixels']} pixels) "
        f"{step['seconds']['network in the loop'] / ours:,.0f}x.",
    ]


def size_of_a_cell(size: dict[str, Any]) -> str:
    """Hardware of a cell's trials, as a sentence before another one."""
    pixels = f"{size['pixels']} x {size['pixels']} pixels"
    return f"N = {size['train']:,}, {pixels}, B = {size['batch']}, {size['epochs']} epochs. "
