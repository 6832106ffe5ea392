"""Self-contained pages: templates, with embedded pictures, downloads and scripts."""

import base64
import gzip
import hashlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

import dpsweep
from dpsweep.base.formatting import count, rounded_up
from dpsweep.study import Cell, Study
from dpsweep.study.cells import BatchSize, number
from dpsweep.study.clipping import RULES, ClippingBound
from dpsweep.tables.text import TextTable

# These keep a page of 57 figures near 3 MB. Figures are line art: with 256 colours they look the same at a
# third of the size. WebP takes a quarter less than PNG. 2100 pixels are a full-width figure at 300 dpi.
_PICTURE_WIDTH = 2100
_PICTURE_COLOURS = 256
_THUMBNAIL_WIDTH = 320
_THUMBNAIL_COLOURS = 64
# Larger files are compressed, CSVs sooner because a page has many. Files that are still too large are not
# embedded.
_PLAIN_BYTES, _PLAIN_NUMBERS = 100_000, 10_000
_COMPRESSED_BYTES = 250_000

_FOLDER = Path(__file__).parent
_MEDIA_TYPES = {
    "csv": "text/csv;charset=utf-8",
    "gz": "application/gzip",
    "md": "text/markdown;charset=utf-8",
    "tex": "application/x-tex;charset=utf-8",
    "webp": "image/webp",
    "yaml": "application/yaml;charset=utf-8",
}


@dataclass(frozen=True)
class Picture:
    """An embedded figure; ``width`` and ``height`` are in pixels."""

    uri: str
    thumbnail: str
    width: int
    height: int


@dataclass(frozen=True)
class Download:
    """A file for download; ``uri`` is None if it is too large to be embedded."""

    label: str
    name: str
    uri: str | None
    size: int


@cache
def _environment() -> Environment:
    """Return the environment of the templates, which compiles each of them once."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"values": values, "column_kinds": column_kinds, "up": rounded_up}
    environment.globals |= {"count": count, "version": dpsweep.__version__}
    return environment


def render(template: str, script: str, **content: Any) -> str:
    """Fill in a template of this folder.

    Args:
        template: its file name.
        script: the file name of a script of this folder, the only one that browsers run in the page.
        content: variables of the template.
    """
    source = (_FOLDER / script).read_text(encoding="utf-8")
    # The page's Content-Security-Policy allows the script by its hash.
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode("ascii")
    page = _environment().get_template(template)
    return page.render(script=source, script_hash=f"sha256-{digest}", **content)


def data_uri(content: bytes, suffix: str) -> str:
    """Return content as a data URI, with the media type of the file suffix."""
    return f"data:{_MEDIA_TYPES[suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def picture(path: Path) -> Picture:
    """Read a PNG, shrink it to at most 2100 pixels in width, and make a thumbnail.

    Raises:
        OSError, SyntaxError, ValueError: the file is missing or damaged.
    """
    with Image.open(path) as opened:
        drawn = opened.convert("RGBA")
    paper = Image.new("RGBA", drawn.size, "white")
    image = _at_most(Image.alpha_composite(paper, drawn).convert("RGB"), _PICTURE_WIDTH)
    return Picture(
        uri=_webp(image, _PICTURE_COLOURS),
        thumbnail=_webp(_at_most(image, _THUMBNAIL_WIDTH), _THUMBNAIL_COLOURS),
        width=image.width,
        height=image.height,
    )


def _at_most(image: Image.Image, width: int) -> Image.Image:
    if image.width <= width:
        return image
    height = max(1, round(image.height * width / image.width))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _webp(image: Image.Image, colours: int) -> str:
    buffer = io.BytesIO()
    # This method keeps the colours of thin lines; the default method blends them.
    palette = image.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.convert("RGB").save(buffer, "WEBP", lossless=True)
    return data_uri(buffer.getvalue(), "webp")


def download_content(name: str, content: bytes) -> Download:
    """Embed content under a file name: as it is, compressed with gzip or, if very large, not at all."""
    suffix = name.rpartition(".")[2]
    label = suffix.upper()
    if len(content) <= (_PLAIN_NUMBERS if suffix == "csv" else _PLAIN_BYTES):
        return Download(label, name, data_uri(content, suffix), len(content))
    # Without a time stamp, equal content gives equal bytes.
    compressed = gzip.compress(content, mtime=0)
    if len(compressed) <= _COMPRESSED_BYTES:
        uri = data_uri(compressed, "gz")
        return Download(f"{label}, gzip", f"{name}.gz", uri, len(compressed))
    return Download(label, name, None, len(content))


# Longer cells are prose, which needs a wide column.
_PROSE = 40


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with one decimal, or a dash for NaN."""
    return "–" if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def values(numbers: Iterable[float | str]) -> str:
    """Write grid values as a list: 0.5, 1, 8, full."""
    return ", ".join("∞" if value == math.inf else number(value) for value in numbers)


def span(numbers: Sequence[float | str]) -> str:
    """Write grid values as a list or, if there are many, by their ends: 256 to full (9)."""
    if len(numbers) <= 3:
        return values(numbers)
    return f"{number(numbers[0])} to {number(numbers[-1])} ({len(numbers)})"


def bound_text(bound: ClippingBound) -> str:
    """Write a clipping bound, or the title of a rule without a bound: 0.1, AUTO-S, No clipping."""
    return RULES[bound].title if isinstance(bound, str) else number(bound)


def batch_text(size: BatchSize, examples: int) -> str:
    """Write a batch size, with the number of examples of the full batch: 256, full (1,347)."""
    return f"full ({examples:,})" if size == "full" else number(size)


def titles(study: Study, problem: str) -> dict[str, str]:
    """Return the titles of a problem's parts, by the columns of the tables."""
    parts = study.problems[problem]
    return {
        "Dataset": study.datasets[parts.dataset].title,
        "Backbone": study.backbones[parts.backbone].title,
        "Method": study.method_title(problem),
    }


def choice(best: "Mapping[Any, Any] | pd.Series[Any]") -> dict[str, str]:
    """Write a choice of `dpsweep.study.choice` and its accuracies, by the columns of the tables.

    ``Accuracy`` is the mean macro accuracy over the seeds that chose, ``Cross-fitted`` that over seeds
    that did not choose.
    """
    cell = Cell.parse(str(best["problem"]), str(best["cell"]))
    return {
        "ε": values([cell.epsilon]),
        "Epochs": str(cell.epochs),
        "C": bound_text(cell.clipping_bound),
        "B": batch_text(cell.batch_size, int(best["batch_size"])),
        "Learning rate": number(float(best["learning_rate"])),
        "Accuracy": percent(best["centre"]),
        "Lowest to highest": f"{100 * best['minimum']:.1f} to {percent(best['maximum'])}",
        "Cross-fitted": percent(best["cross_fitted"]),
        "Seeds": str(best["repeats"]),
    }


def column_kinds(table: TextTable) -> list[str]:
    """Return the kind of every column, which determines its width: number, prose or text."""
    return [
        "number"
        if kind == "r"
        else "prose"
        if any(len(row[place]) > _PROSE for row in table.rows)
        else "text"
        for place, kind in enumerate(table.columns)
    ]
