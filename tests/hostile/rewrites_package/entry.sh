#!/bin/sh
# The first that is done is told, and the last that is tried.
try() { if sh -c "$1" >/dev/null 2>&1; then echo "done: $1" >&2; echo '{}'; exit 0; fi; }

package=$(dirname "$0")
try "echo x >>$0"
try "echo x >$package/new"
try "mv $0 $0.old"
try "rm -f $0"
try "rm -rf $package"
try "mv $package $package.old"
try "ln $0 $TMPDIR/linked"
chmod 777 "$0" "$package" 2>/dev/null
touch -d 2001-01-01 "$0" 2>/dev/null
[ "$(stat -c %a "$0")" = 555 ] || echo "done: chmod to $(stat -c %a "$0")" >&2
[ "$(stat -c %Y "$0")" -gt 1000000000 ] || echo "done: touch" >&2
echo '{}'
