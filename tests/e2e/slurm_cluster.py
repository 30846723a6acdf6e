"""A Slurm cluster on this machine for tests: munged, slurmctld and several slurmd, each with a name, a port and a spool folder of its own.

SlurmCluster() raises Unavailable where Slurm is not installed or its daemons do not start. Nothing of the machine's own Slurm is used or changed.
"""
import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from ports import HeldPorts  # noqa: E402

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "sacct", "scancel", "scontrol")
CONFIGURATION = """\
ClusterName=nsatest
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=9
KillWait=10
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] CPUs={cores} RealMemory=500
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
"""


class Unavailable(Exception):
    """Why there is no cluster."""


class SlurmCluster:
    def __init__(self, folder, nodes, cores=2):
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not installed (deploy/packages.sh test)")
        if os.geteuid() != 0:
            raise Unavailable("slurmd starts jobs for users, so this test needs root")
        self.folder = folder
        self.nodes = [f"n{i + 1}" for i in range(nodes)]
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons = []
        self.slurmds = {}
        folder.mkdir(mode=0o700)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.ports = HeldPorts(nodes + 1)
        port = self.ports.first
        (folder / "slurm.conf").write_text(CONFIGURATION.format(
            folder=folder, host=socket.gethostname().split(".")[0], user=getpass.getuser(), nodes=nodes, cores=cores, port=port,
            first_port=port + 1, last_port=port + nodes))
        try:
            self.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock", f"--pid-file={folder}/munged.pid",
                       f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed")
            self.wait_until(lambda: (folder / "munge.sock").exists(), "munged")
            self.start("slurmctld", "-D", "-f", folder / "slurm.conf")
            for node in self.nodes:
                self.revive_node(node)
            self.wait_until(lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * nodes, "the nodes")
        except BaseException:
            self.close()
            raise

    def start(self, program, *arguments):
        with open(self.folder / f"{program}.out", "ab") as output:
            process = subprocess.Popen([program, *map(str, arguments)], env=self.environment, stdout=output, stderr=output)
        self.daemons.append(process)
        return process

    def run(self, *command, check=False):
        return subprocess.run([str(word) for word in command], env=self.environment, capture_output=True, text=True, check=check).stdout

    def jobs(self, *options):
        """State and name of each job that Slurm knows, of those that have not ended by default."""
        return [line.split("|") for line in self.run("squeue", "-h", "-o", "%i|%T|%j|%N", *options).splitlines()]

    def nodes_of(self, number):
        """The nodes of a job that runs."""
        return self.run("scontrol", "show", "hostnames", self.run("squeue", "-h", "-o", "%N", "-j", number).strip()).split()

    def kill_node(self, node):
        """Kills the daemon of a node and everything that it has started, and that this has started, all at once."""
        doomed = [self.slurmds[node].pid]
        steps = subprocess.run(["pgrep", "slurmstepd"], capture_output=True, text=True, check=False).stdout.split()
        doomed += [int(pid) for pid in steps if f"{self.folder}/slurmd-{node}.log" in self.open_files(pid)]
        for pid in doomed:
            doomed += [int(child) for child in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()]
        for pid in doomed:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.daemons.remove(self.slurmds[node])
        self.slurmds[node].wait()

    @staticmethod
    def open_files(pid):
        try:
            return " ".join(os.readlink(link) for link in pathlib.Path(f"/proc/{pid}/fd").iterdir())
        except OSError:
            return ""

    def revive_node(self, node):
        self.slurmds[node] = self.start("slurmd", "-D", "-f", self.folder / "slurm.conf", "-N", node)

    def update_nodes(self, names, state):
        self.run("scontrol", "update", f"nodename={names}", f"state={state}", "reason=test", check=True)

    def wait_until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self.daemons):
                raise Unavailable(f"{what} did not start:\n{self.logs()}")
            time.sleep(0.1)

    def logs(self):
        names = [*self.folder.glob("*.out"), *self.folder.glob("slurmctld.log")]
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in sorted(names))

    def close(self):
        self.run("scancel", f"--user={getpass.getuser()}", "--signal=KILL", "--full")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        # The daemons of steps outlive theirs.
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"SLURM_CONF={self.folder}".encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue
