#!/usr/bin/env bash
# The short form of `./dev differential`: some seconds of each part, always the same cases. PyPI's packages are
# in build-differential, where ./dev test puts the small ones.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/build-differential/bin/python
[ -x "$python" ] || python=/usr/bin/python3
export QUIPU_BUILD=${QUIPU_BUILD:-$root/build-test}
"$python" -W ignore "$root/tests/scripts/differential.py" --seed 1 --seconds 8 "$@"
