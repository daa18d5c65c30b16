#!/bin/sh
# collect.sh BINARY DIRECTORY: what BINARY needs to run in an otherwise empty root, in DIRECTORY: itself, the libraries
# that it names, certificates of the public authorities, and who user 65532 is.
set -eu
binary=$1 out=$2

install -D "$binary" "$out/usr/local/bin/$(basename "$binary")"
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do
    install -D "$(readlink -f "$library")" "$out$library"
done
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$out/etc/ssl/certs/ca-certificates.crt"
printf 'skillyard:x:65532:65532::/var/lib/skillyard:/nonexistent\n' >"$out/etc/passwd"
printf 'skillyard:x:65532:\n' >"$out/etc/group"
printf 'hosts: files dns\n' >"$out/etc/nsswitch.conf"
mkdir -p "$out/tmp" "$out/var/lib/skillyard"
chmod 1777 "$out/tmp"
