"""What a machine may do to a run: a disk that fills, a read-only folder. Mounting them takes root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(folder: Path, spare_bytes: int) -> Iterator[None]:
    """Put a folder on a disk of its own, with little space left; bring back what is there at the end."""
    before, after = (folder.with_name(f"{folder.name}.{each}") for each in ("before", "after"))
    folder.rename(before)
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "tmpfs", folder], check=True)
    try:
        shutil.copytree(before, folder, symlinks=True, dirs_exist_ok=True)
        disk = os.statvfs(folder)
        size = (disk.f_blocks - disk.f_bfree) * disk.f_frsize + spare_bytes
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
        yield
        shutil.copytree(folder, after, symlinks=True)
    finally:
        subprocess.run(["umount", folder], check=True)
    folder.rmdir()
    after.rename(folder)
    shutil.rmtree(before)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder read-only, for root too."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
