// A gRPC server of Node: each call spawns a program. grpc_server.js PROGRAM
"use strict";
const { spawn } = require("node:child_process");
const grpc = require("@grpc/grpc-js");

// google.protobuf.BytesValue by hand: field 1, its length, its bytes; both are short here.
const decode = (bytes) => bytes.subarray(2);
const encode = (bytes) => Buffer.concat([Buffer.from([0x0a, bytes.length]), bytes]);
const run = {
  path: "/peer.Runner/Run", requestStream: false, responseStream: false,
  requestSerialize: encode, requestDeserialize: decode, responseSerialize: encode, responseDeserialize: decode,
};

const server = new grpc.Server();
server.addService({ run }, {
  run(call, answer) {
    const child = spawn(process.argv[2], [], { env: {} });
    const stdout = [];
    child.stdout.on("data", (piece) => stdout.push(piece));
    child.on("error", answer);
    child.on("close", (code) => (code === 0 ? answer(null, Buffer.concat(stdout)) : answer(new Error(`exit code ${code}`))));
    child.stdin.end(call.request);
  },
});
server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(port);
});
