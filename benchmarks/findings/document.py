"""The text of docs/findings.md."""

from collections.abc import Iterator
from typing import Any

from benchmarks.common import REPOSITORY
from benchmarks.findings.accuracies import (
    advice,
    along_batch_sizes,
    along_bounds,
    automatic_clipping,
    best_settings,
)
from benchmarks.findings.numbers import NUMBERS
from benchmarks.findings.rules import rules_section
from benchmarks.tables import THEORY, theory_effects, theory_rules
from dpsweep.base.files import read_json, write_text

PAGE = REPOSITORY / "docs" / "findings.md"
IMAGES = REPOSITORY / "docs" / "images" / "findings"
TEMPLATE = REPOSITORY / "benchmarks" / "findings.md"
FIGURES = {
    "fig1_accuracy_heatmaps": "Accuracy over C and B, from the easiest problem to the hardest",
    "fig2_clipping_vs_difficulty": "What a clipping bound costs against the best one, by difficulty",
    "fig3_gradnorm_distributions": "Norms of the per-example gradients after each epoch",
    "fig5_autoclip_vs_tuned": "AUTO-S beside flat clipping with a tuned bound",
    "fig7_cumulative_noise": "Cumulative noise, steps and accuracy",
    "text_heatmaps": "Texts: accuracy over C and B",
}


def _figures(notes: dict[str, str]) -> Iterator[str]:
    """Every picture with its words, and a note where its numbers are not those of the page."""
    for name, text in FIGURES.items():
        words = " ".join([f"{text}.", notes.get(name, "")]).rstrip()
        yield f"![{text}](images/findings/{name}.png)\n\n*{words}*"


def page(numbers: dict[str, Any]) -> str:
    """The text of docs/findings.md, from its numbers alone."""
    ends = numbers["ends"]
    return TEMPLATE.read_text(encoding="utf-8").format(
        **_about_the_study(numbers),
        at_an_end=ends["at_an_end"],
        tuned=ends["cells"],
        rules=rules_section(
            numbers,
            "since two of the three share their images and count as one ([statistics.md](statistics.md))",
        ),
        advice=advice(numbers),
        best=best_settings(numbers),
        by_bound=along_bounds(numbers),
        by_batch_size=along_batch_sizes(numbers),
        automatic=automatic_clipping(numbers),
        effects=_said(theory_effects()),
        predictions=_said(theory_rules(THEORY / "predictions.csv")),
        figures="\n\n".join(_figures(numbers.get("notes", {}))),
    )


def _about_the_study(numbers: dict[str, Any]) -> dict[str, Any]:
    """Its size, and how long it and a wider one take."""
    study = numbers["study"]
    seconds = study["seconds_of_a_trial"]
    return {
        "cells": f"{study['cells']:,}",
        "trials": f"{study['trials']:,}",
        "seeds": study["seeds"],
        "hours": f"{study['hours']:g}",
        "seconds": ", ".join(
            f"{value:g} s for N = {int(size):,}" for size, value in seconds.items()
        ),
        "sizes": max(len(row["values"]) for row in numbers["by_batch_size"]),
        "bounds": max(len(row["values"]) for row in numbers["by_bound"]),
        "wider": f"{480 * 9 * seconds['50000'] / 3600:.1f}",
    }


def _said(lines: list[str]) -> str:
    """The sentences under a table of docs/theory.md."""
    return "\n".join(line for line in lines if line.startswith("- "))


def write_page() -> None:
    """Write the page from the committed numbers."""
    write_text(PAGE, page(read_json(NUMBERS)))
