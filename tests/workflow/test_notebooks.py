"""The notebooks of examples/ print what they show; their release needs only NumPy."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xxhash
from benchmarks.notebooks import FOLDER, run
from nbformat import NO_CONVERT, NotebookNode, read
from safetensors.numpy import load_file

from dpsweep.release.verify import verify
from dpsweep.study import load_study
from dpsweep.study.datasets import is_within


def shown(notebook: NotebookNode) -> list[list[tuple[str, str]]]:
    """Return the outputs of each cell: kind and text, with # for numbers and the spaces beside them.

    The text of a data frame is its first column; that of a picture is empty.
    """
    return [
        [
            (kind, re.sub(r"\s*\b[0-9.]+(e-?\d+)?\b", "#", text if kind == "text/plain" else ""))
            for output in cell.get("outputs", [])
            for kind, text in sorted(
                output.get("data", {"text/plain": output.get("text", "")}).items()
            )
        ]
        for cell in notebook.cells
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["release", "sweep"])
def test_a_notebook_runs_with_the_outputs_that_it_shows(name: str, tmp_path: Path) -> None:
    file = FOLDER / f"{name}.ipynb"
    stored = read(file, as_version=NO_CONVERT)  # type: ignore[no-untyped-call]
    made = run(file, tmp_path)
    guessed = {"found", "right"}  # random noise decides a prediction near a boundary
    for before, after in zip(shown(stored), shown(made), strict=True):
        assert [kind for kind, _ in before] == [kind for kind, _ in after]
        for (_, old), (_, new) in zip(before, after, strict=True):
            if old.partition(":")[0] not in guessed:
                assert old == new
    {"release": check_release, "sweep": check_sweep}[name](tmp_path)


def check_sweep(folder: Path) -> None:
    trials = pd.read_parquet(folder / "results" / "problems" / "notes_embedding_head.parquet")
    assert set(trials["epsilon"]) == {0.5, 2}
    assert (trials["certified_epsilon"] <= trials["epsilon"]).all()
    assert (trials["trainable_parameters"] == 4 * 65).all()
    best = trials[trials["best"] & (trials["epsilon"] == 2)]
    assert best["accuracy"].max() > 0.8  # by chance 0.25


def check_release(place: Path) -> None:
    study = load_study(place / "notes.yaml")
    folder = place / "results" / "notes" / "release"
    certificate = verify(folder)
    assert certificate.certified_epsilon <= certificate.epsilon == 2
    assert (certificate.network.kind, certificate.network.shape) == ("embedding", [64])
    # The model without torch: normalise each embedding, and multiply it by the weights.
    stored = np.load(place / "notes.npz")
    names = [f"{xxhash.xxh3_64_intdigest(row.tobytes()):016x}" for row in stored["embeddings"]]
    tested = np.array([is_within(0.2, 0, "test", name) for name in names])
    assert tested.sum() == study.datasets["notes"].test_size
    x = stored["embeddings"][tested].astype(np.float64)
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    model = load_file(folder / "model.safetensors")
    guesses = (x @ model["head.weight"].T + model["head.bias"]).argmax(axis=1)
    right = np.array(certificate.network.classes)[guesses] == stored["labels"][tested]
    assert right.mean() == pytest.approx(certificate.test_accuracy, abs=1.5 / len(x))
