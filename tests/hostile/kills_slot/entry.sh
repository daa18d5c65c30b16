#!/bin/sh
( setsid sleep 300 & )
kill -KILL $PPID
exec sleep 300
