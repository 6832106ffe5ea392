"""What a cluster is asked for, and what it costs, follow from the study and the site."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsweep.base.gpus import SEATS, Gpu
from dpsweep.cli.options import read_site_file
from dpsweep.planning.cluster import ClusterError, Jobs, Site, read_site
from dpsweep.planning.cost import ProblemCost, cell_cost
from dpsweep.planning.device import GPU
from dpsweep.study import Study, load_study
from dpsweep.study.trials import KEPT_PARAMETER_BYTES, trials_per_cell
from dpsweep.training.device import REQUIRE_GPU

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "account": "project_1",
    "gpu_partition": "gpu",
    "cpu_partition": "cpu",
    "gpus": [
        {"request": "gpu:a100:1", "memory_gigabytes": 40},
        {"request": "gpu:small:1", "memory_gigabytes": 20},
    ],
    "time_limit_minutes": 240,
}

GPUS = [Gpu("0", "GPU-a", "H100", 80.0), Gpu("1", "GPU-b", "H100", 80.0)]


@pytest.fixture(scope="module")
def paper() -> Study:
    return load_study(ROOT / "config.yaml")


def site(**changes: Any) -> Site:
    return read_site(SETTINGS | changes, "site.yaml")


def test_unset_settings_are_named() -> None:
    settings = yaml.safe_load((ROOT / "profiles/slurm/site.yaml").read_text())["slurm"]
    with pytest.raises(ClusterError) as raised:
        read_site(settings, "profiles/slurm/site.yaml")
    message = str(raised.value)
    assert message.startswith("profiles/slurm/site.yaml")
    for key in SETTINGS:
        assert f"slurm.{key}: not set" in message
    assert message.count("not set") == len(SETTINGS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "found no section slurm"),
        (b"- slurm", "found no section slurm"),
        (b"slurm: 3", "found no section slurm"),
        (b"", "found no section slurm"),
        (b"slurm: [", "cannot be read: while parsing"),
        (b"slurm: \xff", "cannot be read: 'utf-8'"),
        (None, "cannot be read: .*No such file"),
    ],
)
def test_a_file_of_something_else_is_refused(
    content: bytes | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "site.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ClusterError, match=f"{file}: {message}"):
        read_site_file(file)


def test_committed_site_file_is_complete_and_shows_the_defaults() -> None:
    settings = yaml.safe_load((ROOT / "profiles/slurm/site.yaml").read_text())["slurm"]
    assert set(settings) == set(Site.model_fields)
    filled = read_site({key: SETTINGS.get(key, value) for key, value in settings.items()}, "")
    assert filled == site()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpu": "gpu:1"}, "slurm.gpu: unknown; allowed: account"),
        ({"gpus": [{"request": "a100", "memory_gigabytes": 40}]}, "slurm.gpus.0.request"),
        ({"time_limit_minutes": "long"}, "slurm.time_limit_minutes"),
        ({"prepare": "there"}, "slurm.prepare"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ClusterError) as raised:
        site(**change)
    assert named in str(raised.value)


def test_packs_fill_a_job_and_stay_below_the_limit(paper: Study) -> None:
    jobs = Jobs(paper, site(job_minutes=60, time_limit_minutes=240))
    packed = 0
    for name, epochs in paper.kinds():
        resources = jobs.on_gpu("train", name, epochs)
        size, runtime = resources["pack"], resources["runtime"]
        assert callable(runtime)
        assert isinstance(size, int)
        assert resources["pack_minutes"] == 240
        assert size * runtime(None, attempt=1) <= 240
        cell = cell_cost(paper, name, epochs).seconds
        assert size == 1 or size * cell <= 3600
        if size < 60 and (size + 1) * runtime(None, attempt=1) <= 240:
            assert (size + 1) * cell > 3600
        packed += size > 1
    assert packed > 5


def test_a_retry_asks_for_more_within_the_limit(paper: Study) -> None:
    resources = Jobs(paper, site()).on_gpu("train", "cassava_vit-tiny_film", 8)
    memory, runtime = resources["mem_mb"], resources["runtime"]
    assert callable(memory)
    assert callable(runtime)
    assert memory(None, attempt=2) == 2 * memory(None, attempt=1)
    assert runtime(None, attempt=2) == 2 * runtime(None, attempt=1)
    assert runtime(None, attempt=1000) == 240


def asked(study: Study, sweep: str, **changes: Any) -> list[str]:
    return shlex.split(str(Jobs(study, site(**changes)).on_gpu("train", sweep, 8)["slurm"]))


ANY_GPU = [{"request": "--gpus-per-node=1", "memory_gigabytes": 64}]


@pytest.mark.parametrize(
    ("problem", "changes", "options"),
    [
        # The smallest GPU that fits.
        ("sun397_vit-tiny_film", {}, ["--gres=gpu:small:1"]),
        ("sun397_vit-base_film", {}, ["--gres=gpu:a100:1"]),
        ("sun397_vit-tiny_film", {}, ["--account=project_1", "--partition=gpu"]),
        ("sun397_vit-tiny_film", {"gpus": ANY_GPU}, ["--gpus-per-node=1"]),
        # The notice leaves half of a short job.
        (
            "sun397_vit-base_film",
            {"signal_seconds": 3600, "time_limit_minutes": 10},
            ["--signal=USR1@300"],
        ),
    ],
)
def test_sbatch_is_asked_for(
    problem: str, changes: dict[str, Any], options: list[str], paper: Study
) -> None:
    found = asked(paper, problem, **changes)
    assert set(options) <= set(found)
    assert "gpus" not in changes or not any(each.startswith("--gres") for each in found)


def test_the_site_has_the_last_word(paper: Study) -> None:
    found = asked(paper, "sun397_vit-tiny_film", options="--exclude=n7 --mem=9G")
    assert found[-2:] == ["--exclude=n7", "--mem=9G"]
    jobs = Jobs(paper, site(account=""))
    assert shlex.split(str(jobs.analysis()["slurm"])) == ["--partition=cpu", "--cpus-per-task=1"]


def test_without_a_cluster_only_gpus_are_shared_out(paper: Study) -> None:
    jobs = Jobs(paper, None)
    assert jobs.on_gpu("train", "sun397_vit-tiny_film", 8) == {"gpu_seats": SEATS}
    assert jobs.limits == {}
    assert Jobs(paper, None, GPUS).limits == {"gpu_seats": 2 * SEATS}
    assert jobs.analysis() == {}
    assert jobs.calibration() == {}
    assert jobs.shell_setup(Path("requeue.sh")) == ""


def test_short_and_small_cells_share_a_gpu() -> None:
    demo = load_study(ROOT / "studies/demo.yaml")

    def seats(study: Study, problem: str, epochs: int, gigabytes: float) -> int:
        gpus = [replace(gpu, gigabytes=gigabytes) for gpu in GPUS]
        return Jobs(study, None, gpus).gpu_seats("train", problem, epochs)

    sizes = (24.0, 5.0, 2.0, 0.0)
    found = [seats(demo, "digits_vit-weak_film", 8, gigabytes) for gigabytes in sizes]
    assert found == [1, SEATS // 2, SEATS, SEATS]
    paper = load_study(ROOT / "config.yaml")
    assert seats(paper, "cassava_vit-tiny_film", 8, 1000.0) == SEATS  # four minutes


def test_a_head_on_features_needs_room_for_these_and_not_for_the_images(tmp_path: Path) -> None:
    """As images these would be 108 GB, as features less than 0.2."""
    (tmp_path / "study.yaml").write_text(
        f"extends: {ROOT}/studies/frozen-features.yaml\n"
        "training: {physical_batch: 256}\n"
        "datasets: {cifar100: {image_size: 775}}\n"
        "figures: !replace {}\ntables: !replace {}\n"
    )
    study = load_study(tmp_path / "study.yaml")
    problem = "cifar100_vit-tiny_head"
    assert cell_cost(study, problem, 1).input_gigabytes < 0.2
    assert Jobs(study, None, GPUS).gpu_seats("train", problem, 1) < SEATS


def test_gpu_memory_is_that_of_the_state_of_training(paper: Study) -> None:
    """With a batch of nearly nothing: 28 bytes for what trains, and 4 for what does not."""

    def gigabytes(method: str) -> float:
        problem = f"sun397_vit-base_{method}"
        sweeps = {
            name: sweep.model_copy(update={"physical_batch": 1})
            for name, sweep in paper.sweeps.items()
        }
        study = paper.model_copy(update={"sweeps": sweeps})
        return cell_cost(study, problem, 8).gpu_gigabytes

    trained = {
        method: ProblemCost(paper, f"sun397_vit-base_{method}").trained_parameters
        for method in ("film", "all")
    }
    more = trained["all"] - trained["film"]
    found = gigabytes("all") - gigabytes("film")
    assert found == pytest.approx(24 * more / 1e9, rel=0.01)


def run_in_job(setup: str, command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a rule's command as Snakemake does, with its log."""
    requeue = folder / "re queue.sh"
    requeue.write_text(f"#!/bin/sh\necho $1 >> '{folder}/statuses'\nexit $1\n")
    requeue.chmod(0o755)
    return subprocess.run(
        ["bash", "-c", f"{setup}{command} > log 2>&1"],
        cwd=folder,
        env=os.environ | {"LC_ALL": "C"},  # messages of bash in English
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        (
            {"setup": ["A='set by a module'"], "command": 'echo "$A"'},
            0,
            "set by a module trained\n",
        ),
        ({"command": "A=1 dpsweep_of_the_site"}, 127, "dpsweep_of_the_site: command not found\n"),
        (
            {"setup": ["true", "no-such-module load 'x'"], "command": "echo"},
            1,
            "no-such-module: command not found\n"
            "error: this line of slurm.setup failed: no-such-module load 'x'\n",
        ),
    ],
)
def test_what_the_site_sets_up_is_told_in_the_log_of_the_job(
    settings: dict[str, Any], status: int, said: str, paper: Study, tmp_path: Path
) -> None:
    setup = Jobs(paper, site(**settings)).shell_setup(tmp_path / "re queue.sh")
    done = run_in_job(setup, "dpsweep trained", tmp_path)
    assert done.returncode == status, done.stderr
    assert (tmp_path / "log").read_text().endswith(said)
    assert (tmp_path / "statuses").read_text() == f"{status}\n"
    assert done.stdout + done.stderr == ""


@pytest.mark.parametrize("required", [True, False])
def test_jobs_of_a_cluster_require_a_gpu(required: bool, paper: Study, tmp_path: Path) -> None:
    jobs = Jobs(paper, site(require_gpu=required, command="printenv"))
    done = run_in_job(
        jobs.shell_setup(tmp_path / "re queue.sh"), f"dpsweep {REQUIRE_GPU}", tmp_path
    )
    assert done.returncode == (0 if required else 1)


def test_new_grid_values_leave_packs_and_costs_alone(paper: Study) -> None:
    changed = paper.model_copy(
        update={
            "sweeps": paper.sweeps
            | {
                "cassava_vit-tiny_film": paper.sweeps["cassava_vit-tiny_film"].model_copy(
                    update={"clipping_bound": [0.5], "epsilon": [3.0]}
                )
            }
        }
    )
    for stage in ("train", "gradient_norms"):
        sizes = [
            Jobs(each, site()).pack_size(stage, "cassava_vit-tiny_film", 8)
            for each in (paper, changed)
        ]
        assert sizes[0] == sizes[1] > 1
    assert cell_cost(changed, "cassava_vit-tiny_film", 8) == cell_cost(
        paper, "cassava_vit-tiny_film", 8
    )


def test_cost_follows_the_work(paper: Study) -> None:
    tiny, base = "sun397_vit-tiny_film", "sun397_vit-base_film"
    assert trials_per_cell(paper, tiny) == 8 + 5 - 1
    eight, sixteen = (cell_cost(paper, tiny, epochs).seconds for epochs in (8, 16))
    assert 1.8 < sixteen / eight < 2
    # ViT-Base has 12 to 16 times the operations of ViT-Tiny.
    assert 10 < cell_cost(paper, base, 8).seconds / eight < 16
    assert cell_cost(paper, base, 8, device=replace(GPU, teraflops=200)).seconds < eight * 3
    assert ProblemCost(paper, tiny).seconds("gradient_norms", 8) < eight / 5
    # SUN397 at 224 x 224 is 16 GB of pixels, training and test.
    assert 16 < cell_cost(paper, tiny, 8).host_gigabytes < 25


def test_trainable_parameters_are_those_of_the_models(paper: Study) -> None:
    def trained(problem: str) -> float:
        return ProblemCost(paper, problem).trained_parameters

    assert trained("sun397_vit-tiny_film") == 9_600 + 76_621
    assert trained("sun397_vit-base_film") == 38_400 + 305_293
    assert trained("cifar100_resnet50_film") == 41_344 + 204_900
    # Rank 1 on qkv (d to 3d) and proj (d to d) of 12 layers.
    lora = trained("sun397_vit-tiny_lora-r1")
    assert lora == pytest.approx(12 * (4 + 2) * 192 + 76_621, rel=0.01)
    assert trained("cifar10_wrn-16-4_scratch") == pytest.approx(2.75e6, rel=0.1)


def test_large_parameters_are_not_kept_but_trained_again(paper: Study) -> None:
    small, large = (
        next(iter(paper.sweep_cells(f"sun397_vit-base_{method}"))) for method in ("film", "all")
    )
    assert ProblemCost(paper, small.problem).bytes("train", small) > 4 * 8 * 343_693
    assert 4 * 8 * ProblemCost(paper, large.problem).trained_parameters > KEPT_PARAMETER_BYTES
    assert (
        ProblemCost(paper, large.problem).bytes("train", large)
        < ProblemCost(paper, small.problem).bytes("train", small) / 5
    )
    # Norms cost one pass and a half less than a trial of the same method, which they train.
    cost = cell_cost(paper, large.problem, 8)
    assert (
        ProblemCost(paper, large.problem).seconds("gradient_norms", 8)
        > 1.5 * cost.seconds / cost.trials
    )
