#!python3
