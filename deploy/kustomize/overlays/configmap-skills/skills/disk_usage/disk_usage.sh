#!/bin/sh
# Ignores its arguments; the answer is one JSON object.
cat >/dev/null
df -kP . | awk 'NR == 2 { printf "{\"size_kib\": %s, \"used_kib\": %s, \"free_kib\": %s}\n", $2, $3, $4 }'
