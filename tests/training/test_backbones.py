"""Networks of docs/your-own-data.md: their gradients equal those of the loop.

`python -m benchmarks.evidence.gradients` compares all of them, with every method.
"""

import pytest
import torch
from benchmarks.evidence.backbones import NETWORKS, built
from benchmarks.evidence.gradients import try_case

from dpsweep.study.backbones import BackboneError

BY_NAME = {network.name: network for network in NETWORKS}
# Each has a layer that the other networks, and the tests of tests/gradients, do not have.
TRIED = [
    *(
        pytest.param(*row, marks=pytest.mark.slow)
        for row in (
            ("vit_small_patch14_reg4_dinov2", "all", "bookkeeping"),  # registers and layer scales
            ("deit_tiny_distilled_patch16_224", "head", "expanded"),  # two heads
            ("beit_base_patch16_224", "all", "bookkeeping"),  # tables of relative positions
            ("swinv2_tiny_window8_256", "all", "bookkeeping"),  # windows, a network of constants
            ("samvit_base_patch16_224", "all", "vmap"),  # a use without a rule
            ("gmlp_ti16_224", "lora", "expanded"),  # products of tokens
            ("resnet18", "film", "expanded"),  # batch normalisation with fixed statistics
        )
    ),
    ("cait_xxs24_224", "film", "expanded"),  # attention of the class token
    ("convnextv2_atto", "all", "bookkeeping"),  # normalised responses, convolutions by channel
    ("xcit_nano_12_p16_224", "lora", "expanded"),  # frozen batch normalisation
    ("convnext_atto", "lora", "bookkeeping"),  # adapters of convolutions of single pixels
    ("albert", "all", "bookkeeping"),  # one layer at several places
    ("deberta-v2", "lora", "expanded"),  # relative positions in texts
    ("modernbert", "film", "expanded"),  # texts without padding
]


@pytest.mark.parametrize(("network", "method", "engine"), TRIED)
def test_gradients_equal_those_of_the_loop(network: str, method: str, engine: str) -> None:
    torch.set_num_threads(1)
    assert try_case(*built(BY_NAME[network], method)) == engine


def test_a_method_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(BackboneError, match="has none"):
        built(BY_NAME["nf_resnet26"], "film")
