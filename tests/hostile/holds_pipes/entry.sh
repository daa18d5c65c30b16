#!/bin/sh
( setsid sleep 300 & )
echo '{}'
