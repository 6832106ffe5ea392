"""What a machine may do to a run: a disk that fills, a read-only folder, a clock that is set, a terminal.

Disks and read-only folders are mounted, which takes root; the clock is set by a library that the system
loads first, which takes a C compiler. Nothing outside of the run notices either.
"""

import os
import pty
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLOCK = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *offset;
static int (*system_clock)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("CLOCK_OFFSET");
  int opened = file ? open(file, O_RDONLY) : -1;
  if (opened < 0) return;
  void *found = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, opened, 0);
  if (found != MAP_FAILED) offset = found;
  close(opened);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!system_clock) system_clock = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = system_clock(clock, now);
  if (!failed && offset && clock == CLOCK_REALTIME) now->tv_sec += *offset;
  return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  int failed = clock_gettime(CLOCK_REALTIME, &exact);
  if (!failed) { now->tv_sec = exact.tv_sec; now->tv_usec = exact.tv_nsec / 1000; }
  return failed;
}
time_t time(time_t *now) {
  struct timespec exact;
  clock_gettime(CLOCK_REALTIME, &exact);
  if (now) *now = exact.tv_sec;
  return exact.tv_sec;
}
"""


def can_mount() -> bool:
    """Whether this process may mount file systems."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def can_set_clock() -> bool:
    """Whether there is a compiler for the library that sets a run's clock."""
    return shutil.which("cc") is not None


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


class Clock:
    """The clock of the processes that are started in an environment."""

    def __init__(self, scratch: Path) -> None:
        library, source = scratch / "clock.so", scratch / "clock.c"
        self._offset = scratch / "clock-offset"
        self.set(0)
        if not library.exists():
            source.write_text(_CLOCK)
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, cwd=scratch
            )
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Set it ahead of the machine's, or behind."""
        self._offset.touch()
        with self._offset.open("r+b") as stream:
            stream.write(struct.pack("l", seconds))


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._keys, screen = pty.openpty()
        self.run = subprocess.Popen(
            ["setsid", "--ctty", *command],
            env=environment,
            stdin=screen,
            stdout=screen,
            stderr=screen,
        )
        os.close(screen)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the terminal is closed
            while block := os.read(self._keys, 65536):
                self._said += block

    def press(self, keys: bytes) -> None:
        """Press keys; Ctrl-C is the byte 3."""
        os.write(self._keys, keys)

    def said(self) -> str:
        """What has been printed, after the end of the command."""
        self._reader.join(timeout=10)
        return self._said.decode(errors="replace")
