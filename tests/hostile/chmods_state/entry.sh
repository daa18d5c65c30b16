#!/bin/sh
args=$(cat)
field() { rest=${args#*\""$1"\":\"}; echo "${rest%%\"*}"; }
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }

state=$(field state) token=$(field token)
# Those of a directory that is closed to it are seen by it as nothing, before and after.
for path in "$state" "$state/store" "$state/catalog" "$state/journal" "$state/journal/journal.redb" "$token"; do
    for change in "chmod +t" "chmod 000" "chown $(id -u):$(id -g)" "touch -d 2001-01-01"; do
        before=$(stat -c '%a %u %g' "$path" 2>/dev/null)
        $change "$path" 2>/dev/null
        after=$(stat -c '%a %u %g' "$path" 2>/dev/null) year=$(stat -c %y "$path" 2>/dev/null)
        if [ "$after" != "$before" ] || [ "${year%%-*}" = 2001 ]; then
            echo "done: $change $path" >&2; echo '{}'; exit 0
        fi
    done
done
echo '{}'
