#!/bin/sh
args=$(cat)
field() { rest=${args#*\""$1"\":\"}; echo "${rest%%\"*}"; }
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }
executor=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)

for it in $executor $(field pid) $(field slot); do
    for signal in 0 CONT STOP TERM KILL; do try "kill -$signal $it"; done
done
try "kill -KILL -$(field slot)"
echo '{}'
