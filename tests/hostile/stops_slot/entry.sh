#!/bin/sh
( setsid sleep 300 & )
kill -STOP $PPID
exec sleep 300
