"""Whether Slurm takes a kind of job: what can be known before one runs."""

import re
from collections.abc import Iterator

from dpsweep.planning import slurm
from dpsweep.planning.cluster import Kind, Site
from dpsweep.planning.doctor.probe import Fault

# What Slurm says of a request that it refuses, and what that is about.
_REFUSALS = (
    (r"invalid partition|partition name", "partition"),
    (r"qos", "qos"),
    (r"invalid account|account/partition", "account"),
    (r"generic resource|\(gres\)", "gpu request"),
    (r"memory", "memory"),
    (r"time limit", "time limit"),
    (
        r"unrecognized option|invalid option|requires an argument|ambiguous"
        r"|feature|node name|reservation|invalid .* specification",
        "options",
    ),
)


def controller() -> Fault | None:
    """Whether Slurm is here and answers."""
    try:
        slurm.partitions()
    except slurm.SlurmError as error:
        return Fault(
            "controller",
            str(error),
            "run this on a login node of the cluster, where `sinfo` works; if it fails there too, "
            "ask the cluster's support",
        )
    return None


def refusal(kind: Kind, site: Site) -> Fault | None:
    """Why Slurm would refuse a kind of job, or let it wait for ever; nothing is submitted."""
    for fault in _beyond_limits(kind, site):
        return fault
    try:
        slurm.test(kind.request)
    except slurm.SlurmError as error:
        return _explain(kind, site, str(error))
    return None


def _beyond_limits(kind: Kind, site: Site) -> Iterator[Fault]:
    """Find requests that no node can meet. Many clusters accept such a job and never start it."""
    partitions = slurm.partitions()
    nodes = partitions.get(kind.partition)
    if nodes is None:
        yield Fault(
            "partition",
            f"there is no partition {kind.partition!r}",
            f"set slurm.{kind.partition_key} to one of: {', '.join(partitions)}",
        )
        return
    limit = max(each.minutes for each in nodes)
    if site.time_limit_minutes > limit:
        yield Fault(
            "time limit",
            f"slurm.time_limit_minutes is {site.time_limit_minutes}; jobs of partition "
            f"{kind.partition} may take {limit:g}",
            f"set slurm.time_limit_minutes to {limit:g}; longer cells save their state and go on",
        )
    cpus = max(each.cpus for each in nodes)
    if kind.cpus > cpus:
        yield Fault(
            "cpus",
            f"a job asks for {kind.cpus} CPUs; nodes of partition {kind.partition} have {cpus}",
            f"set training.threads of the study to {cpus} at most",
        )
    megabytes = max(each.megabytes for each in nodes)
    # Options of the site come last on the command line, and win.
    if kind.request.megabytes > megabytes and "--mem" not in site.options:
        yield Fault(
            "memory",
            f"a job asks for {kind.request.megabytes:,} MB; nodes of partition {kind.partition} "
            f"have {megabytes:,} MB",
            f"set slurm.{kind.partition_key} to a partition with larger nodes, or override the "
            f'estimate in slurm.options: "--mem={megabytes}M"',
        )
    if kind.gpu is None:
        return
    there = sorted({each.gres for each in nodes if "gpu" in each.gres})
    wanted = re.fullmatch(r"gpu:(\D[\w.]*):1", kind.gpu.request)
    if not there or (wanted and not any(f"gpu:{wanted[1]}" in gres for gres in there)):
        yield Fault(
            "gpu request",
            f"no node of partition {kind.partition} has what {kind.gpu.request!r} asks for; Slurm "
            f"lists {', '.join(there) or 'no GPUs'} there",
            "correct `request` in slurm.gpus, or set slurm.gpu_partition",
        )


def _explain(kind: Kind, site: Site, words: str) -> Fault:
    """Say what a refusal is about: by Slurm's words, or by what it takes a part away to be taken."""
    about = next((name for text, name in _REFUSALS if re.search(text, words, re.IGNORECASE)), "")
    if not about:
        about, words = _ablate(kind, site, words)
    yours = ", ".join(slurm.accounts())
    known = f" (yours, as account/partition/QOS: {yours})" if yours else ""
    remedies = {
        "account": f"set slurm.account{known}",
        "partition": f"set slurm.{kind.partition_key}",
        "qos": f"correct --qos in slurm.options{known}",
        "gpu request": "correct `request` in slurm.gpus",
        "memory": "choose a partition with larger nodes, or set --mem in slurm.options",
        "time limit": "lower slurm.time_limit_minutes",
        "options": f"correct slurm.options, which is {site.options!r}",
    }
    asked = " ".join(kind.request.arguments())
    return Fault(
        about or "request",
        f"{words}\n(sbatch --test-only {asked})",
        remedies.get(about, "change site.yaml until sbatch takes the job"),
    )


def _ablate(kind: Kind, site: Site, words: str) -> tuple[str, str]:
    """Find the part of a request without which Slurm takes it."""
    parts = {"account": "--account", "gpu request": "--gpus-per-node", "options": site.options}
    if kind.gpu is not None:
        request = kind.gpu.request
        parts["gpu request"] = request if request.startswith("--") else f"--gres={request}"
    for about, part in parts.items():
        options = kind.request.options.replace(part, "") if part else kind.request.options
        if about == "account":
            options = re.sub(r"--account=\S+", "", options)
        if options == kind.request.options:
            continue
        try:
            slurm.test(slurm.Request(options, kind.request.minutes, kind.request.megabytes))
        except slurm.SlurmError:
            continue
        return about, f"{words}\nSlurm takes the job without this: {part}"
    return "", words
