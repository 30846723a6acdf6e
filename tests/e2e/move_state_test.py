#!/usr/bin/env python3
"""The state folder of a coordinator with a running job: moved as docs/runbook.md says, and copied for a second coordinator beside the first.

    tests/e2e/move_state_test.py BIN_DIR
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "name": "a",
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "runtime": {"device": "cpu"},
    "train": {"steps": 2000000, "seq_len": 64, "batch_size": 2, "eval_every": 0, "save_every": 100, "log_every": 100},
    "preflight": {"waive": {"MODEL_TOO_SMALL_FOR_RUN": "a test", "DATA_SYNTHETIC": "a test"}},
}


def describe(service, job="a"):
    return json.loads(service.ctl("describe", job, "-o", "json", check=True).stdout)


def step(service):
    return int(describe(service)["progress"]["step"])


def stop(service):
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0


def agents(state):
    """The live agents that run in this folder."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if arguments and arguments[0].endswith(b"/nsa-agent") and str(state / "agent").encode() in arguments:
            found.append(int(entry.name))
    return found


def alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def check_same_disk(service, folder, state):
    """mv on one disk: the old agent gives way, the worker goes on under the new one."""
    before = describe(service)
    worker = int(before["ranks"][0]["pid"])
    old_agent, = agents(state)
    stop(service)
    moved = folder / "moved"
    state.rename(moved)
    service.environment["NSA_STATE_DIR"] = str(moved)
    service.start()
    service.wait_until(lambda: not alive(old_agent), 60, "the end of the old agent")
    service.wait_until(lambda: agents(moved), 60, "a new agent")
    service.wait_until(lambda: step(service) > int(before["progress"]["step"]) + 100, 120, "the job goes on")
    now = describe(service)
    assert now["generation"] == before["generation"] and int(now["ranks"][0]["pid"]) == worker, (before, now)
    assert "from where this state folder was moved" in service.log.read_text()
    return moved


def check_other_disk(service, folder, state):
    """What mv does to another disk, in the order of the runbook: drain, stop, copy, remove, start, uncordon."""
    machine = json.loads(service.ctl("nodes", "-o", "json", check=True).stdout)["nodes"][0]["info"]["name"]
    service.ctl("node", "drain", machine, check=True)
    drained = step(service)
    stop(service)
    copied = folder / "other-disk"
    shutil.copytree(state, copied, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    shutil.rmtree(state)
    service.environment["NSA_STATE_DIR"] = str(copied)
    service.start()
    service.ctl("node", "uncordon", machine, check=True)
    service.wait_until(lambda: step(service) > drained + 100, 120, "the job goes on")
    assert describe(service)["state"] == "STATE_RUNNING"
    return copied


def check_copy(service, folder, state):
    """A second coordinator on a copy of the state folder, for a try: agent and worker of the first one are not its own."""
    before = describe(service)
    worker = int(before["ranks"][0]["pid"])
    first_agent, = agents(state)
    copy = folder / "copy"
    shutil.copytree(state, copy, ignore=lambda _, names: [name for name in names if name.endswith(".sock")])
    environment = {**service.environment, "NSA_STATE_DIR": str(copy)}
    log = folder / "second.log"
    with open(log, "wb") as output:
        second = subprocess.Popen([service.bin / "nsa-coordinator", "--metrics", ""], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    ctl = lambda *arguments: subprocess.run([service.bin / "nsactl", *arguments], env=environment, capture_output=True, text=True, timeout=120)
    try:
        service.wait_until(lambda: "OUT_DIR_BUSY" in ctl("describe", "a").stdout, 120, "the copy's job finds its out_dir taken")
        assert f"{worker}" in ctl("describe", "a").stdout, "it names the process that trains there"
        other_agent, = agents(copy)
        assert other_agent != first_agent and alive(first_agent)
        ctl("stop", "a", "--now")
        service.wait_until(lambda: re.search(r"^State: +stopped$", ctl("describe", "a").stdout, re.MULTILINE), 120, "the copy's job stops")
        at = step(service)
        service.wait_until(lambda: step(service) > at + 100, 120, "the job of the first coordinator goes on")
        now = describe(service)
        assert int(now["ranks"][0]["pid"]) == worker and now["generation"] == before["generation"], (before, now)
        assert "(this state folder is a copy of it): left alone" in (copy / "agent" / "agent.log").read_text()
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(30)
        for pid in agents(copy):
            os.kill(pid, signal.SIGTERM)


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-move-") as name:
        folder = pathlib.Path(name).resolve()
        with Service(pathlib.Path(sys.argv[1]).resolve(), folder) as service:
            file = folder / "a.yaml"
            file.write_text(yaml.safe_dump({**JOB, "train": {**JOB["train"], "out_dir": str(folder / "out")}}))
            service.ctl("submit", file, check=True)
            service.wait_until(lambda: step(service) >= 100, 120, "100 steps")
            state = check_same_disk(service, folder, folder / "state")
            state = check_other_disk(service, folder, state)
            check_copy(service, folder, state)
            service.ctl("stop", "a", "--now", check=True)
            service.wait_until(lambda: describe(service)["state"] == "STATE_STOPPED", 120, "the end of the job")
    print("moved on one disk and to another, and copied: the job goes on under one agent")


if __name__ == "__main__":
    main()
