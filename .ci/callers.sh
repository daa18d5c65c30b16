#!/usr/bin/env bash
# Calls a running pair as the README shows it: with grpcurl, from Python and from Rust, and looks at what comes back.
# `deploy/local/up.sh -- bash .ci/callers.sh` gives it the pair.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

registry=${SKILLYARD_REGISTRY#http://}
executor=${SKILLYARD_EXECUTOR#http://}
access=$(dirname -- "$SKILLYARD_TOKEN_FILE")
sample='{"path": "sample.log"}'

# expect WHAT PATTERN COMMAND…: the output (stdout and stderr) has to match the extended regular expression.
expect() {
    local output
    output=$("${@:3}" 2>&1) || true
    if ! grep -Eqz -- "$2" <<<"$output"; then
        printf 'callers: %s: expected /%s/, got:\n%s\n' "$1" "$2" "$output" >&2
        exit 1
    fi
    printf 'ok: %s\n' "$1"
}

# as NAME COMMAND…: grpcurl with somebody's token.
as() { grpcurl -H "authorization: Bearer $(cat -- "$access/$1.token")" "${@:2}"; }

expect "grpcurl lists services" 'skillyard.registry.v1.CatalogService' grpcurl -plaintext "$registry" list
expect "grpcurl lists skills" '"name": "disk_cleaner".*"name": "log_summary"' \
    as orchestrator -plaintext "$registry" skillyard.registry.v1.CatalogService/ListSkills
expect "an agent sees its list" '"totalSize": 3' \
    as orchestrator -plaintext -d '{"agent": "reader"}' "$registry" skillyard.registry.v1.CatalogService/ListSkills
expect "nothing is wrong with the examples" '"roots": \[[^]]*\][[:space:]]*\}' \
    as operator -plaintext -d '{"problems_only": true}' "$registry" skillyard.registry.v1.CatalogService/GetLoadReport
expect "grpcurl runs a skill" '"progress":.*"outcome": "OUTCOME_SUCCEEDED"' \
    as orchestrator -plaintext -d "{\"skill\": \"log_summary\", \"args\": $sample}" "$executor" skillyard.executor.v1.ExecutorService/RunSkill
expect "a mutating skill is refused" 'CLASS_NOT_PERMITTED' \
    as orchestrator -plaintext -d '{"skill": "disk_cleaner", "args": {"directory": "/srv/x", "older_than_days": 9}}' \
    "$executor" skillyard.executor.v1.ExecutorService/RunSkill
expect "arguments are checked" 'INVALID_ARGUMENTS' \
    as orchestrator -plaintext -d '{"skill": "log_summary", "args": {"top": 0}}' "$executor" skillyard.executor.v1.ExecutorService/RunSkill
expect "a playbook is not run" 'NOT_RUNNABLE' \
    as orchestrator -plaintext -d '{"skill": "disk-full"}' "$executor" skillyard.executor.v1.ExecutorService/RunSkill
expect "Python runs a skill" '::progress .*"lines":630' python3 docs/python/run_skill.py log_summary "$sample" reader
expect "Python gets typed errors" 'unknown skill' python3 docs/python/run_skill.py nobody_has_this
expect "certificates are read" '"state": "ok"' \
    python3 docs/python/run_skill.py certificate_check '{"paths": ["samples"]}'
expect "a terminal runs a skill" '"lines":630' executor-svc run log_summary --agent reader --args "$sample"
# Built by the tests; asking cargo for this package alone would build its dependencies once more, with fewer features.
expect "Rust runs a skill" '"lines":630' "${CARGO_TARGET_DIR:-target}/debug/examples/run_skill" log_summary "$sample"
expect "Rust spreads runs, and leaves out who is not there" '^12 [^ ]+ OUTCOME_SUCCEEDED' \
    env SKILLYARD_EXECUTOR="http://127.0.0.1:1,$SKILLYARD_EXECUTOR" "${CARGO_TARGET_DIR:-target}/debug/examples/spread_runs" log_summary "$sample" 12
expect "an operator reloads" 'catalogVersion' as operator -plaintext "$registry" skillyard.registry.v1.CatalogService/Reload
expect "an orchestrator does not" 'CALLER_NOT_ALLOWED' \
    as orchestrator -plaintext "$registry" skillyard.registry.v1.CatalogService/Reload
expect "without a token nothing is told" 'CALLER_UNKNOWN' \
    grpcurl -plaintext "$registry" skillyard.registry.v1.CatalogService/ListSkills
expect "without a token nothing is run" 'CALLER_UNKNOWN' \
    env -u SKILLYARD_TOKEN_FILE executor-svc run log_summary --args "$sample"

# The disk cleaner as its author meant it: asked for, signed by somebody else, run once.
junk=$(mktemp -d)
trap 'rm -rf -- "$junk"' EXIT
touch -d '30 days ago' "$junk/old" && touch "$junk/new"
arguments="{\"directory\": \"$junk\", \"older_than_days\": 7, \"dry_run\": false}"
asked=$(as orchestrator -plaintext -d "{\"agent\": \"operator\", \"skill\": \"disk_cleaner\", \"args_json\": $(printf %s "$arguments" | python3 -c "import json, sys; print(json.dumps(sys.stdin.read()))"), \"reason\": \"full\"}" \
    "$registry" skillyard.registry.v1.ApprovalService/RequestApproval 2>&1) || true
approval=$(sed -n 's/^ *"id": "\(.*\)",$/\1/p' <<<"$asked")
clean=(executor-svc run disk_cleaner --agent operator --args "$arguments" --approval-id "$approval")
expect "an approval that nobody signed is refused" 'APPROVAL_PENDING' "${clean[@]}"
expect "nobody signs their own request" 'CALLER_NOT_ALLOWED' registry-svc approvals approve "$approval"
expect "an approver sees the arguments and signs" 'APPROVED' \
    registry-svc approvals approve "$approval" --token-file "$access/alice.token" --comment "looked at it"
expect "an approved run is made" '"deleted"' "${clean[@]}"
[[ ! -e $junk/old && -e $junk/new ]] || { echo "callers: the approved run did not do what it was for" >&2; exit 1; }
expect "and made once" 'APPROVAL_INVALID' "${clean[@]}"

# One turn of a model: roster, playbook, resource, a safe run, a call that it mends, and two that somebody signs.
exports=$(mktemp -d)
trap 'rm -rf -- "$junk" "$exports"' EXIT
touch -d '60 days ago' "$exports/orders-2019.csv" && touch "$exports/orders-2020.csv"
expect "a scripted model goes through a turn" 'signed by alice.*signed by alice.*model: One export is deleted' \
    python3 tests/orchestrator/orchestrator.py tests/orchestrator/turn.json "directory=$exports" \
    --notify "registry-svc approvals approve --token-file $access/alice.token"
[[ ! -e $exports/orders-2019.csv && -e $exports/orders-2020.csv ]] || { echo "callers: the turn did not do what it said" >&2; exit 1; }
