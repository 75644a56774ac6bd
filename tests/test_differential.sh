#!/usr/bin/env bash
# The short form of `./dev differential`: a thousand cases of each part, or as many as some seconds allow, always from
# the same one on. PyPI's packages are
# in build-differential, where ./dev test puts the small ones.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/build-differential/bin/python
[ -x "$python" ] || python=/usr/bin/python3
export QUIPU_BUILD=${QUIPU_BUILD:-$root/build-test}
"$python" -W ignore "$root/tests/scripts/differential.py" --seed 1 --count 1000 --seconds 8 "$@"
