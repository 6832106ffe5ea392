"""Simulated faults of a machine: a full disk, a read-only folder. Mounting them requires root."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Tell whether this process may mount file systems."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(folder: Path, spare_bytes: int) -> Iterator[None]:
    """Put a folder on a separate disk with little free space; move its content back at the end."""
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
    """Make a folder read-only, also for root."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)
