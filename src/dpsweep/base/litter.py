"""Files and folders that nobody put among their data: those of desktops, servers, clouds and editors.

Everything that lists a folder of a user asks here, so that no such file becomes an example, a class or a
reason to prepare a dataset again.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Of macOS, Windows, Synology, QNAP, NetApp, Linux, Python; in lower case. Names that begin with a dot
# (.DS_Store, ._cat.png, .ipynb_checkpoints, .Trash-1000, .snapshot, .stversions) need no entry.
_NAMES = frozenset(
    {
        *("__macosx", "icon\r", "desktop db", "desktop df", "network trash folder"),
        *("temporary items", "thevolumesettingsfolder", "thefindbycontentfolder"),
        *("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"),
        *("$recycle.bin", "recycler", "recycled", "system volume information", "folder.htt"),
        *("iconcache.db", "msocache", "windowsimagebackup"),
        *("@eadir", "@tmp", "@sharebin", "@sharesnap", "@synologydrive", "@synoeastream"),
        *("@synothumb", "#recycle", "#snapshot", "@recycle", "@recently-snapshot"),
        *("@__thumb", "@transcode"),
        *("~snapshot", "lost+found", "aquota.user", "aquota.group"),
        *("_gsdata_", "__pycache__", "picasa.ini", "zbthumbnail.info", "pspbrwse.jbf"),
    }
)
_PATTERN = re.compile(
    r"""
      found\.\d{3}                                         # a folder of chkdsk
    | .*@syno(?:eastream|resource)                         # attributes, on Synology
    | .*\.sync-conflict-\d{8}-\d{6}(?:-\w+)?(?:\.[^.]*)?   # Syncthing
    | .+Zone\.Identifier                                   # where a file came from: Windows, beside WSL
    | @GMT-\d{4}(?:\.\d\d){2}-\d\d(?:\.\d\d){2}             # a snapshot, of Samba
    | .*\((?:[^()]*\s)?conflicted\ copy[^()]*\).*          # Dropbox, Nextcloud, ownCloud
    | .*\(SFConflict\ [^()]*\).* | .*\[Conflict(?:\ \d+)?\].* # Seafile, Google Drive
    | .*\(case\ conflict(?:\ \d+)?\).*                     # Dropbox
    | ~syncthing~.* | ~\$.*                                # unfinished, or open in an office program
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What is not finished, or was replaced: of files only, because folders have such names too.
_OF_A_FILE = re.compile(
    r".+(?:~|\.(?:tmp|temp|part|partial|filepart|crdownload|download|opdownload|aria2|!ut|!qb|!sync|bts|sw[op]|bak"
    r"|orig|pyc))",
    re.IGNORECASE,
)


def is_litter(name: str, folder: bool = False) -> bool:
    """Whether a file or folder of this name is no data of anybody.

    >>> [is_litter(name) for name in ("@eaDir", "._cat.png", "cat.png~", "cat.png")]
    [True, True, True, False]

    Args:
        name: without the folders above.
        folder: whether it is of a folder.
    """
    return (
        name.startswith(".")
        or name.lower() in _NAMES
        or _PATTERN.fullmatch(name) is not None
        or (not folder and _OF_A_FILE.fullmatch(name) is not None)
    )


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder in an order that does not depend on the disk, without litter.

    A folder that cannot be read counts as empty: what reads it says so.
    """
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_litter(name, folder=True))
        yield from (Path(place, name) for name in sorted(files) if not is_litter(name))
