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

def connect(executor, limit=2.0):
    """A channel, or None where nobody answers: then nothing was sent."""
    channel = grpc.insecure_channel(executor.removeprefix("http://"))
    try:
        grpc.channel_ready_future(channel).result(timeout=limit)
        return channel
    except grpc.FutureTimeoutError:
        channel.close()

anyone = next(filter(None, map(connect, EXECUTORS)), None) or sys.exit(f"no executor answers: {', '.join(EXECUTORS)}")
pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(anyone))
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
    end, turn, sent, accepted, seen = time.monotonic() + limit, 0, False, None, 0
    while (left := end - time.monotonic()) > 0:
        if (channel := connect(EXECUTORS[turn], min(2.0, left))) is None:
            turn = turn if sent else (turn + 1) % len(EXECUTORS)  # once sent, only this executor knows
            continue
        call = channel.unary_stream("/skillyard.executor.v1.ExecutorService/RunSkill",
                                    Request.SerializeToString, Response.FromString)
        sent, result = True, []
        try:
            for event in (response.event for response in call(request, timeout=left, metadata=SHOW)):
                kind = event.WhichOneof("event")
                if kind == "accepted":
                    if accepted not in (None, event.time):  # the executor forgot the run: this is another one
                        print("the executor was restarted; the skill runs again from its start", file=sys.stderr)
                        seen = 0
                    accepted = event.time
                elif kind == "log" and event.seq > seen:  # an attempt begins with what was shown before
                    print(event.log.text, end="", file=sys.stderr, flush=True)
                elif kind == "result":
                    result.append(event.result.json)
                elif kind == "finished":
                    return event.finished, "".join(result)
                seen = max(seen, event.seq)
        except grpc.RpcError as error:
            reason, wait = refusal(error)
            if reason in ELSEWHERE:  # nothing was started: the next executor, and a pause after the last
                turn, sent, accepted, seen = (turn + 1) % len(EXECUTORS), False, None, 0
                wait = wait if turn == 0 else 0
            elif reason or error.code().name not in LOST | {"DEADLINE_EXCEEDED"}:
                sys.exit(f"{reason or error.code().name}: {error.details()}")  # no attempt will do better
            time.sleep(max(0, min(wait, end - time.monotonic())))  # the run goes on for 5 s without a reader
    raise TimeoutError(f"run {request.run_id} had not ended after {limit} s")

if __name__ == "__main__":
    finished, result = run(*sys.argv[1:])
    print(result or finished)
    sys.exit(0 if result else 1)
