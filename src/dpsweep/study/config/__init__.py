"""The schema of a study: every section and key of the YAML, with what is allowed in it.

The classes are plain data. `dpsweep.study.load` reads YAML into a `dpsweep.study.study.Study` and turns every
validation failure into a message for the person who wrote the file.
"""

from dpsweep.study.config.backbones import (
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
from dpsweep.study.config.datasets import (
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
from dpsweep.study.config.methods import AllParameters, Film, HeadOnly, LoRA, Method, Scratch
from dpsweep.study.config.optimizers import Optimizer, OptimizerSection, optimizer_of
from dpsweep.study.config.release import Audit, Release
from dpsweep.study.config.section import Geometric
from dpsweep.study.config.study import StudyFile
from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.config.training import Privacy, Training

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
