#!/usr/bin/env python3
"""A job store that is lost while a job trains: put back, and exchanged for a new one on purpose.

    tests/e2e/lost_store_test.py BIN_DIR
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "runtime": {"device": "cpu"},
    # No checkpoint but the one at a stop.
    "train": {"steps": 2000000, "seq_len": 64, "batch_size": 2, "eval_every": 0, "save_every": 1000000, "log_every": 100},
    "preflight": {"waive": {"MODEL_TOO_SMALL_FOR_RUN": "a test", "DATA_SYNTHETIC": "a test", "LOST_WORK": "a test"}},
}


def submit(service, folder, name):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**JOB, "name": name, "train": {**JOB["train"], "out_dir": str(folder / name)}}))
    return service.ctl("submit", file)


def describe(service, name):
    return json.loads(service.ctl("describe", name, "-o", "json", check=True).stdout)


def step(service, name):
    return int(describe(service, name)["progress"]["step"])


def store_id(service):
    return json.loads(service.ctl("version", "-o", "json", check=True).stdout)["coordinator"]["store_id"]


def node(service):
    nodes = json.loads(service.ctl("nodes", "-o", "json", check=True).stdout).get("nodes", [])
    return nodes[0] if nodes else {"state": ""}


def kill(service):
    service.process.kill()
    service.process.wait(30)


def run_coordinator(service, *arguments):
    """Runs the coordinator to its end."""
    return subprocess.run([service.bin / "nsa-coordinator", *service.arguments, *arguments], env=service.environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)


def check_lost(service, state, aside):
    """The store is moved away under a coordinator that is then killed: no coordinator replaces it, and put back it goes on."""
    before = describe(service, "a")
    kill(service)
    for name in ("jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"):
        if (state / name).exists():
            (state / name).rename(aside / name)
    refused = run_coordinator(service)
    assert refused.returncode == 3, refused
    assert "jobs.sqlite is missing or empty, but " in refused.stderr and "nsactl admin restore" in refused.stderr, refused
    assert not (state / "jobs.sqlite").exists()

    made = run_coordinator(service, "--new-store")
    assert made.returncode == 0 and "made an empty job store" in made.stdout, made
    assert run_coordinator(service, "--new-store").returncode == 5
    service.start()
    service.wait_until(lambda: node(service)["state"] == "OTHER_STORE", 120, "a machine of another store")
    assert service.workers() == [int(before["ranks"][0]["pid"])], "its ranks keep running"
    return before


def check_back(service, state, aside, before, own):
    assert node(service)["store_id"] == own
    table = service.ctl("nodes", check=True)
    assert f"started under job store {own}" in table.stdout + table.stderr, table
    kill(service)
    for name in ("jobs.sqlite", "jobs.sqlite-wal", "jobs.sqlite-shm"):
        (state / name).unlink(missing_ok=True)
        if (aside / name).exists():
            (aside / name).rename(state / name)
    service.start()
    service.wait_until(lambda: store_id(service) == own, 120, "the old store")
    service.wait_until(lambda: step(service, "a") > int(before["progress"]["step"]) + 50, 120, "a goes on")
    now = describe(service, "a")
    assert now["generation"] == before["generation"] == "1", now
    assert service.workers() == [int(before["ranks"][0]["pid"])]


def check_new(service, folder, name):
    """The new store is accepted: a drain ends the ranks of the old one with a checkpoint."""
    assert not list((folder / "a" / "checkpoints").glob("step-*")), "none was due yet"
    machine = node(service)["info"]["name"]
    drained = service.ctl("node", "drain", machine, check=True)
    assert "drained" in drained.stdout, drained
    assert not service.workers()
    assert len(list((folder / "a" / "checkpoints").glob("step-*"))) == 1, "it ended with a checkpoint"
    service.ctl("node", "uncordon", machine, check=True)
    (folder / "a" / "owner.json").unlink()
    assert submit(service, folder, name).returncode == 0
    service.wait_until(lambda: step(service, name) > 0, 120, "the new job")
    assert "RESUMED" in service.ctl("events", name).stdout


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-lost-") as name:
        folder = pathlib.Path(name)
        aside = folder / "aside"
        aside.mkdir()
        with Service(pathlib.Path(sys.argv[1]).resolve(), folder) as service:
            state = folder / "state"
            own = store_id(service)
            assert submit(service, folder, "a").returncode == 0
            service.wait_until(lambda: step(service, "a") >= 50, 120, "50 steps")
            before = check_lost(service, state, aside)
            check_back(service, state, aside, before, own)
            check_lost(service, state, aside)
            check_new(service, folder, "a")
            log = service.log.read_text()
            agent = (state / "agent" / "agent.log").read_text()
            assert f"were started under store {own}, and this coordinator has store" in log, log
            assert f"were started under {own}: they keep running" in agent and "ended with code 0" in agent, agent
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(30) == 0
            service.start()
    print("a lost store is refused; the old one is taken up again, a new one after a drain")


if __name__ == "__main__":
    main()
