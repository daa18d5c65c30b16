#!/bin/sh
# Summarises a log. Needs a POSIX sh and awk, and neither environment nor network.
# Bytes, not characters: the same counts whatever the locale, and no log is refused for its encoding.
LC_ALL=C exec awk -f "${0%/*}/log_summary.awk"
