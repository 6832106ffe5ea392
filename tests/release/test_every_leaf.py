"""Releases of every kind of network: a change of any leaf or tensor is refused, or listed as unverifiable.

The folders have the account of a real release and a network that was not trained. An attacker writes
fingerprint and card again; where tensors change, also the checksums of the files.
"""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.release.releases import Content, others, seal, value_at
from tests.release.test_forgeries import Place, listed, places
from tests.release.test_loading_code import NGRAMS, TEXT, VECTORS, VIT, described

from dpsweep.base.files import canonical_json, checksum, read_checked_json
from dpsweep.data.tokenizer import Tokenizer, save_tokenizer, train_word_pieces
from dpsweep.models.architectures import create
from dpsweep.models.backbone import backbone_checksum
from dpsweep.models.build import apply_method, trainable_parameters
from dpsweep.release import CERTIFICATE, FROZEN, TOKENIZER, TRAINED, ReleaseError, binary_files
from dpsweep.release.files import save_parameters, stated
from dpsweep.release.verify import verify
from dpsweep.study.methods import AllParameters, HeadOnly, LoRA

IMAGE = {"kind": "image", "mean": [0.5] * 3, "std": [0.5] * 3, "shape": [8, 8, 3]} | {
    "resize": {"size": 8, "interpolation": "bicubic", "crop": 0.9}
}
PLAIN: Content = {"mean": [], "std": []}
FREEZE = ["patch_embed", "blocks.0.attn"]
KINDS: dict[str, Any] = {
    "lora": (VIT, LoRA(kind="lora", rank=2, target_modules=["qkv", "fc1"]), IMAGE),
    "all with freeze": (VIT, AllParameters(kind="all", freeze=FREEZE), IMAGE),
    "texts": (
        TEXT,
        LoRA(kind="lora", rank=2, target_modules=["q_lin"]),
        PLAIN | {"kind": "text", "shape": [6]},
    ),
    "embeddings": (VECTORS, HeadOnly(kind="head"), PLAIN | {"kind": "embedding", "shape": [6]}),
    "n-grams": (NGRAMS, HeadOnly(kind="head"), PLAIN | {"kind": "text", "shape": [6]}),
}


def made(kind: str, account: Path, folder: Path) -> Content:
    """Write a release of a kind of network into a folder; return its certificate."""
    architecture, method, fields = KINDS[kind]
    folder.mkdir(parents=True)
    tokenizer = None
    if fields["kind"] == "text":
        texts = [f"some words and the number {number}" for number in range(50)]
        save_tokenizer(train_word_pieces(texts, 50), folder / "prepared.json")
        tokenizer = Tokenizer.open(folder / "prepared.json")
        tokenizer.export(folder / TOKENIZER)
        (folder / "prepared.json").unlink()
    identity = tokenizer and tokenizer.identity
    model = create(architecture, 3)
    apply_method(model, method)
    save_parameters(model, trainable_parameters(model), folder)
    found = checksum(folder / FROZEN)
    network = described(
        architecture,
        **fields,
        **stated(model),
        method=method.model_dump(mode="json"),
        tokenizer=identity,
        weights=found,
        backbone=backbone_checksum(architecture, fields["mean"], fields["std"], identity, found),
    )
    content = read_checked_json(account / CERTIFICATE)
    content["network"] = network.model_dump(mode="json")
    content["files"] = files(folder, content)
    seal(folder, content)
    return content


def files(folder: Path, content: Content) -> dict[str, str]:
    return {name: checksum(folder / name) for name in binary_files(content["network"]["kind"])}


def changed(content: Content, place: Place) -> Iterator[Content]:
    """Yield certificates with another value, without the field, or with another field or item beside."""
    key, whole = place[-1], value_at(content, place)
    for other in others(whole):
        if canonical_json(other) != canonical_json(whole):
            yield put(content, place, other)
    outer = value_at(content, place[:-1])
    if isinstance(outer, dict):
        yield put(content, place[:-1], {k: each for k, each in outer.items() if k != key})
        yield put(content, place[:-1], outer | {f"{key}s": whole})
    else:
        yield put(content, place[:-1], [*outer, whole])


def put(content: Content, place: Place, value: Any) -> Content:
    if not place:
        found: Content = value
        return found
    found = copy.deepcopy(content)
    value_at(found, place[:-1])[place[-1]] = value
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_leaf_is_refused_or_listed(kind: str, results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies" / "release"
    content = made(kind, results / "first", folder)
    verify(folder)
    own = canonical_json(content)
    tried = 0
    for place in places(content["network"], ("network",)):
        for other in changed(content, place):
            name = place if len(place) == 1 or listed(place) else place[:-1]
            if canonical_json(other) == own or listed(place) or listed(name):
                continue
            seal(folder, other)
            with pytest.raises(ReleaseError):
                verify(folder)
                pytest.fail(f"{place}: {value_at(other, place[:-1])} verifies")
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("kind", ["lora", "texts", "embeddings"])
def test_a_changed_tensor_is_refused(kind: str, results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies" / "release"
    content = made(kind, results / "first", folder)

    def refused(message: str) -> None:
        content["files"] = files(folder, content)
        seal(folder, content)
        with pytest.raises(ReleaseError, match=message):
            verify(folder)

    for file in (TRAINED, FROZEN):
        # Copies: tensors that were loaded may lie in the file that is written anew.
        state = {name: each.clone() for name, each in load_file(folder / file).items()}
        shutil.copy(folder / file, tmp_path / file)
        for name, tensor in [*state.items()][:3]:
            rest = {key: each for key, each in state.items() if key != name}
            for other, message in (
                (rest, f"{name} is missing"),
                (rest | {f"{name}2": tensor}, f"{name}2 is not among"),
                (state | {"more": tensor.clone()}, "more is not among"),
                (state | {name: tensor.flatten()[None, None, None]}, f"{name}: found"),
                (state | {name: tensor.double()}, f"{name}: found F64"),
                (state | {name: torch.full_like(tensor.float(), torch.nan)}, f"{name}: found"),
            ):
                save_file({key: each.contiguous() for key, each in other.items()}, folder / file)
                refused(f"{file}: {message}")
        shutil.copy(tmp_path / file, folder / file)
    content["files"] = files(folder, content)
    seal(folder, content)
    verify(folder)
