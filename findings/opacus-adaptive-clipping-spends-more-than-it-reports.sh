#!/usr/bin/env bash
# Believed: With `clipping="adaptive"` Opacus adds so much more noise to the gradients that the noisy
# count of clipped examples is paid for (Andrew et al. 2021, theorem 1).
# Happens: The theorem holds for a count of halves, b - 1/2, which an example moves by 1/2. Opacus
# counts ones, which an example moves by 1, with the noise for halves. At sigma 1 and a noise of 0.6 of
# the count, which is allowed, 1,000 steps of rate 0.01 are reported as epsilon 1.83; sum and count
# together spend 8.77. With a noise of 5 it is 1.88.
# Advice: Let `unclipped_num_std` be at least five times the noise multiplier, or clip at a fixed bound.
# Versions: opacus 1.6.0, dp-accounting 0.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   noise of the count 0.6: one example moves the sum by 0.55 and the count by 1.67 standard deviations
#   reported: noise multiplier 1.00, epsilon 1.83; both together: 0.57, epsilon 8.77
#   noise of the count 5.0: one example moves the sum by 0.99 and the count by 0.20 standard deviations
#   reported: noise multiplier 1.00, epsilon 1.83; both together: 0.99, epsilon 1.88
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 scipy==1.17.1 opacus==1.6.0 dp-accounting==0.6.0 --prerelease disallow
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import dp_accounting as dp
import torch
from dp_accounting.pld import PLDAccountant
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIGMA = 1.0
RATE, STEPS, DELTA = 0.01, 1000, 1e-5


def movements(count_noise):
    """Return by how many standard deviations one example moves the sum and the count."""
    torch.manual_seed(0)
    model, inputs, labels = nn.Linear(300, 300), torch.randn(100, 300), torch.arange(100)
    nn.functional.cross_entropy(model(inputs[-1:]), labels[-1:]).backward()
    length = torch.cat([each.grad.flatten() for each in model.parameters()]).norm().item()
    model, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=100),
        noise_multiplier=SIGMA,
        max_grad_norm=1.001 * length,  # the last example is just not clipped
        clipping="adaptive",
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=1e8,
        min_clipbound=1e-8,
        unclipped_num_std=count_noise,
    )
    seen = []
    for count in (100, 99):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[:count]), labels[:count]).backward()
        optimizer.clip_and_accumulate()
        total = torch.cat([each.summed_grad.flatten() for each in optimizer.params])
        seen.append((total, int(optimizer.unclipped_num)))
    assert optimizer.noise_multiplier == SIGMA  # what the accountant counts
    optimizer.add_noise()
    noise = torch.cat([(each.grad - each.summed_grad).flatten() for each in optimizer.params]).std()
    return ((seen[0][0] - seen[1][0]).norm() / noise).item(), (seen[0][1] - seen[1][1]) / count_noise


def epsilon(sigma):
    accountant = PLDAccountant()
    accountant.compose(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(sigma)), STEPS))
    return accountant.get_epsilon(DELTA)


reported, spent = epsilon(SIGMA), {}
for count_noise in (0.6, 5.0):
    of_sum, of_count = movements(count_noise)
    sigma = (of_sum**2 + of_count**2) ** -0.5
    spent[count_noise] = epsilon(sigma)
    print(f"noise of the count {count_noise}: one example moves the sum by {of_sum:.2f} and the count by "
          f"{of_count:.2f} standard deviations")
    print(f"reported: noise multiplier {SIGMA:.2f}, epsilon {reported:.2f}; both together: {sigma:.2f}, "
          f"epsilon {spent[count_noise]:.2f}")
assert spent[0.6] > 4 * reported and reported < spent[5.0] < 1.1 * reported
PYTHON
