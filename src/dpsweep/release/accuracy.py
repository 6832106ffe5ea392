"""The accuracy of a released model in words, beside that of always naming the largest class."""

from pathlib import Path

from dpsweep.base.files import read_checked_json
from dpsweep.release import CERTIFICATE
from dpsweep.release.certificate import Certificate
from dpsweep.study.choice import accuracy_interval


def in_words(certificate: Certificate) -> str:
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
        DamagedFileError: the certificate has another content than was written.
        ValidationError: it is of another format.
    """
    certificate = Certificate.model_validate(read_checked_json(folder / CERTIFICATE))
    advice = advice_if_no_better(certificate)
    return [*([advice] if advice else []), f"accuracy {in_words(certificate)}"]


def _accuracy(certificate: Certificate) -> tuple[float, float, float]:
    """Return the accuracy and the ends of its interval."""
    size = certificate.test_set.units or certificate.test_set.size
    return certificate.test_accuracy, *accuracy_interval(certificate.test_accuracy, size)
