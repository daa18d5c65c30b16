#!/usr/bin/env python3
"""run_skill.py SKILL [ARGUMENTS [AGENT]]: needs grpcio and grpcio-reflection, and no generated code."""
import itertools, os, socket, sys, time, uuid
import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

ELSEWHERE = {"EXECUTOR_FULL", "DRAINING", "NOT_READY", "PACKAGE_NOT_MIRRORED"}
LOST = {"UNAVAILABLE", "UNKNOWN", "CANCELLED", "INTERNAL", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
GONE_AFTER = 8.0  # seconds without a connection; without a reader a run goes on for 5
KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000)]
TOKEN = os.environ.get("SKILLYARD_TOKEN_FILE")
SHOW = [("authorization", "Bearer " + open(TOKEN).read().strip())] if TOKEN else []

class Executors:
    """A connection to each executor behind some names, such as that of a headless Service."""

    def __init__(self, names):
        self.names, self.turns, self.channels, self.shunned = names.split(","), itertools.count(), {}, {}

    def connect(self, executor, limit=2.0):
        """Its channel, or None where it does not answer: then nothing was sent."""
        channel = self.channels.get(executor) or grpc.insecure_channel(executor, KEEPALIVE)
        self.channels[executor] = channel
        ready = grpc.channel_ready_future(channel)
        try:
            ready.result(timeout=limit)
            return channel
        except grpc.FutureTimeoutError:
            ready.cancel()
            self.channels.pop(executor, channel).close()
            self.shunned[executor] = time.monotonic()

    def next(self):
        """The next executor that answers, those last that did not lately; None where none does."""
        pairs = [name.removeprefix("http://").rpartition(":")[::2] for name in self.names]
        found = [found[4] for host, port in pairs for found in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)]
        every = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port, *_ in dict.fromkeys(found)]
        turn = next(self.turns) % len(every)
        every = sorted(every[turn:] + every[:turn], key=lambda it: time.monotonic() - self.shunned.get(it, -10) < 10)
        return next(filter(self.connect, every), None)

executors = Executors(os.environ.get("SKILLYARD_EXECUTOR", "127.0.0.1:50052"))
anyone = executors.next() or sys.exit(f"no executor answers: {', '.join(executors.names)}")
pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(executors.connect(anyone)))
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
    end, executor, refused, accepted, seen = time.monotonic() + limit, None, 0, None, 0
    while (left := end - time.monotonic()) > 0:
        if executor is None and (executor := executors.next()) is None:
            continue
        answered = time.monotonic()
        while (channel := executors.connect(executor)) is None and time.monotonic() < answered + GONE_AFTER:
            time.sleep(0.1)
        if channel is None and accepted:
            raise ConnectionError(f"{executor} is gone: how run {request.run_id} ended is in the registry's history")
        if channel is None:  # and with it the run, if it was one
            executor = None
            continue
        call = channel.unary_stream("/skillyard.executor.v1.ExecutorService/RunSkill",
                                    Request.SerializeToString, Response.FromString)
        result = []
        try:
            for event in (response.event for response in call(request, timeout=left, metadata=SHOW)):
                kind = event.WhichOneof("event")
                if kind == "accepted":
                    if accepted not in (None, event.time):  # the executor forgot the run: this is another one
                        print("the executor was restarted; the skill runs again from its start", file=sys.stderr)
                        seen = 0
                    accepted, executor = event.time, event.accepted.endpoint.rpartition("/")[2]
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
                executor, accepted, seen, refused = None, None, 0, refused + 1
                wait = wait if refused % len(executors.channels) == 0 else 0
            elif reason or error.code().name not in LOST:
                sys.exit(f"{reason or error.code().name}: {error.details()}")  # no attempt will do better
            time.sleep(max(0, min(wait, end - time.monotonic())))
    raise TimeoutError(f"run {request.run_id} had not ended after {limit} s")

if __name__ == "__main__":
    finished, result = run(*sys.argv[1:])
    print(result or finished)
    sys.exit(0 if result else 1)
