"""Loading of datasets of the study: one function for each kind of source."""

from collections.abc import Iterator
from contextlib import contextmanager

from dpsweep import config
from dpsweep.base.errors import DpsweepError
from dpsweep.data.embeddings import load_embeddings
from dpsweep.data.examples import LabelledData, Split
from dpsweep.data.folder import load_folder
from dpsweep.data.hub import load_hub
from dpsweep.data.idx import load_idx
from dpsweep.data.prepared import DatasetError
from dpsweep.data.resize import Resize
from dpsweep.data.texts import load_files
from dpsweep.demo import Generated
from dpsweep.demo.digits import load_digits
from dpsweep.demo.docstrings import load_docstrings
from dpsweep.demo.glyphs import load_glyphs


def load(dataset: config.Dataset) -> LabelledData:
    """Read the classes and labels of a dataset; inputs are read when they are needed.

    Raises:
        DpsweepError: the source cannot be read, or does not fit the dataset's settings.
    """
    source = dataset.source
    if dataset.kind not in source.holds:
        raise DatasetError(
            f"source: found {source.kind}, which holds no {dataset.kind}; allowed: another source, "
            f"or kind: {' or '.join(source.holds)}"
        )
    match source:
        case config.DigitsSource():
            data = _labelled(load_digits(source, image_size(dataset)))
        case config.GlyphsSource():
            data = _labelled(load_glyphs(source, image_size(dataset)))
        case config.DocstringsSource():
            data = _labelled(load_docstrings(source))
        case config.IdxSource():
            data = load_idx(source, image_size(dataset))
        case config.FilesSource():
            data = load_files(source)
        case config.ArraysSource():
            data = load_embeddings(source, dataset.dimension)
        case config.FolderSource():
            data = load_folder(source)
        case config.HubSource():
            data = load_hub(source, dataset.kind)
    return data


def _labelled(made: Generated) -> LabelledData:
    train, test = Split(*made.train), Split(*made.test)
    return LabelledData(train, test, made.classes, made.origin, made.revision)


@contextmanager
def named(name: str) -> Iterator[None]:
    """Prefix the messages of errors in the block with the name of the dataset.

    Raises:
        DatasetError: instead of any DpsweepError or OSError.
    """
    try:
        yield
    except DpsweepError as error:
        begins_with = str(error).partition(":")[0].partition(".")[0]
        dot = "." if begins_with in config.Dataset.model_fields else ": "
        raise DatasetError(f"datasets.{name}{dot}{error}", error.remake) from error
    except OSError as error:
        what = f"{error.filename}: cannot be read: {error.strerror}" if error.filename else error
        raise DatasetError(f"datasets.{name}: {what}") from error


def image_size(dataset: config.Dataset) -> int:
    """Return the height and width of a dataset's images.

    Raises:
        DatasetError: the dataset has no ``image_size``.
    """
    if dataset.image_size is None:
        raise DatasetError("image_size: missing; images need a size in pixels")
    return dataset.image_size


def resize_of(name: str, dataset: config.Dataset) -> Resize:
    """Return how images of a dataset are resized to the network's input.

    Raises:
        DatasetError: the dataset has no ``image_size``.
    """
    with named(name):
        size = image_size(dataset)
    return Resize(size=size, interpolation=dataset.interpolation, crop=dataset.crop)
