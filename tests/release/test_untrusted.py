"""Folders that an enemy has written: nothing outside is opened or run, and each ends with one sentence."""

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from tests.release.test_release import FIXED, release, study
from tests.training.tiny_study import prepare

from dpsweep.base import limited as limits
from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import checksum, indented_json, read_checked_json, with_fingerprint
from dpsweep.base.limited import LimitError, limited
from dpsweep.models.architecture import Architecture
from dpsweep.models.backbone import backbone_checksum
from dpsweep.privacy.calibration import calibrate
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError, parameters
from dpsweep.release.card import model_card
from dpsweep.release.certificate import Certificate, ReleasedModel
from dpsweep.release.parameters import outline
from dpsweep.release.untrusted import strict_json
from dpsweep.release.verify import verify
from dpsweep.study.config import Film
from dpsweep.study.paths import Paths


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("untrusted") / "results"
    prepare(study(FIXED), results)
    return release(FIXED, Paths(results))


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copies" / "release"))


_watched: list[str] = []
_watching = False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event.startswith(
        ("socket.connect", "socket.getaddrinfo", "subprocess", "os.system")
    ):
        _watched.append(event)
    if _watching and event == "open" and str(arguments[0]).startswith("/etc/"):
        _watched.append(str(arguments[0]))


sys.addaudithook(_watch)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Fail if this process connects, starts a program, or opens a file of the system."""
    global _watching  # noqa: PLW0603 (an audit hook cannot be removed)
    _watched.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
    assert not _watched


def used() -> float:
    """Processor time of this process and of those that it has waited for: a busy machine is no mistake."""
    return sum(os.times()[:4])


def refused(folder: Path, seconds: float = 3) -> str:
    """See that a folder is refused in bounded time; return what is said."""
    start = used()
    with watched(), pytest.raises(DpsweepError) as found:
        verify(folder, seconds=seconds)
    assert used() - start < seconds + 5
    said = str(found.value)
    assert said.isprintable() or said.replace("\n  ", "").isprintable()
    assert len(said) < 10_000
    return said


def forge(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a certificate, and derive its fingerprints, checksums and card anew."""
    content = read_checked_json(folder / CERTIFICATE)
    change(content)
    network = content["network"]
    architecture = Architecture.model_construct(
        library=network["library"], name=network["architecture"], arguments=network["arguments"]
    )
    network["backbone"] = backbone_checksum(
        architecture, network["mean"], network["std"], None, network["weights"]
    )
    content["files"] = {name: checksum(folder / name) for name in (TRAINED, FROZEN)}
    (folder / CERTIFICATE).write_text(indented_json(with_fingerprint(content)))
    # There are numbers of which no card can be made.
    with contextlib.suppress(ValueError, ArithmeticError, LookupError):
        (folder / CARD).write_text(model_card(Certificate.model_validate(content)))


# -- files ----------------------------------------------------------------------------------------


def as_link(file: Path) -> None:
    outside = file.parents[1] / "outside"
    file.rename(outside)
    file.symlink_to(outside)


def as_hard_link(file: Path) -> None:
    (file.parents[1] / "outside").hardlink_to(file)


def as_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def as_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def as_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def as_socket(file: Path) -> None:
    file.unlink()
    os.chdir(file.parent)  # its path may be too long for a socket
    with socket.socket(socket.AF_UNIX) as each:
        each.bind(file.name)


@pytest.mark.parametrize("name", [CERTIFICATE, TRAINED, FROZEN, CARD])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (as_link, "found a link"),
        (as_hard_link, "found a file that has another name"),
        (as_pipe, "found a folder, a pipe or a device"),
        (as_folder, "found a folder, a pipe or a device"),
        (as_device, "found a link"),
        (as_socket, "found a folder, a pipe or a device"),
    ],
)
def test_files_are_regular_files_of_the_folder(
    change: Callable[[Path], None],
    said: str,
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    change(folder / name)
    assert f"{name}: {said}" in refused(folder)


def test_a_pipe_that_comes_later_does_not_hang(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpsweep.release.verify.file_mistakes", lambda _: [])
    as_pipe(folder / TRAINED)
    assert "a pipe" in refused(folder)
    (folder / TRAINED).unlink()
    (folder / TRAINED).symlink_to("/etc/passwd")
    assert f"{TRAINED}: cannot be read" in refused(folder)


def test_a_file_that_is_large_is_not_read(folder: Path) -> None:
    for name in (CERTIFICATE, CARD, TRAINED):
        with (folder / name).open("ab") as stream:
            size = stream.tell()
            stream.truncate(2**41)  # with holes
        assert name in refused(folder)
        os.truncate(folder / name, size)
    with (folder / FROZEN).open("ab") as stream:
        stream.truncate(2**39)
    assert f"{FROZEN}: found {2**39} bytes" in refused(folder)


def test_what_is_no_folder_of_a_release_is_refused(folder: Path, tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "nowhere")
    assert "found a file" in refused(folder / CARD)
    for index in range(30):
        (folder / f"a\n\x1b[31m\udcff{index}").touch()
    assert "is no file of a release" in refused(folder)


# -- JSON -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"epsilon": 8.0', '"epsilon": 8.0, "epsilon": 1.0', "found the key 'epsilon' twice"),
        ('"earlier_trials": 0', '"earlier_trials": false', "earlier_trials"),
        ('"earlier_trials": 0', '"earlier_trials": 0.0', "earlier_trials"),
        ('"held_out": 0', '"held_out": -0.0', "held_out"),
        ('"epsilon": 8.0', '"epsilon": 8', "spaces|epsilon"),
        ('"epsilon": 8.0', '"epsilon": 8.00', "damaged|spaces"),
        ('"test_accuracy": ', '"test_accuracy": NaN, "more": ', "found NaN"),
        ('"epsilon": 8.0', '"epsilon": Infinity', "found Infinity"),
        ('"epsilon": 8.0', '"epsilon": 1e999', "finite"),
        ('"epsilon": 8.0', f'"epsilon": {10**400}', "integers up to"),
        ('"title": "Tiny"', '"title": "\\ud800"', "half a surrogate pair"),
        ('"title": "Tiny"', '"title": "\\u0054iny"', "spaces"),
        ('"title": "Tiny"', '"title": "a\nb"', "control character"),
        ('"title": "Tiny"', f'"title": {"[" * 10**5}', "brackets within brackets"),
        ('"title": "Tiny"', f'"title": {"[" * 500}{"]" * 500}', "brackets within brackets"),
        ('"title": "Tiny"', '"title": "Tiny" ,', "spaces|damaged"),
        ('"title"', '"tit\u200ble"', "title"),
        ("\n", "\r\n", "spaces or line ends"),
        ("{", "\ufeff{", "byte order mark"),
        ("}\n", "} trailing", "Extra data|damaged"),
        ("}\n", "}\n\n", "spaces or line ends"),
    ],
)
def test_json_is_read_strictly(old: str, new: str, said: str, folder: Path) -> None:
    """Whatever fingerprint an enemy writes into it."""
    text = (folder / CERTIFICATE).read_text()
    assert old in text
    content = read_checked_json(folder / CERTIFICATE)
    last = old in ("}\n", "\n")
    edited = (
        text.removesuffix(old) + new
        if last and old == "}\n"
        else (text.replace(old, new) if last else text.replace(old, new, 1))
    )
    with contextlib.suppress(ValueError, RecursionError, UnicodeError):  # as lenient as json is
        parsed = json.loads(edited.removeprefix("\ufeff").removesuffix(" trailing"))
        parsed.pop("fingerprint")
        renewed = with_fingerprint(parsed)["fingerprint"]
        edited = edited.replace(with_fingerprint(content)["fingerprint"], renewed)
    (folder / CERTIFICATE).write_text(edited, newline="")
    assert re.search(said, refused(folder))


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    for written in (b"", b"\xff\xfe{}", b"null", b"[]", b'"text"', b"7", bytes(1000), b"{}"):
        (folder / CERTIFICATE).write_bytes(written)
        refused(folder)


def test_strict_json_is_json() -> None:
    text = '{"a": [1, -2, 2.5, true, null, "ü\\n"], "b": {"c": 1e-05}}'
    assert strict_json(text.encode()) == json.loads(text)


def test_free_text_is_no_markup_and_stays_on_its_line(folder: Path) -> None:
    evil = "Pets\n\n**(0.1, 1e-9)-private** <img src=x> [a](https://b.c) `x` | www.d.e \u202e # \x1b[31m"

    def change(content: dict[str, Any]) -> None:
        content["dataset"] = content["title"] = evil
        content["network"]["classes"][0] = evil
        content["network"]["pretraining"] = {"kind": evil}
        content["earlier_sweeps"] = [evil]

    before = (folder / CARD).read_text()
    forge(folder, change)
    verify(folder)
    card = (folder / CARD).read_text()
    # Only what a sweep adds to every card.
    assert len(card.splitlines()) <= len(before.splitlines()) + 5
    for mark in ("**(", "<img", "[a]", "https://", "www.", "\u202e", "\x1b", " | www"):
        assert mark not in card
    assert "Pets\\\\n\\\\n\\*\\*(0.1, 1e-9)-private" in card


# -- networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"architecture": "hf-hub:timm/vit_tiny_patch16_224.augreg_in21k"},
        {"architecture": "hf_hub:timm/vit_tiny_patch16_224"},
        {"architecture": "local-dir:/etc"},
        {"architecture": "https://example.org/vit"},
        {"architecture": "vit_tiny_patch16_224\u200b"},
        {"architecture": "v\u0456t_tiny_patch16_224"},
        {"architecture": ""},
        {"architecture": "../../etc/passwd"},
        {"arguments": {"checkpoint_path": "/etc/passwd"}},
        {"arguments": {"pretrained": True}},
        {"arguments": {"pretrained_cfg": "/etc/passwd"}},
        {"arguments": {"pretrained_cfg_overlay": "x"}},
        {"arguments": {"cache_dir": "/etc"}},
        {"arguments": {"features_only": True}},
        {"arguments": {"trust_remote_code": True}},
        {"arguments": {"url": "https://example.org"}},
        {"arguments": {"depth": 10**6}},
        {"arguments": {"depth": 10**9}},
        {"arguments": {"depth": -1}},
        {"arguments": {"depth": 1.5}},
        {"arguments": {"depth": True, "num_heads": "many"}},
        {"arguments": {"embed_dim": 10**15}},
        {"arguments": {"img_size": 10**9}},
        {"arguments": {"patch_size": 0}},
        {"arguments": {"num_heads": 0}},
        {"arguments": {"x=__import__('os').system('id')#": 1}},
        {"library": "dpsweep", "architecture": "wide_resnet", "arguments": {"depth": 6 * 10**6 + 4}},
        {"library": "dpsweep", "architecture": "wide_resnet", "arguments": {"width": 10**12}},
        {"library": "dpsweep", "architecture": "os.system", "arguments": {}},
        {"library": "transformers", "architecture": "distilbert",
         "arguments": {"max_position_embeddings": 10**7, "dim": 10**4}},
        {"library": "transformers", "architecture": "distilbert",
         "arguments": {"trust_remote_code": True, "auto_map": "x"}},
        {"library": "transformers", "architecture": "bert",
         "arguments": {"name_or_path": "/etc/passwd"}},
        {"library": "transformers", "architecture": "bert",
         "arguments": {"attn_implementation": "kernels-community/flash-attn"}},
    ],
    ids=lambda change: str(change)[:60],
)  # fmt: skip
def test_no_network_reaches_outside_or_runs_for_ever(
    change: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 1)

    def changed(content: dict[str, Any]) -> None:
        arguments = content["network"]["arguments"] | change.get("arguments", {})
        if "library" in change:
            arguments = change["arguments"]
        content["network"] |= change | {"arguments": arguments}

    forge(folder, changed)
    assert "network" in refused(folder)


def test_a_refused_network_says_why(folder: Path) -> None:
    vit = Architecture(library="timm", name="vit_tiny_patch16_224", arguments={"pretrained": True})
    with pytest.raises(
        LimitError, match="found pretrained; allowed: arguments of the network itself"
    ):
        outline(vit, Film(kind="film"), 3)
    with pytest.raises(LimitError, match="Unknown model"):
        outline(vit.model_copy(update={"name": "hf-hub:timm/vit"}), Film(kind="film"), 3)


def connect() -> Any:
    return socket.create_connection(("192.0.2.1", 80))


def start() -> Any:
    return os.system("true")  # noqa: S605


def read_a_file() -> Any:
    return Path("/etc/hostname").read_text()


def allocate() -> Any:
    return len(b"x" * 6 * 2**30)


def wait_for_ever() -> Any:
    time.sleep(100)


def end() -> Any:
    os._exit(3)


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (connect, "which nothing here needs"),
        (start, "which nothing here needs"),
        (read_a_file, "which nothing here needs"),
        (allocate, "of memory|MemoryError"),
        (wait_for_ever, "more than 1 seconds"),
        (end, "ends its process"),
    ],
)
def test_what_is_limited(
    compute: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SECONDS", 10 if compute is allocate else 1)
    monkeypatch.setattr(limits, "MEMORY", 2**28)
    if compute is allocate:
        monkeypatch.setitem(allocate.__globals__, "allocate", None)
    with pytest.raises(LimitError, match=said):
        limited(compute if compute is not allocate else lambda: len(b"x" * 2**30))


def test_torchs_compiler_does_not_count_for_the_time_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some networks make torch import it, which may take longer than all else."""
    (tmp_path / "slow_compiler.py").write_text(
        "import time\nend = time.process_time() + 2\nwhile time.process_time() < end: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(parameters, "_COMPILER", "slow_compiler")
    monkeypatch.setattr(limits, "SECONDS", 1)
    made = parameters.create

    def create(*asked: Any) -> torch.nn.Module:
        import slow_compiler  # noqa: F401

        return made(*asked)

    arguments = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 1, "num_heads": 2}
    vit = Architecture(library="timm", name="vit_tiny_patch16_224", arguments=arguments)
    monkeypatch.setattr(parameters, "create", create)
    assert "head.weight" in outline(vit, Film(kind="film"), 17)[1]
    monkeypatch.setattr(parameters, "create", lambda *_: wait_for_ever())
    with pytest.raises(LimitError, match="more than 1 seconds"):
        outline(vit, Film(kind="film"), 18)


def test_what_is_in_its_limits_is_returned() -> None:
    assert limited(lambda: {"a": [1, None, "ü" * 10**6]}) == {"a": [1, None, "ü" * 10**6]}


# -- tensors --------------------------------------------------------------------------------------


def with_header(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    def changed(written: bytes) -> bytes:
        length = int.from_bytes(written[:8], "little")
        header = json.loads(written[8 : 8 + length])
        change(header)
        plain = json.dumps(header, separators=(",", ":")).encode()
        plain += b" " * (-len(plain) % 8)
        return len(plain).to_bytes(8, "little") + plain + written[8 + length :]

    return changed


def overlap(header: dict[str, Any]) -> None:
    header["head.bias"]["data_offsets"] = [0, 40]


def retyped(header: dict[str, Any]) -> None:
    header["head.bias"] |= {"dtype": "I32"}


def unknown_type(header: dict[str, Any]) -> None:
    header["head.bias"] |= {"dtype": "X1"}


def reshaped(header: dict[str, Any]) -> None:
    header["head.bias"] |= {"shape": [2, 5]}


def negative(header: dict[str, Any]) -> None:
    header["head.bias"] |= {"shape": [-10], "data_offsets": [40, 0]}


def booleans(header: dict[str, Any]) -> None:
    header["head.bias"]["data_offsets"][0] = False


def with_more(header: dict[str, Any]) -> None:
    header["head.bias"]["note"] = "hidden"


def spaced(written: bytes) -> bytes:
    length = int.from_bytes(written[:8], "little")
    return (
        (length + 800).to_bytes(8, "little")
        + written[8 : 8 + length]
        + b" " * 800
        + written[8 + length :]
    )


def twice(written: bytes) -> bytes:
    length = int.from_bytes(written[:8], "little")
    plain = b'{"head.bias":{},' + written[9 : 8 + length].rstrip()
    plain += b" " * (-len(plain) % 8)
    return len(plain).to_bytes(8, "little") + plain + written[8 + length :]


@pytest.mark.parametrize(
    "change",
    [
        with_header(overlap), with_header(retyped), with_header(unknown_type), with_header(reshaped),
        with_header(negative), with_header(booleans), with_header(with_more),
        with_header(lambda header: header.clear()),
        with_header(lambda header: header.pop("head.bias")),
        with_header(lambda header: header.update(__metadata__={"format": "pt"})),
        with_header(lambda header: header.update(more=header["head.bias"])),
        with_header(lambda header: header.update({"head.bias": [1]})),
        spaced, twice,
        lambda written: written + b"\0",
        lambda written: written[:-1],
        lambda written: written[:4],
        lambda written: b"",
        lambda written: (2**63 - 1).to_bytes(8, "little") + written[8:],
        lambda written: (2**24).to_bytes(8, "little") + written[8:],
        lambda written: (3).to_bytes(8, "little") + b"[1]",
        lambda written: written[:-4] + b"\x00\x00\xc0\x7f",  # NaN
        lambda written: written[:-4] + b"\x00\x00\x80\xff",  # -Infinity
    ],
)  # fmt: skip
def test_files_of_tensors_hold_tensors_and_nothing_else(
    change: Callable[[bytes], bytes], folder: Path
) -> None:
    written = (folder / TRAINED).read_bytes()
    changed = change(written)
    assert changed != written
    (folder / TRAINED).write_bytes(changed)
    forge(folder, lambda _: None)
    assert TRAINED in refused(folder)


def test_other_values_cannot_be_told(folder: Path) -> None:
    """As docs/release.md says: so the changes above are refused for what they are."""
    state = load_file(folder / TRAINED)
    (folder / TRAINED).write_bytes(
        save({key: torch.ones_like(each) for key, each in state.items()})
    )
    forge(folder, lambda _: None)
    verify(folder)


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"train_size": 9 * 10**8, "batch_size": 1, "steps": 9 * 10**8},
        {"train_size": 9 * 10**8, "batch_size": 1, "steps": 1},
        {"train_size": 9 * 10**8, "batch_size": 1, "steps": 1, "noise_multiplier": 1e6},
        {"train_size": 9 * 10**8, "batch_size": 10**8, "steps": 9, "noise_multiplier": 0.1},
        {"train_size": 2**53, "batch_size": 2**52, "steps": 2},
        {"train_size": 269, "batch_size": 269, "steps": 2**53},
        {"noise_multiplier": 1e-300},
        {"noise_multiplier": 1e300},
        {"noise_multiplier": 5e-324},
        {"epsilon": 1e300},
        {"epsilon": 1e-300},
        {"epsilon": 5e-324, "train_size": 1000, "batch_size": 1},
        {"delta": 5e-324},
    ],
    ids=str,
)
def test_extreme_numbers_end_in_bounded_time(change: dict[str, Any], folder: Path) -> None:
    def changed(content: dict[str, Any]) -> None:
        content["noise"] |= change
        noise = content["noise"]
        for name in ("epsilon", "delta"):
            content[name] = noise[name]
        size = noise["train_size"]
        content["split"]["examples"] = size
        content["delta"] = noise["delta"] = min(noise["delta"], 0.5 / size)
        content["setting"] |= {"batch_size": noise["batch_size"], "steps": noise["steps"]}
        content["setting"]["epochs"] = max(1, noise["steps"] * noise["batch_size"] // size)
        root = noise["noise_multiplier"] * noise["steps"] ** 0.5
        noise["sampling_rate"] = noise["batch_size"] / size
        noise["cumulative_noise"] = root
        noise["effective_noise"] = noise["noise_multiplier"] / noise["batch_size"]
        noise["cumulative_effective_noise"] = root / noise["batch_size"]
        content["releases"] = {
            "earlier": [], "joint_epsilon": content["epsilon"], "joint_delta": content["delta"],
        }  # fmt: skip

    forge(folder, changed)
    refused(folder)


def test_many_earlier_releases_end_in_bounded_time(folder: Path) -> None:
    """Each is proven for itself, and costs the more the more there are."""
    noise = calibrate(2.0, 1e-5, 215, 64, 4)

    def changed(content: dict[str, Any]) -> None:
        for times in range(1, 101):
            other = replace(noise, train_size=215 * times, batch_size=64 * times)
            model = ReleasedModel(certificate="0" * 64, epsilon=2.0, delta=1e-5, noise=other)
            content["releases"]["earlier"].append(model.model_dump(mode="json"))

    forge(folder, changed)
    start = used()
    with pytest.raises(ReleaseError, match="accounting takes more than 1 seconds; allow"):
        verify(folder, seconds=1)
    assert used() - start < 8
