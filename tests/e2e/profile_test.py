#!/usr/bin/env python3
"""nsactl profile: two ranks that are recorded while they train, and what is refused or ends in the middle.

    tests/e2e/profile_test.py BIN_DIR
"""
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "name": "traced",
    "model": {"dim": 32, "n_layers": 2, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "resources": {"gpus": 2},
    "restart": {"max_restarts": 0},
    "preflight": {"waive": {"MODEL_TOO_SMALL_FOR_RUN": "a test"}},
    "train": {"steps": 300, "seq_len": 128, "batch_size": 4, "accumulate_grad_batches": 2, "lr": 1e-3, "lr_schedule": "constant", "eval_every": 0,
              "save_every": 100, "log_every": 10},
}
PHASES = {"data", "forward", "backward", "reduce", "optimizer", "telemetry"}


def submit(service, folder, name, **train):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**JOB, "name": name, "train": {**JOB["train"], **train, "out_dir": f"{folder}/{name}"}}))
    service.ctl("submit", file, "-o", "name", check=True)


def job(service, name):
    return json.loads(service.ctl("describe", name, "-o", "json", check=True).stdout)


def wait_for_step(service, name, step):
    def far():
        now = job(service, name)
        assert now["state"] not in ("STATE_FAILED", "STATE_SUCCEEDED"), now
        return now["state"] == "STATE_RUNNING" and int(now.get("progress", {}).get("step", 0)) >= step
    service.wait_until(far, 120, f"step {step} of {name}")


def reasons(service, name):
    return [event["reason"] for event in json.loads(service.ctl("events", name, "-o", "json", check=True).stdout)["events"]]


def read(file):
    trace = json.loads(gzip.decompress(file.read_bytes()))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return trace, events


def inside(event, outer):
    return any(o["pid"] == event["pid"] and o["ts"] - 0.002 <= event["ts"] and event["ts"] + event["dur"] <= o["ts"] + o["dur"] + 0.002 for o in outer)


def check_trace(file, steps, micro_batches=2):
    """Both ranks have exactly the same whole steps, in which everything is nested."""
    trace, events = read(file)
    names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    assert set(names) == {0, 1} and names[1].startswith("rank 1 ("), names
    first = trace["otherData"]["first_step"]
    ranges = [event for event in events if event["cat"] == "step"]
    for rank in 0, 1:
        mine = [event["name"] for event in ranges if event["pid"] == rank]
        assert mine == [f"step {first + i}" for i in range(steps)], mine
        phases = [event for event in events if event["cat"] == "phase" and event["pid"] == rank]
        assert PHASES <= {phase["name"] for phase in phases}, phases
        assert sum(phase["name"] == "forward" for phase in phases) == micro_batches * steps, "once a micro-batch"
        assert all(inside(phase, ranges) for phase in phases)
        layers = [event for event in events if event["cat"] == "layer" and event["pid"] == rank]
        assert len(layers) >= 2 * 2 * micro_batches * steps and all(inside(layer, phases) for layer in layers)
        assert any(event["cat"] == "kernel" and event["name"] == "matmul" and event["pid"] == rank for event in events)
        assert any(event["cat"] == "collective" and event["pid"] == rank for event in events)
        assert any(event["ph"] == "C" and event["pid"] == rank and event["args"]["bytes"] > 1 << 20 for event in trace["traceEvents"])
    return first


def losses(folder, name):
    """Of every step that the ranks wrote, with what must be equal to the last bit."""
    lines = (folder / name / "training.csv").read_text().splitlines()
    head = lines[0].split(",")
    keep = [i for i, column in enumerate(head) if "loss" in column or "norm" in column]
    assert keep, head
    return [[line.split(",")[i] for i in keep] for line in lines[1:]]


def weights(folder, name):
    return {file.relative_to(folder / name).as_posix(): file.read_bytes() for file in (folder / name).rglob("*.safetensors")}


def check_profiles(service, folder):
    submit(service, folder, "traced")
    wait_for_step(service, "traced", 3)
    file = folder / "traced.json.gz"
    shown = service.ctl("profile", "traced", "-o", file)
    assert shown.returncode == 0, shown
    first = check_trace(file, 3)
    assert f"steps {first} to {first + 2} of 2 ranks in {file}" in shown.stdout and "https://ui.perfetto.dev" in shown.stdout, shown
    assert "forward" in shown.stdout and "matmul" in shown.stdout, shown
    # In the current folder by default, and nothing is overwritten.
    run = subprocess.run([service.bin / "nsactl", "profile", "traced", "--steps", "1", "--output", "json"], env=service.environment, cwd=folder,
                         capture_output=True, text=True, check=True)
    document = json.loads(run.stdout)
    assert document["first_step"] == document["last_step"] > first + 2, document
    check_trace(folder / document["file"], 1)
    assert service.ctl("profile", "traced", "-o", file).returncode == 6
    check_trace(file, 3)
    assert reasons(service, "traced").count("PROFILED") == 2
    audit = [json.loads(line) for line in service.ctl("audit", "-o", "json", check=True).stdout.splitlines()]
    assert any(entry["what"] == "ProfileJob" and entry["subject"] and entry["result"] == "OK" for entry in audit), audit
    return shown


def check_bits(service, folder):
    submit(service, folder, "plain")
    for name in "traced", "plain":
        service.wait_until(lambda: job(service, name)["state"] == "STATE_SUCCEEDED", 240, f"the end of {name}")
    assert losses(folder, "traced") == losses(folder, "plain")
    assert weights(folder, "traced") == weights(folder, "plain") and weights(folder, "plain")


def check_refusals(service, folder):
    over = service.ctl("profile", "plain")
    assert over.returncode == 6 and "is finished and does not train" in over.stderr, over
    assert service.ctl("profile", "nothing").returncode == 3
    for steps in "0", "101":
        assert service.ctl("profile", "plain", "--steps", steps).returncode == 2
    # Sixteen times the rows of the others: a hundred steps take seconds, so what comes a second later comes in the middle.
    submit(service, folder, "long", steps=100000, save_every=1000, batch_size=16, accumulate_grad_batches=8)
    wait_for_step(service, "long", 2)
    one = record(service, folder, "one")
    two = service.ctl("profile", "long", "-o", folder / "two.json.gz")
    assert two.returncode == 6 and "one at a time" in two.stderr, two
    out, err = one.communicate(timeout=300)
    assert one.returncode == 0, (out, err)
    check_trace(folder / "one.json.gz", 100, micro_batches=8)


def record(service, folder, name):
    """Begins to record a hundred steps of `long`; returns once the coordinator has taken the request."""
    process = subprocess.Popen([service.bin / "nsactl", "profile", "long", "--steps", "100", "-o", folder / f"{name}.json.gz"],
                               env=service.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert line.startswith("recording 100 steps of long"), line
    return process


def check_lost(service, folder):
    """A rank that is killed in the middle, and a reader that leaves."""
    left = record(service, folder, "left")
    time.sleep(1)
    left.send_signal(signal.SIGINT)
    assert left.wait(30) == 130 and not (folder / "left.json.gz").exists()
    # Another trace takes the place of the one that nobody waits for, once the coordinator has noticed that the reader left.
    service.wait_until(lambda: service.ctl("profile", "long", "--steps", "1", "-o", folder / "next.json.gz", "--force").returncode == 0, 120, "another trace")
    check_trace(folder / "next.json.gz", 1, micro_batches=8)
    killed = record(service, folder, "killed")
    time.sleep(1)
    pid = service.workers()[0]
    os.kill(pid, signal.SIGKILL)
    out, err = killed.communicate(timeout=120)
    # The other rank may still write what it has.
    assert killed.returncode == 1 and "it ended before its trace was complete" in err, (out, err)
    return err


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-profile-") as name:
        folder = pathlib.Path(name)
        with Service(pathlib.Path(sys.argv[1]).resolve(), folder) as service:
            shown = check_profiles(service, folder)
            check_bits(service, folder)
            check_refusals(service, folder)
            lost = check_lost(service, folder)
    print(f"profile:\n{shown.stdout}{lost}")


if __name__ == "__main__":
    main()
