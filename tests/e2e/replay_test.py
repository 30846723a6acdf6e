#!/usr/bin/env python3
"""nsactl replay: a job that computed rightly, and one in which a bit of one rank's parameters was flipped.

    tests/e2e/replay_test.py BIN_DIR
"""
import json
import os
import pathlib
import signal
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

FLIP = "NSA_TEST_FLIP_BIT_AT_STEP"
JOB = {
    "name": "right",
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "resources": {"gpus": 2},
    "train": {"steps": 110, "seq_len": 64, "batch_size": 2, "lr": 1e-3, "lr_schedule": "constant", "eval_every": 0, "save_every": 45, "log_every": 10},
}


def restart_agent(service, environment):
    """From now on workers have these variables."""
    service.agent.send_signal(signal.SIGTERM)
    service.agent.wait(30)
    service.agent_environment = environment
    service.start_agent()


def events(service, job):
    shown = json.loads(service.ctl("events", job, "-o", "json", check=True).stdout)
    return [event for event in shown["events"] if event["reason"] == "PARAMETERS_DIFFER"]


def jobs(service):
    return json.loads(service.ctl("list", "-o", "json", check=True).stdout)["jobs"]


def check_right(service, folder):
    """Bits are repeated, up to a step in the middle and up to the last one, and nothing stays of a replay that is equal."""
    assert not events(service, "right")
    same = service.ctl("replay", "right", "--step", "100")
    assert same.returncode == 0, same
    assert "steps 91 to 100: 10 steps of 2 ranks repeated" in same.stdout and "all parameters (2 hashes)" in same.stdout, same
    last = json.loads(service.ctl("replay", "right", "-o", "json", check=True).stdout)
    assert last["equal"] and last["step"] == 110 and last["compared"] == {"steps": 20, "first": 91, "last": 110, "hashes": 4}, last
    whole = json.loads(service.ctl("replay", "right", "--from", "0", "--step", "50", "-o", "json", check=True).stdout)
    assert whole["equal"] and whole["compared"] == {"steps": 50, "first": 1, "last": 50, "hashes": 0}, whole
    assert len(jobs(service)) == 1, jobs(service)
    early = service.ctl("replay", "right", "--step", "100", "--set", "train.steps=95")
    assert early.returncode == 6 and "replay: equal up to step 95 (100 wanted), where it ended: finished" in early.stderr, early
    left = list(folder.glob("right-replay-*"))
    assert len(left) == 1 and f"with the folder {left[0]}" in early.stderr, (left, early)
    return same


def check_convicted(service):
    """The event names both ranks; the replay names the step and the rank, whether a hash or the loss shows it first."""
    found = events(service, "at-hash")
    assert len(found) == 1 and found[0]["severity"] == "SEVERITY_ERROR", found
    assert "rank 0: " in found[0]["text"] and "rank 1: " in found[0]["text"] and "--step 100`" in found[0]["text"], found
    convicted = service.ctl("replay", "at-hash", "--step", "100")
    assert convicted.returncode == 1, convicted
    assert "steps: equal up to 99\nstep 100, rank 1" in convicted.stdout, convicted
    assert "parameters_hash is " in convicted.stdout and "step 100, rank 0: the same bits" in convicted.stdout, convicted
    first = json.loads(service.ctl("replay", "at-hash", "-o", "json").stdout)["first"]
    assert first["step"] == 100 and first["ranks"] == [1] and first["equal_ranks"] == [0], first
    return convicted


def check_between_hashes(service):
    assert len(events(service, "between")) == 1
    between = service.ctl("replay", "between", "--step", "100")
    assert between.returncode == 1, between
    assert "steps: equal up to 95\nstep 96, ranks 0, 1: loss is " in between.stdout, between
    assert "step 100 of the original: the ranks have different parameters" in between.stdout, between


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-replay-") as name:
        folder = pathlib.Path(name)
        file = folder / "job.yaml"
        file.write_text(yaml.safe_dump(JOB))

        def train(service, job):
            service.ctl("submit", file, "--set", f"name={job}", "--set", f"train.out_dir={folder}/{job}", "--watch", check=True)

        with Service(pathlib.Path(sys.argv[1]).resolve(), folder, {FLIP: "100,1"}) as service:
            train(service, "at-hash")
            restart_agent(service, {FLIP: "95,1"})
            train(service, "between")
            restart_agent(service, {"NOT_SET": os.devnull})
            convicted = check_convicted(service)
            check_between_hashes(service)
            for job in jobs(service):
                service.ctl("delete", job["id"], "--yes", check=True)
            train(service, "right")
            same = check_right(service, folder)
    print(f"replay:\n{same.stdout}{convicted.stdout}")


if __name__ == "__main__":
    main()
