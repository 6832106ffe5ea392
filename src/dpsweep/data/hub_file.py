"""Single files of repositories on the Hugging Face hub."""

import os
from collections.abc import Sequence
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.config.messages import brief, shorten

TIMEOUT_SECONDS = 10


class HubError(DpsweepError):
    """A file that the hub does not provide; the message contains the command that fetches it."""


class UnreachableHubError(HubError):
    """A hub that does not answer, so it is unknown whether it has the file."""


def fetch_file(
    repository: str, file: str, revision: str | None, instead: str, others: Sequence[str] = ()
) -> Path:
    """Return the local copy of a file of a model repository, downloaded if needed.

    Args:
        repository: owner/name.
        file: its path in the repository.
        revision: a commit, or None for the newest.
        instead: the setting of the study that uses a local copy of the file, for the message.
        others: files of the repository that are needed next, for the command in the message.

    Raises:
        HubError: the cache has no copy, and the hub cannot be reached or does not have the file.
    """
    from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(hf_hub_download(repository, file, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        # A download retries for half a minute; this call fails at once without a network.
        HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_SECONDS)
        return Path(hf_hub_download(repository, file, revision=revision))
    except Exception as error:
        command = f"hf download {' '.join([repository, file, *others])}"
        command += f" --revision {revision}" if revision else ""
        what = f"{file} of {repository_named(repository, revision)}"
        message = cannot_fetch(what, error, command, f"copy the file and set {instead}")
        raise (HubError if _refuses(error) else UnreachableHubError)(message) from error


def repository_named(repository: str, revision: str | None) -> str:
    """Return the name of a repository, with the revision if there is one.

    >>> repository_named("timm/vit", "0123"), repository_named("timm/vit", None)
    ('timm/vit at revision 0123', 'timm/vit')
    """
    return f"{repository} at revision {revision}" if revision else repository


def require_file(repository: str, file: str, revision: str | None) -> None:
    """Check that a file of a model repository exists, without a download.

    Raises:
        UnreachableHubError: the hub does not answer; the message is one line, without the file.
        HubError: the hub does not have this repository, revision or file.
    """
    from huggingface_hub import HfApi, try_to_load_from_cache  # noqa: PLC0415

    if isinstance(try_to_load_from_cache(repository, file, revision=revision), str):
        return
    what = repository_named(repository, revision)
    try:
        found = HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_SECONDS)
    except Exception as error:
        if _refuses(error):
            raise HubError(f"found {what}, which the hub refuses ({brief(error)})") from error
        raise UnreachableHubError(
            f"https://huggingface.co does not answer ({type(error).__name__})"
        ) from error
    files = [each.rfilename for each in found.siblings or []]
    if file not in files:
        raise HubError(f"found {what}, which has no {file}; it has {shorten(files)}")


def _refuses(error: Exception) -> bool:
    """Tell whether the hub answered that something is missing or forbidden (not: busy or broken)."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415

    return isinstance(error, HfHubHTTPError) and error.response.status_code in (400, 401, 403, 404)


def cannot_fetch(what: str, error: Exception, command: str, instead: str) -> str:
    """Return the message for a failed download, with the remedy.

    Args:
        what: noun for the requested files.
        error: of the download.
        command: that fetches the files into the hub's cache.
        instead: another way to use a copy of the files.
    """
    cache = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return (
        f"cannot fetch {what} from https://huggingface.co ({type(error).__name__}: {error}).\n"
        f"Where there is a network, run: {command}\nThen copy its cache ({cache}) here, or {instead}"
    )


def commit(path: Path) -> str:
    """Return the commit of a file in the hub's cache, from its path ``snapshots/<commit>/<file>``."""
    parts = path.parts
    return parts[len(parts) - parts[::-1].index("snapshots")]
