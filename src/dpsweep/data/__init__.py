"""Labelled datasets: their sources, their preparation, and their files.

- `dpsweep.data.prepared`: the memory-mapped files of a prepared dataset;
- `dpsweep.data.prepare`: preparation of a dataset of the study;
- `dpsweep.data.sources`: all sources, one module for each kind: `dpsweep.data.folder`,
  `dpsweep.data.hub`, `dpsweep.data.texts`, `dpsweep.data.embeddings`, `dpsweep.data.idx`, and
  `dpsweep.demo` for the demo;
- `dpsweep.data.examples`: labelled examples of a source;
- `dpsweep.data.images`: decoding of images to pixels;
- `dpsweep.data.tokenizer`: conversion of texts to tokens.

The library of a source is imported when the source is prepared.
"""

from dpsweep.data.examples import Split
from dpsweep.data.prepared import DatasetError, DatasetMetadata, PreparedDataset
from dpsweep.data.write import write_prepared

__all__ = ["DatasetError", "DatasetMetadata", "PreparedDataset", "Split", "write_prepared"]
