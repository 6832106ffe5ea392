"""The model card of a release, made only from its certificate."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpsweep.base.numbers import rounded_up
from dpsweep.data.prepared import Resize
from dpsweep.privacy.explain import paragraph, table
from dpsweep.release import CERTIFICATE, FROZEN, TOKENIZER, TRAINED, accuracy
from dpsweep.release.certificate import Certificate, Network
from dpsweep.release.safe_reading import escaped


def model_card(certificate: Certificate) -> str:
    """Return the card as Markdown."""
    network, attacks = certificate.network, certificate.attacks
    return _filled(
        "card.md",
        certificate,
        loading=loading_code(network),
        reading=reading_code(network),
        accuracy=accuracy.in_words(certificate),
        no_better=accuracy.advice_if_no_better(certificate),
        meaning=paragraph(
            certificate.epsilon,
            certificate.delta,
            attacks,
            certificate.split.unit and _text(certificate.protected),
        ),
        attacks="\n".join(table(attacks)),
    )


def loading_code(network: Network) -> str:
    """Return Python code that loads the model in the folder of the release."""
    arguments = "".join(f", {name}={value!r}" for name, value in network.arguments.items())
    return _filled("loading.py", network, arguments=arguments).rstrip()


def reading_code(network: Network) -> str:
    """Return Python code that prepares an input as in training, and prints its class."""
    images = {}
    if network.resize is not None:
        images = _of_images(network.resize, channels=len(network.mean))
    return _filled("reading.py", network, length=network.shape[0], **images).rstrip()


def _of_images(resize: Resize, channels: int) -> dict[str, Any]:
    return {
        "mode": "L" if channels == 1 else "RGB",
        "method": f"Image.Resampling.{resize.interpolation.upper()}",
        "size": resize.size,
        "shorter": int(resize.size / resize.crop) if resize.crop else None,
    }


@cache
def _templates() -> Environment:
    """Return the environment of this folder's templates, which are compiled once."""
    environment = Environment(  # noqa: S701 (Markdown and Python)
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"short": _short, "up": rounded_up, "repr": repr, "text": _text}
    environment.globals |= {
        **{"CERTIFICATE": CERTIFICATE, "FROZEN": FROZEN},
        **{"TOKENIZER": TOKENIZER, "TRAINED": TRAINED},
    }
    return environment


def _filled(name: str, it: Certificate | Network, **more: Any) -> str:
    """Fill in a template of this folder."""
    return _templates().get_template(f"{name}.j2").render(it=it, **more)


# Characters with a meaning in Markdown, in HTML inside it, or in links of GitHub.
_MARKS = str.maketrans(
    {mark: f"\\{mark}" for mark in "\\`*_[]|~#$"}
    | {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
)


def _text(free: str) -> str:
    """Escape free text so that it stays on one line and contains no markup and no link."""
    marked = escaped(free).translate(_MARKS)
    return marked.replace("://", "&#58;//").replace("www.", "www&#46;")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
