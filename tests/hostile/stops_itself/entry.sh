#!/bin/sh
kill -STOP $$
echo '{}'
