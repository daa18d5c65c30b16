#!/usr/bin/env python3
"""run_skill.py SKILL [ARGUMENTS [AGENT]]: needs grpcio and grpcio-reflection, and no generated code."""
import os, sys, time, uuid
import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

ELSEWHERE = {"EXECUTOR_FULL", "DRAINING", "NOT_READY", "PACKAGE_NOT_MIRRORED"}
LOST = {"UNAVAILABLE", "UNKNOWN", "CANCELLED", "INTERNAL", "RESOURCE_EXHAUSTED"}
EXECUTORS = os.environ.get("SKILLYARD_EXECUTOR", "127.0.0.1:50052").split(",")
TOKEN = os.environ.get("SKILLYARD_TOKEN_FILE")
SHOW = [("authorization", "Bearer " + open(TOKEN).read().strip())] if TOKEN else []
channels = [grpc.insecure_channel(executor.removeprefix("http://")) for executor in EXECUTORS]
pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channels[0]))
Request, Response, Status, ErrorInfo, RetryInfo = (
    message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in (
        "skillyard.executor.v1.RunSkillRequest", "skillyard.executor.v1.RunSkillResponse",
        "google.rpc.Status", "google.rpc.ErrorInfo", "google.rpc.RetryInfo"))

def refusal(error):
    """The reason, where an executor refused, and how many seconds to wait; no reason where the connection failed."""
    reason, wait = None, 0.5
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in Status.FromString(details).details:
        info, retry = ErrorInfo(), RetryInfo()
        if detail.Unpack(info) and info.domain == "skillyard":
            reason = info.reason
        elif detail.Unpack(retry):
            wait = retry.retry_delay.ToTimedelta().total_seconds()
    return reason, wait

def run(skill, arguments="{}", agent="", limit=120):
    """The `finished` of one run, and its result. All attempts carry one run_id, so that they are one run."""
    request = Request(skill=skill, args_json=arguments, agent=agent, run_id=str(uuid.uuid4()))
    end, turn, seen = time.monotonic() + limit, 0, 0
    while (left := end - time.monotonic()) > 0:
        result = []
        call = channels[turn].unary_stream("/skillyard.executor.v1.ExecutorService/RunSkill",
                                           Request.SerializeToString, Response.FromString)
        try:
            for event in (response.event for response in call(request, timeout=left, metadata=SHOW)):
                kind = event.WhichOneof("event")
                if kind == "log" and event.seq > seen:  # an attempt begins with what was shown before
                    print(event.log.text, end="", file=sys.stderr, flush=True)
                elif kind == "result":
                    result.append(event.result.json)
                elif kind == "finished":
                    return event.finished, "".join(result)
                seen = max(seen, event.seq)
        except grpc.RpcError as error:
            reason, wait = refusal(error)
            if reason in ELSEWHERE:  # nothing was started: the next executor, and a pause after the last
                turn, seen = (turn + 1) % len(channels), 0
                wait = wait if turn == 0 else 0
            elif reason or error.code().name not in LOST:
                raise  # no attempt will do better
            time.sleep(min(wait, left))  # without a reason the run may be going on: the same executor, within 5 s
    raise TimeoutError(f"run {request.run_id} had not ended after {limit} s")

if __name__ == "__main__":
    finished, result = run(*sys.argv[1:])
    print(result or finished)
    sys.exit(0 if result else 1)
