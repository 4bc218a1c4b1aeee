#!/usr/bin/env bash
# Builds the wheel and tests that wheel, in a fresh environment, away from the checkout: what a user
# installs is what was tested. $PY is the interpreter that has the build tools.
set -euo pipefail

unset PYTHONPATH # or the checkout could be what is tested
checkout=$(pwd)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT

"$PY" -m build --wheel --no-isolation --outdir "$room/dist" . > "$room/build.log" 2>&1 \
    || { cat "$room/build.log"; exit 1; }
wheel=$(ls "$room"/dist/*.whl)
echo "wheel: $(basename "$wheel"), $(stat -c %s "$wheel") bytes"

"$PY" -m venv "$room/venv"
fresh="$room/venv/bin/python"
PYTHON="$fresh" LOCK="$checkout/requirements-dev.lock" bash .ci/install_locked.sh
"$fresh" -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"

# Tests come along, the package does not: an import that works here works from the wheel.
mkdir "$room/away"
cp -r tests deploy docs pyproject.toml "$room/away/"
cd "$room/away"
"$fresh" - <<'CODE'
from pathlib import Path

import cape_stream

home = Path(cape_stream.__file__).parent
assert "site-packages" in home.parts, home
assert any((home / "_data" / "topics").iterdir()), "the wheel has no topics"
assert any((home / "_data" / "schemas").iterdir()), "the wheel has no schemas"
CODE
rungs=()
for rung in tests/unit tests/contract; do
    if [ -d "$rung" ]; then rungs+=("$rung"); fi
done
# shellcheck disable=SC2086  # several words on purpose
"$fresh" -m pytest ${SPREAD:-} -m "not kafka" "${rungs[@]}"
