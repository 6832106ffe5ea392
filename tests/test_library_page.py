"""All blocks of docs/library.md run in order, and `import dpsweep` has the names that they use."""

import os
import re
import runpy
import sys
from pathlib import Path

import matplotlib as mpl
import pytest
import torch

import dpsweep
from tests.waiting import called

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_every_block_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    namespace: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/library.md", "exec"), namespace)  # noqa: S102
    assert len(BLOCKS) > 5
    assert Path("heatmap.pdf").stat().st_size > 5_000
    printed = capsys.readouterr().out
    assert "391 1.126" in printed
    assert "torch.Size([2000])" in printed
    assert "results/mine/release: cannot be read: No such file" in printed


def test_the_block_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert len(block.splitlines()) <= 15
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102
    accuracy, epsilon = map(float, re.findall(r"\d\.\d+", capsys.readouterr().out))
    assert 0.8 < accuracy <= 1 and 1.998 <= epsilon <= 2
    assert f"ε = {epsilon:.4f}" in readme


def test_the_package_offers_what_the_page_uses() -> None:
    used = set(re.findall(r"dpsweep\.([A-Za-z_]+)", "\n".join(BLOCKS)))
    offered = set(dpsweep.__all__)
    assert used - {"config", "figures", "privacy", "release", "study"} == offered
    for name in offered:
        assert getattr(dpsweep, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = dpsweep.nothing


# Before the block of train.py. No noise and full batches, because each training draws another secret.
BEFORE_THE_GROUP = """
import os, torch, dpsweep
torch.manual_seed(1)
inputs, labels = torch.randn(60, 4), torch.arange(60) % 3
noise = dpsweep.calibrate(epsilon=float("inf"), delta=1e-5, train_size=60, batch_size=60, steps=8)
clipping = dpsweep.FlatClipping(1.0)
make_model = lambda: torch.nn.Linear(4, 3)
"""


@pytest.mark.slow
def test_torchrun_trains_the_model_of_one_process(tmp_path: Path) -> None:
    (block,) = re.findall(r"```py\n(.*?)```", PAGE, flags=re.DOTALL)
    program = tmp_path / "train.py"
    program.write_text(BEFORE_THE_GROUP + block)
    models = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        local = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        called([*command, f"--nproc-per-node={count}", program], folder, local)
        models.append(torch.load(folder / "model.pt"))
    for name, value in models[0].items():
        torch.testing.assert_close(models[1][name], value, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_example_of_a_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[1] / "examples" / "training_loop.py"
    runpy.run_path(str(example), run_name="__main__")
    said = re.fullmatch(
        r"accuracy (\S+) at epsilon = (\S+), delta = 1e-05\n", capsys.readouterr().out
    )
    assert said is not None and float(said[1]) > 0.8 and 3.9 < float(said[2]) <= 4
