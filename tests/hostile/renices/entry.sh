#!/bin/sh
args=$(cat)
field() { rest=${args#*\""$1"\":\"}; echo "${rest%%\"*}"; }
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }
executor=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)

for tool in renice prlimit taskset ionice chrt; do command -v $tool >/dev/null || echo "not tried: $tool" >&2; done
for it in $executor $PPID $(field pid) $(field slot); do
    try "renice -n 5 -p $it"
    try "prlimit --pid $it --core=0:0"
    try "prlimit --pid $it --nofile=5"
    try "ionice -c 3 -p $it"
    try "chrt --batch -p 0 $it"
    try "taskset -p 1 $it"
done
try "renice -n 5 -g $PPID"
echo '{}'
