"""What the doctor says follows from what Slurm and the jobs say; `tests/slurm` asks a real one."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.planning.test_cluster import SETTINGS, site

from dpsweep.planning import slurm
from dpsweep.planning.cluster import GpuClass, Jobs, Kind
from dpsweep.planning.doctor import examine
from dpsweep.planning.doctor.examine import Examination, _together
from dpsweep.planning.doctor.probe import STEPS, Fault, Patient, Probe, read_steps, write_step
from dpsweep.planning.doctor.requests import refusal
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Study, load_study
from dpsweep.study.config import Audit, Release
from dpsweep.study.paths import Paths

ROOT = Path(__file__).parents[2]
SINFO = """\
gpu|2-00:00:00|250000+|64|gpu:a100:4(S:0-1)
gpu|2-00:00:00|120000|32|gpu:v100:2
cpu|infinite|64000|16|(null)
"""


@pytest.fixture(scope="module")
def paper() -> Study:
    return load_study(ROOT / "config.yaml")


class Commands:
    """Stands in for Slurm's programs: what each says, and with which status."""

    def __init__(self, **said: tuple[int, str]) -> None:
        self.said = {"sinfo": (0, SINFO), "sbatch": (0, ""), "sacctmgr": (1, "")} | said
        self.called: list[list[str]] = []

    def __call__(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.called.append(list(command))
        status, text = self.said[command[0]]
        streams = {"stdout": "", "stderr": text} if status else {"stdout": text, "stderr": ""}
        return subprocess.CompletedProcess(command, status, **streams)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands()
    monkeypatch.setattr(slurm.subprocess, "run", found)
    return found


def kind(**changes: Any) -> Kind:
    gpu = GpuClass(request="gpu:a100:1", memory_gigabytes=40)
    request = slurm.Request("--account=a --gres=gpu:a100:1", 60, 30_000)
    given = {"name": "gpu:a100:1", "partition": "gpu", "partition_key": "gpu_partition", "cpus": 2}
    return Kind(**(given | {"gpu": gpu, "request": request} | changes))


def test_the_limits_of_partitions_are_read(commands: Commands) -> None:
    partitions = slurm.partitions()
    assert [nodes.megabytes for nodes in partitions["gpu"]] == [250_000, 120_000]
    assert partitions["gpu"][0].minutes == 2 * 24 * 60
    assert partitions["cpu"][0].minutes == float("inf")


@pytest.mark.parametrize(
    ("changes", "settings", "check"),
    [
        ({}, {}, None),
        ({"partition": "gpus"}, {}, "partition"),
        ({}, {"time_limit_minutes": 2881}, "time limit"),
        ({}, {"time_limit_minutes": 2880}, None),
        ({"cpus": 65}, {}, "cpus"),
        ({"request": slurm.Request("", 60, 250_001)}, {}, "memory"),
        ({"request": slurm.Request("", 60, 250_001)}, {"options": "--mem=200G"}, None),
        ({"gpu": GpuClass(request="gpu:h100:1", memory_gigabytes=80)}, {}, "gpu request"),
        ({"gpu": GpuClass(request="gpu:1", memory_gigabytes=80)}, {}, None),
        ({"gpu": GpuClass(request="--gpus=1", memory_gigabytes=80), "partition": "cpu"}, {}, "gpu request"),
    ],
)  # fmt: skip
def test_what_no_node_has_is_known_before_slurm_is_asked(
    changes: dict[str, Any], settings: dict[str, Any], check: str | None, commands: Commands
) -> None:
    fault = refusal(kind(**changes), site(**settings))
    assert (fault and fault.check) == check
    assert any(call[0] == "sbatch" for call in commands.called) == (check is None)


@pytest.mark.parametrize(
    ("words", "check"),
    [
        ("sbatch: error: Invalid account or account/partition combination specified", "account"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "qos"),
        ("sbatch: error: invalid partition specified: x", "partition"),
        ("sbatch: error: Invalid generic resource (gres) specification", "gpu request"),
        ("sbatch: error: Memory specification can not be satisfied", "memory"),
        ("sbatch: error: Requested time limit is invalid (missing or exceeds some limit)", "time limit"),
        ("sbatch: unrecognized option '--colour=red'", "options"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "options"),
        ("sbatch: error: Batch job submission failed: Unspecified error", "request"),
    ],
)  # fmt: skip
def test_a_refusal_is_explained_in_slurms_own_words(
    words: str, check: str, commands: Commands
) -> None:
    commands.said["sbatch"] = (1, words)
    fault = refusal(kind(), site())
    assert fault is not None
    assert fault.check == check
    assert words in fault.found
    assert "sbatch --test-only --time=60 --mem=30000 --account=a --gres=gpu:a100:1" in fault.found


def test_the_guilty_part_of_a_request_is_found_by_leaving_it_out(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "sbatch: error: Requested node configuration is not available"

    def run(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        refused = command[0] == "sbatch" and any("gres" in word for word in command)
        return subprocess.CompletedProcess(
            command, int(refused), SINFO if command[0] == "sinfo" else "", words if refused else ""
        )

    monkeypatch.setattr(slurm.subprocess, "run", run)
    fault = refusal(kind(), site())
    assert fault is not None
    assert fault.check == "gpu request"
    assert "without this: --gres=gpu:a100:1" in fault.found


@pytest.mark.parametrize("draws", [1, 100_000])
def test_every_request_of_the_study_is_covered_by_a_kind(paper: Study, draws: int) -> None:
    # The audit trains longer than all else; with many draws the theory takes longer still.
    audit = Audit(
        sweep="sun397_vit-base_all",
        epsilon=[1.0],
        epochs=2 * max(epochs for _, epochs in paper.kinds()),
        batch_size=[256],
        clipping_bound=1.0,
        learning_rate=0.01,
        canaries=100,
        guesses=20,
    )
    paper = paper.model_copy(
        update={"audit": audit, "theory": paper.theory.model_copy(update={"draws": draws})}
    )
    audited = paper.sweeps[audit.sweep].problem.name, audit.epochs
    theory = Outputs(paper, Paths(Path("results"))).drawn_theory()
    assert theory
    jobs = Jobs(paper, site(time_limit_minutes=10**6, job_minutes=1))
    kinds = {each.name: each for each in jobs.kinds()}
    assert set(kinds) == {"CPU", *(gpu["request"] for gpu in SETTINGS["gpus"])}
    sent = [jobs.on_gpu("theory", cell.problem, cell.epochs) for cell in theory]
    for name, epochs in [*paper.kinds(), audited]:
        sent += [jobs.on_gpu("train", name, epochs), jobs.on_gpu("gradient_norms", name, epochs)]
    for job in sent:
        request = next(
            option.removeprefix("--gres=")
            for option in str(job["slurm"]).split()
            if option.startswith("--gres=")
        )
        largest = kinds[request].request
        memory, runtime = job["mem_mb"], job["runtime"]
        assert callable(memory)
        assert callable(runtime)
        assert memory(None, attempt=1) <= largest.megabytes
        assert runtime(None, attempt=1) <= largest.minutes


def test_a_release_may_take_as_long_as_jobs_may_and_is_covered_by_a_kind(paper: Study) -> None:
    longest = 2 * max(epochs for _, epochs in paper.kinds())
    release = Release(
        sweep="sun397_vit-base_all",
        epsilon=1.0,
        epochs=[1, longest],
        batch_size=[256],
        clipping_bound=[1.0],
        learning_rate=[0.01],
        selection="private",
    )
    settings = site(time_limit_minutes=2880, job_minutes=1)
    jobs = Jobs(paper.model_copy(update={"release": release}), settings)
    sent = jobs.release(release)
    memory, runtime = sent["mem_mb"], sent["runtime"]
    assert callable(memory)
    assert callable(runtime)
    assert runtime(None, attempt=1) == 2880
    (largest,) = (each.request for each in jobs.kinds() if each.name in str(sent["slurm"]))
    assert largest.minutes == 2880
    assert largest.megabytes == memory(None, attempt=1)
    # Without it, less is asked for: parameters are kept after every epoch.
    without = Jobs(paper, settings).kinds()
    assert all(each.request.megabytes < largest.megabytes for each in without)


def test_a_gpu_smaller_than_the_site_says_is_a_fault(tmp_path: Path) -> None:
    for gigabytes, faults in ((39.4, []), (15.7, ["gpu memory"]), (0.0, [])):
        probe = Probe(kind(), "true", tmp_path, 1.0)
        steps = tmp_path / "gpu-a100-1.steps"
        steps.unlink(missing_ok=True)
        for step in STEPS[1:-1]:
            more = {"gigabytes": gigabytes} if step == "gpu" else {}
            write_step(steps, step, f"{step}, bfloat16", **more)
        probe.passed |= {"request": "", "requeue": ""}
        probe.look("RUNNING")
        assert probe.finished
        assert [each.check for each in probe.faults] == faults


def test_time_in_the_queue_is_not_time_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(slurm, "show", lambda *_: {"Reason": "Priority"})
    probe = Probe(kind(), "true", tmp_path, 1000.0)
    probe.passed["request"] = ""
    for seconds, state in ((500.0, "PENDING"), (550.0, "RUNNING")):
        clock[0] = seconds
        probe.look(state)
        assert not probe.finished
    clock[0] = 700.0
    monkeypatch.setattr(slurm, "ending", lambda *_: "it runs")
    probe.look("RUNNING")
    assert probe.finished
    assert "nothing happened" in probe.faults[0].found


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    write_step(tmp_path / "steps", "start", "node1")
    with (tmp_path / "steps").open("a") as stream:
        stream.write('{"step": "command"')
    assert [each["step"] for each in read_steps(tmp_path / "steps")] == ["start"]
    assert read_steps(tmp_path / "none") == []


def test_kinds_of_gpu_that_differ_in_precision_are_a_fault() -> None:
    patients = [
        Patient("a", STEPS, {"gpu": "NVIDIA A100, 39.4 GB, bfloat16"}),
        Patient("b", STEPS, {"gpu": "Tesla V100, 15.7 GB, float32"}),
    ]
    assert [fault.check for fault in _together(patients)] == ["precision"]
    assert list(_together(patients[:1])) == []


def test_the_table_shows_the_first_step_that_failed() -> None:
    setup = Fault("setup", "module: command not found", "correct slurm.setup")
    made = dict.fromkeys(("request", "start", "snakemake"), "ok")
    broken = [Patient(name, STEPS, dict(made), [setup]) for name in ("gpu:a", "gpu:b")]
    waits = Patient("gpu:c", STEPS, {"request": "ok"}, waits="not started within 120 s: Priority")
    found = Examination([*broken, waits], [])
    assert not found.healthy
    lines = list(found.lines())
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:8]}
    assert rows["command"] == ["FAILED", "FAILED", "-"]
    assert rows["start"] == ["ok", "ok", "waits"]
    assert rows["requeue"] == ["-", "-", "-"]
    assert "1. setup (gpu:a, gpu:b)" in lines
    assert Examination([waits], []).healthy


def test_the_doctor_wants_the_folder_of_the_workflow(
    paper: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpsweep.base.errors import DpsweepError
    from dpsweep.study.paths import Paths

    monkeypatch.chdir(tmp_path)
    with pytest.raises(DpsweepError, match="run this in the folder of the Snakefile"):
        examine(paper, Path("config.yaml"), Paths(tmp_path), site(), 1.0, print)


@pytest.mark.parametrize(
    ("reason", "given_up"),
    [("Priority", False), ("Resources", False), ("AssocGrpCpuLimit", False), ("Down", True)],
)
def test_a_job_waits_for_what_passes_and_not_for_what_does_not(
    reason: str, given_up: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr(slurm, "show", lambda *_: {"Reason": reason})
    probe = Probe(kind(), "true", tmp_path, 1000.0)
    probe.passed["request"] = ""
    for seconds in (1.0, 5.0, 50.0):
        clock[0] = seconds
        probe.look("PENDING")
        assert probe.finished == (given_up and seconds == 50)
    assert [fault.check for fault in probe.faults] == ["queue"] * given_up
    assert not probe.waits
