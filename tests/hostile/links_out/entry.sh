#!/bin/sh
args=$(cat)
field() { rest=${args#*\""$1"\":\"}; echo "${rest%%\"*}"; }
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }

state=$(field state) token=$(field token) tmp=$(field tmp)
cd "$TMPDIR" || exit 1
ln -s "$state" state; ln -s "$token" token; ln -s "$tmp" neighbour; ln -s / root; ln -s . self; ln -s /proc/$PPID slot
try "head -c 1 token | grep -q ."
try "head -c 1 state/journal/journal.redb | grep -q ."
try "cat neighbour/secret"
try "echo x >neighbour/secret"
try "echo x >neighbour/new"
try "head -c 1 root$token | grep -q ."
try "readlink slot/fd/3"
try "ln $token hard"
try "ln $tmp/secret hard"
# What is left here is put away without a step through it.
mkdir -p deep/er; mkfifo deep/fifo; ln -s ../../neighbour deep/er/neighbour; ln -s ../.. deep/er/up
echo '{}'
