"""What does each library really run for a budget?

    python -m benchmarks.peers.budgets            # three minutes of processor time
    python -m benchmarks.peers.budgets --jax build/peers/bin/python   # JAX-Privacy too, from its environment

A user asks for epsilon, delta, N examples, a batch size B and a number of epochs. Each library calibrates its
noise and takes its steps on a tiny network. The steps are counted and their batches measured; the epsilon of
what ran comes from two accountants, dp-accounting and prv-accountant, which share no code.

Results go to benchmarks/results/peers/budgets.json; `python -m benchmarks.tables` writes docs/peers.md.
"""

import json
import subprocess
import warnings
from pathlib import Path
from typing import Any

import torch
from opacus import PrivacyEngine
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dpsweep
from benchmarks.common import RESULTS, command_line, environment
from dpsweep.base.files import write_json
from dpsweep.privacy.accountants import gaussian_epsilon, pld_epsilon, pld_interval

RESULT = RESULTS / "peers" / "budgets.json"
JAX_PROGRAM = Path(__file__).with_name("jax_budgets.py")
FIELDS = ("examples", "batch_size", "epochs", "epsilon", "delta")
SETTINGS: list[dict[str, Any]] = [
    dict(zip(FIELDS, each, strict=True))
    for each in (
        (1000, 100, 10, 2.0, 1e-5),
        (1000, 300, 10, 2.0, 1e-5),  # N is no multiple of B
        (10007, 128, 4, 2.0, 1e-5),  # N is prime
        (1000, 600, 10, 2.0, 1e-5),  # more than half of the examples
        (1000, 999, 10, 2.0, 1e-5),
        (1000, 1000, 10, 2.0, 1e-5),  # the full batch
        (1000, 1000, 1, 2.0, 1e-5),  # one step
        (930, 10, 3, 2.0, 1e-5),
        (1000, 1, 1, 2.0, 1e-5),
        (1000, 100, 10, 2.0, 1e-10),
        (1000, 100, 10, 0.1, 1e-5),
        (1000, 50, 40, 8.0, 1e-5),
    )
]


def of_dpsweep(setting: dict[str, Any]) -> dict[str, Any]:
    """Run dpsweep for T = epochs * N / B steps."""
    size, batch_size = setting["examples"], setting["batch_size"]
    noise = dpsweep.calibrate(
        epsilon=setting["epsilon"],
        delta=setting["delta"],
        train_size=size,
        batch_size=batch_size,
        steps=steps_of(setting),
    )
    model = nn.Linear(2, 2)
    training = dpsweep.PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        clipping=dpsweep.FlatClipping(1.0),
        calibration=noise,
    )
    sizes = []
    for batch in training.batches(torch.randn(size, 2), torch.zeros(size, dtype=torch.long)):
        sizes.append(len(batch.rows))
        training.step(batch)
    return {
        "rate": noise.sampling_rate,
        "steps": len(sizes),
        "mean_batch": sum(sizes) / len(sizes),
        "divisor": batch_size,
        "noise_multiplier": noise.noise_multiplier,
        "reported": training.epsilon_spent,
    }


def of_opacus(setting: dict[str, Any]) -> dict[str, Any]:
    """Run Opacus for the epochs, as its tutorials do."""
    size = setting["examples"]
    model, engine = nn.Linear(2, 2), PrivacyEngine()
    data = TensorDataset(torch.randn(size, 2), torch.zeros(size, dtype=torch.long))
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=setting["batch_size"]),
        target_epsilon=setting["epsilon"],
        target_delta=setting["delta"],
        epochs=setting["epochs"],
        max_grad_norm=1.0,
    )
    sizes = []
    for _ in range(setting["epochs"]):
        for inputs, labels in loader:
            sizes.append(len(labels))
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(inputs), labels).backward()
            optimizer.step()
    return {
        "rate": loader.sample_rate,
        "steps": len(sizes),
        "mean_batch": sum(sizes) / len(sizes),
        "divisor": optimizer.expected_batch_size,
        "noise_multiplier": optimizer.noise_multiplier,
        "reported": float(engine.get_epsilon(setting["delta"])),
    }


def of_jax(python: str) -> list[dict[str, Any]]:
    """Run JAX-Privacy for all settings in its environment."""
    asked = [each | {"steps": steps_of(each)} for each in SETTINGS]
    command = [python, str(JAX_PROGRAM)]
    made = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    found: list[dict[str, Any]] = json.loads(made.stdout.splitlines()[-1])
    return found


def steps_of(setting: dict[str, Any]) -> int:
    """Return the number of steps in which each example takes part as often as there are epochs."""
    return round(setting["epochs"] * setting["examples"] / setting["batch_size"])


def with_epsilons(ran: dict[str, Any], setting: dict[str, Any]) -> dict[str, Any]:
    """Add the epsilon of what ran, by two accountants."""
    sigma, rate, steps = ran["noise_multiplier"], ran["rate"], ran["steps"]
    delta = setting["delta"]
    interval = pld_interval(setting["epsilon"], steps)
    if rate == 1:
        second = gaussian_epsilon(delta, sigma, steps)
    else:
        error = 1e-3 * setting["epsilon"]
        prv = PRVAccountant(
            PoissonSubsampledGaussianMechanism(rate, sigma), error, delta / 1000, steps
        )
        second = float(prv.compute_epsilon(delta, [steps])[1])
    return ran | {"pld": pld_epsilon(sigma, rate, steps, delta, interval), "second": second}


def attempt(run: Any, setting: dict[str, Any]) -> dict[str, Any]:
    """Return what a library ran, with its epsilons, or the sentence of its refusal."""
    try:
        return with_epsilons(run(setting), setting)
    except Exception as error:  # of any type: its sentence is the result
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split()).split('. ')[0]}"}


def main() -> None:
    """Run every setting and write the result."""
    parser = command_line(__doc__)
    parser.add_argument("--jax", help="Python of an environment with jax-privacy")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    described = environment("opacus", "torch", "dp-accounting", "dpsweep", load=False)
    rows = []
    for setting in SETTINGS:
        found = {"Opacus": attempt(of_opacus, setting), "dpsweep": attempt(of_dpsweep, setting)}
        rows.append(setting | {"ran": found})
        print(rows[-1], flush=True)
    if given.jax:
        for row, ran in zip(rows, of_jax(given.jax), strict=True):
            described["versions"]["jax-privacy"] = ran.pop("version")
            found = ran if "refused" in ran else with_epsilons(ran, row)
            row["ran"]["JAX-Privacy"] = found
    write_json(RESULT, {"environment": described, "rows": rows})


if __name__ == "__main__":
    main()
