"""Forgeries by an attacker who uses this code to derive every number, fingerprint and card again.

A forgery may verify only if the folder cannot show the change, and `verify` documents such changes. With the
ledger of the original study, no forgery verifies.
"""

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.release.releases import Change, Content, derive_checksums, put, seal

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import read_checked_json
from dpsweep.privacy import Sampling, accountants
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.tuning import calibrate_tuning
from dpsweep.release import CERTIFICATE, FROZEN, TRAINED, files
from dpsweep.release.certificate import (
    FORGEABLE_CLAIMS,
    UNVERIFIABLE_CLAIMS,
    ReleasedModel,
    best_attacks,
    certify_tuning,
    epsilon_by_pld,
)
from dpsweep.release.ledger import released_together
from dpsweep.release.verify import verify
from dpsweep.study.backbones import Architecture
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.datasets import held_out_rows
from dpsweep.study.methods import Film, HeadOnly

PAGE = Path(__file__).parents[2] / "docs" / "release.md"
losses = lru_cache(maxsize=256)(accountants.privacy_loss)
calibrated = lru_cache(calibrate)
tuned_noise = lru_cache(calibrate_tuning)


@pytest.fixture(autouse=True)
def losses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache privacy losses, because many forgeries have the same noise."""
    monkeypatch.setattr(accountants, "privacy_loss", losses)


@dataclass(frozen=True)
class Edit:
    """An attacker's change, and the documented reason if it cannot be detected.

    Attributes:
        name: of the change.
        change: of the certificate.
        why: a key of `UNVERIFIABLE_CLAIMS` or of `FORGEABLE_CLAIMS`; empty if the change must be refused.
        files: a change of the folder.
        last: made after the other numbers are derived.
    """

    name: str
    change: Change = lambda _: None
    why: str = ""
    files: Callable[[Path], Any] = lambda _: None
    last: bool = False


def in_settings(**values: Any) -> Change:
    def change(content: Content) -> None:
        for each in (content["setting"], *(content["tuning"] or {}).get("candidates", [])):
            each.update(values)

    return change


def fixed(content: Content) -> None:
    """Present a tuned model as one of a fixed setting; this once lowered epsilon from 8 to 6.86."""
    noise = content["noise"]
    content |= {"tuning": None, "epsilon": noise["epsilon"]}
    content["split"] = {"holdout_share": 0.0, "held_out": 0, "examples": noise["train_size"]}


def with_tuning(content: Content) -> None:
    candidates = [content["setting"], content["setting"] | {"learning_rate": 0.5}]
    content["split"] |= {"holdout_share": 0.2}
    content["tuning"] = {"mean_trials": 2.0, "shape": 1.0, "score": 30.0, "candidates": candidates}


def earlier(change: Callable[[list[Content]], Any]) -> Change:
    return lambda content: change(content["releases"]["earlier"])


def model(epsilon: float, delta: float) -> Content:
    return {"certificate": "1" * 64, "epsilon": epsilon, "delta": delta, "noise": None}


def numbers(name: str, number: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        state = load_file(folder / name)
        other = {key: torch.full_like(each, number) for key, each in state.items()}
        save_file(other, folder / name)

    return change


def moved(folder: Path) -> None:
    trained, frozen = load_file(folder / TRAINED), load_file(folder / FROZEN)
    frozen["head.bias"] = trained.pop("head.bias")
    save_file(trained, folder / TRAINED)
    save_file(frozen, folder / FROZEN)


ARGUMENTS = ("network", "arguments")
EDITS = [
    # Changes that the folder cannot show.
    *(Edit(f"epsilon {e}", put("epsilon", value=e), "noise") for e in (0.5, 1.0, 7.9, 50.0)),
    *(Edit(f"delta {d}", put("delta", value=d), "noise") for d in (1e-6, 1e-9, 1e-3)),
    *(Edit(f"epochs {e}", in_settings(epochs=e), "noise") for e in (1, 3, 40)),
    Edit("ceil", put("step_rounding", value="ceil"), "step_rounding"),
    *(Edit(f"examples {n}", put("split", "examples", value=n), "split") for n in (100, 1000, 5000)),
    Edit("a share", put("split", "holdout_share", value=0.15), "split"),
    Edit("tuning against none", fixed, "tuning"),
    Edit("none against tuning", with_tuning, "tuning"),
    Edit("no earlier releases", earlier(list.clear), "releases"),
    Edit("fewer earlier releases", earlier(lambda each: each[:-1] and each.pop()), "releases"),
    Edit("in another order", earlier(list.reverse), "releases"),
    Edit("with a smaller epsilon",
         earlier(lambda them: [each.update(epsilon=0.1, noise=None) for each in them]), "releases"),
    Edit("more earlier releases", earlier(lambda them: them.append(model(0.001, 1e-7))), "releases"),
    Edit("heads", put(*ARGUMENTS, "num_heads", value=4), "network"),
    Edit("other weights", put("network", "weights", value="2" * 64), "network"),
    Edit("other mean", put("network", "mean", value=[0.1]), "network"),
    Edit("trained numbers", why="files", files=numbers(TRAINED, 0.5)),
    Edit("frozen numbers", why="files", files=numbers(FROZEN, 0.5)),
    Edit("optimizer", put("optimizer", value="sgd"), "optimizer"),
    Edit("accuracy", put("test_accuracy", value=1.0), "test_accuracy"),
    Edit("rate", in_settings(learning_rate=0.5), "setting.learning_rate"),
    Edit("bound", in_settings(clipping_bound=3.0), "setting.clipping_bound"),
    Edit("title", put("title", value="**Free** text\n# here"), "title"),
    Edit("sweeps", put("earlier_sweeps", value=["a\nb"]), "earlier_sweeps"),
    # Changes that must be refused after all numbers are derived from them.
    Edit("layers", put(*ARGUMENTS, "depth", value=2)),
    Edit("width", put(*ARGUMENTS, "embed_dim", value=48)),
    Edit("all parameters train", put("network", "method", value={"kind": "head"})),
    Edit("classes", lambda content: content["network"]["classes"].append("more")),
    Edit("fewer classes", lambda content: content["network"]["classes"].pop()),
    Edit("moved", files=moved),
    Edit("not finite", files=numbers(TRAINED, float("nan"))),
    Edit("hub", put("network", "architecture", value="hf-hub:timm/vit_tiny_patch16_224")),
    Edit("checkpoint", put(*ARGUMENTS, "checkpoint_path", value="/etc/passwd")),
    Edit("delta of one over N", put("delta", value=0.01)),
    Edit("adjacency", put("adjacency", value="replace one example")),
    Edit("randomness", put("randomness", value="public")),
    Edit("engine", put("engine", value="opacus")),
    Edit("channels", put("network", "mean", value=[0.5, 0.5])),
    Edit("deviations of other channels", put("network", "std", value=[0.5, 0.5])),
    Edit("no deviation", put("network", "std", value=[0.0])),
    Edit("deltas of one together", earlier(lambda them: them.extend([model(1.0, 0.6)] * 2))),
    Edit("a text", put("network", "kind", value="text")),
    # Changes of derived numbers.
    *(Edit(f"less {path}", put(*path.split("."), factor=0.9), last=True)
      for path in ("certified_epsilon", "pld_epsilon", "epsilon", "delta", "noise.noise_multiplier",
                   "noise.certified_epsilon", "noise.sampling_rate", "releases.joint_epsilon",
                   "releases.joint_delta")),
    Edit("steps", put("setting", "steps", value=77), last=True),
    Edit("batch", put("noise", "batch_size", value=7), last=True),
    Edit("held out", put("split", "held_out", value=7), last=True),
    Edit("backbone", put("network", "backbone", value="3" * 64), last=True),
    Edit("trained parameters", put("network", "trained_parameters", value=7), last=True),
    Edit("a file", put("files", TRAINED, value="4" * 64), last=True),
    Edit("another field", put("guarantee", value="none"), last=True),
    Edit("true", put("earlier_trials", value=True), last=True),
    Edit("a float", put("setting", "epochs", value=2.0), last=True),
]  # fmt: skip


def derive(content: Content, folder: Path) -> None:
    """Derive every number from the chosen ones, like a release on full batches."""
    split, tuning, setting = content["split"], content["tuning"], content["setting"]
    share = split["holdout_share"] if tuning else 0.0
    held_out = len(held_out_rows(split["examples"], share)) if share else 0
    split |= {"holdout_share": share, "held_out": held_out}
    size = split["examples"] - held_out
    for each in (setting, *(tuning["candidates"] if tuning else ())):
        steps = optimizer_steps(size, size, each["epochs"], content["step_rounding"])
        each |= {"batch_size": size, "steps": steps}
    epsilon, delta, found = content["epsilon"], content["delta"], None
    if tuning:
        samplings = tuple(Sampling(size, size, each["steps"]) for each in tuning["candidates"])
        found = tuned_noise(epsilon, delta, tuning["mean_trials"], tuning["shape"], samplings)
        noise = found.calibration(Sampling(size, size, setting["steps"]))
        stated = certify_tuning(found, tuning["candidates"], tuning["score"])
        content["tuning"] = stated.model_dump(mode="json")
    else:
        noise = calibrated(epsilon, delta, size, size, setting["steps"])
    certified = found.total_epsilon if found else noise.certified_epsilon
    before = [ReleasedModel.model_validate(each) for each in content["releases"]["earlier"]]
    new = {"certificate": "0" * 64, "epsilon": epsilon, "delta": delta}
    own = ReleasedModel.model_validate(new | {"noise": None if found else noise})
    together = released_together(before, own)
    content |= {
        **{"noise": noise.to_dict(), "releases": together.model_dump(mode="json")},
        **{"certified_epsilon": certified, "pld_epsilon": epsilon_by_pld(noise, found)},
        "attacks": [asdict(each) for each in best_attacks(noise, found)],
    }
    network = content["network"]
    architecture = Architecture.model_construct(
        library="timm", name=network["architecture"], arguments=network["arguments"]
    )
    derive_checksums(content, folder)
    method = {"film": Film(kind="film"), "head": HeadOnly(kind="head")}[network["method"]["kind"]]
    made = files.outline(architecture, method, len(network["classes"]))[0]
    network |= {name: value for name, value in made.items() if value != 0}


def forge(folder: Path, edit: Edit) -> str:
    """Change a folder; return its certificate as JSON."""
    content = read_checked_json(folder / CERTIFICATE)
    edit.files(folder)
    if not edit.last:
        edit.change(content)
    # If deriving fails, the attacker leaves the numbers as they are.
    with contextlib.suppress(DpsweepError, ValueError, KeyError, UserWarning):
        derive(content, folder)
    if edit.last:
        edit.change(content)
    seal(folder, content)
    return json.dumps(content)


@pytest.fixture(scope="module")
def honest(results: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the derived certificates without an edit; they have the numbers of a full batch."""
    made = {}
    for name in ("tuned", "fixed"):
        folder = tmp_path_factory.mktemp("honest") / "release"
        made[name] = forge(Path(shutil.copytree(results / name, folder)), Edit("nothing"))
    return made


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_is_refused_or_documented_and_refused_beside_the_ledger(
    edit: Edit, honest: dict[str, str], results: Path, tmp_path: Path
) -> None:
    """Each documented edit verifies for at least one release, if its ledger is not at hand."""

    def verifies(name: str) -> bool:
        folder = Path(shutil.copytree(results / name, tmp_path / name / "release"))
        changes = forge(folder, edit) != honest[name]
        try:
            verify(folder, ledger="none")
        except DpsweepError as error:
            assert str(error).isprintable() or "\n  " in str(error)
            return False
        if changes:
            with pytest.raises(DpsweepError, match="ledger"):
                verify(folder, ledger=results.parent / "releases.jsonl")
        return changes

    assert any(map(verifies, honest)) == bool(edit.why)
    assert not edit.why or edit.why in UNVERIFIABLE_CLAIMS.keys() | FORGEABLE_CLAIMS.keys()


def test_the_page_lists_the_undetectable_changes() -> None:
    table = PAGE.read_text().split("## What verification cannot detect")[1].split("\n## ")[0]
    for name in FORGEABLE_CLAIMS:
        assert f"| `{name}` |" in table
