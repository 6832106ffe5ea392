"""The model card of a release, and what its accuracy is worth; made only from the certificate."""

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dpsweep.base.files import parsed, read_checked_json
from dpsweep.base.formatting import rounded_up
from dpsweep.data.prepared import Resize
from dpsweep.privacy.explain import paragraph, table
from dpsweep.release import CERTIFICATE, FROZEN, TOKENIZER, TRAINED
from dpsweep.release.certificate import Certificate, Network
from dpsweep.release.files import escaped
from dpsweep.study.choice import accuracy_interval


def model_card(certificate: Certificate) -> str:
    """Return the card as Markdown."""
    network, attacks = certificate.network, certificate.attacks
    return _filled(
        "card.md",
        certificate,
        loading=loading_code(network),
        reading=reading_code(network),
        accuracy=accuracy_in_words(certificate),
        no_better=advice_if_no_better(certificate),
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


# -- accuracy -----------------------------------------------------------------------------------


def accuracy_in_words(certificate: Certificate) -> str:
    """Return the accuracy with its 95 % interval (Wilson 1927), and that of naming the largest class.

    With units of several rows, the accuracy of units is added, and the interval is that of as many examples
    as there are units, because rows of a unit may be right or wrong together.
    """
    found, lower, upper = _accuracy(certificate)
    test = certificate.test_set
    of_units = (
        f"; {test.unit_accuracy:.3f} of {test.units:,} units, of which more than half of the rows are right"
        if test.units
        else ""
    )
    return (
        f"{found:.3f} of {test.size:,} test examples (95 % interval {lower:.3f} to {upper:.3f}); always "
        f"naming the largest class: {test.largest_class / test.size:.3f}{of_units}"
    )


def advice_if_no_better(certificate: Certificate) -> str | None:
    """Return what to do with a model that is not shown to be better than its largest class, or None."""
    found, lower, _ = _accuracy(certificate)
    test = certificate.test_set
    share = test.largest_class / test.size
    if lower > share:
        return None
    is_it = "is no better than" if found <= share else "is not shown to be better than"
    return (
        f"This model {is_it} always naming the largest class ({found:.3f} beside {share:.3f} on "
        f"{test.size:,} test examples). Before another release, which spends epsilon again, change the "
        "learning rate (`dpsweep recommend`; too low and too high both end here), train for more epochs, or "
        "use a network that is closer to the data; a larger test set shows smaller differences"
    )


def sentences(folder: Path) -> list[str]:
    """Return the advice on the model in a folder, if it needs one, and its accuracy.

    Raises:
        DamagedFileError: the certificate has another content than was written, or another form.
    """
    file = folder / CERTIFICATE
    certificate = parsed(Certificate, file, read_checked_json(file))
    advice = advice_if_no_better(certificate)
    return [*([advice] if advice else []), f"accuracy {accuracy_in_words(certificate)}"]


def _accuracy(certificate: Certificate) -> tuple[float, float, float]:
    """Return the accuracy and the ends of its interval."""
    size = certificate.test_set.units or certificate.test_set.size
    return certificate.test_accuracy, *accuracy_interval(certificate.test_accuracy, size)
