"""The networks of docs/backbones.md: their gradients are those of the loop, with every method."""

import pytest
import torch
from benchmarks.backbones import CLASSES, METHODS, NETWORKS, Network, prepare

from dpsweep.clipping import FlatClipping
from dpsweep.models.backbone import BackboneError
from dpsweep.models.build import head_parameter_names
from dpsweep.training.gradients import make_engine

EXAMPLES = 3
# Where there is nothing for a method to train.
NO_NORMALISATION = {"resmlp_12_224", "nf_resnet26"}
NO_LINEAR = {
    *("convnext_atto", "convnextv2_atto", "poolformer_s12", "focalnet_tiny_srf", "rdnet_tiny"),
    *("resnetv2_50x1_bit", "resnet50_gn", "nf_resnet26"),
}
IDS = [each.name for each in NETWORKS]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_a_step_is_that_of_the_loop(network: Network, method: str) -> None:
    torch.set_num_threads(1)
    impossible = NO_NORMALISATION if method == "film" else NO_LINEAR if method == "lora" else ()
    if network.name in impossible:
        with pytest.raises(BackboneError, match=r"has none|no linear layer but its head"):
            prepare(network, method, small=True)
        return
    model = prepare(network, method, small=True)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # layer scales and adapters start near zero
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    head = head_parameter_names(model)
    inputs, labels = network.inputs(EXAMPLES, small=True), torch.arange(EXAMPLES) % CLASSES
    mask = torch.arange(EXAMPLES) != 1
    loop, engine = (make_engine(name, model, head) for name in ("loop", "auto"))
    norms, head_norms = loop.norms(inputs, labels, mask)
    bound = FlatClipping(float(norms[mask].mean()))
    wanted, found = (each.clipped_sum(inputs, labels, mask, bound) for each in (loop, engine))
    torch.testing.assert_close(found.norms, wanted.norms, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.losses, wanted.losses, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(engine.norms(inputs, labels, mask)[1], head_norms, rtol=1e-4, atol=0)
    whole = torch.cat([each.flatten() for each in wanted.gradients.values()]).norm()
    assert found.gradients.keys() == wanted.gradients.keys()
    for name, gradient in wanted.gradients.items():
        error = (found.gradients[name] - gradient).norm()
        assert error <= 1e-3 * gradient.norm() + 1e-6 * whole, (name, error, gradient.norm())


def test_at_least_twenty_networks_of_timm() -> None:
    images = [each for each in NETWORKS if each.library == "timm"]
    assert len({each.name for each in images}) == len(images) >= 20
