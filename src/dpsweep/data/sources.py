"""The texts of a dataset of the study, wherever they come from."""

from dpsweep.data.docstrings import load_docstrings
from dpsweep.data.hub import load_hub_texts
from dpsweep.data.prepared import DatasetError
from dpsweep.data.texts import Texts, load_files
from dpsweep.study.config import Dataset, DocstringsSource, FilesSource, HubSource


def load_texts(name: str, dataset: Dataset) -> Texts:
    """Return the texts and labels of a dataset of the study.

    Raises:
        DatasetError: the source cannot be read, or holds no text.
    """
    match dataset.source:
        case HubSource() as source:
            return load_hub_texts(source)
        case FilesSource() as source:
            return load_files(source)
        case DocstringsSource() as source:
            return load_docstrings(source)
    raise DatasetError(f"datasets.{name}.source: {dataset.source.kind} holds images, not text")
