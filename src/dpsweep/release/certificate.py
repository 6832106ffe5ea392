"""The certificate of a release: what is guaranteed, and every number that it follows from."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dpsweep.clipping import ClippingBound
from dpsweep.privacy import Calibration
from dpsweep.privacy.tuning import gamma_of_mean, largest_profile, total_epsilon
from dpsweep.privacy.tuning_noise import TuningNoise, gaussian_profile, training_profile

ADJACENCY: Literal["add or remove one example"] = "add or remove one example"
UNIT: Literal["one training example"] = "one training example"
RANDOMNESS: Literal["secret, drawn from the operating system and never stored"] = (
    "secret, drawn from the operating system and never stored"
)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(_Part):
    """The hyperparameters of a trial."""

    epochs: int
    batch_size: int
    """Expected batch size B."""
    steps: int
    clipping_bound: ClippingBound
    learning_rate: float


class Split(_Part):
    """The training set and its part that was only scored on, drawn by a hash of the row's number."""

    examples: int
    holdout_share: float
    held_out: int


class Tuning(_Part):
    """How the setting was chosen; the total epsilon covers it."""

    mean_trials: float
    shape: float
    gamma: float
    first_epsilon: float
    second_epsilon: float
    second_delta: float
    score_noise: float
    """Standard deviation, in right answers on the held-out part."""
    score: float
    """Of the winner, with noise."""
    candidates: list[Setting]
    noise: list[dict[str, Any]]
    """Calibrations, one for each (B, T) of the candidates."""

    def tuning_noise(self, epsilon: float, delta: float) -> TuningNoise:
        """The noise as it was calibrated.

        Raises:
            CalibrationError: a calibration lacks a field, or has one of another type.
        """
        return TuningNoise(
            **{"epsilon": epsilon, "delta": delta, "mean": self.mean_trials, "shape": self.shape},
            first_epsilon=self.first_epsilon,
            second_epsilon=self.second_epsilon,
            second_delta=self.second_delta,
            calibrations=tuple(map(Calibration.from_dict, self.noise)),
            score_noise=self.score_noise,
        )


class Network(_Part):
    """What the parameters belong to."""

    library: str
    architecture: str
    arguments: dict[str, bool | int | float | str]
    classes: list[str]
    kind: Literal["image", "text"]
    mean: list[float]
    std: list[float]
    shape: list[int]
    """Of one stored input."""
    resize: dict[str, Any] | None
    tokenizer: dict[str, Any] | None
    method: dict[str, Any]
    head_layers: list[str]
    """Linear layers of the head; LoRA leaves them alone."""
    pretraining: dict[str, Any]
    trained_parameters: int


class Certificate(_Part):
    """The content of ``certificate.json``, its fingerprint aside."""

    format: Literal[1] = 1
    title: str
    dataset: str
    epsilon: float
    """What is guaranteed."""
    delta: float
    adjacency: Literal["add or remove one example"] = ADJACENCY
    unit: Literal["one training example"] = UNIT
    certified_epsilon: float
    """Proven with PRV, or for full batches in closed form; at most ``epsilon``."""
    pld_epsilon: float
    """The same by privacy loss distributions."""
    setting: Setting
    step_rounding: Literal["round", "ceil"]
    optimizer: str
    precision: str
    engine: str
    device: str
    noise: dict[str, Any]
    """The calibration of the model that is released."""
    split: Split
    tuning: Tuning | None
    randomness: Literal["secret, drawn from the operating system and never stored"] = RANDOMNESS
    earlier_sweeps: list[str]
    """Sweeps that trained on these data and chose without an account; epsilon does not cover them."""
    test_accuracy: float
    network: Network
    versions: dict[str, str]
    files: dict[str, str]
    """SHA-256 of the files of parameters."""


def second_opinion(noise: Calibration, tuning: TuningNoise | None) -> float:
    """Return the epsilon of a release by privacy loss distributions."""
    if tuning is None:
        return noise.pld_epsilon
    profiles = [training_profile(each) for each in tuning.calibrations]
    profile = largest_profile([*profiles, gaussian_profile(tuning.score_noise)])
    return total_epsilon(profile, tuning.delta, tuning.mean, tuning.shape)


def certify_tuning(tuning: TuningNoise, candidates: list[Setting], score: float) -> Tuning:
    """Write accounted tuning down."""
    return Tuning(
        mean_trials=tuning.mean,
        shape=tuning.shape,
        gamma=gamma_of_mean(tuning.mean, tuning.shape),
        first_epsilon=tuning.first_epsilon,
        second_epsilon=tuning.second_epsilon,
        second_delta=tuning.second_delta,
        score_noise=tuning.score_noise,
        score=score,
        candidates=candidates,
        noise=[each.to_dict() for each in tuning.calibrations],
    )
