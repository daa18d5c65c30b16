#!/bin/sh
( setsid sh -c 'trap "" TERM HUP INT; setsid sleep 300 & sleep 300; sleep 300' >/dev/null 2>&1 & )
( setsid setsid sh -c 'kill -STOP $$; sleep 300' >/dev/null 2>&1 & )
sleep 300 >/dev/null 2>&1 &
kill -STOP $!
echo '{}'
