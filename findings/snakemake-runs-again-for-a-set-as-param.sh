#!/usr/bin/env bash
# Believed: A rule whose params are equal to those of the last run is not run again.
# Happens: Params are recorded as text. A set of strings has another order in each process, so the
# rule runs again at most calls: "Params have changed since last execution", with all that depends
# on it. A sorted list does not.
# Advice: Give params sorted lists, also where a helper function or a configuration returns a set.
# Versions: snakemake 9.11.9 and 9.16.2. Seen on 2026-11-28.
# Output:
#   9.11.9: the list ran 1 times, the set more than once in 8 calls
#   9.16.2: the list ran 1 times, the set more than once in 8 calls
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" snakemake==9.11.9 appdirs reretry setuptools
cat > "$folder/Snakefile" <<'SNAKEFILE'
METHODS = {"film", "lora", "head", "all"}

rule all:
    input: "list.txt", "set.txt"

rule of_list:
    output: "list.txt"
    params: methods=sorted(METHODS)
    shell: "echo ran >> list.log; touch {output}"

rule of_set:
    output: "set.txt"
    params: methods=METHODS
    shell: "echo ran >> set.log; touch {output}"
SNAKEFILE
for version in 9.11.9 9.16.2; do
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "snakemake==$version"
    work="$folder/work-$version"
    mkdir "$work"
    for _ in 1 2 3 4 5 6 7 8; do
        (cd "$work" && env -u PYTHONHASHSEED "$folder/bin/python" -m snakemake --quiet all --cores 1 --snakefile "$folder/Snakefile" 2>/dev/null)
    done
    listed=$(wc -l < "$work/list.log") sets=$(wc -l < "$work/set.log")
    [ "$listed" = 1 ] && [ "$sets" -gt 1 ]
    echo "$version: the list ran $listed times, the set more than once in 8 calls"
done
