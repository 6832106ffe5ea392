#!/usr/bin/env bash
# Believed: uv takes no pre-release of a package that has releases which fit, and the order of
# requirements does not matter.
# Happens: `dp-accounting` before `torch` gives sympy 1.14.0rc1, `torch` before `dp-accounting`
# sympy 1.14.0: sympy's release forbids the newest mpmath, its release candidate does not, and uv
# has chosen mpmath by then. pip takes the release in both orders. A project whose list is sorted
# by name gets the candidate.
# Advice: Compile with `--prerelease disallow`, or look for rc, a and b in a new lock file.
# Versions: uv 0.13.9, torch 2.15.0, dp-accounting 0.6.0, for Python 3.11. Seen on 2026-11-28.
# Output:
#   dp-accounting, torch: mpmath==1.4.1 sympy==1.14.0rc1
#   torch, dp-accounting: mpmath==1.3.0 sympy==1.14.0
#   dp-accounting, torch, --prerelease disallow: mpmath==1.3.0 sympy==1.14.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" uv==0.13.9
# Newer releases of mpmath and sympy do not count.
resolve() {
    printf '%s\n' "$1" "$2" | "$folder/bin/uv" pip compile --quiet --no-annotate --no-header --python-version 3.11 \
        --exclude-newer 2026-11-28 "${@:3}" - | grep -E '^(mpmath|sympy)==' | xargs
}
accounting=dp-accounting==0.6.0 torch=torch==2.15.0
first=$(resolve "$accounting" "$torch")
second=$(resolve "$torch" "$accounting")
third=$(resolve "$accounting" "$torch" --prerelease disallow)
echo "dp-accounting, torch: $first"
echo "torch, dp-accounting: $second"
echo "dp-accounting, torch, --prerelease disallow: $third"
[[ $first == *rc1 && $second != *rc1 && $third == "$second" ]]
