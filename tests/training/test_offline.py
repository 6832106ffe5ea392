"""No training job asks anything of the network, and none could."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from datasets import ClassLabel, Dataset, Features, Image
from PIL import Image as PillowImage
from tests.training.tiny_study import tiny_sections

from dpsweep.base.files import read_json
from dpsweep.models.architecture import Architecture
from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.training.job import NetworkRefusedError, refuse_network

COMMIT = "89abcdef0123456789abcdef0123456789abcdef"
ARGUMENTS = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
NO_PROXY = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

STUDY = tiny_sections({}, {"kind": "film"}, batch_size=[20], learning_rate=[0.01])
STUDY["datasets"]["digits"] |= {"source": {"kind": "hub", "id": "someone/pets"}} | {
    "classes": 2,
    "train_size": 40,
    "test_size": 20,
}
STUDY["backbones"]["vit"] = {
    "title": "ViT",
    "architecture": "vit_tiny_patch16_224",
    "arguments": ARGUMENTS,
    "weights": {"kind": "hub", "id": "someone/vit"},
}


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that refuses everything, and what it was asked for."""
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        do_HEAD = do_POST = do_GET  # noqa: N815 (names of the library)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()


def fill_cache(cache: Path) -> None:
    """Lay out what downloads of the newest revision leave behind."""
    for kind, name in (("datasets", "pets"), ("models", "vit")):
        folder = cache / f"{kind}--someone--{name}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(COMMIT)
        (folder / "snapshots" / COMMIT).mkdir(parents=True)
    random = np.random.default_rng(0)
    features = Features({"image": Image(), "label": ClassLabel(names=["cat", "dog"])})
    for split, size in (("train", 40), ("test", 20)):
        images = []
        for _ in range(size):
            stream = BytesIO()
            PillowImage.fromarray(random.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(
                stream, "PNG"
            )
            images.append({"bytes": stream.getvalue(), "path": None})
        Dataset.from_dict(
            {"image": images, "label": [number % 2 for number in range(size)]}, features=features
        ).to_parquet(
            cache / "datasets--someone--pets" / "snapshots" / COMMIT / f"{split}-0-of-1.parquet"
        )
    from safetensors.torch import save_file

    with seeded(0):
        model = create(
            Architecture(library="timm", name="vit_tiny_patch16_224", arguments=ARGUMENTS), 2
        )
    weights = cache / "models--someone--vit" / "snapshots" / COMMIT / "model.safetensors"
    save_file(state_without_head(model), weights)


@pytest.mark.slow
def test_training_asks_the_hub_for_nothing(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    address, asked = hub
    fill_cache(tmp_path / "cache")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY))

    def run(*commands: str) -> None:
        """Run commands in one process."""
        imports = "from pathlib import Path", "from dpsweep.cli import stages"
        program = "; ".join([*imports, "file = Path('study.yaml')", *commands])
        hub = {"HF_ENDPOINT": address, "HF_HUB_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=os.environ | hub | {"HF_HUB_OFFLINE": "0"} | NO_PROXY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    run(
        "stages.prepare_dataset('digits', file)",
        "stages.prepare_backbone('vit', file)",
    )
    results = tmp_path / "results"
    # The study names no revision: what was found is recorded.
    assert read_json(results / "data" / "digits" / "metadata.json")["revision"] == COMMIT
    pretraining = read_json(results / "backbones" / "vit" / "metadata.json")["pretraining"]
    assert pretraining["revision"] == COMMIT
    # Preparing asks the hub first, where it can.
    assert asked
    asked.clear()
    run(
        "stages.calibrate('digits', 8.0, 1, '20', file)",
        "stages.train('digits_vit_method', 'eps8_epochs1_B20_C1', file)",
        "stages.gradient_norms('digits_vit_method', 8.0, 1, '1', file)",
    )
    assert asked == []


REFUSED = """
import socket
from dpsweep.training.job import NetworkRefusedError, refuse_network

def reach():
    from huggingface_hub import HfApi, constants
    constants.HF_HUB_OFFLINE = False
    HfApi().model_info("someone/vit", timeout=2)

for expected in (False, True):
    try:
        reach()
    except Exception as error:
        reasons = []
        while error is not None:
            reasons.append(error)
            error = error.__cause__ or error.__context__
        assert any(isinstance(each, NetworkRefusedError) for each in reasons) == expected, reasons
    try:
        socket.create_connection(("localhost", 9), timeout=1)
    except OSError as error:
        assert isinstance(error, NetworkRefusedError) == expected, error
    refuse_network()
left, right = socket.socketpair(socket.AF_UNIX)
left.send(b"x")
assert right.recv(1) == b"x"
"""


def test_a_training_job_could_not_reach_the_hub(hub: tuple[str, list[str]]) -> None:
    address, asked = hub
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        env=os.environ | {"HF_ENDPOINT": address} | NO_PROXY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The first call, before the network was refused, reached it; the second did not.
    assert asked.count("/api/models/someone/vit") == 1


def test_a_job_in_this_process_refuses_the_network() -> None:
    refuse_network()
    with pytest.raises(NetworkRefusedError):
        sys.audit("socket.getaddrinfo", "192.0.2.1", 80, 0, 0, 0)


def test_the_refusal_ends_with_the_test_before() -> None:
    sys.audit("socket.getaddrinfo", "192.0.2.1", 80, 0, 0, 0)
