"""The certificate of a release: the guarantee, and every number that proves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainSerializer,
    PositiveInt,
    model_validator,
)

from dpsweep.data.prepared import Resize, TokenizerIdentity
from dpsweep.privacy import Calibration, Sampling
from dpsweep.privacy.trade_off import Attack, attacks_on_training, attacks_on_tuning
from dpsweep.privacy.tuning import TuningNoise, total_epsilon, trial_profile
from dpsweep.release import FROZEN, TOKENIZER, TRAINED
from dpsweep.study import Cell, Study, StudyError
from dpsweep.study.clipping import SMALLEST_BOUND, PrivateRule
from dpsweep.study.datasets import Dataset, KindName, held_out_rows, protected_in_words
from dpsweep.study.load import documentation
from dpsweep.study.networks import Features, Method, MethodSection, Reduction
from dpsweep.study.optimizers import Optimizer, OptimizerSection
from dpsweep.study.release import MOST_TRIALS, Release
from dpsweep.study.section import ArgumentName, LearningRate, PositiveFloat, Precision
from dpsweep.study.sweeps import Sweep

ReleaseEngine = Literal["auto", "expanded", "bookkeeping", "vmap", "linear", "loop"]
"""All engines except opacus, because rounding may make its gradient norms too small."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
Checksum = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Setting(_Part):
    """The hyperparameters of a trial."""

    epochs: PositiveInt
    batch_size: PositiveInt
    """Expected batch size B."""
    steps: PositiveInt
    clipping_bound: Annotated[float, Field(ge=SMALLEST_BOUND, allow_inf_nan=False)] | PrivateRule
    learning_rate: LearningRate


_IF_GIVEN = Field(exclude_if=lambda value: value is None)
UnitName = Annotated[str | None, Field(min_length=1), _IF_GIVEN]
"""The column or pattern of the study that names the unit of each row; None: each row is a unit."""
RowsPerUnit = Annotated[PositiveInt | None, _IF_GIVEN]
"""The most rows of a unit in a step, if units have several rows."""


class DataSplit(_Part):
    """The training set and its held-out part for scores, which is drawn by a hash of the row number."""

    examples: PositiveInt
    """Of the training set: rows, or units if these have several rows."""
    unit: UnitName = None
    rows_per_unit: RowsPerUnit = None
    holdout_share: Annotated[float, Field(ge=0, lt=1)]
    held_out: NonNegativeInt
    """Examples, or units, that only score."""

    @property
    def counted(self) -> str:
        """What the numbers count, in words."""
        return "examples" if self.unit is None else "units"

    @property
    def train_size(self) -> int:
        """N, the number of examples, or units, in training."""
        return self.examples - self.held_out

    def guarantee(self) -> dict[str, str]:
        """Return what the certificate's ``adjacency`` and ``unit`` must be."""
        if self.unit is None:
            return {"adjacency": "add or remove one example", "unit": "one training example"}
        return {"adjacency": "add or remove one unit", "unit": "one unit with all of its rows"}


class Tuning(_Part):
    """The accounted choice of the setting; the total epsilon covers it."""

    mean_trials: Annotated[float, Field(gt=1, le=MOST_TRIALS)]
    shape: Annotated[float, Field(gt=-1, allow_inf_nan=False)]
    gamma: Probability
    first_epsilon: Positive
    second_epsilon: Positive
    second_delta: Positive
    score_noise: Positive
    """Standard deviation of the noise on the number of right answers on the held-out part."""
    score: Annotated[float, Field(allow_inf_nan=False)]
    """Noisy score of the winner."""
    candidates: Annotated[list[Setting], Field(min_length=2)]
    noise: list[Calibration]
    """One calibration for each (B, T) of the candidates."""

    def tuning_noise(self, epsilon: float, delta: float) -> TuningNoise:
        """Return the calibrated noise for a total epsilon and delta."""
        shared = {name: each for name, each in self if name not in ("score", "candidates")}
        return TuningNoise(epsilon, delta, **shared)


class PublicWeights(BaseModel):
    """The origin of the public weights."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    kind: Annotated[str, Field(min_length=1)]


class ReleasedFeatures(Features):
    """The features that a released head reads, where these are not those of the network's own head."""

    module: Annotated[str, Field(min_length=1)]
    """The module of the released network whose input or output is read."""
    side: Literal["input", "output"]
    reduction: Reduction
    prefix_tokens: NonNegativeInt
    """Tokens that a mean of tokens leaves out."""
    width: PositiveInt
    """Number of features."""


class Network(_Part):
    """The network that the parameters belong to."""

    library: Literal["timm", "transformers", "dpsweep"]
    architecture: str
    arguments: dict[ArgumentName, bool | int | float | str]
    backbone: Checksum
    """SHA-256 of the network before training: its architecture, mean, std, tokenizer and weights."""
    weights: Checksum
    """SHA-256 of the backbone's prepared file of public weights."""
    classes: Annotated[list[str], Field(min_length=2)]
    kind: KindName
    mean: list[float]
    std: list[PositiveFloat]
    shape: Annotated[list[PositiveInt], Field(min_length=1)]
    """Shape of one stored input."""
    resize: Resize | None
    """Transformation of images to the input size of the network; None if it reads no images."""
    tokenizer: TokenizerIdentity | None
    method: Annotated[Method, PlainSerializer(MethodSection.settings)]
    head_layers: list[str]
    """Linear layers of the head, which LoRA does not adapt."""
    features: Annotated[ReleasedFeatures | None, _IF_GIVEN] = None
    """The features that the head reads; None if the head is the network's own."""
    pretraining: PublicWeights
    trained_parameters: PositiveInt
    public_statistics: Annotated[NonNegativeInt, Field(exclude_if=lambda layers: not layers)] = 0
    """Number of batch normalisation layers; their statistics are public, and training did not change them."""

    @property
    def binary_files(self) -> list[str]:
        """The files of a release that have a checksum in its certificate."""
        return [TRAINED, FROZEN, *([TOKENIZER] if self.kind == "text" else [])]


class ReleasedModel(_Part):
    """A released model in the ledger of releases."""

    certificate: Checksum
    """Fingerprint of its certificate."""
    epsilon: Positive
    delta: Probability
    noise: Calibration | None
    """Its calibration; None if epsilon covers a choice among several trials."""
    unit: UnitName = None
    rows_per_unit: RowsPerUnit = None


class Releases(_Part):
    """This model and earlier released models on data that may share examples with its data."""

    earlier: list[ReleasedModel]
    """Earlier models in the ledger, oldest first."""
    joint_epsilon: Positive
    """Of all models together, including this one."""
    joint_delta: Positive


class TestSet(_Part):
    """What an accuracy on the test set is compared with."""

    size: PositiveInt
    """number of test examples"""
    largest_class: PositiveInt
    """number of them in their most frequent class, which a model without any training could always name"""
    units: Annotated[PositiveInt | None, _IF_GIVEN] = None
    """number of units in it, if they have several rows"""
    unit_accuracy: Annotated[float | None, Field(ge=0, le=1), _IF_GIVEN] = None
    """share of them of which more than half of the rows are right; exactly half counts as wrong"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.largest_class > self.size:
            raise ValueError(
                f"largest_class: found {self.largest_class}; allowed: at most size = {self.size}"
            )
        return self


class Certificate(_Part):
    """The content of ``certificate.json`` without its fingerprint."""

    format: Literal[5] = 5
    title: str
    dataset: str
    epsilon: Positive
    """The guarantee."""
    delta: Probability
    adjacency: Literal["add or remove one example", "add or remove one unit"] = (
        "add or remove one example"
    )
    unit: Literal["one training example", "one unit with all of its rows"] = "one training example"
    certified_epsilon: Positive
    """Proven by PLD, or in closed form for full batches; at most ``epsilon``."""
    pld_epsilon: Positive
    """The same by privacy loss distributions (PLD)."""
    attacks: Annotated[list[Attack], Field(min_length=1)]
    """Bounds on the best attack on the records of one person, by the number of records."""
    setting: Setting
    step_rounding: Literal["round", "ceil"]
    """Rounding of the number of steps in the epochs."""
    automatic_clipping_gamma: Positive | None
    """Gamma of AUTO-S; None if no setting clips automatically."""
    optimizer: Annotated[
        Optimizer,
        BeforeValidator(lambda given: {"kind": given} if isinstance(given, str) else given),
        PlainSerializer(OptimizerSection.identity),
    ]
    """The optimizer; with an ``average``, the averaged parameters are released."""
    precision: Precision
    engine: ReleaseEngine
    device: Literal["cpu", "cuda"]
    noise: Calibration
    """The calibration of the released model."""
    split: DataSplit
    tuning: Tuning | None
    randomness: Literal["secret, drawn from the operating system and never stored"] = (
        "secret, drawn from the operating system and never stored"
    )
    earlier_sweeps: list[str]
    """Sweeps on these data without an account; epsilon does not cover choices made by them."""
    earlier_trials: NonNegativeInt
    """Number of trials on these data in the study's store, of these sweeps and of others."""
    releases: Releases
    test_accuracy: Annotated[float, Field(ge=0, le=1)]
    test_set: TestSet
    network: Network
    versions: dict[str, str]
    files: dict[str, Checksum]
    """SHA-256 of the files of parameters and of the tokenizer."""

    @property
    def protected(self) -> str:
        """What the guarantee protects, in words."""
        return protected_in_words(self.split.unit, self.split.rows_per_unit, self.network.kind)

    def in_ledger(self, own: str) -> ReleasedModel:
        """Return this model's entry of the ledger.

        Args:
            own: the fingerprint of this certificate.
        """
        return ReleasedModel(
            certificate=own,
            epsilon=self.epsilon,
            delta=self.delta,
            noise=None if self.tuning else self.noise,
            unit=self.split.unit,
            rows_per_unit=self.split.rows_per_unit,
        )

    @property
    def second_opinion(self) -> tuple[str, float]:
        """The name of the accountant that checks ``certified_epsilon``, and its epsilon."""
        if self.tuning is None and self.noise.prv_epsilon is not None:
            return "a second accountant (PRV)", self.noise.prv_epsilon
        alone = self.noise.accountant == "pld"
        return (
            f"{'privacy loss distributions' if alone else 'a second accountant'} (PLD)",
            self.pld_epsilon,
        )


# -- what the study decides --------------------------------------------------------------------

Candidate = tuple[Cell, float]
"""A setting of a release: its cell and learning rate."""


@dataclass(frozen=True)
class ReleasePlan:
    """The settings and the data of a study's section `release`."""

    study: Study

    @property
    def release(self) -> Release:
        """The section.

        Raises:
            StudyError: the study has none.
        """
        if self.study.release is None:
            raise StudyError(
                "release: missing; allowed: a section that says what is trained "
                f"({documentation('release.md')} has an example)"
            )
        return self.study.release

    @property
    def sweep(self) -> Sweep:
        """The sweep with the problem of the release."""
        return self.study.sweeps[self.release.sweep]

    @property
    def dataset(self) -> Dataset:
        """The section of its dataset."""
        return self.study.datasets[self.sweep.dataset]

    @property
    def features(self) -> Features | None:
        """The features of the head, if it is not the network's own head."""
        features = self.study.features(self.sweep.problem.name)
        return None if features == Features() else features

    @cached_property
    def split(self) -> DataSplit:
        """The training set and its held-out part."""
        dataset = self.dataset
        examples = dataset.protected
        share = self.release.held_out
        held_out = len(held_out_rows(examples, share)) if share else 0
        unit, rows = (dataset.unit, dataset.rows_per_unit) if dataset.has_units else (None, None)
        return DataSplit(
            examples=examples, unit=unit, rows_per_unit=rows, holdout_share=share, held_out=held_out
        )

    @property
    def candidates(self) -> list[Candidate]:
        """The cells and learning rates; only one if the setting is fixed."""
        return self.release.candidates(self.sweep.problem.name)

    def sampling(self, cell: Cell) -> Sampling:
        """Return the sampling of a candidate."""
        train_size = self.split.train_size
        return self.study.privacy.sampling(train_size, cell.batch_size, cell.epochs)

    def setting(self, candidate: Candidate) -> Setting:
        """Return a candidate in the form of a certificate."""
        cell, rate = candidate
        sampling = self.sampling(cell)
        return Setting.model_validate(
            {
                "epochs": cell.epochs,
                "batch_size": sampling.batch_size,
                "steps": sampling.steps,
                "clipping_bound": cell.clipping_bound,
                "learning_rate": rate,
            }
        )

    def decided(self) -> dict[str, Any]:
        """Return the fields of a certificate that follow from the section, as JSON.

        Fields that depend on training are left out, such as the winner of several candidates.
        """
        study, release, sweep = self.study, self.release, self.sweep
        backbone, problem = study.backbones[sweep.backbone], sweep.problem.name
        dataset, features = self.dataset, self.features
        automatic = any(cell.clipping_bound == "automatic" for cell, _ in self.candidates)
        mean, std = map(list, backbone.normalisation)
        settings = [self.setting(each).model_dump(mode="json") for each in self.candidates]
        private = {
            "tuning": {
                "mean_trials": release.mean_trials,
                "shape": release.shape,
                "candidates": settings,
            }
        }
        fixed = {"tuning": None, "setting": settings[0]}
        return {
            "dataset": dataset.title,
            "epsilon": release.epsilon,
            "delta": study.privacy.delta,
            "step_rounding": study.privacy.step_rounding,
            "automatic_clipping_gamma": study.training.automatic_clipping_gamma
            if automatic
            else None,
            "optimizer": study.optimizer(sweep.problem.optimizer).identity(),
            "engine": study.engine(problem),
            **self.split.guarantee(),
            "split": self.split.model_dump(mode="json"),
            "network": {
                "library": backbone.library,
                # Preparing the network reads this name from the place of its description.
                **({} if backbone.described_at else {"architecture": backbone.architecture}),
                # A file beside the weights, or the tokenizer, may add arguments.
                "arguments": dict(backbone.arguments),
                "kind": dataset.kind,
                "mean": mean,
                "std": std,
                # The shape of stored images is left out: it may be smaller than the network's input.
                **(
                    {"resize": Resize.of(dataset).model_dump(mode="json")}
                    if dataset.kind == "image"
                    else {"resize": None, "shape": list(dataset.input_shape)}
                ),
                "method": study.methods[sweep.method].settings(),
                "features": features.model_dump(mode="json") if features else None,
            },
            **(private if release.selection == "private" else fixed),
        }


# -- what verification cannot find -------------------------------------------------------------

UNVERIFIABLE_CLAIMS: Mapping[str, str] = {
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
    "earlier_sweeps": "earlier training is not in the folder",
    "earlier_trials": "earlier training is not in the folder",
    "releases.earlier.*.certificate": "earlier releases are not in the folder",
    "test_accuracy": "measured on the test set, which is not in the folder",
    "test_set": "the test set is not in the folder",
    "network.classes": "free text; their number is compared with the head",
    "network.shape": "the data is not in the folder",
    "network.resize": "the data is not in the folder",
    "network.features.reduction": "the network does not run",
    "network.features.prefix_tokens": "the network does not run",
    "network.method": "another method may train the same parameters, those of model.safetensors",
    "network.pretraining": "free text; the checksum identifies the weights",
    "versions": "free text",
}
"""The fields that verification cannot check, and why; a star stands for every index of a list.

A field includes everything inside it. Verification finds a change of any other field.
"""


FORGEABLE_CLAIMS: Mapping[str, str] = {
    "noise": "the parameters do not show the noise, batch size and steps of their training, or its epsilon "
    "and delta; the audit measures the code",
    "split": "the number of examples is not in the folder; compare with the study (--study)",
    "tuning": "a tuned model can be presented as one of a fixed setting, and the other way round; compare "
    "with the study and the ledger",
    "releases": "earlier releases can be left out, reordered, or given a smaller epsilon; compare with the "
    "ledger",
    "network": "weights, mean, std, tokenizer and arguments of another function of the same shapes, such as "
    "another number of attention heads; compare with the backbone (--backbone)",
    "network.method": "another method, if its parameters are moved between the two files; compare with the "
    "study and the ledger",
    "files": "other numbers in parameters of the same shapes; compare frozen ones with the backbone, and "
    "trained ones with the ledger, which has the fingerprint of the certificate with their checksums",
}
"""The parts that an attacker can change undetected by deriving the rest again, and how to check each part.

Each key is a part of a certificate; docs/release.md has the table.
"""


def epsilon_by_pld(noise: Calibration, tuning: TuningNoise | None) -> float:
    """Return the epsilon of a release by privacy loss distributions."""
    if tuning is None:
        return noise.pld_epsilon
    return total_epsilon(trial_profile(tuning), tuning.delta, tuning.mean_trials, tuning.shape)


def best_attacks(noise: Calibration, tuning: TuningNoise | None) -> list[Attack]:
    """Return the best attacks on a release, from its privacy loss or from the bound on its tuning."""
    return attacks_on_training(noise) if tuning is None else attacks_on_tuning(tuning)


def certify_tuning(tuning: TuningNoise, candidates: list[Setting], score: float) -> Tuning:
    """Return the part of a certificate on accounted tuning."""
    shared = {name: each for name, each in vars(tuning).items() if name in Tuning.model_fields}
    return Tuning(**shared, score=score, candidates=candidates)
