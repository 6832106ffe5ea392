"""Measure an optimizer step: ours, the same without privacy, and Opacus.

    python -m benchmarks.step_cost          # about 40 minutes on one core
    python -m benchmarks.step_cost --only "ViT-Tiny, FiLM"    # this row again

Every contender of a row takes the same batch through the same network with the same trainable
parameters and the same optimizer. They take turns in one process, so that other load hits all of them,
and a ratio is the median over the rounds of (contender / without privacy in the same round). Peak memory
is what steps need beyond the model: on a GPU the second step by its allocator, on the CPU the growth of a
fresh process in two steps (the median of three, which differ by some 20 MB).

Results go to benchmarks/results/step_cost_cpu.json; `python -m benchmarks.tables` writes the table of
docs/performance.md. On a GPU these are pieces of `python -m benchmarks.gpu`.
"""

import argparse
import gc
import multiprocessing
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.environment import environment, peak_bytes
from dpsweep.clipping import FlatClipping
from dpsweep.files import read_json, write_json
from dpsweep.models.backbone import Architecture, write_backbone
from dpsweep.models.build import build_model, head_parameter_names, trainable_parameters
from dpsweep.study import load_study
from dpsweep.study.config import HeadOnly, Method
from dpsweep.training.gradients import make_engine
from dpsweep.training.gradients.interface import full_precision
from dpsweep.training.noise import GaussianNoise
from dpsweep.training.optimizer import PrivateOptimizer

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
CLASSES = 100
REFERENCE = "without privacy"
MEMORY_RUNS = 3
Step = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """What is measured: backbone and method of config.yaml, and the size of a batch."""

    title: str
    backbone: str
    method: str
    cpu_batch: int
    gpu_batch: int
    tokens: int = 0
    """length of a text"""
    pixels: int = 224
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """of the network, beside those of config.yaml"""

    @property
    def name(self) -> str:
        """For a file."""
        return f"{self.backbone}_{self.method}"

    @property
    def compiles(self) -> bool:
        """Whether our step has anything to compile: few parameters train."""
        return self.method not in ("all", "scratch")


ROWS = [
    Row("ViT-Tiny, FiLM", "vit-tiny", "film", 32, 512),
    Row("ViT-Tiny, LoRA rank 1", "vit-tiny", "lora-r1", 32, 512),
    Row("ViT-Tiny, head", "vit-tiny", "head", 32, 512),
    Row("ViT-Tiny, all parameters", "vit-tiny", "all", 16, 256),
    Row("ViT-Base, FiLM", "vit-base", "film", 8, 256),
    Row("ViT-Base, LoRA rank 1", "vit-base", "lora-r1", 8, 256),
    Row("ViT-Base, all parameters", "vit-base", "all", 4, 64),
    Row("BiT ResNet-50, FiLM", "resnet50", "film", 8, 256),
    Row("BiT ResNet-50, all parameters", "resnet50", "all", 4, 64),
    Row("DistilBERT, LoRA rank 16", "distilbert", "lora-r16-text", 8, 128, tokens=256),
    Row("WRN-16-4 from scratch", "wrn-16-4", "scratch", 32, 512, pixels=32),
]
_TINY = {"img_size": 32, "depth": 2, "embed_dim": 64, "num_heads": 2}
REHEARSAL = [
    Row("tiny ViT, FiLM", "vit-tiny", "film", 4, 4, pixels=32, arguments=_TINY),
    Row("tiny ViT, all parameters", "vit-tiny", "all", 4, 4, pixels=32, arguments=_TINY),
]


def rows(rehearse: bool) -> list[Row]:
    """What is measured, or what only shows that everything runs."""
    return REHEARSAL if rehearse else ROWS


def make_model(row: Row, seed: int = 0) -> nn.Module:
    """Build the network as the product does, with random weights."""
    study = load_study(REPOSITORY / "config.yaml")
    section = study.backbones[row.backbone]
    methods: dict[str, Method] = {**study.methods, "head": HeadOnly(kind="head")}
    architecture = Architecture(
        library=section.library,
        name=section.architecture,
        arguments={**section.arguments, **row.arguments},
    )
    with tempfile.TemporaryDirectory() as folder:
        write_backbone(
            Path(folder),
            name=row.backbone,
            title=section.title,
            kind="text" if row.tokens else "image",
            architecture=architecture,
            mean=() if row.tokens else tuple(section.mean),
            std=() if row.tokens else tuple(section.std),
            pretraining={"kind": "random"},
            parameters=0,
            state={},
        )
        model = build_model(Path(folder), methods[row.method], CLASSES, seed)
    for name in head_parameter_names(model):
        nn.init.normal_(model.get_parameter(name), std=0.02)  # a zero head sends nothing back
    return model.eval()


@dataclass(frozen=True)
class Setting:
    """Where and how a row is measured."""

    device: torch.device
    autocast: torch.dtype | None
    compiled: bool

    @property
    def name(self) -> str:
        """For the table: precision, and whether steps are compiled."""
        precision = "bfloat16" if self.autocast else "float32"
        return f"{precision}, compiled" if self.compiled else precision

    def context(self) -> Any:
        """Around a forward pass that is not ours."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()


def make_batch(row: Row, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random inputs as the network reads them, and labels."""
    generator = torch.Generator().manual_seed(1)
    size = row.cpu_batch if device.type == "cpu" else row.gpu_batch
    if row.tokens:
        inputs = torch.randint(1000, 30000, (size, row.tokens), generator=generator)
    else:
        inputs = torch.randn(size, 3, row.pixels, row.pixels, generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return inputs.to(device), labels.to(device)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Adam as trials use it."""
    return torch.optim.Adam(trainable_parameters(model).values(), lr=1e-6, fused=True)


def without_privacy(row: Row, setting: Setting) -> Step:
    """Plain training: what an ordinary step costs."""
    model = make_model(row).to(setting.device)
    inputs, labels = make_batch(row, setting.device)
    optimizer = optimizer_of(model)
    forward = torch.compile(model) if setting.compiled else model

    def step() -> None:
        with setting.context():
            loss = F.cross_entropy(forward(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()  # here, so that nothing stays while others take their turns

    return step


def dpsweep(row: Row, setting: Setting) -> Step:
    """The private step of this project."""
    model = make_model(row).to(setting.device)
    inputs, labels = make_batch(row, setting.device)
    mask = torch.ones_like(labels, dtype=torch.bool)
    engine = make_engine(
        "auto",
        model,
        head_parameter_names(model),
        autocast=setting.autocast,
        compile=setting.compiled,
    )
    optimizer = PrivateOptimizer(
        optimizer_of(model),
        engine,
        FlatClipping(1.0),
        noise_multiplier=1.0,
        expected_batch_size=len(labels),
        noise=GaussianNoise("benchmark"),
    )
    return lambda: optimizer.step([(inputs, labels, mask)])


def opacus(mode: str, row: Row, setting: Setting) -> Step:
    """The private step of Opacus, as its users call it."""
    from opacus import PrivacyEngine  # noqa: PLC0415
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415

    model = make_model(row).to(setting.device).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    inputs, labels = make_batch(row, setting.device)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer_of(model),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(TensorDataset(labels.cpu()), batch_size=len(labels)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    model, optimizer = made[0], made[1]
    criterion: Any = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step() -> None:
        with setting.context():
            loss = criterion(model(inputs).float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CONTENDERS: dict[str, Callable[[Row, Setting], Step]] = {
    REFERENCE: without_privacy,
    "dpsweep": dpsweep,
    "Opacus, hooks": partial(opacus, "hooks"),
    "Opacus, ghost": partial(opacus, "ghost"),
}


def measure_times(row: Row, setting: Setting, rounds: int) -> dict[str, dict[str, Any]]:
    """Let the contenders take turns; return seconds a step and ratios to the reference.

    What cannot run, or has no memory left, is a failure with its reason. On a GPU the megabytes of a step
    are there as well.
    """
    found: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    for name, make in CONTENDERS.items():
        if name.startswith("Opacus") and (setting.compiled or find_spec("opacus") is None):
            continue
        try:
            steps[name] = make(row, setting)
            found[name] = warm_up(steps[name], setting.device)
        except Exception as error:
            steps.pop(name, None)
            found[name] = {
                "failure": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds[name].append(timed(step, setting.device))
    for name, times in seconds.items():
        found[name]["seconds"] = round(statistics.median(times), 5)
        if REFERENCE in seconds:
            ratios = [one / other for one, other in zip(times, seconds[REFERENCE], strict=True)]
            found[name]["ratio"] = round(statistics.median(ratios), 3)
    return found


def warm_up(step: Step, device: torch.device) -> dict[str, Any]:
    """Take two steps; on a GPU return the megabytes of the second one beyond what was there before."""
    gc.collect()
    if device.type == "cpu":
        step()
        step()
        return {}
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step()  # compiles, looks for an engine, makes the state of the optimizer
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    return {"megabytes": round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)}


def timed(step: Step, device: torch.device) -> float:
    """Return the seconds of a call: of one on the CPU, a fifth of those of five on a GPU."""
    if device.type == "cpu":
        # Processor time of one thread: other load does not count.
        started = time.process_time()
        step()
        return time.process_time() - started
    repeats = 5
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def measure_memory(row: Row, setting: Setting, name: str) -> float:
    """Megabytes that two steps of a contender need on the CPU beyond its model."""
    context = multiprocessing.get_context("spawn")
    found = []
    for _ in range(MEMORY_RUNS):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_report_memory, args=(row, setting, name, sender))
        process.start()
        sender.close()  # so that a child that dies is an error here
        found.append(float(receiver.recv()))
        process.join()
    return statistics.median(found)


def _report_memory(row: Row, setting: Setting, name: str, sender: Any) -> None:
    _quiet()
    step = CONTENDERS[name](row, setting)
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    # The peak so far is that of imports and of building the model; only growth beyond it shows.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    step()
    sender.send((peak_bytes() - resident) / 1e6)


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def measure_row(
    row: Row, device: torch.device, rounds: int, compiled: bool = False
) -> list[dict[str, Any]]:
    """Measure the times of a row in every precision of a device, and memory where it is a GPU.

    Compiled steps of a GPU are measured in bfloat16 alone, as trials take them: each costs minutes. In
    float32 nobody has TF32, which private steps go without.
    """
    precisions = [None, torch.bfloat16] if device.type == "cuda" else [None]
    found = []
    for autocast in precisions[-1:] if compiled else precisions:
        setting = Setting(device, autocast, compiled)
        with full_precision():
            contenders = measure_times(row, setting, rounds)
        size = row.cpu_batch if device.type == "cpu" else row.gpu_batch
        found.append(
            {
                "title": row.title,
                "setting": setting.name,
                "batch": size,
                "tokens": row.tokens,
                "contenders": contenders,
            }
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[row.title for row in ROWS], help="measure one row again")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    _quiet()
    path = RESULTS / "step_cost_cpu.json"
    before = read_json(path) if arguments.only is not None and path.exists() else None
    described = environment("torch", "timm", "opacus", "peft", device="CPU, one thread")
    result: dict[str, Any] = {"environment": described, "rows": []}
    if before is not None:
        known, now = before["environment"], result["environment"]
        if known | {"load_before": None} != now | {"load_before": None}:
            parser.error(f"{path} was measured with {known}, here is {now}: measure all rows")
    cpu = torch.device("cpu")
    for row in (each for each in ROWS if arguments.only in (None, each.title)):
        for measured in measure_row(row, cpu, arguments.rounds):
            for name, contender in measured["contenders"].items():
                if "failure" not in contender:
                    setting = Setting(cpu, None, compiled=False)
                    contender["megabytes"] = round(measure_memory(row, setting, name), 1)
            result["rows"].append(measured)
    if before is not None:
        kept = [row for row in before["rows"] if row["title"] != arguments.only]
        order = [row.title for row in ROWS]
        merged = sorted(kept + result["rows"], key=lambda row: order.index(row["title"]))
        result = before | {"rows": merged}
    write_json(path, result)


if __name__ == "__main__":
    main()
