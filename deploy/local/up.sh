#!/usr/bin/env bash
# Builds both services, starts them on loopback over the skills, playbooks and agents beside this file, and runs a skill.
#
#   up.sh                  runs log_summary, then stays up until Ctrl-C
#   up.sh --once           ends after the run, with its exit code
#   up.sh -- COMMAND …     runs COMMAND instead, then ends with its exit code; it finds the services in
#                          SKILLYARD_REGISTRY and SKILLYARD_EXECUTOR (http://HOST:PORT), the orchestrator's token in the
#                          file SKILLYARD_TOKEN_FILE, everybody's as NAME.token beside it, and both programs on its PATH
#
# The result of the run is all that goes to stdout. Variables:
#   SKILLYARD_PROFILE           release (default) or dev
#   SKILLYARD_STATE             where logs, packages and approvals are kept; without it a temporary directory, removed at the end
#   SKILLYARD_REGISTRY_LISTEN   127.0.0.1:50051, or a free port where that is taken
#   SKILLYARD_EXECUTOR_LISTEN   127.0.0.1:50052, likewise
# Every other variable of the two services is passed on. Skills and playbooks of your own (ONGRID_SKILLS_EXTERNAL_DIRS,
# OMICOS_SKILL_ROOTS) are added to those here; agents of your own (SKILLYARD_AGENTS_DIR) take their place.
set -euo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../.." && pwd)
# How long a service may take to be ready, in seconds.
patience=60

declare -A pids=()

main() {
    local mode=stay
    case ${1-} in
        "") ;;
        --once) mode=once ;;
        --) mode=custom; shift ;;
        -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p;}' "${BASH_SOURCE[0]}"; return 0 ;;
        *) die 64 "unknown argument $1: try --help" ;;
    esac
    [[ $mode != custom || $# -gt 0 ]] || die 64 "-- wants a command after it"

    case $here in *[:,]*) die 64 "the path $here holds ':' or ',', which separate directories of skills: move the checkout" ;; esac
    prepare_state
    build
    make_tokens
    start_registry
    start_executor

    local code=0
    case $mode in
        custom) PATH=$(dirname -- "$executor_svc"):$PATH "$@" || code=$?; return "$code" ;;
        once) run_sample || code=$?; return "$code" ;;
        stay) run_sample || code=$?; say "run ended with exit code $code"; stay_up ;;
    esac
}

say() { printf '%s\n' "$*" >&2; }
step() { say "==> $*"; }
die() { say "up.sh: ${*:2}"; exit "$1"; }

prepare_state() {
    if [[ -n ${SKILLYARD_STATE-} ]]; then
        mkdir -p -- "$SKILLYARD_STATE"
        state=$(cd -- "$SKILLYARD_STATE" && pwd)
        temporary=
    else
        state=$(mktemp -d "${TMPDIR:-/tmp}/skillyard.XXXXXXXX")
        temporary=$state
    fi
    chmod 700 -- "$state"
    # What is waited for is logged at info.
    case ${SKILLYARD_LOG-} in off | error | warn) export SKILLYARD_LOG=info ;; esac
    trap clean_up EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Ends both, waits for them, and removes what is temporary. A second Ctrl-C does not wait.
clean_up() {
    local code=$? name
    trap 'kill -KILL "${pids[@]}" 2>/dev/null' INT TERM HUP
    # The executor first: the registry has nothing to finish.
    for name in executor registry; do
        [[ -n ${pids[$name]-} ]] || continue
        kill -TERM "${pids[$name]}" 2>/dev/null || true
        # wait returns early when a signal comes; it is over when the process cannot be signalled any more.
        while kill -0 "${pids[$name]}" 2>/dev/null; do wait "${pids[$name]}" 2>/dev/null || true; done
    done
    if [[ -n $temporary ]]; then
        # Packages are kept read-only.
        chmod -R u+w -- "$temporary" 2>/dev/null || true
        rm -rf -- "$temporary"
    fi
    trap - EXIT
    exit "$code"
}

build() {
    local profile=${SKILLYARD_PROFILE:-release} messages
    case $profile in dev | release) ;; *) die 64 "SKILLYARD_PROFILE is $profile: write dev or release" ;; esac
    command -v cargo >/dev/null || die 69 "cargo is missing: install Rust with rustup (https://rustup.rs), then try again"
    command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null \
        || die 69 "a C compiler is missing: install gcc or clang (Debian: apt-get install gcc libc6-dev), then try again"
    step "building ($profile)"
    # From the checkout, so that its toolchain file is found; the messages say where the programs are, whatever the
    # target directory is.
    messages=$(cd -- "$root" && cargo build --locked --profile "$profile" -p registry-svc -p executor-svc --bins \
        --message-format json-render-diagnostics) || die 70 "the build failed; what cargo says stands above"
    registry_svc=$(executable registry-svc <<<"$messages")
    executor_svc=$(executable executor-svc <<<"$messages")
    [[ -x $registry_svc && -x $executor_svc ]] || die 70 "cargo built, but did not say where the programs are"
}

executable() { sed -n "s|.*\"executable\":\"\([^\"]*/$1\)\".*|\1|p" | tail -n 1; }

# A token for everybody in callers.yaml, new at each start: NAME.token is the secret, tokens has the hashes.
make_tokens() {
    local name
    access=$state/access
    mkdir -p -- "$access"
    rm -f -- "$access"/*
    for name in orchestrator alice bob executor operator; do
        (umask 077 && "$registry_svc" token new "$name" --file "$access/tokens" >"$access/$name.token")
    done
    export SKILLYARD_REGISTRY_TOKENS_FILE=${SKILLYARD_REGISTRY_TOKENS_FILE:-$access/tokens}
    export SKILLYARD_REGISTRY_CALLERS_FILE=${SKILLYARD_REGISTRY_CALLERS_FILE:-$here/callers.yaml}
    export SKILLYARD_EXECUTOR_TOKENS_FILE=${SKILLYARD_EXECUTOR_TOKENS_FILE:-$access/tokens}
    export SKILLYARD_EXECUTOR_CALLERS_FILE=${SKILLYARD_EXECUTOR_CALLERS_FILE:-$here/callers.yaml}
    export SKILLYARD_EXECUTOR_REGISTRY_TOKEN_FILE=${SKILLYARD_EXECUTOR_REGISTRY_TOKEN_FILE:-$access/executor.token}
    export SKILLYARD_TOKEN_FILE=${SKILLYARD_TOKEN_FILE:-$access/orchestrator.token}
}

start_registry() {
    local listen=${SKILLYARD_REGISTRY_LISTEN:-$(free_address 50051)}
    export ONGRID_SKILLS_EXTERNAL_DIRS="$here/skills${ONGRID_SKILLS_EXTERNAL_DIRS:+:$ONGRID_SKILLS_EXTERNAL_DIRS}"
    export OMICOS_SKILL_ROOTS="$here/playbooks${OMICOS_SKILL_ROOTS:+:$OMICOS_SKILL_ROOTS}"
    export SKILLYARD_AGENTS_DIR=${SKILLYARD_AGENTS_DIR:-$here/agents}
    export SKILLYARD_REGISTRY_STATE=${SKILLYARD_REGISTRY_STATE:-$state/registry}
    SKILLYARD_REGISTRY_LISTEN=$listen start registry "$registry_svc" listening
    export SKILLYARD_REGISTRY=http://$address
    step "the registry listens on $address"
}

start_executor() {
    local listen=${SKILLYARD_EXECUTOR_LISTEN:-$(free_address 50052)}
    export SKILLYARD_EXECUTOR_STATE=${SKILLYARD_EXECUTOR_STATE:-$state/executor}
    mkdir -p -- "$SKILLYARD_EXECUTOR_STATE"
    # Ready is when the registry's skills are there to be run.
    SKILLYARD_EXECUTOR_LISTEN=$listen start executor "$executor_svc" listening "all packages mirrored"
    export SKILLYARD_EXECUTOR=http://$address
    step "the executor listens on $address, and has the registry's skills"
}

# The usual port, or any free one where something listens there already.
free_address() {
    if (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then
        say "port $1 is taken: a free one is used"
        printf '127.0.0.1:0'
    else
        printf '127.0.0.1:%s' "$1"
    fi
}

# start NAME PROGRAM LOG-LINE…: starts a service and waits until it has logged every one of the lines. Sets `address`.
start() {
    local name=$1 program=$2 pipe=$state/$1.pipe log=$state/$1.log line found=0 code
    shift 2
    address=
    rm -f -- "$pipe"
    mkfifo -m 600 -- "$pipe"
    : >"$log"
    # Its log is read line by line until it is ready, and copied from then on. When it dies, the pipe ends.
    "$program" </dev/null >/dev/null 2>"$pipe" &
    pids[$name]=$!
    exec 9<"$pipe"
    rm -f -- "$pipe"
    local deadline=$((SECONDS + patience))
    while ((found < $#)); do
        code=0
        IFS= read -r -t $((deadline > SECONDS ? deadline - SECONDS : 1)) -u 9 line || code=$?
        # Above 128 the time is over; else it was the end of the log, and so of the service.
        if ((code > 128)); then not_ready "$name" "$log" "$@"; fi
        if ((code > 0)); then ended_early "$name" "$log"; fi
        printf '%s\n' "$line" >>"$log"
        [[ $line == *listening*address* ]] && address=$(address_in "$line")
        [[ $line == *"${*:found+1:1}"* ]] && found=$((found + 1))
    done
    [[ -n $address ]] || die 70 "the $name did not say where it listens; its log: $log"
    cat <&9 >>"$log" &
    exec 9<&-
}

# The address in a log line, be it text (address=…) or JSON ("address":"…").
address_in() { sed -n 's/.*address"\{0,1\}[=:]"\{0,1\}\([][0-9a-fA-F.:]*:[0-9][0-9]*\).*/\1/p' <<<"$1"; }

ended_early() {
    local name=$1 log=$2 code=0
    wait "${pids[$name]}" || code=$?
    unset "pids[$name]"
    show_log "$log"
    if grep -qi 'in use' -- "$log"; then
        say "something else listens there: end it, or choose another address with SKILLYARD_${name^^}_LISTEN or SKILLYARD_${name^^}_ADMIN_LISTEN"
    fi
    die 70 "the $name ended with exit code $code before it was ready; what it logged stands above and in $log"
}

not_ready() {
    show_log "$2"
    die 70 "the $1 was not ready after $patience s (waited for: ${*:3}); what it logged stands above and in $2"
}

show_log() {
    # A log that is spoken of is kept.
    temporary=
    tail -n 20 -- "$1" >&2
}

run_sample() {
    local result code=0
    step "running log_summary"
    result=$("$executor_svc" run log_summary --args '{"path": "sample.log"}' \
        --executor "$SKILLYARD_EXECUTOR") || code=$?
    if [[ -n $result ]]; then printf '%s\n' "$result"; fi
    return "$code"
}

# What another terminal needs: both programs on the PATH, where the services are, and everybody's token.
# shellcheck disable=SC2016 # Expanded there.
write_env() {
    {
        printf 'export PATH=%q:$PATH SKILLYARD_TOKEN_FILE=%q\n' "$(dirname -- "$executor_svc")" "$SKILLYARD_TOKEN_FILE"
        printf 'export SKILLYARD_REGISTRY=%q SKILLYARD_EXECUTOR=%q\n' "$SKILLYARD_REGISTRY" "$SKILLYARD_EXECUTOR"
        printf '# as NAME COMMAND…: with the token of somebody else.\n'
        printf 'as() { SKILLYARD_TOKEN_FILE=%q/"$1".token sh -c '\''shift; exec "$@"'\'' sh "$@"; }\n' "$access"
        printf '# token NAME: for grpcurl -H.\n'
        printf 'token() { printf "authorization: Bearer %%s" "$(cat %q/"$1".token)"; }\n' "$access"
    } >"$state/env"
}

stay_up() {
    local registry=${SKILLYARD_REGISTRY#http://} executor=${SKILLYARD_EXECUTOR#http://} name code=0
    write_env
    say ""
    say "Up. Logs: $state/registry.log and $state/executor.log. Try, in another terminal:"
    say "  . $state/env    # both programs, where they are, and the orchestrator's token"
    say "  grpcurl -plaintext -H \"\$(token orchestrator)\" $registry skillyard.registry.v1.CatalogService/ListSkills"
    say "  grpcurl -plaintext -H \"\$(token orchestrator)\" -d '{\"skill\": \"certificate_check\", \"args\": {\"paths\": [\"samples\"]}}' $executor skillyard.executor.v1.ExecutorService/RunSkill"
    say "  grpcurl -plaintext -H \"\$(token operator)\" $registry skillyard.registry.v1.CatalogService/Reload"
    say "There are tokens for orchestrator, alice and bob (approvers), executor and operator: \`as alice COMMAND\`;"
    say "deploy/local/callers.yaml says what each may do, the README how an approval is asked for, signed and used."
    say "Ctrl-C ends both."
    wait -n "${pids[@]}" || code=$?
    for name in "${!pids[@]}"; do
        kill -0 "${pids[$name]}" 2>/dev/null && continue
        show_log "$state/$name.log"
        die 70 "the $name ended by itself with exit code $code; what it logged last stands above and in $state/$name.log"
    done
}

main "$@"
