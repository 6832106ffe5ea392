"""The sections `backbones` and `methods`: any network by its description, and what of it trains."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from dpsweep.base.errors import DpsweepError
from dpsweep.study import section
from dpsweep.study.datasets import KindName

# Names that timm resolves to a repository of the hub or to a folder.
_DESCRIBED = re.compile(r"(hf-hub|hf_hub|local-dir):(.+)", re.IGNORECASE)


class _OnHub(section.Section):
    kind: Literal["hub"]
    id: section.HubId
    """owner/name on the Hugging Face hub"""
    revision: section.Commit | None = None
    """a commit"""


class _InFile(section.Section):
    kind: Literal["file"]
    path: section.LocalPath
    """of the file"""

    def local_files(self) -> dict[str, str]:
        """Return the file."""
        return {"path": self.path}


class RandomWeights(section.Section):
    """No pretraining: the trial's seed determines the initial parameters."""

    kind: Literal["random"]


class NoWeights(section.Section):
    """A network without parameters before its head, such as the scattering transform."""

    kind: Literal["none"]


class Pretraining(section.Section):
    """Non-private pretraining on a public dataset of the study, inside the pipeline."""

    kind: Literal["pretrain"]
    dataset: section.Name
    """a public dataset of the study"""
    epochs: PositiveInt
    """passes over it"""
    batch_size: PositiveInt = 128
    """examples in a step"""
    learning_rate: section.PositiveFloat = 1e-3
    """the highest; it rises at first, then falls to 0"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    """of AdamW"""
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """stratified share of its training set"""
    seed: int = 0
    """of initial parameters and order"""


class PublishedWeights(section.Section):
    """Weights of a network, or of a part of it."""

    # Excluded if empty: studies without it keep their prepared networks.
    leave_out: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(exclude_if=lambda modules: not modules)
    ] = []
    """modules that are in the file but not in the network, such as blocks.11 of a network that ends
    before it"""


class HubWeights(_OnHub, PublishedWeights):
    """Published weights, in safetensors, at a pinned revision of the Hugging Face hub."""


class FileWeights(_InFile, PublishedWeights):
    """A local safetensors file."""


Weights = Annotated[
    RandomWeights | NoWeights | Pretraining | HubWeights | FileWeights, Field(discriminator="kind")
]


class HubTokenizer(_OnHub):
    """The tokenizer of a repository on the Hugging Face hub: its ``tokenizer.json``."""


class FileTokenizer(_InFile):
    """A local ``tokenizer.json``, or a ``vocab.txt`` of BERT's WordPiece."""


class TrainedTokenizer(section.Section):
    """A WordPiece vocabulary, trained on the training texts of a public dataset of the study."""

    kind: Literal["train"]
    dataset: section.Name
    """a public dataset of the study"""
    vocab_size: Annotated[int, Field(ge=200)]
    """pieces, at most"""


class BytesTokenizer(section.Section):
    """Each byte of a lower-case text is a token; nothing is read or learned."""

    kind: Literal["bytes"] = "bytes"


Tokenizer = Annotated[HubTokenizer | FileTokenizer | TrainedTokenizer, Field(discriminator="kind")]


class GroupNorm(section.Section):
    """Normalise groups of neighbouring features of one example: each to mean 0 and variance 1."""

    kind: Literal["group-norm"]
    groups: PositiveInt
    """number of groups of the same size; a feature map has groups of channels, as in Wu and He (2018)"""


class Features(section.Section):
    """Features that a head trains on, computed once for each example.

    A transformation uses one example alone. Estimates from the data (standardisation, whitening,
    principal components) would not be private.
    """

    layer: section.LayerName | None = None
    """name of the layer in the network whose outputs are the features (blocks.5); by default the inputs
    of the network's own head"""
    pooling: Literal["token", "mean"] | None = None
    """of a layer's outputs for the parts of an example: the first token's output, or their mean; by
    default as in the network's own head"""
    transformation: Literal["layer-norm", "unit-norm"] | GroupNorm | None = None
    """layer-norm: to mean 0 and variance 1 over the features of an example; unit-norm: to length 1;
    {kind: group-norm, groups: 27}: to mean 0 and variance 1 over each of 27 groups.
    Estimates from several examples would not be private"""


Reduction = Literal[
    "none", "first_token", "mean_of_tokens", "mean_of_pixels", "mean_of_pixels_nhwc"
]
"""How the values that a network computes for one example become one vector."""

IDENTITY = "dpsweep", "identity"
"""The library and name of the network that returns its input, an embedding."""

HASHED_NGRAMS = "dpsweep", "hashed_ngrams"
"""The library and name of the network that reads the bytes of texts."""


def kind_read_by(library: str, architecture: str) -> KindName:
    """Return the kind of data that a network without a tokenizer reads."""
    return "embedding" if (library, architecture) == IDENTITY else "image"


def _usable_architecture(name: str) -> str:
    """Return the name of an architecture; a folder in it is replaced as other paths of a study are."""
    source, colon, folder = name.partition(":")
    return source + colon + section.usable_path(folder) if source.lower() == "local-dir" else name


class Backbone(section.Section):
    """A network body; the classification head is added for each dataset."""

    title: section.Title
    """in figures and tables"""
    library: Literal["timm", "transformers", "dpsweep"] = "timm"
    """the library that builds the architecture"""
    architecture: Annotated[str, AfterValidator(_usable_architecture)]
    """its name in the library"""
    arguments: dict[section.ArgumentName, bool | int | float | str] = {}
    """of the architecture's constructor"""
    weights: Weights
    """where the pretrained parameters come from"""
    mean: Annotated[list[FiniteFloat], Field(min_length=1)] = [0.5, 0.5, 0.5]
    """subtracted from pixels in [0, 1], for each channel"""
    std: Annotated[list[section.PositiveFloat], Field(min_length=1)] = [0.5, 0.5, 0.5]
    """divides pixels after that, for each channel"""
    tokenizer: Tokenizer | None = None
    """library transformers only; by default the tokenizer of the weights' repository on the hub"""

    features: Features | None = None
    """with it, the method head trains on features that are computed once; by default the network runs
    in every step"""

    @model_validator(mode="after")
    def _channels_agree(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"std: found {len(self.std)} channels, and {len(self.mean)} in mean; allowed: as many"
            )
        return self

    @property
    def described_at(self) -> tuple[str, str] | None:
        """The source and place of the ``config.json`` of a network of timm, if it has one."""
        found = _DESCRIBED.fullmatch(self.architecture) if self.library == "timm" else None
        return found and (found[1].lower(), found[2])

    @property
    def reads(self) -> KindName:
        """The kind of data that the network reads."""
        if self.reads_with is not None:
            return "text"
        return kind_read_by(self.library, self.architecture)

    @property
    def made_from(self) -> dict[str, str]:
        """The datasets of the study that train its tokenizer and its weights, by key."""
        parts = {"tokenizer": self.reads_with, "weights": self.weights}
        return {
            key: part.dataset
            for key, part in parts.items()
            if isinstance(part, TrainedTokenizer | Pretraining)
        }

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of images, per channel; empty for other inputs."""
        if self.reads != "image":
            return (), ()
        return tuple(self.mean), tuple(self.std)

    @property
    def reads_with(
        self,
    ) -> HubTokenizer | FileTokenizer | TrainedTokenizer | BytesTokenizer | None:
        """The tokenizer of a network that reads text; None for other networks."""
        if (self.library, self.architecture) == HASHED_NGRAMS:
            return BytesTokenizer()
        if self.tokenizer is not None or self.library != "transformers":
            return self.tokenizer
        match self.weights:
            case HubWeights(id=repository, revision=revision):
                return HubTokenizer(kind="hub", id=repository, revision=revision)
        return None


class BackboneError(DpsweepError):
    """A backbone that cannot be prepared, read or built; the message contains a remedy."""


class Architecture(BaseModel):
    """An empty network: the library that builds it, its name there, and its keyword arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    library: str
    name: str
    arguments: dict[str, bool | int | float | str]

    def with_defaults(self, **defaults: bool | int | float | str) -> Self:
        """Return this architecture with defaults for missing arguments."""
        return self.model_copy(update={"arguments": defaults | self.arguments})


# -- methods ----------------------------------------------------------------------------------

LARGEST_RANK = 4096  # the number of inputs of the widest layers


class Augmentations(section.Section):
    """Random views of each training image, whose gradients are averaged before clipping (De et al. 2022)."""

    count: Annotated[PositiveInt, Field(le=section.LONGEST_AXIS)]
    """how many views of an image a step reads"""
    crop: NonNegativeInt = 0
    """each view is shifted by up to so many pixels of the prepared image in both directions"""
    flip: bool = False
    """whether a view is mirrored, left to right, with probability 1/2"""

    @model_validator(mode="after")
    def _views_differ(self) -> Self:
        if not (self.crop or self.flip):
            raise ValueError(
                "crop: found 0 with flip: false, so that all views are equal; allowed: a larger crop, or "
                "flip: true"
            )
        return self


class MethodSection(section.Section):
    """Base of all methods."""

    engine: section.Engine | None = None
    """overrides training.engine"""
    # Excluded if empty: trials of methods without it keep their keys.
    freeze: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(exclude_if=lambda names: not names)
    ] = []
    """parameters or whole modules that the method would train, but that stay fixed; * is any part
    of a name (network.*.pooler)"""
    augmentations: Annotated[
        Augmentations | None, Field(exclude_if=lambda found: found is None)
    ] = None
    """of the training images, for a method that runs the network"""

    def settings(self) -> dict[str, Any]:
        """Return what determines which parameters train, as JSON: all but the title and the engine."""
        return self.model_dump(mode="json", exclude={"title", "engine"})

    def identity(self) -> dict[str, Any]:
        """Return its part of stored trials' keys."""
        return self.settings()


class Film(MethodSection):
    """Scale and bias of every normalisation layer, and the head (Perez et al. 2018)."""

    title: section.Title = "FiLM"
    """in figures and tables"""
    kind: Literal["film"]


class HeadOnly(MethodSection):
    """The classification head alone, on cached features if the backbone has the section `features`."""

    title: section.Title = "Head"
    """in figures and tables"""
    kind: Literal["head"]


class AllParameters(MethodSection):
    """Every parameter of the pretrained network."""

    title: section.Title = "All parameters"
    """in figures and tables"""
    kind: Literal["all"]


class Scratch(MethodSection):
    """Every parameter, from a random initialisation (the backbone's weights must be random)."""

    title: section.Title = "From scratch"
    """in figures and tables"""
    kind: Literal["scratch"]


class LoRA(MethodSection):
    """Low-rank adapters through peft (alpha = rank, no dropout), and the head."""

    title: section.Title = "LoRA"
    """in figures and tables"""
    kind: Literal["lora"]
    rank: Annotated[PositiveInt, Field(le=LARGEST_RANK)]
    """of each adapter"""
    target_modules: Annotated[list[str], Field(min_length=1)]
    """names of linear layers, as in peft"""

    def identity(self) -> dict[str, Any]:
        """Use the former name of the key `target_modules`, so that stored trials stay valid."""
        identity = super().identity()
        return identity | {"targets": identity.pop("target_modules")}


Method = Annotated[
    Film | HeadOnly | AllParameters | Scratch | LoRA,
    Field(discriminator="kind"),
]
