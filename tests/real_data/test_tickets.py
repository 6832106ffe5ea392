"""The README's way of a private data set: `new`, no search, a release that has learnt something."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from tests.real_data.test_real_data import ENCODER, STUDIES, needs
from tests.workflow.chain import Workflow
from typer.testing import CliRunner

from dpsweep.cli.main import app
from dpsweep.data.prepared import PreparedDataset
from dpsweep.release.train import train_release
from dpsweep.release.verify import verify
from dpsweep.study import load_study
from dpsweep.study.paths import Paths

pytestmark = [pytest.mark.real_data, pytest.mark.slow]

# Sentences of each queue, with a gap for a thing that queues share.
SENTENCES = {
    "billing": [
        "I was charged twice for {}",
        "The invoice of {} shows a wrong sum",
        "Please refund {}",
    ],
    "technical": [
        "{} shows an error after the update",
        "I cannot connect {}",
        "{} crashes at start",
    ],
    "shipping": [
        "The parcel with {} has not arrived",
        "The courier lost {}",
        "When do you deliver {}",
    ],
    "account": [
        "I forgot the password for {}",
        "Delete my profile with {}",
        "My login for {} is locked",
    ],
}
SHARES = [0.52, 0.2, 0.16, 0.12]
THINGS = [
    "the tablet",
    "my headphones",
    "the router",
    "the printer",
    "the yearly plan",
    "order 902",
]
BEFORE, AFTER = (
    ["", "Hello, ", "Hi team, ", "Urgent: "],
    ["", " Thanks.", " Please help.", " Third time!"],
)


def write_tickets(file: Path, rows: int = 800) -> None:
    """Write short texts; more than half of them belong to one queue."""
    draw = random.Random(7)
    with file.open("w", newline="") as opened:
        table = csv.writer(opened)
        table.writerow(["text", "queue"])
        for queue in draw.choices(list(SENTENCES), SHARES, k=rows):
            sentence = draw.choice(SENTENCES[queue]).format(draw.choice(THINGS))
            sentence += f" ({draw.randrange(10_000)})."
            table.writerow([draw.choice(BEFORE) + sentence + draw.choice(AFTER), queue])


@needs(ENCODER)
def test_a_release_without_search_learns_short_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head on a sentence encoder is far above the largest class, whatever its secret noise."""
    (tmp_path / "shared").symlink_to(ENCODER.parents[1])
    folder = tmp_path / "work"
    folder.mkdir()
    write_tickets(folder / "tickets.csv")
    base = STUDIES / "frozen-features-local.yaml"
    options = ["--label-column", "queue", "--private", "--epsilon", "2", "--backbone", "minilm"]
    with monkeypatch.context() as within:
        within.chdir(folder)
        done = CliRunner().invoke(
            app, ["new", "tickets.yaml", "--texts", "tickets.csv", "--extends", str(base), *options]
        )
    assert done.exit_code == 0, done.output
    study = load_study(folder / "tickets.yaml")
    paths = Paths(folder / study.results)
    Workflow(folder, "tickets.yaml", study.results).run("release")
    certificate = verify(paths.release, backbone=paths.backbone("minilm"))
    assert study.release is not None
    repeated = [train_release(study, paths)[0].record["accuracy"] for _ in range(2)]
    labels = PreparedDataset.open(paths.dataset("tickets")).test_labels
    largest = np.bincount(labels).max() / len(labels)
    assert 0.4 < largest < 0.65
    accuracies = [certificate.test_accuracy, *repeated]
    assert min(accuracies) >= 0.75, accuracies
