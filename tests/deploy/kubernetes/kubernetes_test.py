#!/usr/bin/env python3
"""The files of deploy/kubernetes/: against the types of Kubernetes' API, against each other, and with the real programs.

    tests/deploy/kubernetes/kubernetes_test.py BIN_DIR

There is no cluster. What the pods run (init containers, probes, scripts, configurations, the join script with a kubectl of its own) runs here, with
other paths, and each pod in a PID namespace of its own. Without the types from npm, or without the right to make namespaces, it says so (77).
"""
import base64
import copy
import os
import pathlib
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import yaml

HERE = pathlib.Path(__file__).resolve().parent
TOP = HERE.parents[2]
sys.path[:0] = [str(HERE), str(TOP / "tests/testing")]
import manifests  # noqa: E402
from ports import HeldPorts  # noqa: E402
from processes import OWN_NAMESPACE, children, may_have_own_namespace, until  # noqa: E402
from schema import Schema  # noqa: E402

JOB = """
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: synthetic}}
runtime: {{device: cpu}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
restart: {{resume: auto}}
train: {{steps: {steps}, seq_len: 32, batch_size: 4, log_every: 1, save_every: {steps}, out_dir: {out}}}
"""

FAKE_KUBECTL = """#!/bin/sh -eu
# kubectl for join_nodes.sh: `exec` runs the program here, the Secret is a file.
shift 2
case $1 in
  exec) shift 5; program=$(basename "$1"); shift; exec "$FAKE_BIN/$program" "$@" ;;
  get) test -f "$FAKE_SECRET" ;;
  create) : >"$FAKE_SECRET" ;;
  patch) [ "$2 $3 $4 $5 $6 $7" = "secret nsa-agents --type merge --patch-file /dev/stdin" ] && cat >"$FAKE_SECRET" ;;
  *) exit 1 ;;
esac
"""


class Pod:
    """Runs what a container would, with the paths of the pod in a folder."""

    def __init__(self, bin_dir, folder, objects, kind, name, volumes):
        self.bin = bin_dir
        self.folder = folder
        self.spec = manifests.one(objects, kind, name)["spec"]["template"]["spec"]
        self.places = {"/opt/nsa/bin": str(bin_dir), "/opt/nsa/deploy": str(TOP / "deploy"), **{place: str(folder / path) for place, path in volumes.items()}}
        for place in self.places.values():
            pathlib.Path(place).mkdir(parents=True, exist_ok=True)

    def here(self, text):
        for place in sorted(self.places, key=len, reverse=True):
            text = text.replace(place, f"\0{place[1:]}\0")
        for place, path in self.places.items():
            text = text.replace(f"\0{place[1:]}\0", path)
        return text

    def write(self, data, **changes):
        """A ConfigMap as files of /etc/nsa."""
        for name, text in data.items():
            text = self.here(text)
            for old, new in changes.get(name.replace(".", "_"), {}).items():
                assert old in text, (name, old)
                text = text.replace(old, new)
            (pathlib.Path(self.places["/etc/nsa"]) / name).write_text(text)

    def start(self, container, own=(), environment=None, **more):
        """`own`: what starts it, for a namespace of its own."""
        command = [self.here(word) for word in [*container["command"], *container.get("args", [])]]
        values = {entry["name"]: self.here(entry["value"]) for entry in container.get("env", []) if "value" in entry}
        return subprocess.Popen([*own, *command], env={"PATH": os.environ["PATH"], "NSACTL_CONFIG": "/dev/null", **values, **(environment or {})}, **more)

    def run(self, container, **more):
        process = self.start(container, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said


def check_schemas():
    """Every field is one of its type, and a mistake is found."""
    where = subprocess.run([TOP / "deploy/node_packages.sh", "--where", HERE], capture_output=True, text=True, check=True).stdout.strip()
    types = pathlib.Path(where) / "node_modules/kubernetes-types"
    if not types.exists():
        return False
    schema = Schema(types)
    files = manifests.read_files()
    for name, things in files.items():
        for thing in things:
            assert schema.problems(thing) == [], (name, schema.problems(thing))
    stateful = manifests.one(files["2-coordinator.yaml"], "StatefulSet", "nsa-coordinator")

    def broken(change):
        wrong = copy.deepcopy(stateful)
        change(wrong, wrong["spec"]["template"]["spec"]["containers"][0])
        return schema.problems(wrong)

    assert "has no such field" in broken(lambda thing, main: main.update(livenessprobe=main.pop("livenessProbe")))[0]
    assert broken(lambda thing, main: thing["spec"].pop("selector")) == ["StatefulSet.spec.selector: missing"]
    assert "is no number" in broken(lambda thing, main: thing["spec"].update(replicas="1"))[0]
    assert "is no string" in broken(lambda thing, main: main["env"].append({"name": "A", "value": 1}))[0]
    assert "is no list" in broken(lambda thing, main: main.update(args="--config"))[0]
    assert "is not in the schemas" in broken(lambda thing, main: thing.update(apiVersion="apps/v7"))[0]
    print(f"ok: {sum(map(len, files.values()))} objects against the types of Kubernetes 1.30")
    return True


class Service:
    """The coordinator's pod and one of an agent."""

    def __init__(self, bin_dir, folder, objects):
        self.folder = folder
        self.ports = HeldPorts(2)
        self.port = self.ports.first
        self.coordinator = Pod(bin_dir, folder, objects, "StatefulSet", "nsa-coordinator",
                               {"/var/lib/nsa": "c/var", "/run/nsa": "c/run", "/etc/nsa": "c/etc", "/secrets": "c/secrets", "/data": "data"})
        self.agent = Pod(bin_dir, folder, objects, "DaemonSet", "nsa-agent",
                         {"/var/lib/nsa": "a/var", "/run/nsa": "a/run", "/etc/nsa": "a/etc", "/secrets": "a/secrets", "/data": "data"})
        self.coordinator.write(manifests.one(objects, "ConfigMap", "nsa-coordinator")["data"],
                               coordinator_yaml={"0.0.0.0:50951": f"127.0.0.1:{self.port}", "0.0.0.0:9464": f"0.0.0.0:{self.ports.first + 1}"})
        self.agent.write(manifests.one(objects, "ConfigMap", "nsa-agent")["data"],
                         agent_yaml={"nsa-coordinator.nsa.svc:50951": f"localhost:{self.port}", "cpu_slots: 0": "cpu_slots: 1"})
        self.main = self.coordinator.spec["containers"][0]
        self.log = (folder / "log").open("wb")
        self.processes = []

    def ctl(self, *arguments):
        environment = {"PATH": os.environ["PATH"], "NSACTL_CONFIG": "/dev/null", "NSA_STATE_DIR": str(self.folder / "c/var/state")}
        return subprocess.run([self.coordinator.bin / "nsactl", *map(str, arguments)], env=environment, capture_output=True, text=True, check=False)

    def job(self, name):
        return yaml.safe_load(self.ctl("describe", name, "-o", "json").stdout) or {}

    def start(self, pod, container, **more):
        process = pod.start(container, stdout=self.log, stderr=self.log, **more)
        self.processes.append(process)
        return process

    def close(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        self.log.close()

    def told(self):
        return (self.folder / "log").read_text(errors="replace")[-3000:]


def check_coordinator(service):
    """Its Secret becomes files of mode 0600, its configuration is accepted, and the probes ask it."""
    tls = service.folder / "tls"
    subprocess.run([service.coordinator.bin / "nsactl", "admin", "init-tls", tls, "--host", "nsa-coordinator.nsa.svc", "--host", "localhost", "--client", "ada"],
                   check=True, stdout=subprocess.DEVNULL)
    for name in "ca.crt", "coordinator.crt", "coordinator.key", "token":
        file = service.folder / "c/secrets" / name
        file.write_bytes((tls / name).read_bytes())
        file.chmod(0o440)
    code, said = service.coordinator.run(service.coordinator.spec["initContainers"][0])
    assert code == 0, said
    assert {file.stat().st_mode & 0o777 for file in (service.folder / "c/run").iterdir()} == {0o600}
    probes = [{**service.main, "command": service.main[probe]["exec"]["command"], "args": []} for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [service.coordinator.run(probe)[0] for probe in probes] == [4, 4, 4], "nobody answers yet"
    service.start(service.coordinator, service.main)
    until(lambda: service.coordinator.run(probes[0])[0] == 0, f"the startup probe; {service.told()}", 30)
    assert [service.coordinator.run(probe)[0] for probe in probes] == [0, 0, 0]
    print("ok: coordinator and probes")
    return tls


def check_scrape(service, tls):
    """/metrics is served over TLS to those who have a token, as the page says."""
    url = f"https://localhost:{service.ports.first + 1}/metrics"
    trusted = ssl.create_default_context(cafile=tls / "ca.crt")
    try:
        urllib.request.urlopen(url, context=trusted, timeout=30)
        raise AssertionError("served without a token")
    except urllib.error.HTTPError as refused:
        assert refused.code == 401, refused
    token = service.ctl("token", "create", "prometheus", "--role", "viewer").stdout.strip()
    # Prometheus asks for the Service's name.
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}", "Host": "nsa-coordinator.nsa.svc:9464"})
    with urllib.request.urlopen(asked, context=trusted, timeout=30) as reply:
        assert b"nsa_build_info" in reply.read()
    print("ok: a scrape over TLS with a token")


def check_backup(service, objects):
    """The CronJob's command backs up the state of the coordinator that runs, verified, and keeps as many as it says."""
    cron = manifests.one(objects, "CronJob", "nsa-backup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    backups = service.folder / "backups"
    backups.mkdir()
    words = [service.coordinator.here(word).replace("/backups", str(backups)) for word in cron["args"]]
    keep = int(words[words.index("--keep") + 1])
    done = subprocess.run([service.coordinator.bin / "nsactl", *words], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "verified" in done.stdout and keep > 1, done
    (made,) = backups.iterdir()
    assert service.ctl("admin", "verify", made).returncode == 0
    print("ok: the backup of the CronJob")


def check_join(service, tls):
    """join_nodes.sh gives a node what its agent needs; a node that it has not named gets an error that says so."""
    place = service.folder / "fake"
    place.mkdir()
    (place / "kubectl").write_text(FAKE_KUBECTL)
    (place / "kubectl").chmod(0o755)
    secret = place / "secret"
    environment = {"PATH": f"{place}:{service.agent.bin}:{os.environ['PATH']}", "FAKE_BIN": str(service.agent.bin), "FAKE_SECRET": str(secret),
                   "NSACTL_CONFIG": "/dev/null", "NSA_STATE_DIR": str(service.folder / "c/var/state")}
    prepare = service.agent.spec["initContainers"][0]
    about = {"NODE_NAME": "gpu-01.example.org", "POD_IP": "127.0.0.1"}
    code, said = service.agent.run(prepare, environment=about)
    assert code == 1 and "run join_nodes.sh gpu-01.example.org" in said, said
    done = subprocess.run([manifests.FOLDER / "join_nodes.sh", tls, "gpu-01.example.org", "gpu-02"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    data = yaml.safe_load(secret.read_text())["data"]
    assert set(data) == {"ca.crt", *(f"{node}.{part}" for node in ("gpu-01.example.org", "gpu-02") for part in ("crt", "key", "token"))}, data.keys()
    for name, text in data.items():
        (service.folder / "a/secrets" / name).write_bytes(base64.b64decode(text))
    code, said = service.agent.run(prepare, environment=about)
    assert code == 0, said
    assert {file.stat().st_mode & 0o777 for file in (service.folder / "a/run").iterdir()} == {0o600}
    print("ok: join_nodes.sh and the agent's init container")


def check_agent(service):
    """The script of the agent: its workers outlive the agent, and end with a checkpoint at the end of the pod; the next pod goes on."""
    def nodes():
        return service.ctl("nodes", "-o", "name").stdout.split()

    main = service.agent.spec["containers"][0]
    environment = {"STOP_SECONDS": "60"}
    pod = service.start(service.agent, main, own=OWN_NAMESPACE, environment=environment)
    until(lambda: nodes() == ["gpu-01.example.org"], f"the agent; {service.told()}", 60)
    out = service.folder / "data/out"
    file = service.folder / "job.yaml"
    file.write_text(JOB.format(name="job", steps=100000, out=out))
    said = service.ctl("submit", file)
    assert said.returncode == 0, said
    step = lambda: int(service.job("job").get("progress", {}).get("step", 0))  # noqa: E731
    until(lambda: step() > 20, f"training; {service.told()}")
    before, (inside,) = step(), children(pod.pid)
    (agent,) = [pid for pid in children(inside) if (pathlib.Path("/proc") / str(pid) / "comm").read_text().strip() == "nsa-agent"]
    os.kill(agent, signal.SIGKILL)
    until(lambda: step() > before + 100, f"training with the next agent; {service.told()}")
    os.kill(inside, signal.SIGTERM)
    assert pod.wait(60) == 0, service.told()
    saved = sorted(path.name for path in (out / "checkpoints").glob("step-*"))
    assert saved and all(int(name.rpartition("-")[2]) > before for name in saved), saved
    service.start(service.agent, main, own=OWN_NAMESPACE, environment=environment)
    until(lambda: service.job("job").get("state") == "STATE_RUNNING" and step() > int(saved[-1].rpartition("-")[2]), f"training in the next pod; {service.told()}")
    events = service.ctl("events", "job").stdout
    assert "PREEMPTED" in events and f"RESUMED             from step {int(saved[-1].rpartition('-')[2])}" in events, events
    assert service.ctl("stop", "job", "--now").returncode == 0
    print("ok: the agent's script")


def check_gang(bin_dir, folder, objects):
    """The gang's job file is accepted; both ranks meet, end with a checkpoint at SIGTERM, and go on in another start with the same folder."""
    pod = Pod(bin_dir, folder, objects, "Job", "nsa-gang", {"/etc/nsa": "g/etc", "/data": "g/data"})
    pod.write(manifests.one(objects, "ConfigMap", "nsa-gang")["data"])
    (folder / "g/data/corpus").mkdir()
    for name, licence in ("train.txt", "GPL-3"), ("val.txt", "Artistic"):
        (folder / "g/data/corpus" / name).write_text(pathlib.Path("/usr/share/common-licenses", licence).read_text())
    said = subprocess.run([bin_dir / "nsactl", "validate", folder / "g/etc/job.yaml", "--offline"], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said
    (folder / "g/tiny.yaml").write_text(JOB.format(name="gang", steps=100000, out=folder / "g/out"))

    def start():
        return [pod.start(pod.spec["containers"][0], stdout=(folder / f"g/{rank}.log").open("ab"), stderr=subprocess.STDOUT, start_new_session=True, environment={
            "NSA_WORKER": str(bin_dir / "nsa-worker"), "NSA_JOB": str(folder / "g/tiny.yaml"), "JOB_COMPLETION_INDEX": str(rank), "GANG": "uid", "POD_IP": "127.0.0.1"})
            for rank in range(2)]

    def told():
        return "".join((folder / f"g/{rank}.log").read_text()[-2000:] for rank in range(2))

    def steps():
        log = folder / "g/out/training.csv"
        return len(log.read_text().splitlines()) if log.exists() else 0

    reached = 0
    for _ in range(2):
        ranks = start()
        try:
            until(lambda: steps() > reached + 50, f"steps of the gang; {told()}")
            for rank in ranks:
                rank.terminate()
            assert [rank.wait(60) for rank in ranks] == [0, 0], told()
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
        assert not (folder / "g/data/gangs/uid").exists()
        reached = steps()
    saved = sorted(path.name for path in (folder / "g/out/checkpoints").glob("step-*"))
    assert len(saved) == 2, saved
    print("ok: the gang")


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    objects = manifests.check(bin_dir)
    print("ok: the files agree")
    missing = [] if check_schemas() else ["the types of Kubernetes' API; deploy/packages.sh test fetches them from npm"]
    with tempfile.TemporaryDirectory(prefix="nsa-kubernetes-") as name:
        folder = pathlib.Path(name)
        check_gang(bin_dir, folder, objects)
        service = Service(bin_dir, folder, objects)
        try:
            tls = check_coordinator(service)
            check_scrape(service, tls)
            check_backup(service, objects)
            check_join(service, tls)
            if may_have_own_namespace():
                check_agent(service)
            else:
                missing.append("the right to make PID namespaces (root), for the agent's script")
        finally:
            service.close()
    if missing:
        print("not checked, for want of " + "; ".join(missing))
        sys.exit(77)


if __name__ == "__main__":
    main()
