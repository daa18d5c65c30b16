#!/usr/bin/env python3
"""Renders every kustomization and checks what comes out.

By Kubernetes' own schemas, for the oldest and the newest supported version; by Pod Security `restricted`; and by what
only this project can know: that every variable is a flag of the program, that selectors and ports find what they name,
that drain, grace, memory and slots fit together, and that alerts and dashboards ask for metrics and labels that
docs/metrics.md has. Where there is a promtool, it reads the alerts. `deploy/local/up.sh --` puts the programs on the PATH.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent / "deploy" / "kustomize"
VERSIONS = ("1.34", "1.37")
# Kinds of others, whose schemas are not Kubernetes'.
FOREIGN = ("cert-manager.io/", "monitoring.coreos.com/")
PAGE = ROOT.parent.parent / "docs" / "metrics.md"
# Labels that Prometheus adds, by a PodMonitor and in histograms.
ADDED = {"job", "namespace", "pod", "instance", "le"}
PROGRAMS = {"registry": "registry-svc", "executor": "executor-svc"}
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "": 1}
SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600}

faults = []


def main():
    variables = {name: variables_of(program) for name, program in PROGRAMS.items()}
    for directory in [ROOT / "base", *sorted((ROOT / "overlays").iterdir())]:
        name = str(directory.relative_to(ROOT))
        objects = render(directory)
        by_schema(name, objects)
        for workload in of_kind(objects, "Deployment"):
            pod = workload["spec"]["template"]
            fault = lambda what: faults.append(f"{name}: Deployment {workload['metadata']['name']}: {what}")
            finds_its_pods(workload, fault)
            is_restricted(pod["spec"], fault)
            for container in pod["spec"]["containers"]:
                uses_real_flags(container, variables[container["name"]], fault)
                probes_real_ports(container, fault)
                mounts_real_volumes(container, pod["spec"], fault)
            if workload["metadata"]["name"] == "skillyard-executor":
                ends_in_time(pod["spec"], fault)
                fits_in_memory(pod["spec"], fault)
        selectors_find_pods(name, objects)
        asks_for_real_metrics(name, objects)
        alerts_are_read(name, objects)
        print(f"ok: {name}" if not faults else f"looked at: {name}")
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(1 if faults else 0)


def render(directory):
    text = subprocess.run(["kubectl", "kustomize", directory], check=True, capture_output=True, text=True).stdout
    return [found for found in yaml.safe_load_all(text) if found]


def of_kind(objects, kind):
    return [found for found in objects if found["kind"] == kind]


def by_schema(name, objects):
    known = [found for found in objects if not found["apiVersion"].startswith(FOREIGN)]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(known, file)
        file.flush()
        for version in VERSIONS:
            command = ["kubernetes-validate", "-k", version, "--strict", "--quiet", file.name]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                faults.append(f"{name}: Kubernetes {version}: {done.stdout}{done.stderr}")


def variables_of(program):
    text = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\[env: ([A-Z_]+)", text))


def uses_real_flags(container, variables, fault):
    for variable in container.get("env", []):
        if variable["name"] not in variables and variable["name"] != "POD_IP":
            fault(f"{variable['name']} is no variable of {PROGRAMS[container['name']]}")


def environment(container):
    return {variable["name"]: variable.get("value", "") for variable in container["env"]}


def finds_its_pods(workload, fault):
    labels = workload["spec"]["template"]["metadata"]["labels"]
    selector = workload["spec"]["selector"]["matchLabels"]
    spread = workload["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
    for wanted in [selector, *(found["labelSelector"]["matchLabels"] for found in spread)]:
        if not wanted.items() <= labels.items():
            fault(f"the selector {wanted} does not match its own pods")


def is_restricted(pod, fault):
    """What Pod Security `restricted` asks for, and a root that cannot be written."""
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or not context.get("runAsUser"):
        fault("it must run as a user other than root")
    if context.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        fault("seccompProfile must be RuntimeDefault")
    if pod.get("automountServiceAccountToken") is not False:
        fault("it needs no token of its service account")
    for host in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(host):
            fault(f"{host} is not for it")
    for volume in pod.get("volumes", []):
        if not {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "projected", "image"} & volume.keys():
            fault(f"volume {volume['name']} is of a kind that restricted forbids, or of none")
    for container in pod["containers"] + pod.get("initContainers", []):
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities", {}).get("drop") != ["ALL"]:
            fault(f"{container['name']} must drop all capabilities and must not gain any")
        if not own.get("readOnlyRootFilesystem"):
            fault(f"{container['name']} must have a root that cannot be written")
        if "memory" not in container.get("resources", {}).get("limits", {}):
            fault(f"{container['name']} has no memory limit")


def probes_real_ports(container, fault):
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listens = {int(value.rsplit(":", 1)[1]) for name, value in environment(container).items() if "LISTEN" in name}
    if set(ports.values()) != listens:
        fault(f"it listens on {sorted(listens)} and names the ports {ports}")
    for kind in ("readinessProbe", "livenessProbe"):
        probe = container[kind]
        port = probe.get("grpc", probe.get("httpGet", {})).get("port")
        if port not in ports and port not in ports.values():
            fault(f"the {kind} asks {port}, and there is {ports}")


def mounts_real_volumes(container, pod, fault):
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    there = {volume["name"] for volume in pod.get("volumes", [])}
    if mounted != there:
        fault(f"it mounts {sorted(mounted)}, and there is {sorted(there)}")
    paths = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
    for name, value in environment(container).items():
        if value.startswith("/") and not any(f"{path}/".startswith(f"{value}/") or value.startswith(f"{path}/") for path in paths):
            fault(f"{name} is {value}, which no volume holds")


def ends_in_time(pod, fault):
    (container,) = pod["containers"]
    values = environment(container)
    drain, longest = seconds(values["SKILLYARD_DRAIN_TIMEOUT"]), seconds(values["SKILLYARD_MAX_TIMEOUT"])
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["terminationGracePeriodSeconds"]
    if longest >= drain:
        fault(f"a run of {longest} s is longer than the drain of {drain} s")
    # The grace of ended runs, and their last events.
    if before + drain + 10 > grace:
        fault(f"preStop {before} s and drain {drain} s do not fit into the grace of {grace} s")


def fits_in_memory(pod, fault):
    (container,) = pod["containers"]
    values = environment(container)
    need = int(values["SKILLYARD_SLOTS"]) * size(values["SKILLYARD_MAX_MEMORY"]) + size("512Mi")
    limit = size(container["resources"]["limits"]["memory"])
    if need > limit:
        fault(f"slots × max-memory and 512 MiB are {need} bytes, and the limit is {limit}")


def selectors_find_pods(name, objects):
    pods = [found["spec"]["template"] for found in of_kind(objects, "Deployment")]
    workloads = {(found["kind"], found["metadata"]["name"]) for found in objects}
    for found in objects:
        spec, title = found.get("spec", {}), f"{name}: {found['kind']} {found['metadata']['name']}"
        if found["kind"] == "Service":
            chosen = [pod for pod in pods if spec["selector"].items() <= pod["metadata"]["labels"].items()]
            targets = [port["targetPort"] for port in spec["ports"]]
        elif found["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            wanted = (spec.get("selector") or spec.get("podSelector")).get("matchLabels", {})
            chosen = [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]
            targets = [port["port"] for rule in spec.get("ingress", []) for port in rule["ports"]]
        elif found["kind"] == "PodMonitor":
            (wanted,) = spec["selector"]["matchExpressions"]
            chosen = [pod for pod in pods if pod["metadata"]["labels"].get(wanted["key"]) in wanted["values"]]
            if len(chosen) != len(wanted["values"]):
                faults.append(f"{title}: not each of {wanted['values']} has a pod")
            targets = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
        elif found["kind"] == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            if (target["kind"], target["name"]) not in workloads:
                faults.append(f"{title}: there is no {target['kind']} {target['name']}")
            continue
        else:
            continue
        if not chosen:
            faults.append(f"{title}: it selects no pod")
        for pod in chosen:
            ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
            if not set(targets) <= ports:
                faults.append(f"{title}: the ports {targets} are not all among {sorted(ports)}")


def metrics_of_page():
    """Each metric of the page with its labels; of a histogram, what it is made of."""
    known = {}
    for name, labels, what in re.findall(r"^\| `(skillyard_\w+)(?:\{([\w,]+)\})?` \| (.*) \|$", PAGE.read_text(), re.M):
        parts = ("_bucket", "_sum", "_count") if what.startswith("histogram") else ("",)
        known.update({name + part: set(labels.split(",")) | ADDED for part in parts})
    return known


def expressions(objects):
    """Whatever asks Prometheus, with where it stands."""
    for found in of_kind(objects, "PrometheusRule"):
        for group in found["spec"]["groups"]:
            for rule in group["rules"]:
                yield rule["alert"], rule["expr"]
    for found in of_kind(objects, "ConfigMap"):
        if "grafana_dashboard" not in found["metadata"].get("labels", {}):
            continue
        for file, text in found["data"].items():
            dashboard = json.loads(text)
            ids = [panel["id"] for panel in dashboard["panels"]]
            if len(ids) != len(set(ids)):
                faults.append(f"{file}: two panels have one id")
            for variable in dashboard["templating"]["list"]:
                if variable["type"] == "query":
                    yield f"{file}: ${variable['name']}", variable["query"]["query"]
            for panel in dashboard["panels"]:
                for target in panel.get("targets", []):
                    yield f"{file}: {panel['title']}", target["expr"]
                    for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                        yield f"{file}: {panel['title']}", f"by ({label}) " + target["expr"]


def asks_for_real_metrics(name, objects):
    known = metrics_of_page()
    for where, text in expressions(objects):
        fault = lambda what: faults.append(f"{name}: {where}: {what}")
        asked = re.findall(r"(skillyard_\w+)(?:\{([^}]*)\})?", text)
        if not asked and "up{" not in text:
            fault("it asks for no metric of skillyard")
        there = set()
        for metric, labels in asked:
            if metric not in known:
                fault(f"there is no {metric} in {PAGE.name}")
                continue
            there |= known[metric]
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", labels):
                if label not in known[metric]:
                    fault(f"{metric} has no label {label}")
        for labels in re.findall(r"\bby \(([^)]*)\)", text):
            for label in labels.split(","):
                if asked and label.strip() not in there:
                    fault(f"none of its metrics has a label {label.strip()}")


def alerts_are_read(name, objects):
    for found in of_kind(objects, "PrometheusRule"):
        for group in found["spec"]["groups"]:
            for rule in group["rules"]:
                if not {"summary", "description"} <= rule["annotations"].keys() or "severity" not in rule["labels"]:
                    faults.append(f"{name}: {rule['alert']}: it needs a severity, a summary and a description")
        if not shutil.which("promtool"):
            print(f"{name}: without promtool, the alerts are not read as Prometheus would")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"groups": found["spec"]["groups"]}, file)
            file.flush()
            done = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True)
            if done.returncode != 0:
                faults.append(f"{name}: promtool: {done.stdout}{done.stderr}")


def size(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]*)", text).groups()
    return int(number) * UNITS[unit]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()
    return int(number) * SECONDS[unit]


main()
