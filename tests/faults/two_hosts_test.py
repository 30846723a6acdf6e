#!/usr/bin/env python3
"""A job of two ranks on two hosts, which share a folder: network namespaces with a cable each to a switch.

    tests/faults/two_hosts_test.py BIN_DIR

The bits are those of one host, at each level of runtime.shard; packets prove that the gradients crossed. A cable that is unplugged for some seconds, a
rank that stands still for as long, and a slow cable change nothing; a cable that stays unplugged ends both ranks with PEER_LOST. A rank that cannot be
reached is named. Needs root and iproute2, else it is skipped.
"""
import argparse
import contextlib
import csv
import hashlib
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from hosts import NETWORK, Hosts

ELSEWHERE = f"{NETWORK}9"  # in the same network, nobody has it
STEPS = 3000
FEW_STEPS = 200  # where nothing happens on the way
HANG_TIMEOUT = 12
UNPLUGGED_SECONDS = 4  # well below HANG_TIMEOUT
SLOW_RATE, SLOW_BITS = "20mbit", 20e6
WAIT_SECONDS = 240
JOB = f"""\
name: two-hosts
model: {{dim: 32, n_layers: 1, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}}
data: {{source: synthetic}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
restart: {{hang_timeout_seconds: {HANG_TIMEOUT}}}
"""


def job(steps, shard="none"):
    return f"{JOB}runtime: {{shard: {shard}}}\ntrain: {{steps: {steps}, seq_len: 32, batch_size: 4, log_every: 1, save_every: 500}}\n"


class Gang:
    """Both ranks, on one host or on two."""

    def __init__(self, worker, folder, hosts=None, addresses=None, steps=STEPS, shard="none"):
        self.out = folder / "artifacts/two-hosts"
        self.steps = steps
        folder.mkdir()
        (folder / "job.yaml").write_text(job(steps, shard))
        self.logs = [folder / f"rank-{rank}.log" for rank in range(2)]
        self.ranks = []
        for rank, log in enumerate(self.logs):
            where = [] if hosts is None else hosts.enter(rank)
            listen = [] if hosts is None else ["--rank-address", (addresses or hosts.addresses)[rank], "--rank-ports", "29500-29509"]
            command = [*where, worker, "--job", "job.yaml", "--rank", str(rank), "--world", "2", "--rendezvous", "meet", "--threads", "1", *listen]
            with log.open("w") as output:
                self.ranks.append(subprocess.Popen(command, cwd=folder, stdout=output, stderr=output))

    def log(self, rank):
        return self.logs[rank].read_text()

    def wait_for(self, text):
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.log(0):
            assert self.ranks[0].poll() is None and time.monotonic() < deadline, f"no '{text}' in:\n{self.log(0)}\n{self.log(1)}"
            time.sleep(0.02)

    def end(self):
        return [rank.wait(WAIT_SECONDS) for rank in self.ranks]

    def bits(self):
        with (self.out / "training.csv").open() as file:
            losses = [row[:2] for row in csv.reader(file)]
        model = self.out / f"checkpoints/step-{self.steps:08d}/model.safetensors"
        return len(losses), hashlib.sha256(repr(losses).encode() + model.read_bytes()).hexdigest()

    def close(self):
        for rank in self.ranks:
            rank.kill()
            rank.wait()


def check_trains(worker, folder, hosts, unplug):
    with contextlib.closing(Gang(worker, folder, hosts)) as gang:
        if unplug:
            gang.wait_for("step 100/")
            hosts.plug(0, "down")
            time.sleep(UNPLUGGED_SECONDS)
            assert f"step {STEPS}/" not in gang.log(0) and [rank.poll() for rank in gang.ranks] == [None, None], gang.log(0)
            hosts.plug(0, "up")
        assert gang.end() == [0, 0], gang.log(0) + gang.log(1)
        return gang.bits()


def check_stalls(worker, folder, hosts):
    """Rank 1 stands still; its machine still answers."""
    with contextlib.closing(Gang(worker, folder, hosts)) as gang:
        gang.wait_for("step 100/")
        gang.ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(UNPLUGGED_SECONDS)
        assert f"step {STEPS}/" not in gang.log(0) and gang.ranks[0].poll() is None, gang.log(0)
        gang.ranks[1].send_signal(signal.SIGCONT)
        assert gang.end() == [0, 0], gang.log(0) + gang.log(1)
        return gang.bits()


def check_slow(worker, folder, hosts, wanted):
    """Both cables are slow; the time proves it."""
    for host in range(2):
        hosts.slow(host, SLOW_RATE)
    before, began = hosts.received(0), time.monotonic()
    with contextlib.closing(Gang(worker, folder, hosts, steps=FEW_STEPS)) as gang:
        assert gang.end() == [0, 0], gang.log(0) + gang.log(1)
        assert gang.bits() == wanted, "other bits over a slow cable"
    seconds, crossed = time.monotonic() - began, hosts.received(0) - before
    for host in range(2):
        hosts.fast(host)
    assert seconds > 0.9 * crossed * 8 / SLOW_BITS, f"{crossed} bytes in {seconds} s"


def check_levels(worker, folder, hosts):
    """Each level of runtime.shard; returns the bits of the first."""
    all_bits = []
    for shard in ("none", "optimizer", "gradients", "parameters"):
        one_or_two = []
        for name, where in (("one", None), ("two", hosts)):
            with contextlib.closing(Gang(worker, folder / f"{shard}-{name}", where, steps=FEW_STEPS, shard=shard)) as gang:
                assert gang.end() == [0, 0], gang.log(0) + gang.log(1)
                one_or_two.append(gang.bits())
        assert one_or_two[0] == one_or_two[1], f"{shard}: other bits than one host's"
        all_bits.append(one_or_two[0])
    assert len(set(all_bits)) == 1, "the levels differ"
    return all_bits[0]


def check_unplugged_for_good(worker, folder, hosts):
    with contextlib.closing(Gang(worker, folder, hosts)) as gang:
        gang.wait_for("step 100/")
        hosts.plug(0, "down")
        began = time.monotonic()
        ends = gang.end()
        seconds = time.monotonic() - began
        hosts.plug(0, "up")
        assert ends == [1, 1], f"{ends} (a restart may help)\n{gang.log(0)}\n{gang.log(1)}"
        assert all("PEER_LOST" in gang.log(rank) for rank in range(2)), gang.log(0) + gang.log(1)
        assert seconds < HANG_TIMEOUT + 20, seconds
        return seconds


def check_unreachable(worker, folder, hosts):
    """Rank 1 writes an address that rank 0 cannot reach."""
    hosts.inside(1, "ip", "address", "add", f"{ELSEWHERE}/32", "dev", "lo")
    hosts.inside(0, "ip", "route", "add", "unreachable", f"{ELSEWHERE}/32")
    with contextlib.closing(Gang(worker, folder, hosts, (hosts.addresses[0], ELSEWHERE))) as gang:
        assert gang.end() == [1, 1], gang.log(0) + gang.log(1)
        wanted = f"rank 0 cannot connect to rank 1 at {ELSEWHERE}:295"
        assert wanted in gang.log(0), f"no '{wanted}' in:\n{gang.log(0)}"


def check_refused(worker, folder):
    """An address of another machine."""
    (folder / "job.yaml").write_text(job(STEPS))
    command = [worker, "--job", "job.yaml", "--rank", "0", "--world", "2", "--rendezvous", "meet", "--rank-address", "192.0.2.1"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "none of this machine's interfaces" in ended.stderr + ended.stdout, ended


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bin_dir", type=pathlib.Path)
    worker = str(parser.parse_args().bin_dir.resolve() / "nsa-worker")
    try:
        hosts = Hosts(2)
    except (OSError, AssertionError, subprocess.CalledProcessError) as error:
        print(f"skipped: no network namespaces here ({error})")
        return 77
    with contextlib.closing(hosts), tempfile.TemporaryDirectory(prefix="nsa-two-hosts-") as name:
        folder = pathlib.Path(name)
        check_refused(worker, folder)
        one_host = check_trains(worker, folder / "one-host", None, unplug=False)
        before = hosts.received(0)
        assert check_trains(worker, folder / "two-hosts", hosts, unplug=False) == one_host, "other bits than one host's"
        crossed = hosts.received(0) - before
        assert crossed > STEPS * 10_000, f"{crossed} bytes crossed"
        assert check_trains(worker, folder / "unplugged", hosts, unplug=True) == one_host, "other bits after the cable was unplugged"
        assert check_stalls(worker, folder / "stalls", hosts) == one_host, "other bits after a rank stood still"
        check_slow(worker, folder / "slow", hosts, check_levels(worker, folder, hosts))
        seconds = check_unplugged_for_good(worker, folder / "for-good", hosts)
        check_unreachable(worker, folder / "unreachable", hosts)
        print(f"two hosts: {one_host[0] - 1} steps with the bits of one host, {crossed / 1e6:.1f} MB a host over the cable, and at each level of "
              f"runtime.shard; unplugged or a rank stopped for {UNPLUGGED_SECONDS} s, and at {SLOW_RATE}: the same bits; unplugged for good: both ranks "
              f"ended after {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
