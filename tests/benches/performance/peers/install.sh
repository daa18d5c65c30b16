#!/usr/bin/env bash
# Installs what `cargo bench -p skillyard-tests -- --only peers` compares the executor with, below the target
# directory: Python packages, a Go program, a Node package, each where its language is there (Debian: python3-venv,
# golang-go, npm). Says which were left out.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../../../target}
mkdir -p -- "$target/peers"
cd -- "$target/peers"

if command -v python3 >/dev/null; then
    [[ -x python/bin/python3 ]] || python3 -m venv python
    python/bin/python3 -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    printf 'Python: gRPC and MCP\n'
else
    printf 'Python is left out: there is no python3\n'
fi

if command -v go >/dev/null; then
    # The program needs nothing but Go itself.
    GOTOOLCHAIN=local GO111MODULE=off go build -o watchdog "$here/watchdog.go"
    printf 'Go: HTTP watchdog\n'
else
    printf 'Go is left out: there is no go\n'
fi

if command -v npm >/dev/null; then
    npm install --silent --no-audit --no-fund --prefix node @grpc/grpc-js@1.14.7
    printf 'Node: gRPC\n'
else
    printf 'Node is left out: there is no npm\n'
fi
