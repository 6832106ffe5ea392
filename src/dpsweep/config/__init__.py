"""The study file: every section and key of the YAML, the allowed values, and the error messages.

The classes are plain data. `dpsweep.study.load` reads YAML into a `dpsweep.study.study.Study`, and turns
each validation error into a message for the author of the file.
"""

from dpsweep.config.backbones import (
    Backbone,
    BytesTokenizer,
    Features,
    FileTokenizer,
    FileWeights,
    GroupNorm,
    HubTokenizer,
    HubWeights,
    NoWeights,
    Pretraining,
    RandomWeights,
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
from dpsweep.config.methods import AllParameters, Film, HeadOnly, LoRA, Method, Scratch
from dpsweep.config.optimizers import Optimizer, OptimizerSection, optimizer_of
from dpsweep.config.release import Audit, Release
from dpsweep.config.sweeps import Sweep
from dpsweep.config.training import Training

__all__ = [
    "AllParameters",
    "ArraysSource",
    "Audit",
    "Backbone",
    "BytesTokenizer",
    "Dataset",
    "DigitsSource",
    "DocstringsSource",
    "Features",
    "FileTokenizer",
    "FileWeights",
    "FilesSource",
    "Film",
    "FolderSource",
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
    "RandomWeights",
    "Release",
    "Scratch",
    "Source",
    "Sweep",
    "TrainedTokenizer",
    "Training",
    "Weights",
    "optimizer_of",
]
