"""`new --private --texts` without a network that is downloaded: a release that has learnt something."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.real_data.test_real_data import write_tickets
from typer.testing import CliRunner

from dpsweep.cli import stages
from dpsweep.cli.main import app
from dpsweep.data.prepared import PreparedDataset
from dpsweep.release.train import train_release, write_release
from dpsweep.release.verify import verify
from dpsweep.study import load_study
from dpsweep.study.paths import Paths


@pytest.mark.slow
def test_a_release_of_texts_needs_no_download(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tickets(Path("tickets.csv"))
    options = ["--label-column", "queue", "--private", "--epsilon", "2", "--extends", "paper"]
    done = CliRunner().invoke(app, ["new", "tickets.yaml", "--texts", "tickets.csv", *options])
    assert done.exit_code == 0, done.output
    file = Path("tickets.yaml")
    assert "The test rows are not protected" in file.read_text()
    study = load_study(file)
    paths = Paths(Path(study.results))
    (name,) = study.swept_backbones
    assert study.backbones[name].weights.kind == "none"
    stages.prepare_tokenizer(name, file)
    stages.prepare_backbone(name, file)
    stages.prepare_dataset("tickets", file)
    stages.compute_features("tickets", name, file)
    folder = write_release(study, paths)
    certificate = verify(folder, backbone=paths.backbone(name))
    repeated = [train_release(study, paths)[0].record["accuracy"] for _ in range(2)]
    labels = PreparedDataset.open(paths.dataset("tickets")).test_labels
    assert np.bincount(labels).max() / len(labels) < 0.65
    assert min(certificate.test_accuracy, *repeated) >= 0.85
    # The card's code reads a text as training does.
    code = (folder / "README.md").read_text().split("```python\n")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for block in code[1:]:
        exec(block.split("```")[0].replace("Some text.", "Please refund order 902"), names)  # noqa: S102
    with torch.no_grad():
        logits = names["model"](names["prepare"]("Please refund order 902"))  # type: ignore[operator]
    assert names["classes"][logits.argmax().item()] == "billing"  # type: ignore[index]
