"""The schema of a study: every section and key of the YAML, with what is allowed in it.

The classes are plain data. `dpsweep.study.load` reads YAML into a `Study` and turns every
validation failure into a message for the person who wrote the file.
"""

import itertools
import math
import posixpath
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    StringConstraints,
    model_validator,
)

from dpsweep.study.cells import Automatic, BatchSize, Cell, ClippingBound, Full, NoClipping, number
from dpsweep.study.messages import (
    COMMIT_PATTERN,
    FOLDER_PATTERN,
    HUB_ID_PATTERN,
    MODULE_PATTERN,
    NAME_PATTERN,
    unknown,
)
from dpsweep.study.targets import Figure, Selection, Table

# Names become file names, so they hold nothing that a path or a shell could read differently.
Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN, max_length=100)]
HubId = Annotated[str, StringConstraints(pattern=HUB_ID_PATTERN)]
FolderName = Annotated[str, StringConstraints(pattern=FOLDER_PATTERN)]
Commit = Annotated[str, StringConstraints(pattern=COMMIT_PATTERN)]
ModuleName = Annotated[str, StringConstraints(pattern=MODULE_PATTERN)]


def _strictly_increasing(values: list[float]) -> list[float]:
    for smaller, larger in itertools.pairwise(values):
        if larger == smaller:
            raise ValueError(f"allowed: every value once, but {number(larger)} stands twice")
        if larger < smaller:
            raise ValueError(
                "allowed: sorted from small to large, but "
                f"{number(larger)} follows {number(smaller)}"
            )
    return values


def _strictly_increasing_integers(values: list[int]) -> list[int]:
    _strictly_increasing([float(value) for value in values])
    return values


def _require_disjoint(
    train_key: str, train: Sequence[str], test_key: str, test: str | None
) -> None:
    """Refuse what is read twice: epsilon holds per example, and a test must be of unseen ones."""
    parts = [posixpath.normpath(part) for part in train]
    repeated = sorted({part for part in parts if parts.count(part) > 1})
    if repeated:
        raise ValueError(f"{train_key}: found {', '.join(repeated)} twice; allowed: each once")
    if test is not None and posixpath.normpath(test) in parts:
        raise ValueError(
            f"{test_key}: found {test}, which is in {train_key} too; allowed: one that is not"
        )


PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(gt=0, description="target epsilon; .inf trains without privacy")]
Grid = Annotated[list[PositiveFloat], Field(min_length=1), AfterValidator(_strictly_increasing)]
# Above 1e30 the arithmetic of the optimizer itself overflows.
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
LearningRates = Annotated[
    list[LearningRate], Field(min_length=1), AfterValidator(_strictly_increasing)
]


class Section(BaseModel):
    """A mapping in the study file: unknown keys and loosely typed values are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# -- privacy and training ------------------------------------------------------------------


class Privacy(Section):
    """The guarantee that every private trial of the study is calibrated to."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    steps: Annotated[
        Literal["round", "ceil"],
        Field(
            description="optimizer steps: round is max(1, round(E*N/B)); ceil is E*ceil(N/B), which can "
            "spend many more passes over the data than E"
        ),
    ] = "round"
    second_opinion: Annotated[
        bool, Field(description="ask Opacus' accountant too, about every noise multiplier")
    ] = False


class Training(Section):
    """How trials are trained and selected, for all sweeps."""

    selection: Annotated[
        Literal["repeat-best", "exhaustive", "bracket"],
        Field(
            description="repeat-best tunes the learning rate with the first seed and repeats the best "
            "one with the others; exhaustive trains the whole grid with every seed; bracket is "
            "repeat-best that searches the grid for its peak instead of training all of it"
        ),
    ] = "repeat-best"
    select_on: Annotated[
        Literal["test", "holdout"],
        Field(
            description="what learning rate, batch size and clipping bound are chosen by: the test set, as "
            "in the paper, which flatters; or a part of the training set that is held out of training"
        ),
    ] = "test"
    holdout_share: Annotated[
        float, Field(gt=0, lt=1, description="stratified share of the training set, for holdout")
    ] = 0.1
    engine: Annotated[
        Literal["auto", "expanded", "bookkeeping", "loop", "opacus"],
        Field(description="how per-example gradients are computed"),
    ] = "auto"
    precision: Annotated[
        Literal["auto", "float32", "bfloat16"],
        Field(
            description="of forward and backward passes (norms, sums and noise are float32 in any "
            "case); auto is bfloat16 on GPUs that have it, otherwise float32"
        ),
    ] = "auto"
    physical_batch: Annotated[
        PositiveInt, Field(description="examples that are on the device at once; changes no result")
    ] = 256
    automatic_clipping_gamma: Annotated[
        PositiveFloat, Field(description="gamma of AUTO-S (Bu et al. 2023)")
    ] = 0.01
    checkpoint_minutes: Annotated[
        PositiveFloat, Field(description="how much work a killed trial may lose")
    ] = 5.0
    threads: Annotated[
        PositiveInt,
        Field(description="CPU threads of one training job (a part of the result's key)"),
    ] = 1
    compile: Annotated[
        bool,
        Field(
            description="let torch compile the training step where the engine can (expanded): minutes "
            "at the start of a cell, faster steps on a GPU"
        ),
    ] = False

    @model_validator(mode="after")
    def _engine_has_precision(self) -> Self:
        if self.precision == "bfloat16" and self.engine in ("loop", "opacus"):
            raise ValueError(
                f"precision: found bfloat16 with engine {self.engine}, whose norms would not be "
                "float32; allowed: auto, float32, or engine auto, expanded or bookkeeping"
            )
        return self


# -- datasets ------------------------------------------------------------------------------


class DigitsSource(Section):
    """The 1,797 handwritten digits (8 x 8, grey) that ship inside scikit-learn, or some of them."""

    holds: ClassVar[tuple[str, ...]] = ("image",)
    kind: Literal["sklearn-digits"]
    digits: Annotated[
        list[Annotated[int, Field(ge=0, le=9)]],
        Field(min_length=2, description="which of them are the classes"),
        AfterValidator(_strictly_increasing_integers),
    ] = list(range(10))
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    train_share: Annotated[
        float, Field(gt=0, le=1, description="stratified share of the training set")
    ] = 1.0
    imbalance: Annotated[
        float,
        Field(
            ge=1,
            description="the first class's training examples over the last one's; the sizes between "
            "fall geometrically",
        ),
    ] = 1.0
    seed: int = 0


class GlyphsSource(Section):
    """Digits and letters rendered from the fonts that ship with matplotlib, randomly transformed."""

    holds: ClassVar[tuple[str, ...]] = ("image",)
    kind: Literal["glyphs"]
    characters: str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    train_per_class: PositiveInt = 300
    test_per_class: PositiveInt = 30
    seed: int = 0


class HubSource(Section):
    """A Hugging Face dataset at a pinned revision, or a local folder with the same parquet layout."""

    holds: ClassVar[tuple[str, ...]] = ("image", "text")
    kind: Literal["hub"]
    id: HubId
    revision: Annotated[Commit | None, Field(description="a commit")] = None
    path: Annotated[str | None, Field(description="a local copy, used instead of the hub")] = None
    configuration: Annotated[
        str | None, Field(description="which one, where the repository has several")
    ] = None
    train_splits: Annotated[list[str], Field(min_length=1)] = ["train"]
    test_split: str = "test"
    input_column: str = "image"
    label_column: str = "label"
    train_share: Annotated[
        float, Field(gt=0, le=1, description="stratified share of the training set")
    ] = 1.0
    test_share: Annotated[
        float, Field(gt=0, le=1, description="stratified share of the test set")
    ] = 1.0
    seed: int = 0

    @model_validator(mode="after")
    def _splits_are_disjoint(self) -> Self:
        _require_disjoint("train_splits", self.train_splits, "test_split", self.test_split)
        return self


class FolderSource(Section):
    """A folder of images, ``<path>/<split>/<class>/<image>``."""

    holds: ClassVar[tuple[str, ...]] = ("image",)
    kind: Literal["folder"]
    path: str
    train_folders: Annotated[
        list[FolderName], Field(min_length=1, description="merged; [.] is the folder itself")
    ] = ["train"]
    test_folder: FolderName = "test"
    test_from_train: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="stratified share of the training images that becomes the test set, where "
            "there is no test folder",
        ),
    ] = None
    train_share: Annotated[
        float, Field(gt=0, le=1, description="stratified share of the training images")
    ] = 1.0
    seed: int = 0

    @model_validator(mode="after")
    def _folders_are_disjoint(self) -> Self:
        test = self.test_folder if self.test_from_train is None else None
        _require_disjoint("train_folders", self.train_folders, "test_folder", test)
        return self


class FilesSource(Section):
    """Two local tables of texts, for training and for testing: CSV or parquet."""

    holds: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["files"]
    train: str
    test: str
    input_column: str = "text"
    label_column: str = "label"

    @model_validator(mode="after")
    def _files_are_disjoint(self) -> Self:
        _require_disjoint("train", [self.train], "test", self.test)
        return self


class DocstringsSource(Section):
    """Docstrings of installed Python packages, which are read and never run; a class is a module.

    The names of the packages are taken out of the texts.
    """

    holds: ClassVar[tuple[str, ...]] = ("text",)
    kind: Literal["docstrings"]
    modules: Annotated[
        list[ModuleName], Field(min_length=2, description="packages or modules, with all inside")
    ]
    train_per_class: PositiveInt
    test_per_class: PositiveInt
    seed: int = 0


def _shares_examples(one: "Source", other: "Source") -> bool:
    """Whether two sources may hold the same examples, whatever part of them is taken."""
    if isinstance(one, DocstringsSource) and isinstance(other, DocstringsSource):
        return any(
            f"{module}.".startswith(f"{each}.") or f"{each}.".startswith(f"{module}.")
            for module in one.modules
            for each in other.modules
        )
    return not _origins(one).isdisjoint(_origins(other))


def _origins(source: "Source") -> set[tuple[str, str]]:
    match source:
        case HubSource(id=hub_id, path=path):
            return {("hub", hub_id)} | ({("path", posixpath.normpath(path))} if path else set())
        case FolderSource(path=path):
            return {("path", posixpath.normpath(path))}
        case FilesSource(train=train, test=test):
            return {("path", posixpath.normpath(train)), ("path", posixpath.normpath(test))}
    return {("kind", source.kind)}


Source = Annotated[
    DigitsSource | GlyphsSource | HubSource | FolderSource | FilesSource | DocstringsSource,
    Field(discriminator="kind"),
]


class Dataset(Section):
    """A labelled dataset and what it must turn out to be once it is prepared."""

    title: str
    source: Source
    kind: Literal["image", "text"] = "image"
    classes: Annotated[int, Field(ge=2)]
    train_size: Annotated[PositiveInt, Field(description="N, after merging and subsetting")]
    test_size: PositiveInt
    description: str = ""
    image_size: Annotated[PositiveInt | None, Field(description="height and width, pixels")] = None
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    crop: Annotated[
        float | None,
        Field(
            gt=0,
            le=1,
            description="by default images are resized to a square; a crop resizes the shorter side "
            "to image_size / crop and keeps the middle (hub and folder only)",
        ),
    ] = None
    corrupt: Annotated[
        Literal["refuse", "skip"],
        Field(description="images that cannot be read; skipped ones count for no size"),
    ] = "refuse"
    train_counts: Annotated[
        PositiveInt | list[PositiveInt] | None,
        Field(description="training examples of every class, or of each in the order of classes"),
    ] = None
    tokenizer: Annotated[str | None, Field(description="a backbone's name (text only)")] = None
    max_length: Annotated[PositiveInt | None, Field(description="tokens (text only)")] = None


# -- backbones and methods -----------------------------------------------------------------


class RandomWeights(Section):
    """No pretraining: parameters are drawn from the trial's seed."""

    kind: Literal["random"]


class Pretraining(Section):
    """Non-private pretraining on a public dataset of the study, inside the pipeline."""

    kind: Literal["pretrain"]
    dataset: Name
    epochs: PositiveInt
    batch_size: PositiveInt = 128
    learning_rate: PositiveFloat = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 0


class HubWeights(Section):
    """Published weights, in safetensors, at a pinned revision of the Hugging Face hub."""

    kind: Literal["hub"]
    id: HubId
    revision: Annotated[Commit | None, Field(description="a commit")] = None


class FileWeights(Section):
    """A local safetensors file."""

    kind: Literal["file"]
    path: str


Weights = Annotated[
    RandomWeights | Pretraining | HubWeights | FileWeights, Field(discriminator="kind")
]


class HubTokenizer(Section):
    """The tokenizer of a repository on the Hugging Face hub: its ``tokenizer.json``."""

    kind: Literal["hub"]
    id: HubId
    revision: Annotated[Commit | None, Field(description="a commit")] = None


class FileTokenizer(Section):
    """A local ``tokenizer.json``, or a ``vocab.txt`` of BERT's WordPiece."""

    kind: Literal["file"]
    path: str


class TrainedTokenizer(Section):
    """A WordPiece vocabulary, trained on the training texts of a public dataset of the study."""

    kind: Literal["train"]
    dataset: Name
    vocabulary: Annotated[int, Field(ge=200, description="pieces, at most")]


Tokenizer = Annotated[HubTokenizer | FileTokenizer | TrainedTokenizer, Field(discriminator="kind")]


class Backbone(Section):
    """A network body; the classification head is added for each dataset."""

    title: str
    library: Annotated[
        Literal["timm", "transformers", "dpsweep"],
        Field(description="who builds the architecture"),
    ] = "timm"
    architecture: str
    arguments: dict[str, bool | int | float | str] = {}
    weights: Weights
    mean: Annotated[list[float], Field(min_length=1)] = [0.5, 0.5, 0.5]
    std: Annotated[list[PositiveFloat], Field(min_length=1)] = [0.5, 0.5, 0.5]
    tokenizer: Annotated[
        Tokenizer | None,
        Field(description="library transformers only; by default that of the hub's weights"),
    ] = None

    @property
    def reads_with(self) -> HubTokenizer | FileTokenizer | TrainedTokenizer | None:
        """The tokenizer of a network that reads text; None for one that reads images."""
        if self.tokenizer is not None or self.library != "transformers":
            return self.tokenizer
        match self.weights:
            case HubWeights(id=repository, revision=revision):
                return HubTokenizer(kind="hub", id=repository, revision=revision)
        return None


class Film(Section):
    """Scale and bias of every normalisation layer, and the head (Perez et al. 2018)."""

    title: str = "FiLM"
    kind: Literal["film"]


class HeadOnly(Section):
    """The classification head alone."""

    title: str = "Head"
    kind: Literal["head"]


class AllParameters(Section):
    """Every parameter of the pretrained network."""

    title: str = "All parameters"
    kind: Literal["all"]


class Scratch(Section):
    """Every parameter, from a random initialisation (the backbone's weights must be random)."""

    title: str = "From scratch"
    kind: Literal["scratch"]


class LoRA(Section):
    """Low-rank adapters through peft (alpha = rank, no dropout), and the head."""

    title: str = "LoRA"
    kind: Literal["lora"]
    rank: PositiveInt
    targets: Annotated[list[str], Field(min_length=1, description="names of linear layers")]


Method = Annotated[
    Film | HeadOnly | AllParameters | Scratch | LoRA,
    Field(discriminator="kind"),
]


# -- sweeps --------------------------------------------------------------------------------


class Geometric(Section):
    """``count`` values from ``first`` to ``last``, both included, in equal ratios."""

    first: PositiveFloat
    last: PositiveFloat
    count: Annotated[int, Field(ge=2)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last <= self.first:
            raise ValueError(
                f"last: found {number(self.last)}; allowed: above first, which is {number(self.first)}"
            )
        return self


def _batch_sizes(values: list[int | Full]) -> list[int | Full]:
    _strictly_increasing_integers([value for value in values if not isinstance(value, str)])
    if "full" in values[:-1]:
        raise ValueError("allowed: full as the last entry, once (it is the largest batch)")
    return values


class Sweep(Section):
    """A grid of cells on one (dataset, backbone, method, optimizer)."""

    dataset: Name
    backbone: Name
    method: Name
    optimizer: Literal["adam", "sgd"] = "adam"
    epsilon: Annotated[list[Epsilon], Field(min_length=1), AfterValidator(_strictly_increasing)]
    epochs: Annotated[list[PositiveInt], Field(min_length=1), AfterValidator(_strictly_increasing)]
    batch_size: Annotated[
        list[PositiveInt | Full], Field(min_length=1), AfterValidator(_batch_sizes)
    ]
    clipping_bound: Annotated[
        Grid | Automatic | NoClipping,
        Field(description="a list of C, or automatic (AUTO-S), or none (epsilon .inf only)"),
    ]
    learning_rate: LearningRates | Geometric
    seeds: Annotated[PositiveInt, Field(description="how many: 1, 2, ...")]
    physical_batch: Annotated[
        PositiveInt | None, Field(description="overrides training.physical_batch")
    ] = None

    @model_validator(mode="after")
    def _private_training_clips(self) -> Self:
        if self.clipping_bound == "none" and self.epsilon != [math.inf]:
            raise ValueError(
                "clipping_bound: found none with epsilon "
                f"[{', '.join(number(value) for value in self.epsilon)}]; allowed: epsilon [.inf] "
                "only, because nothing bounds the influence of one example"
            )
        return self

    @property
    def clipping_bounds(self) -> list[ClippingBound]:
        """The clipping axis of the grid; one value for automatic and none."""
        if isinstance(self.clipping_bound, str):
            return [self.clipping_bound]
        return list(self.clipping_bound)

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates, ascending; a geometric grid is rounded to 6 significant digits."""
        if isinstance(self.learning_rate, list):
            return list(self.learning_rate)
        grid = self.learning_rate
        ratio = grid.last / grid.first
        return [
            float(f"{grid.first * ratio ** (index / (grid.count - 1)):.6g}")
            for index in range(grid.count)
        ]


# -- the audit -----------------------------------------------------------------------------


class Audit(Section):
    """Canaries in the trainer of a sweep: a measured lower bound on epsilon beside the claimed one."""

    sweep: Annotated[
        Name, Field(description="whose dataset, backbone, method and optimizer are audited")
    ]
    epsilon: Annotated[
        Grid, Field(description="claimed privacy budgets; each is audited at each batch size")
    ]
    epochs: PositiveInt
    batch_size: Annotated[
        list[PositiveInt | Full],
        Field(min_length=1, description="of the training set with its canaries"),
        AfterValidator(_batch_sizes),
    ]
    clipping_bound: PositiveFloat | Automatic
    learning_rate: LearningRate
    canaries: Annotated[
        PositiveInt,
        Field(description="examples with a known gradient; at most one a trainable parameter"),
    ] = 1000
    guesses: Annotated[
        PositiveInt,
        Field(description="even: half of them 'included', half 'excluded'; choose before looking"),
    ] = 200

    @model_validator(mode="after")
    def _guesses_are_about_canaries(self) -> Self:
        if self.guesses % 2 or self.guesses > self.canaries:
            raise ValueError(
                f"guesses: found {self.guesses}; allowed: an even number up to the canaries, which "
                f"are {self.canaries}"
            )
        return self


# -- the study -----------------------------------------------------------------------------


class Study(Section):
    """Everything that is run and drawn."""

    title: str
    results: Annotated[str, Field(min_length=1, description="the folder of all outputs")] = (
        "results"
    )
    privacy: Privacy = Privacy()
    training: Training = Training()
    datasets: dict[Name, Dataset]
    backbones: dict[Name, Backbone]
    methods: dict[Name, Method]
    sweeps: Annotated[dict[Name, Sweep], Field(min_length=1)]
    figures: dict[Name, Figure] = {}
    tables: dict[Name, Table] = {}
    audit: Audit | None = None

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        problems = [
            *self._data_problems(),
            *self._sweep_problems(),
            *self._target_problems(),
            *self._audit_problems(),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _data_problems(self) -> Iterator[str]:
        readers = [name for name, each in self.backbones.items() if each.reads_with is not None]
        for name, dataset in self.datasets.items():
            where = f"datasets.{name}"
            if dataset.kind not in dataset.source.holds:
                yield (
                    f"{where}.kind: found {dataset.kind}; allowed: {', '.join(dataset.source.holds)}, "
                    f"which is what source {dataset.source.kind} holds"
                )
            if dataset.kind == "image" and dataset.image_size is None:
                yield f"{where}.image_size: missing; allowed: height and width of images in pixels"
            if dataset.crop is not None and not isinstance(
                dataset.source, HubSource | FolderSource
            ):
                yield (
                    f"{where}.crop: found {number(dataset.crop)} with the source "
                    f"{dataset.source.kind}; allowed: with hub and folder"
                )
            if isinstance(dataset.train_counts, list) and (
                len(dataset.train_counts) != dataset.classes
                or sum(dataset.train_counts) != dataset.train_size
            ):
                yield (
                    f"{where}.train_counts: found {len(dataset.train_counts)} numbers, "
                    f"{sum(dataset.train_counts)} in all; allowed: {dataset.classes}, the number of "
                    f"classes, and {dataset.train_size} in all, the training set"
                )
            if dataset.kind == "text" and dataset.max_length is None:
                yield f"{where}.max_length: missing; allowed: the number of tokens to keep of a text"
            if dataset.kind == "text" and dataset.tokenizer is None:
                yield (
                    f"{where}.tokenizer: missing; allowed: a backbone that reads text: "
                    f"{', '.join(readers) or 'none is defined'}"
                )
            if dataset.kind == "image" and dataset.tokenizer is not None:
                yield f"{where}.tokenizer: found {dataset.tokenizer}; allowed: nothing (images)"
            elif dataset.tokenizer is not None and dataset.tokenizer not in readers:
                yield f"{where}.tokenizer: {unknown(dataset.tokenizer, readers)}"
        for name, backbone in self.backbones.items():
            yield from self._backbone_problems(f"backbones.{name}", backbone)

    def _backbone_problems(self, where: str, backbone: Backbone) -> Iterator[str]:
        weights, tokenizer = backbone.weights, backbone.reads_with
        if backbone.library == "transformers" and tokenizer is None:
            yield (
                f"{where}.tokenizer: missing; allowed: {{kind: hub, id: ...}}, {{kind: file, path: "
                "...}, {kind: train, dataset: ..., vocabulary: ...}"
            )
        if backbone.library != "transformers" and tokenizer is not None:
            yield f"{where}.tokenizer: found one; allowed: with library transformers only"
        if isinstance(tokenizer, TrainedTokenizer):
            if tokenizer.dataset not in self.datasets:
                yield f"{where}.tokenizer.dataset: {unknown(tokenizer.dataset, self.datasets)}"
            elif self.datasets[tokenizer.dataset].kind != "text":
                yield f"{where}.tokenizer.dataset: found {tokenizer.dataset} (images); allowed: texts"
        if isinstance(weights, Pretraining):
            if weights.dataset not in self.datasets:
                yield f"{where}.weights.dataset: {unknown(weights.dataset, self.datasets)}"
            elif not self._reads(backbone, weights.dataset):
                yield f"{where}.weights.dataset: {self._unreadable(weights.dataset)}"

    def _reads(self, backbone: Backbone, dataset: str) -> bool:
        """Whether a backbone reads a dataset: images, or texts in the tokens that it knows."""
        made_for = self.datasets[dataset].tokenizer
        if made_for not in self.backbones:
            return (self.datasets[dataset].kind == "text") == (backbone.reads_with is not None)
        return backbone.reads_with == self.backbones[made_for].reads_with

    def _unreadable(self, dataset: str) -> str:
        tokenizer = self.datasets[dataset].tokenizer
        made_for = f"texts in the tokens of {tokenizer}" if tokenizer else "images"
        return f"found {dataset} ({made_for}); allowed: what the backbone reads"

    def _sweep_problems(self) -> Iterator[str]:
        for name, sweep in self.sweeps.items():
            where = f"sweeps.{name}"
            if sweep.dataset in self.datasets:
                size = self.train_size(sweep.dataset)
                for batch in sweep.batch_size:
                    if not isinstance(batch, str) and batch >= size:
                        yield (
                            f"{where}.batch_size: found {batch}; allowed: below {size}, which is the "
                            f"training set of {sweep.dataset}, or full for all of it"
                        )
            else:
                yield f"{where}.dataset: {unknown(sweep.dataset, self.datasets)}"
            if sweep.backbone not in self.backbones:
                yield f"{where}.backbone: {unknown(sweep.backbone, self.backbones)}"
            elif sweep.dataset in self.datasets:
                backbone = self.backbones[sweep.backbone]
                if not self._reads(backbone, sweep.dataset):
                    yield f"{where}.dataset: {self._unreadable(sweep.dataset)}"
                yield from self._public_problems(where, sweep, backbone)
            if sweep.method not in self.methods:
                yield f"{where}.method: {unknown(sweep.method, self.methods)}"
            elif (
                isinstance(self.methods[sweep.method], Scratch)
                and sweep.backbone in self.backbones
                and not isinstance(self.backbones[sweep.backbone].weights, RandomWeights)
            ):
                yield (
                    f"{where}.method: found {sweep.method} (from scratch) with the pretrained "
                    f"backbone {sweep.backbone}; allowed: a backbone with weights: {{kind: random}}"
                )

    def _public_problems(self, where: str, sweep: Sweep, backbone: Backbone) -> Iterator[str]:
        """What a private dataset went into before, epsilon does not count."""
        if sweep.epsilon == [math.inf]:
            return
        for part, section in (("tokenizer", backbone.reads_with), ("weights", backbone.weights)):
            if not isinstance(section, TrainedTokenizer | Pretraining):
                continue
            public = section.dataset
            if {public, sweep.dataset} <= self.datasets.keys() and _shares_examples(
                self.datasets[public].source, self.datasets[sweep.dataset].source
            ):
                same = "which" if public == sweep.dataset else f"whose source, as that of {public},"
                yield (
                    f"{where}.dataset: found {sweep.dataset}, {same} went into the {part} of "
                    f"{sweep.backbone} without privacy; allowed: another dataset, or epsilon [.inf]"
                )

    def _target_problems(self) -> Iterator[str]:
        for section, targets in (("figures", self.figures), ("tables", self.tables)):
            for name, target in targets.items():
                for path, selection in target.selections():
                    where = f"{section}.{name}.{path}"
                    if selection.sweep in self.sweeps:
                        yield from target.problems(where, selection, self.sweeps[selection.sweep])
                    else:
                        yield f"{where}.sweep: {unknown(selection.sweep, self.sweeps)}"
        for name in self.tables:
            if name in self.figures:
                yield f"tables.{name}: found a figure of that name; allowed: a name that is unique"

    def _audit_problems(self) -> Iterator[str]:
        if self.audit is None:
            return
        if self.audit.sweep not in self.sweeps:
            yield f"audit.sweep: {unknown(self.audit.sweep, self.sweeps)}"
        elif self.sweeps[self.audit.sweep].dataset in self.datasets:
            size = self.train_size(self.sweeps[self.audit.sweep].dataset) + self.audit.canaries
            for batch in self.audit.batch_size:
                if not isinstance(batch, str) and batch >= size:
                    yield (
                        f"audit.batch_size: found {batch}; allowed: below {size}, which is the "
                        "training set with its canaries, or full for all of it"
                    )
        if 2 * self.audit.canaries * self.privacy.delta > 1:
            yield (
                f"audit.canaries: found {self.audit.canaries}; allowed: at most "
                f"{0.5 / self.privacy.delta:.0f}, because more prove nothing about delta "
                f"{number(self.privacy.delta)}"
            )

    def audit_cells(self) -> list[Cell]:
        """The settings that are audited, batch size by batch size; none without an audit.

        Their full batch is the training set with its canaries.
        """
        if self.audit is None:
            return []
        return [
            Cell(
                self.audit.sweep, epsilon, self.audit.epochs, batch_size, self.audit.clipping_bound
            )
            for batch_size in self.audit.batch_size
            for epsilon in self.audit.epsilon
        ]

    def cells(self, selection: Selection) -> list[Cell]:
        """The cells that a selection names, in grid order.

        A field that the selection leaves out means every value of the sweep.
        """
        sweep = self.sweeps[selection.sweep]
        return [
            Cell(selection.sweep, epsilon, epochs, batch_size, clipping_bound)
            for epsilon in selection.values("epsilon", sweep)
            for epochs in selection.values("epochs", sweep)
            for batch_size in selection.values("batch_size", sweep)
            for clipping_bound in selection.values("clipping_bound", sweep)
        ]

    def sweep_cells(self, sweep: str) -> list[Cell]:
        """All cells of a sweep, in grid order."""
        return self.cells(Selection(sweep=sweep))

    def batch_size(self, cell: Cell) -> int:
        """The expected batch size of a cell as a number: N for the full batch."""
        return self.numeric_batch_size(self.sweeps[cell.sweep].dataset, cell.batch_size)

    def numeric_batch_size(self, dataset: str, batch_size: BatchSize) -> int:
        """The expected batch size as a number of examples of a dataset."""
        return self.train_size(dataset) if isinstance(batch_size, str) else batch_size

    def holdout_size(self, dataset: str) -> int:
        """How many examples of a dataset's training set are held out to select on; often none."""
        if self.training.select_on == "test":
            return 0
        return math.floor(self.training.holdout_share * self.datasets[dataset].train_size + 0.5)

    def train_size(self, dataset: str) -> int:
        """N: the examples that private training samples from, and that noise is calibrated for."""
        return self.datasets[dataset].train_size - self.holdout_size(dataset)
