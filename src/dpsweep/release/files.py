"""The files of a release: which a folder may hold, the parameters by their names in them, and the model card.

Nothing in the folder is executed, and no link is followed. Who expects an attack verifies in a container.
The card, and what the accuracy is worth, are made only from the certificate.
"""

import itertools
import stat
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from dpsweep.base.files import atomic_path, parsed, read_checked_json
from dpsweep.base.formatting import rounded_up
from dpsweep.data.prepared import Resize
from dpsweep.models.architectures import create, find_head, public_statistics
from dpsweep.models.build import apply_method, build_head, trainable_parameters
from dpsweep.models.representation import Tap, tap_of
from dpsweep.privacy.trade_off import paragraph, table
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TOKENIZER, TRAINED, ReleaseError
from dpsweep.release.certificate import Certificate, Network, ReleasedFeatures
from dpsweep.study.choice import accuracy_interval
from dpsweep.study.messages import screen
from dpsweep.study.networks import Architecture, BackboneError, Method

LARGEST = {CERTIFICATE: 2**24, CARD: 2**24, TOKENIZER: 2**27, TRAINED: 2**40, FROZEN: 2**40}
"""Files of a release, and their largest sizes in bytes."""
_LONGEST_LINE = 300

Layout = Mapping[str, tuple[str, list[int]]]
"""Tensors of a file: from the name to safetensors' name of the type, and the shape."""


# Prefix of dpsweep's wrapper around networks of transformers. Released names are without it.
_WRAPPER = "network."
# Limit on the parameter tensors of a network; the largest networks have thousands.
_MOST_TENSORS = 20_000
# Limit on a network's arguments: timm makes lists of as many numbers as a depth before the first parameter.
_LARGEST_ARGUMENT = 10**7
# Types of tensors: from the names in torch to those in safetensors.
_SAFETENSORS = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bool": "BOOL", "uint8": "U8"},
    **{"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
}


def escaped(text: str) -> str:
    r"""Escape characters that are not printable: line breaks, control characters, direction marks.

    >>> escaped("a\nb")
    'a\\nb'
    """
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable(text: str) -> str:
    """Return a text escaped on one line, and shortened if it is long."""
    shown = escaped(text)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[: _LONGEST_LINE - 3]}..."


def refuse(what: str, mistakes: Iterable[str]) -> None:
    """Raise an error with a line for each of the first mistakes, if there are any.

    Raises:
        ReleaseError: there are.
    """
    if found := list(mistakes):
        raise ReleaseError(screen(what, list(map(printable, found))))


def file_mistakes(folder: Path) -> Iterator[str]:
    """Yield a line for each entry of a folder that is not a file of a release, without opening files.

    Raises:
        ReleaseError: the folder cannot be read.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ReleaseError(f"{folder}: cannot be read: {error.strerror}") from None
    for entry in entries:
        found = entry.lstat()
        if entry.name not in LARGEST:
            yield f"{entry.name}: is not a file of a release"
        elif not stat.S_ISREG(found.st_mode):
            yield f"{entry.name}: found a link, a folder, a pipe or a device; allowed: a file"
        elif found.st_size > LARGEST[entry.name]:
            allowed = LARGEST[entry.name]
            yield f"{entry.name}: found {found.st_size} bytes; allowed: at most {allowed}"


def file_content(folder: Path, name: str) -> bytes:
    """Read a file of a folder.

    Raises:
        ReleaseError: it is missing.
    """
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise ReleaseError(f"{name}: missing") from None


def tensor_mistakes(file: Path, layout: Layout) -> Iterator[str]:
    """Yield the differences between a safetensors file and the expected tensors.

    safetensors itself refuses tensors that overlap, or leave bytes between or behind them.

    Args:
        file: of tensors.
        layout: their names, types and shapes.
    """
    try:
        with safe_open(file, framework="pt") as stored:
            found = set(stored.keys())
            if stored.metadata():
                yield "found metadata, which cannot be verified; allowed: tensors"
            yield from (f"{name} is missing" for name in sorted(layout.keys() - found))
            yield from (
                f"{name} is not among what belongs there" for name in sorted(found - layout.keys())
            )
            for name in sorted(found & layout.keys()):
                header = stored.get_slice(name)
                kind, shape = header.get_dtype(), header.get_shape()
                expected, size = layout[name]
                if (kind, shape) != (expected, size):
                    yield f"{name}: found {kind} {shape}, expected {expected} {size}"
                elif not stored.get_tensor(name).isfinite().all():
                    yield f"{name}: found numbers that are not finite"
    except FileNotFoundError:
        yield "missing"
    except (SafetensorError, OSError) as error:
        yield f"is not a file of parameters: {error}"


# -- parameters --------------------------------------------------------------------------------


def outer_name(name: str) -> str:
    """Return the name of a parameter or layer in the release."""
    return name.removeprefix(_WRAPPER)


def head_layers(model: nn.Module) -> list[str]:
    """Return the linear layers of a model's head, by their names in the release."""
    head = find_head(model)
    return sorted(
        outer_name(name)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and head.holds(f"{name}.weight")
    )


def split_state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a model's state into trained and frozen parameters, by their names in the release."""
    own = trainable_parameters(model).keys()
    trained: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for name, each in model.state_dict().items():
        (trained if name in own else frozen)[outer_name(name)] = each
    return trained, frozen


def stated(model: nn.Module, head: nn.Linear | None = None) -> dict[str, Any]:
    """Return the fields of a certificate's `Network` that follow from the model.

    Args:
        model: the network.
        head: on features of the network, if it is not the network's own.
    """
    trained = head.state_dict() if head else split_state(model)[0]
    return {
        "head_layers": head_layers(model),
        "public_statistics": public_statistics(model),
        "trained_parameters": sum(each.numel() for each in trained.values()),
    }


def stated_tap(tap: Tap) -> dict[str, str]:
    """Return the fields of a certificate's `ReleasedFeatures` that say where they are read."""
    return {"module": outer_name(tap.module), "side": tap.side}


def outline(
    architecture: Architecture,
    method: Method,
    classes: int,
    features: ReleasedFeatures | None = None,
) -> tuple[dict[str, Any], Layout, Layout]:
    """Return the structure of a network without its numbers, computed on ``meta``.

    Args:
        architecture: of the network.
        method: of fine-tuning.
        classes: number of logits.
        features: that the head reads, if it is not the network's own.

    Returns:
        The result of `stated`, with that of `stated_tap` as ``features`` if the head reads other ones, and
        the layouts of the files of trained and of frozen parameters.

    Raises:
        BackboneError: the network does not exist, or it has too many parameters.
    """
    for name, value in architecture.arguments.items():
        if isinstance(value, int | float) and abs(value) > _LARGEST_ARGUMENT:
            raise BackboneError(
                f"arguments.{name}: found {value:g}; allowed: at most {_LARGEST_ARGUMENT:,}"
            )
    numbers = itertools.count(1)

    def count(*_: Any) -> None:
        if next(numbers) > _MOST_TENSORS:
            raise BackboneError(f"found a network of more than {_MOST_TENSORS} parameters")

    hook = register_module_parameter_registration_hook(count)
    try:
        with torch.device("meta"):
            model = create(architecture, classes)
            apply_method(model, method)
            head = build_head(features.width, classes) if features else None
    finally:
        hook.remove()
    trained, frozen = split_state(model)
    found = stated(model, head)
    if features and head:
        found["features"], trained = stated_tap(tap_of(model, features)), head.state_dict()
    return found, _layout(trained), _layout(frozen)


def _layout(state: Mapping[str, Tensor]) -> dict[str, tuple[str, list[int]]]:
    return {
        name: (_SAFETENSORS[str(each.dtype).removeprefix("torch.")], list(each.shape))
        for name, each in state.items()
    }


def save_parameters(model: nn.Module, trained: Mapping[str, Tensor], folder: Path) -> None:
    """Write the trained and the frozen parameters of a model into two files.

    Args:
        model: the model before training.
        trained: the values of its trainable parameters, by name.
        folder: for both files.
    """
    _save(folder / TRAINED, {outer_name(name): each for name, each in trained.items()})
    _save(folder / FROZEN, split_state(model)[1])


def _save(path: Path, state: Mapping[str, Tensor]) -> None:
    plain = {name: each.detach().clone() for name, each in state.items()}
    with atomic_path(path) as partial:
        save_file(plain, partial)


# -- card ----------------------------------------------------------------------------------


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
