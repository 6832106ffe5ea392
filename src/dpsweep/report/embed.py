"""Make pages that fetch nothing: templates, with pictures, downloads and scripts inside the page."""

import base64
import gzip
import hashlib
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

import dpsweep
from dpsweep.base.units import count
from dpsweep.report.wording import bar_shares, column_kinds, values

# A page of 57 figures stays near 3 MB: figures are line art, which 256 colours show without a visible
# difference at a third of the size, and WebP takes a quarter less than PNG. 2100 pixels are a full-width
# figure at 300 dpi.
_PICTURE_WIDTH = 2100
_PICTURE_COLOURS = 256
_THUMBNAIL_WIDTH = 320
_THUMBNAIL_COLOURS = 64
# Larger data is compressed, numbers the sooner as a page has many of them; what is still too large stays
# beside the report.
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
    """A figure as the page shows it; ``width`` and ``height`` are pixels."""

    uri: str
    thumbnail: str
    width: int
    height: int


@dataclass(frozen=True)
class Download:
    """A file that the page hands out; ``uri`` is None where it is too large to be embedded."""

    label: str
    name: str
    uri: str | None
    size: int


@cache
def _environment() -> Environment:
    """The environment of the templates, which compiles each of them once."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"values": values, "column_kinds": column_kinds, "bar_shares": bar_shares}
    environment.filters |= filters
    environment.globals |= {"count": count, "version": dpsweep.__version__}
    return environment


def render(template: str, script: str, **content: Any) -> str:
    """Fill in one of the templates beside this module.

    Args:
        template: its name.
        script: the name of the only script that a browser will run in the page, beside this module too.
        content: what the template shows.
    """
    source = (_FOLDER / script).read_text(encoding="utf-8")
    # A page's policy names the script by its hash.
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode("ascii")
    page = _environment().get_template(template)
    return page.render(script=source, script_hash=f"sha256-{digest}", **content)


def data_uri(content: bytes, suffix: str) -> str:
    """The content as a data URI of the media type that belongs to the file suffix."""
    return f"data:{_MEDIA_TYPES[suffix]};base64,{base64.b64encode(content).decode('ascii')}"


def picture(path: Path) -> Picture:
    """Read a PNG, at most 2100 pixels wide, and a thumbnail of it.

    Raises:
        OSError: the file is missing or is no complete picture.
    """
    try:
        with Image.open(path) as opened:
            drawn = opened.convert("RGBA")
    except (SyntaxError, ValueError) as error:  # how Pillow reports some damaged files
        raise OSError(str(error)) from error
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
    # This method keeps thin coloured lines in their colour; the default blends them.
    palette = image.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.convert("RGB").save(buffer, "WEBP", lossless=True)
    return data_uri(buffer.getvalue(), "webp")


def download_content(name: str, content: bytes) -> Download:
    """Hand out content under a file name: as it is, compressed with gzip, or (very large) not at all."""
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
