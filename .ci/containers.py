#!/usr/bin/env python3
"""Runs the services in real containers, as deploy/ describes them, and does to them what a cluster does.

    deploy/local/up.sh -- python3 .ci/containers.py [--all]     (root; podman, buildah, debootstrap, kubectl, grpcurl)

Images from deploy/image, the pair from deploy/kustomize/overlays/configmap-skills by `podman kube play`. With --all also a
rolling replacement under load, deaths and recoveries, and hostile skills beside an executor that is process 1. All that it makes
is called `skillyard-ci…` or `skillyard-registry…`/`skillyard-executor…`, and removed at the end; images and the base stay.
"""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
NETWORK, BASE = "skillyard-ci", "localhost/skillyard-ci-base"
PODS = ["skillyard-registry-pod-0", "skillyard-executor-pod-0", "skillyard-executor-b-pod-0"]
# Their last bytes are 200 and up: podman tells a pod not where it is.
ADDRESSES = ["skillyard-registry", "skillyard-executor", "skillyard-executor-b"]
ALONE = ["skillyard-ci-registry", "skillyard-ci-executor"]
# Of ConfigMaps podman calls the volume as the ConfigMap, of the others as the volume in the pod.
VOLUMES = ["skillyard-registry", "skillyard-agents", "skillyard-callers", "skillyard-executor-token", "skillyard-tokens",
           "skill-disk-usage", "skillyard-ci-state", "skillyard-ci-state-b", "skillyard-ci-disk"]
HARDENED = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532", "--network", NETWORK]
# The engine's own defaults differ from machine to machine.
ENGINE = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
RUN = "skillyard.executor.v1.ExecutorService/RunSkill"
STATUS = "skillyard.executor.v1.ExecutorService/GetStatus"
CANCEL = "skillyard.executor.v1.ExecutorService/CancelRun"
STATE = "/var/lib/skillyard/state"

HOSTILE = ROOT / "tests/hostile"


def main():
    work = pathlib.Path(tempfile.mkdtemp(prefix="skillyard-ci."))
    work.chmod(0o755)
    (work / "containers.conf").write_text(ENGINE)
    os.environ["CONTAINERS_CONF"] = str(work / "containers.conf")
    clean_up()
    try:
        if why := cannot_run(work):
            print(f"skipped: no container can be run here: {why}")
            return
        step("images", images, work)
        tokens = make_tokens(work)
        more = (("a rolling replacement", replacement), ("deaths and recoveries", deaths), ("hostile skills", hostile))
        for name, what in (("the pair, from the kustomization", pair), *(more if "--all" in sys.argv else ())):
            step(name, what, work, tokens)
    except BaseException:
        for name in ALONE + [f"{pod}-{pod.split('-')[1]}" for pod in PODS]:
            log = subprocess.run(["podman", "logs", "--tail", "5", name], capture_output=True, text=True)
            if log.returncode == 0:
                print(f"--- the log of {name}:\n{log.stdout}{log.stderr}", file=sys.stderr)
        raise
    finally:
        clean_up()
        shutil.rmtree(work, ignore_errors=True)


def step(name, what, *arguments):
    began = time.monotonic()
    what(*arguments)
    print(f"ok: {name} ({time.monotonic() - began:.0f} s)", flush=True)


def command(*words, timeout=300, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, **options)
    if done.returncode != 0:
        raise SystemExit(f"containers: {' '.join(map(str, words))} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def check(holds, what):
    if not holds:
        raise AssertionError(f"containers: {what}")


def until(what, holds, seconds=60):
    """Waits for what has to become true; errors of the network are a no."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            if found := holds():
                return found
        except (OSError, SystemExit, subprocess.SubprocessError, ValueError) as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"containers: {what}: not within {seconds} s; last: {last}")


def clean_up():
    for kind, names in (("pod", PODS), ("container", ALONE), ("volume", VOLUMES), ("network", [NETWORK])):
        for name in names:
            subprocess.run(["podman", kind, "rm", "-f", *(["-t", "0"] if kind in ("pod", "container") else []), name],
                           capture_output=True)


def cannot_run(work):
    """Why the machine runs not even a container that does nothing; None where it does."""
    try:
        base(work)
        command("podman", "network", "create", NETWORK)
        command("podman", "run", "--rm", *HARDENED, BASE, "true")
    except (SystemExit, subprocess.SubprocessError, OSError) as error:
        return str(error)
    return None


def base(work):
    """A system of Debian's packages with a shell and Python, made once: no image is pulled."""
    if subprocess.run(["podman", "image", "exists", BASE]).returncode != 0:
        release = dict(line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().split("\n") if "=" in line)
        targets = command("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages").split("\n")
        mirror = [line.split()[0] for line in targets if line.endswith(f" {release['VERSION_CODENAME']}")][:1]
        command("debootstrap", "--variant=minbase", "--include=python3-minimal", release["VERSION_CODENAME"], work / "base",
                *mirror, timeout=600)
        from_directory(work / "base", BASE)


def images(work):
    """As in deploy/image, but from the programs on the PATH and the base from above."""
    for name in ("registry", "executor"):
        binary = work / f"{name}-svc"
        command("strip", "-o", binary, shutil.which(f"{name}-svc"))
        command(ROOT / "deploy/image/collect.sh", binary, work / f"{name}-root/out")
        from_directory(work / f"{name}-root", f"localhost/skillyard-ci-{name}-binaries")
        command("buildah", "bud", "-f", ROOT / f"deploy/image/{name}.Containerfile", "-t", f"localhost/skillyard-{name}:latest",
                "--build-arg", f"BINARIES=localhost/skillyard-ci-{name}-binaries", "--build-arg", f"BASE={BASE}",
                "--build-arg", f"BUILDER={BASE}", ROOT / "deploy/image")


def from_directory(directory, image):
    container = command("buildah", "from", "scratch").strip()
    command("buildah", "copy", container, directory, "/")
    command("buildah", "commit", "--rm", container, image)


def make_tokens(work):
    access = work / "access"
    access.mkdir()
    tokens = {who: command("registry-svc", "token", "new", who, "--file", access / "tokens").strip()
              for who in ("orchestrator", "executor", "operator")}
    (access / "executor.token").write_text(tokens["executor"])
    (work / "orchestrator.token").write_text(tokens["orchestrator"])
    shutil.copy(ROOT / "deploy/kustomize/base/callers.yaml", access / "callers.yaml")
    for file in access.iterdir():
        file.chmod(0o644)
    return tokens


def play(work, kinds, suffix=""):
    """`podman kube play` of what the kustomization renders, less what podman has not: it knows no probes, fsGroup and field
    references, mounts Secrets encoded, and gives every pod a name of its own where a Service would be."""
    ip = re.sub(r"\d+/\d+$", str(200 + ADDRESSES.index(kinds[0] + suffix)), json.loads(command("podman", "network", "inspect", NETWORK))[0]["subnets"][0]["subnet"])
    objects = [found for found in yaml.safe_load_all(command("kubectl", "kustomize", ROOT / "deploy/kustomize/overlays/configmap-skills")) if found]
    chosen = [found for found in objects if found["kind"] == "ConfigMap"
              or (found["kind"] == "PersistentVolumeClaim" and found["metadata"]["name"] in kinds)]
    for name, file in (("skillyard-tokens", "tokens"), ("skillyard-executor-token", "executor.token")):
        key = "token" if file == "executor.token" else file
        chosen.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: (work / "access" / file).read_text()}})
    for found in objects:
        if found["kind"] == "Deployment" and found["metadata"]["name"] in kinds:
            found["metadata"]["name"] += suffix
            found["spec"]["replicas"] = 1
            pod = found["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            container["image"], container["imagePullPolicy"] = f"localhost/{container['image']}", "Never"
            for absent in ("ports", "readinessProbe", "livenessProbe", "lifecycle"):
                container.pop(absent)
            for variable in container["env"]:
                if variable.pop("valueFrom", None):
                    variable["value"] = ip
                if variable["name"] == "SKILLYARD_REGISTRY":
                    variable["value"] = f"http://{PODS[0]}:50051"
            for volume in pod["volumes"]:
                if secret := volume.pop("secret", None):
                    volume["configMap"] = {"name": secret["secretName"]}
                if "configMap" in volume:
                    volume["configMap"]["optional"] = False
                volume["name"] = f"skillyard-ci-{volume['name']}{suffix}"
            for mount in container["volumeMounts"]:
                mount["name"] = f"skillyard-ci-{mount['name']}{suffix}"
            chosen.append(found)
    for found in chosen:
        found["metadata"].pop("namespace", None)
        if found["kind"] == "PersistentVolumeClaim":
            found["metadata"]["annotations"] = {"volume.podman.io/uid": "65532", "volume.podman.io/gid": "65532"}
    order = ["ConfigMap", "PersistentVolumeClaim", "Deployment"]
    (work / "play.yaml").write_text(yaml.safe_dump_all(sorted(chosen, key=lambda found: order.index(found["kind"]))))
    command("podman", "kube", "play", "--network", NETWORK, "--ip", ip, work / "play.yaml")


def address(name):
    """Of a container, or of a pod, whose containers share one."""
    if name in PODS:
        name = json.loads(command("podman", "pod", "inspect", name))["InfraContainerID"]
    return command("podman", "inspect", "--format", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name).strip()


def call(name, port, method, token, **request):
    return command("grpcurl", "-plaintext", "-max-time", "60", "-H", f"authorization: Bearer {token}", "-d", json.dumps(request),
                   f"{address(name)}:{port}", method)


def start(name):
    """Starts a pod again. podman ends it some time after its only container, and a start before that is in vain."""
    until(f"{name} has ended", lambda: json.loads(command("podman", "pod", "inspect", name))["State"] == "Exited")
    command("podman", "pod", "start", name)


def mirrored(name, token):
    status = json.loads(call(name, 50052, STATUS, token))
    return status if status.get("catalogVersion") and status.get("registryConnected") and not status.get("missing") else None


def runs(name, token, skill="disk_usage"):
    return "OUTCOME_SUCCEEDED" in call(name, 50052, RUN, token, skill=skill)


def get(name, path):
    with urllib.request.urlopen(f"http://{address(name)}:9090{path}", timeout=5) as answer:
        return answer.read().decode()


def pair(work, tokens):
    registry, executor, _ = PODS
    play(work, ("skillyard-registry",))
    # podman gives files of ConfigMaps no modes; a kubelet does.
    mount = command("podman", "volume", "inspect", "--format", "{{.Mountpoint}}", "skill-disk-usage").strip()
    for script in pathlib.Path(mount).rglob("*.sh"):
        script.chmod(0o555)
    play(work, ("skillyard-executor",))
    until("the skill is mirrored", lambda: mirrored(executor, tokens["orchestrator"]) and runs(executor, tokens["orchestrator"]))
    for name in (registry, executor):
        for path in ("/livez", "/readyz"):
            until(f"{path} of {name}", lambda: get(name, path) is not None)
        check("skillyard_" in get(name, "/metrics"), f"{name} has no metrics of its own")


class Load:
    """Runs without pause by the clients of docs/python and proto/examples, which follow the README's table of retries."""

    def __init__(self, work, names, skill="disk_usage"):
        os.environ["SKILLYARD_TOKEN_FILE"] = str(work / "orchestrator.token")
        os.environ["SKILLYARD_EXECUTOR"] = ",".join(f"{address(name)}:50052" for name in names)
        self.urls = ",".join(f"http://{address(name)}:50052" for name in names)
        # Once, as an orchestrator does: it asks for the API when it is loaded.
        self.client = runpy.run_path(str(ROOT / "docs/python/run_skill.py"))
        self.skill, self.done, self.failed, self.over = skill, 0, [], threading.Event()
        self.threads = [threading.Thread(target=goes, daemon=True) for goes in (self.python, self.python, self.python, self.rust)]

    def rust(self):
        spread = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug/examples/spread_runs")
        while not self.over.is_set():
            done = subprocess.run([spread, self.skill, "{}", "10"], capture_output=True, text=True, env=os.environ | {"SKILLYARD_EXECUTOR": self.urls})
            ended = [line.split(None, 2) for line in done.stdout.split("\n") if line]
            succeeded = sum(int(count) for count, _, outcome in ended if outcome == "OUTCOME_SUCCEEDED")
            if succeeded != 10:
                self.failed.append(done.stdout + done.stderr)
            self.done += succeeded

    def python(self):
        while not self.over.is_set():
            try:
                finished, result = self.client["run"](self.skill)
                if not result:
                    self.failed.append(str(finished))
                self.done += 1
            except (Exception, SystemExit) as error:
                self.failed.append(repr(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        until("runs under load", lambda: self.done >= 3)
        return self

    def more(self, count=30):
        wanted = self.done + count
        until("more runs under load", lambda: self.done >= wanted or self.failed)

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
        print(f"    {self.done} runs, {len(self.failed)} failed", flush=True)
        check(not self.failed, f"runs failed: {self.failed[:3]}")


def replacement(work, tokens):
    """As a Deployment does it: one more, then one less; then the registry dies and comes back."""
    registry, first, second = PODS
    play(work, ("skillyard-executor",), "-b")
    until("the second executor is ready", lambda: mirrored(second, tokens["orchestrator"]))
    with Load(work, [first, second]) as load:
        load.more()
        command("podman", "stop", "-t", "330", f"{first}-executor")
        load.more()
        command("podman", "kill", "-s", "KILL", f"{registry}-registry")
        load.more()
        start(registry)
        until("the registry is ready again", lambda: get(registry, "/readyz") is not None)
        load.more()
    until("the executor has its registry again", lambda: mirrored(second, tokens["orchestrator"]))
    # Large batches of them too, where no temporary file can be made.
    until("all runs are in the history", lambda: re.search(r"^skillyard_executor_journal_records_unshipped 0(\.0)?$", get(second, "/metrics"), re.M))


def deaths(work, tokens):
    """SIGKILL of each: what it kept is there when it starts again, and it runs."""
    registry, _, executor = PODS
    for name, container in ((executor, f"{executor}-executor"), (registry, f"{registry}-registry")):
        command("podman", "kill", "-s", "KILL", container)
        start(name)
        until(f"{name} is ready again", lambda: get(name, "/readyz") is not None)
    until("runs again", lambda: mirrored(executor, tokens["orchestrator"]) and runs(executor, tokens["orchestrator"]))


def hostile(work, tokens):
    """All of tests/hostile, twice, beside an executor that is process 1 of a container with nothing to spare."""
    expected = hostile_skills(work / "skills")
    registry, executor = ALONE
    access = ["-v", f"{work}/access:/access:ro"]
    common = {"LISTEN": "[::]:{}", "TOKENS_FILE": "/access/tokens", "CALLERS_FILE": "/access/callers.yaml", "STATE": STATE}
    # A disk that can be filled: 64 MiB, in pages.
    command("podman", "volume", "create", "--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=nr_blocks=16384,uid=65532,gid=65532",
            "skillyard-ci-disk")
    for name, port in (("registry", 50051), ("executor", 50052)):
        environment = [word for key, value in common.items() for word in ("-e", f"SKILLYARD_{name.upper()}_{key}={value.format(port)}")]
        own = {"registry": ["-v", f"{work}/skills:/skills:ro", "-e", "ONGRID_SKILLS_EXTERNAL_DIRS=/skills", "-v", "/var/lib/skillyard"],
               "executor": ["-e", f"SKILLYARD_REGISTRY=http://{registry}:50051", "-e", "SKILLYARD_MAX_PROCESSES=64", "-e", "SKILLYARD_SLOTS=8",
                            "-e", "SKILLYARD_MAX_MEMORY=100MiB", "-e", "SKILLYARD_EXECUTOR_REGISTRY_TOKEN_FILE=/access/executor.token",
                            "-v", "skillyard-ci-disk:/var/lib/skillyard"]}[name]
        command("podman", "run", "-d", "--name", f"skillyard-ci-{name}", *HARDENED, *access, *environment, *own,
                f"localhost/skillyard-{name}:latest")
    token = tokens["orchestrator"]
    isolation = until("the hostile skills are mirrored", lambda: mirrored(executor, token)).get("isolation", [])
    print(f"    isolation in the container: {', '.join(isolation)}", flush=True)
    check({"no_new_privs", "seccomp"} <= set(isolation), f"isolation is {isolation}")

    for number in (1, 2):
        with Load(work, [executor], "bystander") as load:
            for name, right in expected.items():
                if right.get("isolation", "seccomp") not in isolation:
                    print(f"    not tried: {name}: it wants {right['isolation']}", flush=True)
                    continue
                beside_a_victim(executor, token, name, right, f"victim-{name}-{number}")
                load.more(3)
                until(f"nothing of {name} is left", lambda: nothing_left(executor, "bystander"), 30)
        until("nothing of any run is left", lambda: nothing_left(executor), 30)


def hostile_skills(directory):
    """Puts the folder in place, its programs compiled, and says what is right for each."""
    shutil.copytree(HOSTILE, directory, ignore=shutil.ignore_patterns("README.md"))
    for source in directory.glob("*/*.c"):
        command("cc", "-O2", "-static", "-o", source.with_suffix(""), source)
    return {file.parent.name: json.loads(file.read_text()) for file in sorted(directory.glob("*/expect.json"))}


def beside_a_victim(executor, token, name, right, run_id):
    words = ["grpcurl", "-plaintext", "-max-time", "120", "-H", f"authorization: Bearer {token}", "-d"]
    request = json.dumps({"skill": "victim", "runId": run_id})
    victim = subprocess.Popen([*words, request, f"{address(executor)}:50052", RUN], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = next((line for line in victim.stdout if '"text":' in line), None)
        check(line, "the victim does not say where it is")
        place = json.loads(json.loads("{" + line.strip().rstrip(",") + "}")["text"])
        arguments = place | {"state": STATE, "token": "/access/executor.token", "most": "600"}
        # Without blanks, as the skills read them.
        ended, stderr = events(call(executor, 50052, RUN, token, skill=name, argsJson=json.dumps(arguments, separators=(",", ":"))))
        call(executor, 50052, CANCEL, token, runId=run_id)
        # The rest of the event that was begun is passed over.
        rest = victim.stdout.read()
        victim_ended, victim_stderr = events(rest[rest.find("\n{"):])
    finally:
        victim.kill()
        victim.wait()
    check(ended in right["ends"], f"{name} is right with {right['ends']}, and ended with {ended}: {stderr}")
    check(victim_ended == "CANCELLED CANCEL_REQUESTED", f"the victim of {name} ended with {victim_ended}: {victim_stderr}")
    lines = (stderr + victim_stderr).split("\n")
    check(not [line for line in lines if line.startswith("done: ")], f"{name} is not held off: {lines}")
    for line in lines:
        if line.startswith("not tried: "):
            print(f"    {name}: {line}", flush=True)


def events(text):
    """How a run ended, in short, and its stderr, of what grpcurl prints of its events."""
    decoder, at, stderr, ended = json.JSONDecoder(), 0, "", None
    while (at := text.find("{", at)) >= 0:
        found, at = decoder.raw_decode(text, at)
        event = found.get("event", found)
        stderr += event.get("log", {}).get("text", "")
        if finished := event.get("finished"):
            ended = f"{finished['outcome'].removeprefix('OUTCOME_')} {finished.get('reason', '')}".strip()
    return ended, stderr


def nothing_left(executor, *but):
    """Whether there is no process but the executor's own and those of such skills, no zombie, and no scratch directory but
    those of slots."""
    processes = [line.split() for line in command("podman", "top", executor, "state", "comm").split("\n")[1:] if line]
    found = [line for line in processes if line[0] == "Z" or line[1] not in ("executor-svc", "skillyard-slot", *but)]
    of_slots = re.compile(r"scratch/(?!run-)[^/]+$")
    paths = command("podman", "exec", executor, "find", f"{STATE}/scratch", f"{STATE}/discarded", "-mindepth", "1").split("\n")
    found += [path for path in paths if path and not of_slots.search(path)]
    if found:
        raise ValueError(f"there is {found}")
    return True


if __name__ == "__main__":
    main()
