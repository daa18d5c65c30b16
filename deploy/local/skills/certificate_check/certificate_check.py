#!/usr/bin/env python3
"""Says of every certificate in the given PEM files when it runs out, soonest first.

Arguments come as one JSON object on stdin; the result goes as one to stdout. Private keys that stand in the same files
are passed over and never shown.
"""

import json
import os
import sys
from datetime import datetime, timedelta, timezone

# The package is read-only for a run: nothing is to be written beside the module.
sys.dont_write_bytecode = True
import x509  # noqa: E402

SUFFIXES = (".pem", ".crt", ".cer", ".cert")
# A bundle of all public authorities has a quarter of a megabyte.
MAX_BYTES = 16 << 20


def main():
    arguments = json.load(sys.stdin)
    now = datetime.now(timezone.utc)
    soon = now + timedelta(days=arguments.get("warn_days", 30))
    found, unreadable, done = [], [], set()
    for path in files(arguments["paths"], unreadable):
        real = os.path.realpath(path)
        if real in done:
            continue
        done.add(real)
        try:
            found.extend(read(path, now, soon))
        except (OSError, x509.Malformed) as error:
            unreadable.append({"file": shown(path), "why": getattr(error, "strerror", None) or str(error)})
        print("::progress " + json.dumps({"progress": len(done), "message": shown(path)}), file=sys.stderr, flush=True)
    found.sort(key=lambda certificate: certificate["not_after"])
    states = [certificate["state"] for certificate in found]
    json.dump(
        {
            "checked_at": iso(now),
            "files": len(done),
            "summary": {state: states.count(state) for state in ("ok", "expiring", "expired", "not_yet_valid")},
            "certificates": found,
            "unreadable": unreadable,
        },
        sys.stdout,
    )


def files(paths, unreadable):
    """The files that are named, and those below named directories that look like certificates."""
    for path in paths:
        if os.path.isdir(path):
            for directory, subdirectories, names in os.walk(path):
                subdirectories.sort()
                yield from (os.path.join(directory, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))
        elif os.path.isfile(path):
            yield path
        else:
            why = "not a regular file" if os.path.lexists(path) else "there is no such file"
            unreadable.append({"file": shown(path), "why": why})


def read(path, now, soon):
    if not os.path.isfile(path):
        raise x509.Malformed("not a regular file")
    with open(path, "rb") as file:
        pem = file.read(MAX_BYTES + 1)
    if len(pem) > MAX_BYTES:
        raise x509.Malformed(f"larger than {MAX_BYTES >> 20} MiB")
    certificates = [x509.parse(der) for der in x509.certificates(pem)]
    if not certificates and b"PRIVATE KEY-----" not in pem:
        raise x509.Malformed("no certificate in PEM form is in it")
    for number, certificate in enumerate(certificates, 1):
        yield {
            "file": shown(path),
            "number": number,
            "state": state(certificate, now, soon),
            "days_left": (certificate["not_after"] - now).days,
            **certificate,
            "not_before": iso(certificate["not_before"]),
            "not_after": iso(certificate["not_after"]),
        }


def state(certificate, now, soon):
    if certificate["not_after"] < now:
        return "expired"
    if certificate["not_before"] > now:
        return "not_yet_valid"
    return "expiring" if certificate["not_after"] < soon else "ok"


def iso(moment):
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def shown(path):
    """The path as text: names that are not UTF-8 could not stand in JSON."""
    return os.fsencode(path).decode("utf-8", "replace")


if __name__ == "__main__":
    main()
