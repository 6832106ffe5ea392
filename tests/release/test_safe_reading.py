"""Damaged and forged folders are refused with a message; nothing outside is opened or run."""

import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.release.releases import Content, forge, put

from dpsweep.base.errors import DpsweepError
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED
from dpsweep.release.verify import verify

OUTSIDE = ("socket.connect", "socket.getaddrinfo", "subprocess", "os.system")


def refused(folder: Path) -> str:
    """Check that a folder is refused in bounded processor time; return the message."""
    start = time.process_time()
    with pytest.raises(DpsweepError) as found:
        verify(folder)
    assert time.process_time() - start < 8
    said = str(found.value)
    assert said.replace("\n  ", "").isprintable() and len(said) < 10_000
    return said


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED])
@pytest.mark.parametrize("make", [lambda file: file.symlink_to("/etc/passwd"), Path.mkdir])
def test_files_are_regular_files_of_the_folder(make, name, folder):
    (folder / name).unlink()
    make(folder / name)
    assert f"{name}: found a link, a folder, a pipe or a device; allowed: a file" in refused(folder)


def test_large_files_are_not_read(folder):
    for name in (CERTIFICATE, CARD, TRAINED):
        size = (folder / name).stat().st_size
        os.truncate(folder / name, 2**41)  # with holes
        assert f"{name}: found {2**41} bytes; allowed: at most" in refused(folder)
        os.truncate(folder / name, size)


def test_paths_other_than_release_folders_are_refused(folder, tmp_path):
    assert "cannot be read: No such file" in refused(tmp_path / "nowhere")
    assert "cannot be read: Not a directory" in refused(folder / CARD)
    for index in range(30):
        (folder / f"a\n\x1b[31m{index}").touch()
    assert "is not a file of a release" in refused(folder)


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED, FROZEN, CARD])
def test_edited_and_missing_files_are_found(name, folder):
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    assert name in refused(folder)
    (folder / name).unlink()
    assert re.search(f"{name}: missing|no release, {name} is missing", refused(folder))


# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("earlier_trials",), False, "earlier_trials: Input should be a valid integer"),
        (("earlier_trials",), 0.0, "earlier_trials: Input should be a valid integer"),
        (("epsilon",), 8, "certificate.epsilon: found 8, expected 8.0"),
        (("epsilon",), math.inf, "epsilon: Input should be a finite number"),
        (("test_accuracy",), math.nan, "test_accuracy: Input should be a finite number"),
        (("network", "mean"), [math.inf], "network.mean.0: Input should be a finite number"),
        (("noise", "certified_epsilon"), math.nan, "noise.certified_epsilon"),
        (("guarantee",), "none", "guarantee: Extra inputs are not permitted"),
    ],
)
def test_fields_are_read_strictly(place, value, said, folder):
    forge(folder, put(*place, value=value))
    assert said in refused(folder)


def test_invalid_certificates_are_refused(folder):
    whole = (folder / CERTIFICATE).read_bytes()
    for written in (b"", b"\xff\xfe{}", b"null", b"{}"):
        (folder / CERTIFICATE).write_bytes(written)
        refused(folder)
    (folder / CERTIFICATE).write_bytes(whole.replace(b'"delta": 1e-05', b'"delta": 1e-06', 1))
    assert "damaged or edited" in refused(folder)


def test_free_text_contains_no_markup_and_stays_on_its_line(folder):
    evil = "Pets\n\n**(0.1, 1e-9)-private** <img src=x> [a](https://b.c) `x` | www.d.e \u202e # \x1b[31m"

    def change(content: Content) -> None:
        content |= {"dataset": evil, "title": evil, "earlier_sweeps": [evil]}
        content["network"]["classes"][0] = evil
        content["network"]["pretraining"] = {"kind": evil}

    before = (folder / CARD).read_text()
    forge(folder, change)
    verify(folder)
    card = (folder / CARD).read_text()
    # A sweep adds a few lines to every card.
    assert len(card.splitlines()) <= len(before.splitlines()) + 5
    for mark in ("**(", "<img", "[a]", "https://", "www.", "\u202e", "\x1b", " | www"):
        assert mark not in card
    assert "Pets\\\\n\\\\n\\*\\*(0.1, 1e-9)-private" in card


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "hf-hub:timm/vit_tiny_patch16_224.augreg_in21k"},
        {"arguments": {"checkpoint_path": "/etc/passwd"}},
        {"arguments": {"depth": 10**9}},
        {"arguments": {"embed_dim": 10**15}},
        {"arguments": {"x=__import__('os').system('id')#": 1}},
        {"library": "dpsweep", "architecture": "wide_resnet", "arguments": {"width": 10**12}},
        {"library": "transformers", "architecture": "bert",
         "arguments": {"name_or_path": "/etc/passwd", "trust_remote_code": True}},
    ],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_hostile_networks_are_refused_in_bounded_time(change, folder):
    """Nothing outside is read, and no connection is opened."""
    opened: list[str] = []

    def changed(content: Content) -> None:
        own = {} if "library" in change else content["network"]["arguments"]
        arguments = own | change.get("arguments", {})
        content["network"] |= change | {"arguments": arguments}

    def outside(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(OUTSIDE) or (event == "open" and str(arguments[0]).startswith("/etc/")):
            opened.append(event)  # a hook cannot be removed

    forge(folder, changed)
    sys.addaudithook(outside)
    assert "network" in refused(folder)
    assert opened == []
