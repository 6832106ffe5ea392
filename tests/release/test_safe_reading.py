"""Damaged and forged folders are refused with a message; nothing outside is opened or run."""

import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.release.releases import Content, forge, put

from dpsweep.base import limited as limits
from dpsweep.base.errors import DpsweepError
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, files
from dpsweep.release.verify import verify
from dpsweep.study.backbones import Architecture

OUTSIDE = ("socket.connect", "socket.getaddrinfo", "subprocess", "os.system")
VIT = Architecture(
    library="timm",
    name="vit_tiny_patch16_224",
    arguments={"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2},
)


def used() -> float:
    """Return the processor time of this process and its finished children; other load does not change it."""
    return sum(os.times()[:4])


def refused(folder: Path, seconds: float = 3) -> str:
    """Check that a folder is refused in bounded time without access to the outside; return the message."""
    seen: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(OUTSIDE) or (event == "open" and str(arguments[0]).startswith("/etc/")):
            seen.append(event)

    sys.addaudithook(watch)  # until the end of the test
    start = used()
    with pytest.raises(DpsweepError) as found:
        verify(folder, seconds=seconds)
    assert used() - start < seconds + 5
    assert not seen
    said = str(found.value)
    assert said.isprintable() or said.replace("\n  ", "").isprintable()
    assert len(said) < 10_000
    return said


# -- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED, FROZEN, CARD])
@pytest.mark.parametrize(
    "make",
    [lambda file: file.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir],
    ids=["link", "pipe", "folder"],
)
def test_files_are_regular_files_of_the_folder(
    make: Callable[[Path], Any], name: str, folder: Path
) -> None:
    (folder / name).unlink()
    make(folder / name)
    assert f"{name}: found a link, a folder, a pipe or a device; allowed: a file" in refused(folder)


def test_large_files_are_not_read(folder: Path) -> None:
    for name in (CERTIFICATE, CARD, TRAINED):
        size = (folder / name).stat().st_size
        os.truncate(folder / name, 2**41)  # with holes
        assert f"{name}: found {2**41} bytes; allowed: at most" in refused(folder)
        os.truncate(folder / name, size)


def test_paths_other_than_release_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in refused(tmp_path / "nowhere")
    assert "cannot be read: Not a directory" in refused(folder / CARD)
    for index in range(30):
        (folder / f"a\n\x1b[31m{index}").touch()
    assert "is not a file of a release" in refused(folder)


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED, FROZEN, CARD])
def test_edited_and_missing_files_are_found(name: str, folder: Path) -> None:
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
def test_fields_are_read_strictly(
    place: tuple[str, ...], value: Any, said: str, folder: Path
) -> None:
    forge(folder, put(*place, value=value))
    assert said in refused(folder)


def test_invalid_certificates_are_refused(folder: Path) -> None:
    whole = (folder / CERTIFICATE).read_bytes()
    for written in (b"", b"\xff\xfe{}", b"null", b"[]", b'"text"', b"7", bytes(1000), b"{}"):
        (folder / CERTIFICATE).write_bytes(written)
        refused(folder)
    (folder / CERTIFICATE).write_bytes(whole.replace(b'"delta": 1e-05', b'"delta": 1e-06', 1))
    assert "damaged or edited" in refused(folder)


def test_free_text_contains_no_markup_and_stays_on_its_line(folder: Path) -> None:
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
        {"architecture": "local-dir:/etc"},
        {"architecture": "https://example.org/vit"},
        {"architecture": "../../etc/passwd"},
        {"arguments": {"checkpoint_path": "/etc/passwd"}},
        {"arguments": {"pretrained": True}},
        {"arguments": {"trust_remote_code": True}},
        {"arguments": {"url": "https://example.org"}},
        {"arguments": {"depth": 10**9}},
        {"arguments": {"embed_dim": 10**15}},
        {"arguments": {"img_size": 10**9}},
        {"arguments": {"num_heads": 0}},
        {"arguments": {"x=__import__('os').system('id')#": 1}},
        {"library": "dpsweep", "architecture": "wide_resnet", "arguments": {"width": 10**12}},
        {"library": "dpsweep", "architecture": "os.system", "arguments": {}},
        {"library": "transformers", "architecture": "distilbert",
         "arguments": {"trust_remote_code": True, "auto_map": "x"}},
        {"library": "transformers", "architecture": "bert",
         "arguments": {"name_or_path": "/etc/passwd"}},
    ],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_hostile_networks_are_refused_in_bounded_time(
    change: Content, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.5)
    monkeypatch.setattr(files, "_COMPILER", "json")  # none of these needs torch's

    def changed(content: Content) -> None:
        own = {} if "library" in change else content["network"]["arguments"]
        arguments = own | change.get("arguments", {})
        content["network"] |= change | {"arguments": arguments}

    forge(folder, changed)
    assert "network" in refused(folder)


# -- tensors --------------------------------------------------------------------------------------


def with_header(change: Callable[[Content], Any]) -> Callable[[bytes], bytes]:
    def changed(written: bytes) -> bytes:
        length = int.from_bytes(written[:8], "little")
        header = json.loads(written[8 : 8 + length])
        change(header)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + written[8 + length :]

    return changed


def of_bias(**changes: Any) -> Callable[[bytes], bytes]:
    return with_header(lambda header: header["head.bias"].update(changes))


@pytest.mark.parametrize(
    "change",
    [
        of_bias(data_offsets=[0, 40]),
        of_bias(dtype="I32"),
        of_bias(dtype="X1"),
        of_bias(shape=[2, 5]),
        with_header(lambda header: header.pop("head.bias")),
        with_header(lambda header: header.update(__metadata__={"format": "pt"})),
        with_header(lambda header: header.update(more=header["head.bias"])),
        lambda written: written + b"\0",
        lambda written: written[:-1],
        lambda written: b"",
        lambda written: (2**63 - 1).to_bytes(8, "little") + written[8:],
        lambda written: written[:-4] + b"\x00\x00\xc0\x7f",  # NaN
        lambda written: written[:-4] + b"\x00\x00\x80\xff",  # -Infinity
    ],
)
def test_tensor_files_with_other_content_are_refused(
    change: Callable[[bytes], bytes], folder: Path
) -> None:
    written = (folder / TRAINED).read_bytes()
    changed = change(written)
    assert changed != written
    (folder / TRAINED).write_bytes(changed)
    forge(folder)
    assert TRAINED in refused(folder)
