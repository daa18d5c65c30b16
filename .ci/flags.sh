#!/usr/bin/env bash
# Every flag and variable in the README's tables is one that the program has, and the other way round.
# `deploy/local/up.sh -- bash .ci/flags.sh` puts the programs on the PATH.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

for program in registry-svc executor-svc; do
    help=$("$program" --help)
    # A row of the table is: | `--flag` | `VARIABLE` | default | …
    written=$(sed -n "/^### $program\$/,/^##* /s/^| \`\(--[a-z-]*\)\` | \`\([A-Z_]*\)\` .*/\1 \2/p" README.md | sort)
    # clap names the variable on the flag's line or on the next one that has [env: …].
    real=$(awk '
        match($0, /^ +(-[a-zA-Z], )?--[a-z-]+/) { flag = substr($0, RSTART, RLENGTH); sub(/.*--/, "--", flag) }
        match($0, /\[env: [A-Z_]+/) { print flag, substr($0, RSTART + 6, RLENGTH - 6) }
    ' <<<"$help" | sort)
    if [[ -z $real || $written != "$real" ]]; then
        printf 'the flags of %s in README.md (<) are not those of --help (>):\n' "$program" >&2
        diff <(printf '%s\n' "$written") <(printf '%s\n' "$real") >&2 || true
        exit 1
    fi
    printf 'ok: %s\n' "$program"
done
