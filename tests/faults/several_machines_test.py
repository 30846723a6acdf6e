#!/usr/bin/env python3
"""Jobs of the coordinator on two of four machines that share no folder: network namespaces with file systems of their own.

    tests/faults/several_machines_test.py BIN_DIR

The coordinator runs on a fourth host; agents reach it over TLS, and nsactl over its unix socket. A job that is left alone has the bits of one host,
and bytes prove that its gradients crossed; every machine has whole checkpoints. In a second job, a machine is cut off for some seconds, which
changes nothing, and then for good: the job moves to the third machine, which receives the checkpoint of the one that is left, and ends with the
same bits. The fourth machine has another program: no multi-machine job runs there, and one that needs all four is refused. A job whose data
differs between its machines ends for good and names the file. Needs root and iproute2, else it is skipped.
"""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from hosts import Hosts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import environment_of

MACHINES = (1, 2, 3)
OTHER = 4  # its worker is another program
STEPS = 4000
SAVE_EVERY = 500
UNKNOWN_SECONDS, LOST_SECONDS = 2, 35
HANG_TIMEOUT = 30
UNPLUGGED_SECONDS = 5  # above UNKNOWN_SECONDS; TCP may send again only as long after it
WAIT_SECONDS = 300
PORT = 50951
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {data}
runtime: {{device: cpu}}
resources: {{gpus: {ranks}, nodes: {nodes}}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
restart: {{hang_timeout_seconds: {hang_timeout}, backoff_seconds: 1}}
train: {{steps: {steps}, seq_len: 32, batch_size: 4, log_every: 100, save_every: {save_every}, out_dir: {out}}}
"""


def job_file(name, out, nodes=2, ranks=2, data="{source: synthetic}"):
    return JOB.format(name=name, out=out, nodes=nodes, ranks=ranks, data=data, hang_timeout=HANG_TIMEOUT, steps=STEPS, save_every=SAVE_EVERY)


class Cluster:
    """A coordinator on host 0 and an agent on each machine."""

    def __init__(self, bin_dir, folder, hosts, own):
        self.bin, self.folder, self.hosts, self.own = bin_dir, folder, hosts, own
        self.environment = environment_of(folder / "state")
        self.processes = []
        address = hosts.addresses[0]
        machines = (*MACHINES, OTHER)
        names = [f"m{machine}" for machine in machines]
        other_worker = folder / "other-worker"
        other_worker.write_bytes((bin_dir / "nsa-worker").read_bytes() + b"another build")
        other_worker.chmod(0o755)
        self.ctl("admin", "init-tls", folder / "tls", "--host", address, *(word for name in names for word in ("--agent", name)))
        (folder / "coordinator.yaml").write_text(f"""\
listen_address: {address}:{PORT}
metrics_address: 127.0.0.1:0
local_agent: false
token_file: {folder}/tls/token
tls: {self.tls("coordinator")}
node_unknown_seconds: {UNKNOWN_SECONDS}
node_lost_seconds: {LOST_SECONDS}
""")
        self.start(0, "coordinator", "nsa-coordinator", "--config", folder / "coordinator.yaml")
        self.wait_until(lambda: self.ctl("list", check=False).returncode == 0, "the coordinator answers")
        for machine, name in zip(machines, names):
            token = folder / f"{name}.token"
            token.touch(0o600)
            token.write_text(self.ctl("token", "create", "--role", "agent", "--node", name))
            (folder / f"{name}.yaml").write_text(f"""\
node_name: {name}
coordinator_address: {address}:{PORT}
join_token_file: {token}
tls: {self.tls(name)}
cpu_slots: 1
worker_program: {other_worker if machine == OTHER else bin_dir / "nsa-worker"}
rank_address: {hosts.addresses[machine]}
rank_ports: 29500-29509
""")
            self.start(machine, name, "nsa-agent", "--config", folder / f"{name}.yaml", "--state-dir", folder / name)
        self.wait_until(lambda: len(self.nodes()) == len(machines), "all machines have joined")

    def tls(self, name):
        tls = self.folder / "tls"
        return f"{{certificate_file: {tls}/{name}.crt, private_key_file: {tls}/{name}.key, client_ca_file: {tls}/ca.crt}}"

    def start(self, host, log, program, *arguments):
        with (self.folder / f"{log}.log").open("w") as output:
            # On one core, so that a rank has one thread: matrix products of some processors depend on the number of threads.
            cores = sorted(os.sched_getaffinity(0))
            on_one_core = ["taskset", "--cpu-list", str(cores[host % len(cores)])]
            command = [*self.hosts.enter(host), *on_one_core, str(self.bin / program), *map(str, arguments)]
            self.processes.append(subprocess.Popen(command, env=self.environment, stdout=output, stderr=output))

    def ctl(self, *arguments, check=True):
        ended = subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=False)
        assert not check or ended.returncode == 0, f"nsactl {arguments}: {ended.stdout}{ended.stderr}\n{self.threads()}\n{self.logs()}"
        return ended.stdout if check else ended

    def threads(self):
        """What each thread of the coordinator is doing: it may not answer although it runs."""
        lines = ["== threads of the coordinator"]
        for task in sorted(pathlib.Path(f"/proc/{self.processes[0].pid}/task").glob("*")) if self.processes else []:
            with contextlib.suppress(OSError):  # it has just ended
                name, state = (task / "comm").read_text().strip(), (task / "stat").read_text().rsplit(")", 1)[1].split()
                ticks = int(state[11]) + int(state[12])  # of the processor, in user and in kernel mode
                waits = ", ".join(line.split("] ")[-1] for line in (task / "stack").read_text().splitlines()[:6])
                lines.append(f"{task.name} {name}: {state[0]}, {ticks} ticks, {waits}")
        return "\n".join(lines)

    def nodes(self):
        """The machines that know their programs, by name."""
        nodes = json.loads(self.ctl("nodes", "-o", "json")).get("nodes", [])
        return {node["info"]["name"]: node for node in nodes if node["info"].get("worker_hash")}

    def logs(self):
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log")))

    def wait_until(self, condition, what):
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_SECONDS} s\n{self.logs()}"
            time.sleep(0.1)

    def submit(self, name, check=True, **job):
        file = self.folder / f"{name}.yaml"
        file.write_text(job_file(name, self.own / name, **job))
        ended = self.ctl("submit", file, check=check)
        return name if check else ended

    def job(self, name):
        return json.loads(self.ctl("describe", name, "-o", "json"))

    def step(self, name):
        return int(self.job(name).get("progress", {}).get("step", 0))

    def machines(self, name):
        """The hosts of ranks 0 and 1; none while the job has no machines."""
        return [int(rank["node"].removeprefix("m")) for rank in self.job(name).get("ranks", [])]

    def wait_for_end(self, name):
        self.wait_until(lambda: self.job(name)["state"] in ("STATE_SUCCEEDED", "STATE_FAILED", "STATE_STOPPED"), f"the end of {name}")
        job = self.job(name)
        assert job["state"] == "STATE_SUCCEEDED", f"{json.dumps(job, indent=1)}\n{self.ctl('events', name)}\n{self.logs()}"
        return job

    def weights(self, machine, name):
        return digest(subprocess.run([*self.hosts.enter(machine), "cat", self.own / name / f"checkpoints/step-{STEPS:08d}/model.safetensors"],
                                     check=True, capture_output=True).stdout)

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)
        # Workers outlive their agents on purpose.
        subprocess.run(["pkill", "-KILL", "-f", f"nsa-worker --run-dir {self.folder}"], check=False)


def digest(content):
    return hashlib.sha256(content).hexdigest()


def one_host(bin_dir, folder):
    """The weights after the same job on one host, without a coordinator, with as many threads as ranks have on the machines: one."""
    folder.mkdir()
    (folder / "job.yaml").write_text(job_file("one-host", folder / "out", nodes=1))
    ranks = [subprocess.Popen([bin_dir / "nsa-worker", "--job", "job.yaml", "--rank", str(rank), "--world", "2", "--rendezvous", "meet", "--threads", "1"],
                              cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for rank in range(2)]
    assert [rank.wait(WAIT_SECONDS) for rank in ranks] == [0, 0]
    return digest((folder / f"out/checkpoints/step-{STEPS:08d}/model.safetensors").read_bytes())


def check_another_program(cluster):
    """A job that needs the machine with another program is refused."""
    hashes = {name: node["info"]["worker_hash"] for name, node in cluster.nodes().items()}
    assert len({hashes[f"m{machine}"] for machine in MACHINES}) == 1 and hashes[f"m{OTHER}"] != hashes["m1"], hashes
    refused = cluster.submit("too-wide", check=False, nodes=4, ranks=4)
    said = refused.stdout + refused.stderr
    assert refused.returncode != 0 and "MACHINES_DIFFER" in said, said
    assert f"m{OTHER}: nsa-worker {hashes[f'm{OTHER}'][:8]}, m1 has {hashes['m1'][:8]}" in " ".join(said.split()), said

    def clocks():
        return [line for line in cluster.ctl("nodes", "-o", "wide").splitlines() if "+0.0" in line or "-0.0" in line]
    # The estimate is that of the fastest of the last heartbeats, and there may have been few.
    cluster.wait_until(lambda: len(clocks()) == len(hashes), "the clocks are those of one host")


def check_other_data(cluster):
    """Every host has a file of its own: the job ends for good, and says which file differs."""
    data = cluster.own / "text.txt"
    for host in range(1 + len(MACHINES) + 1):
        subprocess.run([*cluster.hosts.enter(host), "tee", data], input=f"host {host}\n".encode() * 1000, check=True, stdout=subprocess.DEVNULL)
    name = cluster.submit("other-data", data=f"{{source: text, path: [{data}], val_fraction: 0}}")
    cluster.wait_until(lambda: cluster.job(name)["state"].endswith(("FAILED", "SUCCEEDED", "STOPPED")), f"the end of {name}")
    job = cluster.job(name)
    assert job["state"].endswith("FAILED") and job.get("restarts", 0) == 0, job
    assert f"data differs between machines: {data} on rank 1 has documents with the hash" in job["message"], job


def check_left_alone(cluster, wanted):
    name = cluster.submit("alone")
    cluster.wait_until(lambda: cluster.step(name) > 100, "the job trains")
    machines = cluster.machines(name)
    before = [cluster.hosts.received(machine) for machine in machines]
    job = cluster.wait_for_end(name)
    crossed = [cluster.hosts.received(machine) - start for machine, start in zip(machines, before)]
    assert len(set(machines)) == 2, machines
    assert min(crossed) > (STEPS - 200) * 10_000, f"{crossed} bytes crossed"
    assert [cluster.weights(machine, name) for machine in machines] == [wanted, wanted], "other bits than one host's"
    assert job.get("restarts", 0) == 0, job
    return min(crossed)


def check_cut_off(cluster, wanted):
    name = cluster.submit("cut-off")
    cluster.wait_until(lambda: cluster.step(name) > 100, "the job trains")
    first, second = cluster.machines(name)
    cluster.hosts.plug(second, "down")
    time.sleep(UNPLUGGED_SECONDS)
    state = next(node for node in json.loads(cluster.ctl("nodes", "-o", "json"))["nodes"] if node["info"]["name"] == f"m{second}")["state"]
    cluster.hosts.plug(second, "up")
    assert state == "UNKNOWN", state
    step = cluster.step(name)
    assert step < STEPS - 2 * SAVE_EVERY, f"step {step}: too late to cut the machine off for good"
    cluster.wait_until(lambda: cluster.step(name) > max(step, SAVE_EVERY + 150), "the job trains on")  # the checkpoint is written
    job = cluster.job(name)
    assert (job["generation"], cluster.machines(name)) == ("1", [first, second]), f"a cut of {UNPLUGGED_SECONDS} s: {job}"

    cluster.hosts.plug(second, "down")
    began = time.monotonic()
    cluster.wait_until(lambda: cluster.job(name)["generation"] == "2" and second not in cluster.machines(name) != [], "the job has moved")
    moved = time.monotonic() - began
    machines = cluster.machines(name)
    cluster.wait_for_end(name)
    assert sorted([*machines, second]) == list(MACHINES), machines
    assert [cluster.weights(machine, name) for machine in machines] == [wanted, wanted], "other bits than one host's after the move"
    resumed = [line for line in cluster.ctl("events", name).splitlines() if "RESUMED" in line]
    assert resumed and "from step 0" not in resumed[0], cluster.ctl("events", name)
    cluster.hosts.plug(second, "up")
    cluster.wait_until(lambda: not workers_of(cluster, second), "the machine that was cut off has no worker")
    return moved


def workers_of(cluster, machine):
    return subprocess.run(["pgrep", "-f", f"nsa-worker --run-dir {cluster.folder}/m{machine}/"], capture_output=True, text=True, check=False).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin_dir", type=pathlib.Path)
    bin_dir = parser.parse_args().bin_dir.resolve()
    with tempfile.TemporaryDirectory(prefix="nsa-machines-") as name:
        folder = pathlib.Path(name)
        own = folder / "own"  # every host has a file system of its own there
        own.mkdir()
        try:
            hosts = Hosts(1 + len(MACHINES) + 1, own)
        except (OSError, AssertionError, subprocess.CalledProcessError) as error:
            print(f"skipped: no network namespaces here ({error})")
            return 77
        with contextlib.closing(hosts):
            wanted = one_host(bin_dir, folder / "one-host")
            with contextlib.closing(Cluster(bin_dir, folder, hosts, own)) as cluster:
                check_another_program(cluster)
                check_other_data(cluster)
                crossed = check_left_alone(cluster, wanted)
                moved = check_cut_off(cluster, wanted)
        print(f"two machines: the bits of one host after {STEPS} steps, {crossed / 1e6:.1f} MB a machine over the cable; cut off for "
              f"{UNPLUGGED_SECONDS} s: nothing happened; for good: moved after {moved:.1f} s, the same bits")
    return 0


if __name__ == "__main__":
    sys.exit(main())
