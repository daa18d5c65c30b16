#!/usr/bin/env python3
"""A gRPC server as one writes it first: a thread pool whose threads call subprocess.run. grpc_server.py PROGRAM"""
import subprocess
import sys
from concurrent import futures

import grpc
from google.protobuf.wrappers_pb2 import BytesValue


class Runner(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/peer.Runner/Run":
            return grpc.unary_unary_rpc_method_handler(run, BytesValue.FromString, BytesValue.SerializeToString)


def run(request, _context):
    done = subprocess.run([sys.argv[1]], input=request.value, capture_output=True, env={}, check=True)
    return BytesValue(value=done.stdout)


server = grpc.server(futures.ThreadPoolExecutor(64))
server.add_generic_rpc_handlers((Runner(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
