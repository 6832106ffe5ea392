"""Print what is installed as pins, for requirements.lock."""

from importlib.metadata import distributions

# Parts of PyTorch's Linux build that have no release for other systems.
LINUX_ONLY = ("cuda-", "nvidia-", "triton")
LEFT_OUT = {"dpsweep", "pip"}


def main() -> None:
    """Print one ``name==version`` a line, sorted, with a marker where only Linux has it."""
    pins = {}
    for distribution in distributions():
        name = distribution.name.lower().replace("_", "-")
        if name not in LEFT_OUT:
            # A local part such as +cpu names a build, not a release.
            pins[name] = distribution.version.split("+")[0]
    print("# Every dependency at the version that is tested; made by `make lock`.")  # noqa: T201
    for name, version in sorted(pins.items()):
        marker = ' ; sys_platform == "linux"' if name.startswith(LINUX_ONLY) else ""
        print(f"{name}=={version}{marker}")  # noqa: T201


if __name__ == "__main__":
    main()
