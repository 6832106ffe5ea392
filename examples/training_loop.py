"""Train a network of your own with a loop of your own, under ε = 4: calibrate, sample, clip, add noise, step.

python examples/training_loop.py
"""

import torch
from torch import nn

import dpsweep

EPSILON, DELTA, BATCH_SIZE, STEPS = 4, 1e-5, 200, 60


def made_up(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (N, 20) around three centres, and the classes (N,)."""
    centres = 2 * torch.eye(3, 20)
    labels = torch.randint(3, (count,))
    return centres[labels] + torch.randn(count, 20), labels


def main() -> None:
    """Train, and print what was reached and what it may be claimed to cost."""
    torch.manual_seed(0)
    (inputs, labels), (unseen, classes) = made_up(4000), made_up(1000)
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 3)).eval()

    noise = dpsweep.calibrate(
        epsilon=EPSILON, delta=DELTA, train_size=len(labels), batch_size=BATCH_SIZE, steps=STEPS
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = dpsweep.PrivateTraining(
        model, optimizer, clipping=dpsweep.FlatClipping(1.0), calibration=noise
    )
    for batch in training.batches(inputs, labels):
        training.step(batch)
    with torch.no_grad():
        accuracy = (model(unseen).argmax(1) == classes).double().mean()
    print(f"accuracy {accuracy:.3f} at epsilon = {training.epsilon_spent:.2f}, delta = {DELTA}")


if __name__ == "__main__":
    main()
