"""Names of files and folders that desktops, servers, clouds and editors leave among data (litter).

All code that lists a user's folder uses this module. So litter never becomes an example or a class, and never
causes a new preparation of a dataset.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

# Names of macOS, Windows, Synology, QNAP, NetApp, Linux and Python, in lower case. Names that begin with a
# dot (.DS_Store, ._cat.png, .ipynb_checkpoints, .Trash-1000, .snapshot, .stversions) need no entry.
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
# Unfinished or replaced files. Folders may have such names.
_OF_A_FILE = re.compile(
    r".+(?:~|\.(?:tmp|temp|part|partial|filepart|crdownload|download|opdownload|aria2|!ut|!qb|!sync|bts|sw[op]|bak"
    r"|orig|pyc))",
    re.IGNORECASE,
)


def is_litter(name: str, folder: bool = False) -> bool:
    """Tell whether a file or folder of this name is litter.

    >>> [is_litter(name) for name in ("@eaDir", "._cat.png", "cat.png~", "cat.png")]
    [True, True, True, False]

    Args:
        name: without parent folders.
        folder: whether this is the name of a folder.
    """
    return (
        name.startswith(".")
        or name.lower() in _NAMES
        or _PATTERN.fullmatch(name) is not None
        or (not folder and _OF_A_FILE.fullmatch(name) is not None)
    )


def walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder without litter, in an order that does not depend on the disk.

    An unreadable folder counts as empty; reading its data later raises the error.
    """
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not is_litter(name, folder=True))
        yield from (Path(place, name) for name in sorted(files) if not is_litter(name))
