#!/bin/sh
i=0
while [ $i -lt 12 ] && dd if=/dev/zero of="$TMPDIR/$i" bs=1M count=8 2>/dev/null; do i=$((i+1)); done
sleep 1
echo '{}'
