"""Finding a study, and reading it from YAML, with overlays and with messages for the author of the file.

Below are the options of a run in ``--config`` and the environment, and the commands that messages suggest.
"""

import argparse
import csv
import math
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import yaml
from pydantic import ValidationError

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import require_content
from dpsweep.study.file import NO_FIGURES, Study
from dpsweep.study.messages import explain, screen, unknown, value
from dpsweep.study.section import usable_path


class StudyError(DpsweepError):
    """A study file that cannot be used; the message is for the author of the file."""


class _Replace(dict[Any, Any]):
    """A mapping that replaces the one it overlays instead of merging with it."""


class StudyLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader of safe YAML: 1e-5 is a number; 0300, 1:30, 1e400 are texts; keys that stand twice are refused.

    An integer of more than 100 digits is a text too, because no key has one, and floats hold none of 309.

    It uses libyaml if PyYAML has it, which is ten times as fast: every job reads the study.
    """


def _mapping(loader: StudyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, int] = {}
    # PyYAML refuses other nodes with !replace, and a list or a mapping as a key, by itself.
    for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        line = key_node.start_mark.line + 1
        if isinstance(key_node, yaml.ScalarNode):
            if key_node.value in seen:
                raise StudyError(
                    f"{key_node.start_mark.name}, line {line}: {value(key_node.value)} is defined "
                    f"twice, first on line {seen[key_node.value]}; every name must be unique"
                )
            seen[key_node.value] = line
    mapping: dict[Any, Any] = loader.construct_mapping(node, deep=True)
    return mapping


def _number(loader: StudyLoader, node: yaml.ScalarNode) -> float | str:
    """Return a float; one beyond the range of floats as text, so that every key of numbers refuses it."""
    found: float = loader.construct_yaml_float(node)
    return node.value if math.isinf(found) and node.value[-1].isdigit() else found


StudyLoader.add_constructor("tag:yaml.org,2002:map", _mapping)
StudyLoader.add_constructor("tag:yaml.org,2002:float", _number)
StudyLoader.add_constructor("!replace", lambda loader, node: _Replace(_mapping(loader, node)))

# As people read numbers: YAML 1.1 takes 0300 for octal, 1:30 for sixty and thirty, and 1e-5 for a text.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9_]{0,99}|0x[0-9a-fA-F_]{1,64})$",
    "tag:yaml.org,2002:float": r"[-+]?(\.[0-9]|[0-9][0-9_]*(\.|[eE][-+]?[0-9]))[0-9_]*([eE][-+]?[0-9]+)?$"
    r"|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$",
}
StudyLoader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    StudyLoader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))


def parse_yaml(text: str | TextIO) -> Any:
    """Read YAML as in a study (`StudyLoader`).

    >>> parse_yaml("[8, 1e-5]")
    [8, 1e-05]

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not valid YAML.
    """
    return yaml.load(text, Loader=StudyLoader)  # noqa: S506 (a SafeLoader)


def yaml_line(found: Any) -> str:
    """Return a value as YAML on one line.

    >>> yaml_line({"batch_size": [64, "full"], "delta": 1e-5})
    '{batch_size: [64, full], delta: 1.0e-05}'
    """
    text: str = yaml.safe_dump(
        found, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("\n...\n").strip()


def _read(path: Path, overlays: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a study file, merged into the one that it extends; ``overlays`` are the files that extend it."""
    whole = f"{path} (which {overlays[-1]} extends)" if overlays else str(path)
    if path.resolve() in (overlay.resolve() for overlay in overlays):
        raise StudyError(f"{whole}: extends itself; allowed: a chain of files that ends")
    try:
        require_content(path)
        with path.open(encoding="utf-8") as stream:
            content = parse_yaml(stream)
    except FileNotFoundError:
        raise StudyError(f"study: no such file as {whole}") from None
    except (OSError, RecursionError, yaml.YAMLError, ValueError, AttributeError) as error:
        # PyYAML does not catch the ValueError of int() and of dates.
        raise StudyError(f"{whole}: cannot be read as YAML: {error}") from None
    if not isinstance(content, dict):
        raise StudyError(
            f"{whole}: found {value(content)}; allowed: a mapping of sections (title, datasets, "
            "backbones, methods, sweeps, ...)"
        )
    base = content.pop("extends", None)
    try:
        _read_paths(content, path.parent)
    except (OSError, ValueError, csv.Error, yaml.YAMLError) as error:
        raise StudyError(f"{whole}: figures or references: {error}") from None
    if base is None:
        return content
    try:
        below = named_study(str(base), path.parent)
    except DpsweepError as error:
        raise StudyError(f"{whole}: extends: {str(error).removeprefix('study: ')}") from None
    merged: dict[str, Any] = _merge(_read(below, (*overlays, path)), content)
    return merged


def _read_paths(content: dict[str, Any], folder: Path) -> None:
    """Expand the paths of figures, and replace the path of references, a CSV file, by its rows.

    Raises:
        OSError, csv.Error, yaml.YAMLError: the CSV file cannot be read.
        ValueError: a path cannot exist (see `usable_path`), or the CSV file is not UTF-8.
    """
    files = content.get("figures")
    if isinstance(files, str | list):
        content["figures"] = [
            (folder / usable_path(each)).as_posix()
            if isinstance(each, str) and each != NO_FIGURES
            else each
            for each in ([files] if isinstance(files, str) else files)
        ]
    if isinstance(named := content.get("references"), str):
        file = folder / usable_path(named)
        require_content(file)
        with file.open(encoding="utf-8", newline="") as stream:
            content["references"] = [
                {key: parse_yaml(text) for key, text in row.items() if key and text}
                for row in csv.DictReader(stream)
            ]


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict) and not isinstance(above, _Replace):
        # Sections of different kinds have different keys: do not merge them.
        if "kind" in below and "kind" in above and below["kind"] != above["kind"]:
            return dict(above)
        return below | {key: _merge(below.get(key), value) for key, value in above.items()}
    return dict(above) if isinstance(above, _Replace) else above


def load_study(path: str | Path, figures: bool = True) -> Study:
    """Read and check a study file.

    A study may extend another one: ``extends: other.yaml``, relative to its own folder, or ``extends: paper``
    for one that comes with dpsweep. Mappings are merged key by key; other values are replaced. A mapping
    tagged ``!replace``, or of another ``kind``, replaces the whole mapping below it.

    Args:
        path: the study file.
        figures: whether to read its figures too, which runs the Python files that it names; if not, the study
            has no figures and tables.

    Raises:
        StudyError: the file is missing, is not YAML, or does not fit the schema. The message
            names each wrong key, the value found, and what is allowed.
    """
    content = _read(Path(path))
    if not figures:
        content["figures"] = NO_FIGURES
    try:
        return Study.model_validate(content)
    except ValidationError as error:
        mistakes = explain(error, content)
    raise StudyError(screen(f"{path} is not a valid study:", mistakes))


_PACKAGE = Path(__file__).parents[1]
_COPIED = _PACKAGE / "project"
IN_CLONE = not _COPIED.is_dir()
"""Whether this is the package of a clone, not an installed one with copies."""
PROJECT = _PACKAGE.parents[1] if IN_CLONE else _COPIED
"""The folder of ``Snakefile``, ``workflow/``, ``config.yaml`` and ``studies/``."""
PAPER = "paper"
"""The name of the paper's study, ``config.yaml``."""


def documentation(page: str) -> Path:
    """Return the path of a page of the documentation that messages name; it comes with the package."""
    return PROJECT / "docs" / page


def packaged_studies() -> dict[str, Path]:
    """Return the studies that come with the package, by name."""
    others = sorted((PROJECT / "studies").glob("*.yaml"))
    return {PAPER: PROJECT / "config.yaml"} | {file.stem: file for file in others}


def name_of(study_file: Path) -> str:
    """Return the word for a study on a command line: its path, or the name of one of the package."""
    names = {file: name for name, file in packaged_studies().items()}
    return str(study_file) if IN_CLONE else names.get(study_file, str(study_file))


def study_path(text: str | Path) -> Path:
    """Return a path of a command line, which expands as paths in a study do.

    Shells do not expand ``--study=~/pets.yaml``.

    Raises:
        DpsweepError: the path cannot exist (see `usable_path`).
    """
    try:
        return Path(usable_path(str(text)))
    except ValueError as error:
        raise DpsweepError(f"path: found {text}; {error}") from None


def named_study(name: str, folder: Path) -> Path:
    """Return the file of a study.

    Args:
        name: a path, or a name such as ``paper`` or ``demo``; a file of that name comes first.
        folder: where a relative path starts.

    Raises:
        DpsweepError: there is no such file, and no study of this name.
    """
    file = folder / study_path(name)
    if file.is_file():
        return file
    if re.search(r"[/\\]|\.ya?ml$", name):
        there = sorted(each.name for each in file.parent.glob("*.y*ml"))
        if there and not os.path.lexists(file):
            raise DpsweepError(f"study: no such file as {file}: {unknown(file.name, there)}")
        return file
    if name not in packaged_studies():
        raise DpsweepError(f"study: {unknown(name, packaged_studies())}, or the path of a file")
    return packaged_studies()[name]


def is_study(file: Path) -> bool:
    """Return whether a file is a study, not another file in YAML."""
    return file.is_file() and bool(
        re.search(
            r"^(extends|sweeps):", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
    )


def only_study(folder: Path) -> Path:
    """Return the only study in a folder.

    Raises:
        DpsweepError: there is none, or there are several.
    """
    found = [
        file
        for pattern in ("*.yaml", "*.yml")
        for file in sorted(folder.glob(pattern))
        if not file.name.startswith(".") and is_study(file)
    ]
    if len(found) == 1:
        return found[0]
    what = ", ".join(file.name for file in found) or "no study"
    raise DpsweepError(
        f"study: found {what} in {folder.resolve()}; allowed: one, or name it: its file, or one of "
        f"{', '.join(packaged_studies())}"
    )


def home(study_file: Path) -> Path:
    """Return the folder that the paths in a study are relative to.

    It is the folder of the study. For a study inside of a clone it is the top of the clone; for a study of
    an installed package, the current folder.
    """
    file = study_file.resolve()
    if not file.is_relative_to(PROJECT):
        return file.parent
    return PROJECT if IN_CLONE else Path.cwd()


def split_study(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off the first word of a command line, if it is a YAML file or the name of a study."""
    first = words[0] if words else ""
    if re.search(r"\.ya?ml$", first) or first in packaged_studies():
        return first, list(words[1:])
    return None, list(words)


# -- options of a run, and suggested commands ------------------------------------------------------

DEFAULT_STUDY = Path("config.yaml")
"""The study of a command that names none."""

OPTIONS = "DPSWEEP_SNAKEMAKE_OPTIONS"
"""Environment variable: options that every suggested command needs on this machine (its profile)."""

STUDY = "DPSWEEP_STUDY"
"""Environment variable: the study of a command that names none."""

UNACCOUNTED = "DPSWEEP_UNACCOUNTED"
"""Environment variable: true if the user has asked for sweeps of private data (see `is_true`)."""

SIGNAL = "USR1@120"
"""For ``sbatch``: signal the end of a job 120 seconds before, which is longer than a training step.

An option ``--signal`` of ``sbatch`` (``slurm_extra`` in a profile) wins over ``SBATCH_SIGNAL``."""

_CONFIG = ("study", "targets", "unaccounted")  # the options of --config

RESULTS = "DPSWEEP_RESULTS"
"""Environment variable: the folder of results that the workflow has planned with."""

CALL = "DPSWEEP_CALL"
"""Environment variable: set if ``dpsweep run`` called Snakemake."""


def is_true(name: str, value: object) -> bool:
    """Return a truth value of ``--config`` or of an environment variable.

    Both are text, and every text is true in Python: ``unaccounted=false`` must not be a yes.

    >>> is_true("unaccounted", "1"), is_true("unaccounted", "false")
    (True, False)

    Args:
        name: of the option, for the message.
        value: true or 1 for yes, false or 0 for no; Snakemake makes ``True`` and ``False`` of these words.

    Raises:
        DpsweepError: any other value.
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
    except KeyError:
        raise DpsweepError(f"{name}: found {value or 'nothing'}; allowed: true or false") from None


def make_command(study_file: Path, targets: Sequence[Path | str]) -> str:
    """Return the command that makes outputs of a study; it makes existing ones again.

    Args:
        study_file: the study.
        targets: its files, or rules of the workflow.
    """
    # Snakemake takes an existing file for finished, even a damaged one, unless it is forced.
    force = ["--force"] if any(Path(target).exists() for target in targets) else []
    options = shlex.split(os.environ.get(OPTIONS, ""))
    # Snakemake needs the Snakefile of a clone in the working directory; `dpsweep run` brings its own.
    in_clone = IN_CLONE and Path("Snakefile").exists() and not study_file.is_absolute()
    if CALL in os.environ or not in_clone:
        words = ["dpsweep", "run", name_of(study_file), *map(str, targets)]
        return shlex.join([*words, *(["--"] if options or force else []), *options, *force])
    config = [] if study_file == DEFAULT_STUDY else ["--config", f"study={study_file}"]
    return shlex.join(["snakemake", *options, *force, *config, "--", *map(str, targets)])


def begin(config: Mapping[str, Any]) -> Path:
    """Set environment variables for the jobs of the workflow: study, options, and a PATH with `dpsweep`.

    Args:
        config: the config of Snakemake.

    Returns:
        The file of the study.

    Raises:
        DpsweepError: there is no such option (as in a study that is given as a ``--configfile`` instead of
            by its name), or it has a value of another type.
    """
    for name in config:
        if name not in _CONFIG:
            raise DpsweepError(f"--config: {unknown(name, _CONFIG)} (as study=studies/mine.yaml)")
    if "unaccounted" in config:
        allowed = is_true("--config unaccounted", config["unaccounted"])
        os.environ[UNACCOUNTED] = str(int(allowed))
    for name in ("study", "targets"):
        if not isinstance(value := config.get(name, ""), str):
            raise DpsweepError(f"--config {name}: found {value}; allowed: text that is no number")
    study = study_path(config.get("study", DEFAULT_STUDY))
    os.environ[STUDY] = str(study)
    # Without the signal, jobs of Slurm would lose the work since their last checkpoint at a time limit.
    os.environ.setdefault("SBATCH_SIGNAL", SIGNAL)
    # `dpsweep` is in the folder of this Python, even if the environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    # Suggested commands repeat the profile of this call.
    profiles, _ = split_profiles(sys.argv[1:])
    os.environ.setdefault(OPTIONS, shlex.join(f"--profile={each}" for each in profiles))
    return study


def split_profiles(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the profiles among options of Snakemake, and the other options.

    >>> split_profiles(["--profile", "slurm", "-n"])
    (['slurm'], ['-n'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", action="append", default=[])
    given, others = parser.parse_known_args(options)
    return given.profile, others
