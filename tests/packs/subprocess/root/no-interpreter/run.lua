#!/opt/nowhere/bin/lua
print("{}")
