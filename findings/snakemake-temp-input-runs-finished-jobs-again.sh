#!/usr/bin/env bash
# Believed: A `temp` file that was deleted is made again for a new job alone: jobs that have read it, and
# whose outputs exist, are not run again.
# Happens: If they are asked for too, as by a table of all trials, each of them runs again: "Input files
# updated by another job". `ancient` around the input does not help, nor does any choice of
# `--rerun-triggers`. So one more seed trains all seeds again.
# Advice: Keep what costly jobs read (no `temp`), or run with `--notemp` until the last job is known.
# Versions: snakemake 9.20.0 and 9.27.1. Seen on 2026-11-28.
# Output:
#   snakemake 9.20.0: trials that ran with temp: 1 1 2; with ancient: 1 1 2; with --notemp: 1 2
#   snakemake 9.27.1: trials that ran with temp: 1 1 2; with ancient: 1 1 2; with --notemp: 1 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
cat > "$folder/Snakefile" <<'SNAKEFILE'
FEATURES = ancient("features.txt") if config.get("ancient") else "features.txt"

rule features:
    output: temp("features.txt")
    shell: "touch {output}"

rule trial:
    input: FEATURES
    output: "trial-{seed}.txt"
    shell: "echo {wildcards.seed} >> ran.log; touch {output}"

rule table:
    input: "trial-1.txt", "trial-2.txt"
    output: "table.txt"
    shell: "touch {output}"
SNAKEFILE
ran() { # NAME OPTIONS...: ask for one trial, then for the table; print the trials that ran
    mkdir -p "$folder/$1"
    cd "$folder/$1"
    for target in trial-1.txt table.txt; do
        "$folder/bin/python" -m snakemake "$target" --snakefile "$folder/Snakefile" --cores 1 --quiet all "${@:2}" 2>"$folder/log" || { cat "$folder/log"; exit 1; }
        sleep 1
    done
    sort ran.log | tr '\n' ' ' | sed 's/ $//'
}
for version in 9.20.0 9.27.1; do
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "snakemake==$version" setuptools
    temp=$(ran "temp-$version") old=$(ran "ancient-$version" --config ancient=1) kept=$(ran "notemp-$version" --notemp)
    [ "$temp" = "1 1 2" ] && [ "$old" = "1 1 2" ] && [ "$kept" = "1 2" ]
    echo "snakemake $version: trials that ran with temp: $temp; with ancient: $old; with --notemp: $kept"
done
