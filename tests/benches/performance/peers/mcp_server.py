#!/usr/bin/env python3
"""An MCP server with one tool, which runs a program. mcp_server.py stdio|http PROGRAM"""
import asyncio
import json
import logging
import socket
import sys

import uvicorn
from mcp.server import MCPServer

logging.disable(logging.INFO)
server = MCPServer("peer")


@server.tool()
async def run(path: str, days: int) -> str:
    """Runs the program."""
    process = await asyncio.create_subprocess_exec(
        sys.argv[2], env={}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE)
    arguments = json.dumps({"path": path, "days": days}).encode()
    stdout, _ = await process.communicate(arguments)
    if process.returncode != 0:
        raise RuntimeError(f"exit code {process.returncode}")
    return stdout.decode()


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
