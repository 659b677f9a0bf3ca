#!/usr/bin/env bash
# Becomes every class of ranks of probe.json on this machine's first GPU, one after another, and writes
# probe-rank<r>.jsonl for each. Exits 3 where there is no GPU.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" "$here/shardwright_probe.py" "$@"
