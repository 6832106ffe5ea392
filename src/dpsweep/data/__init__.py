"""Labelled datasets: where they come from, how they are prepared, and how the stages read them.

- `dpsweep.data.prepared`: the files of a prepared dataset, memory-mapped;
- `dpsweep.data.prepare`: one configured dataset to such files;
- `dpsweep.data.sources`: the sources, each in a module of its own: `dpsweep.data.folder`,
  `dpsweep.data.hub`, `dpsweep.data.texts`, `dpsweep.data.embeddings`, `dpsweep.data.idx`; those of the
  demo are in `dpsweep.demo`;
- `dpsweep.data.examples`: labelled examples as sources give them;
- `dpsweep.data.images`: encoded images to pixels;
- `dpsweep.data.tokenizer`: texts to tokens.

Libraries that a source needs are imported when it is prepared.
"""

from dpsweep.data.examples import Split
from dpsweep.data.prepared import DatasetError, DatasetMetadata, PreparedDataset
from dpsweep.data.write import write_prepared

__all__ = ["DatasetError", "DatasetMetadata", "PreparedDataset", "Split", "write_prepared"]
