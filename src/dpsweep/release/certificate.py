"""The certificate of a release: what is guaranteed, and every number that it follows from."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
)

from dpsweep.config import Method, Optimizer, OptimizerSection
from dpsweep.config.clipping import SMALLEST_BOUND, PrivateRule
from dpsweep.config.datasets import KindName
from dpsweep.config.release import MOST_TRIALS
from dpsweep.config.section import ArgumentName, LearningRate, PositiveFloat
from dpsweep.data.prepared import TokenizerIdentity
from dpsweep.data.resize import Resize
from dpsweep.gradients.precision import Precision
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.accountants import composed_epsilon
from dpsweep.privacy.trade_off import Attack, attacks_on_training, attacks_on_tuning
from dpsweep.privacy.tuning import largest_profile, total_epsilon
from dpsweep.privacy.tuning_noise import TuningNoise, gaussian_profile, training_profile

ReleaseEngine = Literal["auto", "expanded", "bookkeeping", "vmap", "linear", "loop"]
"""All engines but opacus, whose norms may be too small by rounding."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def plain_method(method: Method) -> dict[str, Any]:
    """Which parameters train, without a title and an engine."""
    return method.model_dump(mode="json", exclude={"title", "engine"})


class Setting(_Part):
    """The hyperparameters of a trial."""

    epochs: PositiveInt
    batch_size: PositiveInt
    """Expected batch size B."""
    steps: PositiveInt
    clipping_bound: Annotated[float, Field(ge=SMALLEST_BOUND, allow_inf_nan=False)] | PrivateRule
    learning_rate: LearningRate


class DataSplit(_Part):
    """The training set and its part that was only scored on, drawn by a hash of the row's number."""

    examples: PositiveInt
    holdout_share: Annotated[float, Field(ge=0, lt=1)]
    held_out: NonNegativeInt

    @property
    def train_size(self) -> int:
        """N, the examples that train."""
        return self.examples - self.held_out


class Tuning(_Part):
    """How the setting was chosen; the total epsilon covers it."""

    mean_trials: Annotated[float, Field(gt=1, le=MOST_TRIALS)]
    shape: Annotated[float, Field(gt=-1, allow_inf_nan=False)]
    gamma: Probability
    first_epsilon: Positive
    second_epsilon: Positive
    second_delta: Positive
    score_noise: Positive
    """Standard deviation, in right answers on the held-out part."""
    score: Annotated[float, Field(allow_inf_nan=False)]
    """Of the winner, with noise."""
    candidates: Annotated[list[Setting], Field(min_length=2)]
    noise: list[Calibration]
    """Calibrations, one for each (B, T) of the candidates."""

    def tuning_noise(self, epsilon: float, delta: float) -> TuningNoise:
        """The noise as it was calibrated, for a total epsilon and delta."""
        shared = {name: each for name, each in self if name not in ("score", "candidates")}
        return TuningNoise(epsilon, delta, **shared)


class PublicWeights(BaseModel):
    """Where the public weights are from."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: Annotated[str, Field(min_length=1)]


class Network(_Part):
    """The network that the parameters belong to."""

    library: Literal["timm", "transformers", "dpsweep"]
    architecture: str
    arguments: dict[ArgumentName, bool | int | float | str]
    backbone: Checksum
    """SHA-256 of what determines the network before training: architecture, mean, std, tokenizer, weights."""
    weights: Checksum
    """SHA-256 of the backbone's file of public weights, as dpsweep prepares it."""
    classes: Annotated[list[str], Field(min_length=2)]
    kind: KindName
    mean: list[float]
    std: list[PositiveFloat]
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    """Of one stored input."""
    resize: Resize | None
    """From an image of any size to what the network reads; None where it reads no images."""
    tokenizer: TokenizerIdentity | None
    method: Annotated[Method, PlainSerializer(plain_method)]
    head_layers: list[str]
    """Linear layers of the head; LoRA leaves them alone."""
    pretraining: PublicWeights
    trained_parameters: PositiveInt
    public_statistics: Annotated[NonNegativeInt, Field(exclude_if=lambda layers: not layers)] = 0
    """Layers of batch normalisation; their statistics are public, and training left them as they were."""


class ReleasedModel(_Part):
    """A model that was released, as the ledger of releases has it."""

    certificate: Checksum
    """Fingerprint of its certificate."""
    epsilon: Positive
    delta: Probability
    noise: Calibration | None
    """Its calibration; None where epsilon covers a choice among several trials."""


class Releases(_Part):
    """The models that were released on data that may share examples with these, and this one."""

    earlier: list[ReleasedModel]
    """Those before, oldest first, as far as the ledger goes."""
    joint_epsilon: Positive
    """Of all together, this one included."""
    joint_delta: Positive


class Certificate(_Part):
    """The content of ``certificate.json``, its fingerprint aside."""

    format: Literal[4] = 4
    title: str
    dataset: str
    epsilon: Positive
    """The guarantee."""
    delta: Probability
    adjacency: Literal["add or remove one example"] = "add or remove one example"
    unit: Literal["one training example"] = "one training example"
    certified_epsilon: Positive
    """Proven with PRV, or for full batches in closed form; at most ``epsilon``."""
    pld_epsilon: Positive
    """The same by privacy loss distributions."""
    attacks: Annotated[list[Attack], Field(min_length=1)]
    """The most that any attacker can tell about the records of one person, by their number."""
    setting: Setting
    step_rounding: Literal["round", "ceil"]
    """How epochs became steps."""
    automatic_clipping_gamma: Positive | None
    """Of AUTO-S; None where no setting clips automatically."""
    optimizer: Annotated[
        Optimizer,
        BeforeValidator(lambda given: {"kind": given} if isinstance(given, str) else given),
        PlainSerializer(OptimizerSection.identity),
    ]
    """How noised gradients became the model; with an ``average``, that is what is released."""
    precision: Precision
    engine: ReleaseEngine
    device: Literal["cpu", "cuda"]
    noise: Calibration
    """The calibration of the model that is released."""
    split: DataSplit
    tuning: Tuning | None
    randomness: Literal["secret, drawn from the operating system and never stored"] = (
        "secret, drawn from the operating system and never stored"
    )
    earlier_sweeps: list[str]
    """Sweeps that trained on these data and chose without an account; epsilon does not cover them."""
    earlier_trials: NonNegativeInt
    """Trials on these data in the study's store, of those sweeps and of others."""
    releases: Releases
    test_accuracy: Annotated[float, Field(ge=0, le=1)]
    network: Network
    versions: dict[str, str]
    files: dict[str, Checksum]
    """SHA-256 of the files of parameters, and of the tokenizer's."""


NOT_KNOWN: Mapping[str, str] = {
    "title": "free text",
    "dataset": "free text",
    "setting.clipping_bound": "does not change epsilon, because gradients are normalised",
    "setting.learning_rate": "does not change epsilon",
    "tuning.candidates": "epsilon is the same for any list with these batch sizes and steps",
    "tuning.score": "measured on private data, with noise",
    "step_rounding": "both rules may give as many steps",
    "automatic_clipping_gamma": "does not change epsilon, because gradients are normalised",
    "optimizer": "does not change epsilon",
    "precision": "does not change epsilon",
    "engine": "does not change epsilon",
    "device": "does not change epsilon",
    "split.holdout_share": "another share may hold out as many rows",
    "earlier_sweeps": "what was trained before is not in the folder",
    "earlier_trials": "what was trained before is not in the folder",
    "releases.earlier.*.certificate": "earlier releases are not in the folder",
    "test_accuracy": "measured on the test set, which is not in the folder",
    "network.classes": "free text; their number is compared with the head",
    "network.shape": "the data is not in the folder",
    "network.resize": "the data is not in the folder",
    "network.method.kind": "all and scratch train the same parameters",
    "network.pretraining": "free text; the checksum of the weights says which they are",
    "versions": "free text",
}
"""The fields that verification cannot know, and why; a star stands for any place of a list.

A field stands for all that is in it. A change of any other field is found.
"""


CHANGED_TOGETHER: Mapping[str, str] = {
    "noise": "whether training added this noise, to batches of this size, in so many steps, for this "
    "epsilon and delta, is not in the parameters; the audit measures the code",
    "split": "how many examples there are is not in the folder; the study knows (--study)",
    "tuning": "a tuned model can be presented as one of a fixed setting, and the other way round; the study "
    "and the ledger know",
    "releases": "earlier releases can be left out, reordered, or given a smaller epsilon; the ledger knows",
    "network": "weights, mean, std, tokenizer and arguments of another function of the same shapes, such as "
    "another number of attention heads; the backbone knows (--backbone)",
    "files": "other numbers in parameters of the same shapes; of frozen ones the backbone knows, of trained "
    "ones the ledger, which has the fingerprint of the certificate with their checksums",
}
"""The parts that an enemy who derives all else anew can change unseen, and who can check each.

Each name stands for a part of a certificate; docs/release.md has the table.
"""


def second_opinion(noise: Calibration, tuning: TuningNoise | None) -> float:
    """Return the epsilon of a release by privacy loss distributions."""
    if tuning is None:
        return noise.pld_epsilon
    profiles = [training_profile(each) for each in tuning.noise]
    profile = largest_profile([*profiles, gaussian_profile(tuning.score_noise)])
    return total_epsilon(profile, tuning.delta, tuning.mean_trials, tuning.shape)


def best_attacks(noise: Calibration, tuning: TuningNoise | None) -> list[Attack]:
    """Return the best attacks on a release, from its privacy loss or from the bound of its tuning."""
    return attacks_on_training(noise) if tuning is None else attacks_on_tuning(tuning)


def certify_tuning(tuning: TuningNoise, candidates: list[Setting], score: float) -> Tuning:
    """Write accounted tuning down."""
    shared = {name: each for name, each in vars(tuning).items() if name in Tuning.model_fields}
    return Tuning(**shared, score=score, candidates=candidates)


def joint_epsilon(
    earlier: Sequence[ReleasedModel],
    noise: Calibration | None,
    epsilon: float,
    delta: float,
    joint_delta: float,
) -> float:
    """Return the epsilon of earlier models and one more at a delta of all together.

    Args:
        earlier: those before.
        noise: of the one more; None where epsilon covers a choice among several trials.
        epsilon: of the one more.
        delta: of the one more.
        joint_delta: of all together.

    Returns:
        Infinity where guarantees without noise have larger deltas together.
    """
    if not earlier and delta <= joint_delta:
        return epsilon
    models = [
        *((each.noise, each.epsilon, each.delta) for each in earlier),
        (noise, epsilon, delta),
    ]
    return composed_epsilon(
        [noise for noise, _, _ in models if noise is not None],
        [(epsilon, delta) for noise, epsilon, delta in models if noise is None],
        joint_delta,
    )


def released_together(
    earlier: list[ReleasedModel], noise: Calibration | None, epsilon: float, delta: float
) -> Releases:
    """Compose the models that were released before with one more.

    Args:
        earlier: those before.
        noise: of the one more; None where epsilon covers a choice among several trials.
        epsilon: of the one more.
        delta: of the one more.

    Raises:
        CalibrationError: their deltas are 1 or more together, which promises nothing.
    """
    joint_delta = math.fsum([delta, *(each.delta for each in earlier)])
    if joint_delta >= 1:
        raise CalibrationError(
            f"releases: found deltas that are {joint_delta:g} together; allowed: below 1"
        )
    joint = joint_epsilon(earlier, noise, epsilon, delta, joint_delta)
    return Releases(earlier=earlier, joint_epsilon=joint, joint_delta=joint_delta)
