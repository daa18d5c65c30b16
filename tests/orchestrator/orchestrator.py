#!/usr/bin/env python3
"""orchestrator.py SCRIPT [--agent NAME] [--notify COMMAND] [KEY=VALUE …]

A minimal orchestrator: one turn of a conversation, from what a person asks to what the model answers, with the skills of
a registry and an executor (SKILLYARD_REGISTRY, SKILLYARD_EXECUTOR, SKILLYARD_TOKEN_FILE; `deploy/local/up.sh --` sets
them). The model is a script, so that the turn needs no network: replace ScriptedModel by a call of your provider's API.

  SCRIPT     what the model says, reply by reply (turn.json)
  --agent    on whose behalf; operator where it is not given
  --notify   a command that tells a person of an approval that is wanted; it gets the id as its last argument
  KEY=VALUE  takes the place of $KEY in the script

Needs grpcio and grpcio-reflection, and no generated code.
"""
import argparse, json, os, shlex, string, subprocess, sys, uuid
import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

TOKEN = os.environ.get("SKILLYARD_TOKEN_FILE")
IDENTITY = [("authorization", "Bearer " + open(TOKEN).read().strip())] if TOKEN else []


class Services:
    """The gRPC services of one server, by reflection: services.call("CatalogService/GetRoster", agent="reader")."""

    def __init__(self, address, package):
        self.channel, self.package = grpc.insecure_channel(address.removeprefix("http://")), package
        self.pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(self.channel))

    def call(self, path, **fields):
        service, method = path.split("/")
        method = self.pool.FindServiceByName(f"{self.package}.{service}").methods_by_name[method]
        request, response = map(message_factory.GetMessageClass, (method.input_type, method.output_type))
        start = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = start(f"/{self.package}.{path}", request.SerializeToString, response.FromString)
        return call(request(**fields), metadata=IDENTITY, timeout=300)

    def reason(self, error):
        """ErrorInfo.reason, where a service refused, and the message with what is wrong with each field."""
        reason, told = None, [error.details()]
        status, info, bad = (message_factory.GetMessageClass(self.pool.FindMessageTypeByName(f"google.rpc.{name}"))()
                             for name in ("Status", "ErrorInfo", "BadRequest"))
        status.ParseFromString(dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b""))
        for detail in status.details:
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(bad):
                told += [f"{violation.field}: {violation.description}" for violation in bad.field_violations]
        return reason or error.code().name, "\n".join(told)


class ScriptedModel:
    """What a provider's API would be: it gets the prompt, the tools and the conversation, and replies with a tool to call
    or with text. This one replies as the script says, and stops where it was not shown what the script expects."""

    def __init__(self, script):
        self.replies = iter(script)

    def reply(self, system, tools, messages):
        step, shown = next(self.replies), f"{system}\n{json.dumps(tools, ensure_ascii=False)}\n{messages[-1]['content']}"
        for expected in step.get("shown", []):
            if expected not in shown:
                sys.exit(f"the model was to be shown {expected!r}, and got:\n{shown}")
        return step


class Turn:
    """The calls that a model makes in one turn. What it loads is pinned: the turn sees one version of each skill."""

    def __init__(self, registry, executor, agent, notify):
        self.registry, self.executor, self.agent, self.notify = registry, executor, agent, notify
        self.digests = {}

    def prompt(self):
        """The system prompt, and the tools."""
        roster = self.registry.call("CatalogService/GetRoster", agent=self.agent, max_chars=8000)
        tools = self.registry.call("CatalogService/ListTools", agent=self.agent)
        return f"You keep hosts in order.\n\n{roster.text}", json.loads(tools.tools_json)

    def use(self, tool, arguments):
        """The result of a tool, as text for the model: a refusal too, since the model may mend its call."""
        try:
            if tool == "skill":
                return self.load(**arguments)
            if tool == "skill_resource":
                return self.read(**arguments)
            return self.run(tool, json.dumps(arguments))
        except grpc.RpcError as error:
            reason, told = self.registry.reason(error)
            return f"Refused ({reason}): {told}"

    def load(self, name):
        loaded = self.registry.call("CatalogService/LoadSkill", name=name, agent=self.agent)
        self.digests[name] = loaded.digest
        files = "".join(f"\n- {file.relpath} ({file.size} bytes)" for file in loaded.resources)
        return loaded.text + (f"\nFiles of this skill, for skill_resource:{files}" if files else "")

    def read(self, name, relpath):
        file = self.registry.call("CatalogService/ReadSkillResource", name=name, relpath=relpath, agent=self.agent,
                                  expected_digest=self.digests.get(name, ""))
        if file.WhichOneof("data") != "content":
            return f"{relpath} is not text ({file.size} bytes)"
        return file.content + ("\n(the rest is left out)" if file.truncated else "")

    def run(self, skill, arguments):
        """Runs it, with an approval where it needs one. A repeated call with the same run_id would be the same run."""
        run = {"skill": skill, "args_json": arguments, "agent": self.agent, "run_id": str(uuid.uuid4())}
        try:
            return self.follow(self.executor.call("ExecutorService/RunSkill", **run))
        except grpc.RpcError as error:
            if self.executor.reason(error)[0] != "APPROVAL_REQUIRED":
                raise
        approval, refused = self.approval(skill, arguments)
        if refused:
            return f"Not run: {refused}"
        return self.follow(self.executor.call("ExecutorService/RunSkill", approval_id=approval, **run))

    def approval(self, skill, arguments):
        """The id of an approval that people have signed, or why there is none."""
        asked = self.registry.call("ApprovalService/RequestApproval", agent=self.agent, skill=skill, args_json=arguments,
                                   reason="the model asks for it", requested_for="the person in the conversation")
        approval = asked.approval
        print(f"[approval {approval.id} is wanted: {skill} {arguments}]", flush=True)
        if self.notify:
            subprocess.run([*self.notify, approval.id], check=True, stdout=subprocess.DEVNULL)
        states = approval.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
        for change in self.registry.call("ApprovalService/WatchApprovals", id=approval.id):
            state = states[change.approval.state].name.removeprefix("APPROVAL_STATE_")
            if state == "APPROVED":
                print("[signed by " + ", ".join(word.signer for word in change.approval.signatures) + "]", flush=True)
                return approval.id, None
            if state != "PENDING":
                return None, f"the approval is {state}"
        return None, "the registry stopped"

    @staticmethod
    def follow(events):
        """The result of a run, or what a model should know of its end. Log lines are for people."""
        result = ""
        for event in (response.event for response in events):
            kind = event.WhichOneof("event")
            if kind == "log":
                print(event.log.text, end="", file=sys.stderr, flush=True)
            elif kind == "result":
                result += event.result.json
            elif kind == "finished":
                return result or f"Failed: {event.finished.message}"
        return "The stream ended before the run did."


def main():
    options = argparse.ArgumentParser()
    options.add_argument("script")
    options.add_argument("--agent", default="operator")
    options.add_argument("--notify", type=shlex.split)
    options.add_argument("values", nargs="*", metavar="KEY=VALUE")
    options = options.parse_args()
    values = dict(value.split("=", 1) for value in options.values)
    with open(options.script, encoding="utf-8") as file:
        # The values stand within texts of the JSON.
        quoted = {key: json.dumps(value)[1:-1] for key, value in values.items()}
        script = json.loads(string.Template(file.read()).substitute(quoted))
    registry = Services(os.environ.get("SKILLYARD_REGISTRY", "127.0.0.1:50051"), "skillyard.registry.v1")
    executor = Services(os.environ.get("SKILLYARD_EXECUTOR", "127.0.0.1:50052"), "skillyard.executor.v1")

    turn, model = Turn(registry, executor, options.agent, options.notify), ScriptedModel(script["model"])
    (system, tools), messages = turn.prompt(), [{"role": "user", "content": script["user"]}]
    print(f"user: {script['user']}")
    while "tool" in (reply := model.reply(system, tools, messages)):
        print(f"model calls {reply['tool']} {json.dumps(reply['arguments'])}", flush=True)
        result = turn.use(reply["tool"], reply["arguments"])
        print("    " + result.replace("\n", "\n    "), flush=True)
        messages += [{"role": "assistant", "content": reply}, {"role": "tool", "content": result}]
    print(f"model: {reply['text']}")


if __name__ == "__main__":
    main()
