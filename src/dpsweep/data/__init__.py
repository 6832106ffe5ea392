"""Labelled datasets: their sources, their preparation, and their files.

A row passes: a reader (`dpsweep.data.images`, `dpsweep.data.texts`, `dpsweep.data.embeddings`,
`dpsweep.data.hub`, or `dpsweep.data.demo`), a `Split`, `dpsweep.data.images` or `dpsweep.data.texts` again
(decoding, tokens), `write_prepared`, `PreparedDataset`. `dpsweep.data.prepare` calls them.

The library of a source is imported when the source is prepared.
"""

from dpsweep.data.prepared import (
    DatasetError,
    DatasetMetadata,
    PreparedDataset,
    Split,
    write_prepared,
)

__all__ = ["DatasetError", "DatasetMetadata", "PreparedDataset", "Split", "write_prepared"]
