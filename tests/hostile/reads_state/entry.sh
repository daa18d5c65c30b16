#!/bin/sh
args=$(cat)
field() { rest=${args#*\""$1"\":\"}; echo "${rest%%\"*}"; }
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }

state=$(field state) token=$(field token) tmp=$(field tmp)
try "head -c 1 $token | grep -q ."
try "head -c 1 $state/journal/journal.redb | grep -q ."
try "cat $state/catalog/*"
try "cat $state/lock"
try "echo x >>$state/lock"
try "cat $tmp/secret"
echo '{}'
