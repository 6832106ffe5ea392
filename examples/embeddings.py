"""Sweep your own embeddings, and look at the accuracy of each setting.

    python examples/embeddings.py notes.npz             # makes notes.yaml and results/notes in this folder
    python examples/embeddings.py notes.npz --cores 2   # what follows is for `dpsweep run`

Where there is no such file, one is made up: 3,000 vectors around the centres of four classes.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def made_up(path: Path) -> None:
    """Write embeddings float32 (N, d), and for each the name of its class."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 64))
    labels = random.integers(4, size=3000)
    embeddings = centres[labels] + 1.5 * random.normal(size=(3000, 64))
    names = np.array(["ant", "bee", "cat", "dog"])[labels]
    np.savez(path, embeddings=embeddings.astype(np.float32), labels=names)


def dpsweep(*words: object) -> None:
    """Call dpsweep."""
    subprocess.run([sys.executable, "-m", "dpsweep.cli", *map(str, words)], check=True)


def main(file: Path, *options: str) -> None:
    """Go from a file of embeddings to the accuracies of its sweep."""
    if not file.exists():
        made_up(file)
    name = file.stem
    study, sweep = Path(f"{name}.yaml"), f"{name}_embedding_head"
    dpsweep("new", study, "--embeddings", file)
    dpsweep("check", study)
    # What the sweep finds is for you: ε covers no choice that you make by looking at it.
    dpsweep("run", study, sweep, *options)
    trials = pd.read_parquet(f"results/{name}/problems/{sweep}.parquet")
    settings = ["epsilon", "clipping_bound", "batch_size"]
    print(trials[trials["best"]].groupby(settings)["accuracy"].mean().unstack("batch_size"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
