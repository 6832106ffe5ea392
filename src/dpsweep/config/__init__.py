"""The schema of a study: every section and key of the YAML, with what is allowed in it.

The classes are plain data. `dpsweep.study.load` reads YAML into a `dpsweep.study.study.Study` and turns every
validation failure into a message for the person who wrote the file.
"""

from dpsweep.config.backbones import (
    Backbone,
    Features,
    FileTokenizer,
    FileWeights,
    GroupNorm,
    HubTokenizer,
    HubWeights,
    NoWeights,
    Pretraining,
    RandomWeights,
    Tokenizer,
    TrainedTokenizer,
    Weights,
)
from dpsweep.config.datasets import (
    ArraysSource,
    Dataset,
    DigitsSource,
    DocstringsSource,
    FilesSource,
    FolderSource,
    GlyphsSource,
    HubSource,
    IdxSource,
    Source,
)
from dpsweep.config.file import StudyFile
from dpsweep.config.methods import AllParameters, Film, HeadOnly, LoRA, Method, Scratch
from dpsweep.config.optimizers import Optimizer, OptimizerSection, optimizer_of
from dpsweep.config.release import Audit, Release
from dpsweep.config.section import Geometric
from dpsweep.config.sweeps import Sweep
from dpsweep.config.training import Privacy, Training

__all__ = [
    "AllParameters",
    "ArraysSource",
    "Audit",
    "Backbone",
    "Dataset",
    "DigitsSource",
    "DocstringsSource",
    "Features",
    "FileTokenizer",
    "FileWeights",
    "FilesSource",
    "Film",
    "FolderSource",
    "Geometric",
    "GlyphsSource",
    "GroupNorm",
    "HeadOnly",
    "HubSource",
    "HubTokenizer",
    "HubWeights",
    "IdxSource",
    "LoRA",
    "Method",
    "NoWeights",
    "Optimizer",
    "OptimizerSection",
    "Pretraining",
    "Privacy",
    "RandomWeights",
    "Release",
    "Scratch",
    "Source",
    "StudyFile",
    "Sweep",
    "Tokenizer",
    "TrainedTokenizer",
    "Training",
    "Weights",
    "optimizer_of",
]
