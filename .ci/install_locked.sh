#!/usr/bin/env bash
# Installs what $LOCK names into the environment of $PYTHON; every file must match its hash. uv does
# in seconds what pip does in a minute. uv is in the lock too, and pip fetches it with the same hash
# check. Where uv cannot reach the index that pip is set up for, pip does it all.
set -euo pipefail

only_uv=$(mktemp)
trap 'rm -f "$only_uv"' EXIT
awk '/^[a-z]/ { wanted = /^uv==/ } wanted' "$LOCK" > "$only_uv"

"$PYTHON" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$only_uv"
if ! "$PYTHON" -m uv pip install --quiet --python "$PYTHON" --require-hashes -r "$LOCK"; then
    echo "install: uv could not, pip takes over (about a minute)"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$LOCK"
fi
