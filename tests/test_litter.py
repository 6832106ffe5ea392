"""Tests that litter of desktops, servers and clouds is recognised, and data are not."""

from pathlib import Path

from dpsweep.base.litter import is_litter, walk

FOLDERS = [
    *("@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found"),
    *("__pycache__", "__MACOSX", ".ipynb_checkpoints", "@Recycle", ".snapshot", "~snapshot"),
    *(".Trash-1000", ".Trashes", ".Spotlight-V100", ".fseventsd", ".AppleDouble", ".git"),
    *("@Recently-Snapshot", "#snapshot", "@tmp", "RECYCLER", "Network Trash Folder", "FOUND.000"),
    *("RECYCLED", "MSOCache", "_gsdata_", "@SynoThumb", "@GMT-2024.01.31-12.00.00"),
    *(".stversions", ".stfolder", ".dropbox.cache", ".@__thumb", "@__thumb", ".cache"),
]
FILES = [
    *(".DS_Store", "._cat.png", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini", "Icon\r"),
    *("cat.png~", "cat.png.tmp", "cat.jpg.part", "cat.jpg.crdownload", "~$cats.xlsx", ".nfs00001"),
    *("cat (conflicted copy 2024-01-31).png", "cat (Ann's conflicted copy 2024-01-31).png"),
    *("cat (Case Conflict).png", "cat (Case Conflict 1).png", ".~lock.cats.csv#"),
    *("cat.sync-conflict-20240131-120000-ABCDEFG.png", "~syncthing~cat.png.tmp", ".cat.png.swp"),
    *("cat.png:Zone.Identifier", "cat.pngZone.Identifier", "cat.jpg.!ut", "cat.jpg.!qB"),
    *("cat (SFConflict ann@x.org 2024-01-31-12-00-00).png", "cat [Conflict].png", "cat.png.bts"),
    *("cat.png@SynoEAStream", "cat.png@SynoResource", "picasa.ini", "cat.png.bak", "cat.pyc"),
]
DATA = [
    *("cat", "Cat", "recycle", "trash", "snapshot", "found", "tmp", "temp", "part", "copy", "@home"),
    *("#1", "$", "c#", "thumbs", "desktop", "conflict", "icon", "download", "a~b", "lost and found"),
    *("cat.png", "cat (1).png", "cat - Copy.png", "cat (copy).png", "temporary.png", "3.part.png"),
    *("conflicted copy.png", "cat_tmp.png", "Folder.jpg", "__init__", "_cat.png", "猫.png"),
]  # fmt: skip
UNFINISHED = ["first.part", "v2.tmp", "draft~"]


def test_litter_is_recognised_and_data_are_not_litter() -> None:
    assert [name for name in FOLDERS if not is_litter(name, folder=True)] == []
    assert [name for name in [*FILES, *UNFINISHED] if not is_litter(name)] == []
    # A folder may have the name of an unfinished file.
    assert [name for name in [*DATA, *UNFINISHED] if is_litter(name, folder=True)] == []
    assert [name for name in DATA if is_litter(name)] == []


def test_walk_skips_litter(tmp_path: Path) -> None:
    litter = ("b/@eaDir/2.png/thumb.jpg", "a/.DS_Store", ".git/x", "c.tmp")
    for name in ("b/2.png", "a/1.png", *litter):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(file.relative_to(tmp_path)) for file in walk(tmp_path)] == ["a/1.png", "b/2.png"]
