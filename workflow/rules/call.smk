# How this call was made: the study it names, the options that suggested commands repeat, and the environment
# of its jobs.
import argparse

# Rules call `dpsweep` by name: it lies beside the Python that runs this, whether or not its environment
# is activated.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
)
# A study is named with `--config study=`, but habit says --configfile.
STUDY_FILE = config.get("study", "config.yaml")
if "study" not in config and not config.keys().isdisjoint({"extends", "sweeps"}):
    studies = [
        file
        for file in workflow.overwrite_configfiles
        if re.search(
            r"^(extends|sweeps):", Path(file).read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    if len(studies) != 1:
        raise WorkflowError(
            "name one study: snakemake --config study=studies/mine.yaml -- all"
        )
    STUDY_FILE = studies[0]
# The commands that messages suggest are for this machine: they repeat its profile and site settings.
site_options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
site_options.add_argument("--profile", action="append", default=[])
site_options.add_argument("--configfile", "--configfiles", nargs="+", default=[])
given, _ = site_options.parse_known_args()
os.environ.setdefault(
    commands.OPTIONS,
    shlex.join(
        [
            *(f"--profile={profile}" for profile in given.profile),
            *(["--configfile", *given.configfile] if given.configfile else []),
        ]
    ),
)
# Slurm announces a time limit to every process of a job. This one leaves it to the training.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
