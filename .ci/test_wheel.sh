#!/usr/bin/env bash
# Builds the wheel and tests that wheel, in a fresh environment, away from the checkout: what a user
# installs is what was tested. $PY is the interpreter that has the build tools.
set -euo pipefail

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
cp -r tests deploy pyproject.toml "$room/away/"
cd "$room/away"
"$fresh" -c 'import pathlib, cape_stream; p = pathlib.Path(cape_stream.__file__); \
assert "site-packages" in p.parts, p; assert any((p.parent / "_data" / "topics").iterdir()), p'
"$fresh" -m pytest -m "not kafka" $(for rung in unit contract; do ls -d "tests/$rung" 2>/dev/null; done)
