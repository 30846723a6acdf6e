#!/usr/bin/env python3
"""A hostile client in JavaScript (hostile_client.mjs) against a coordinator whose job trains: no attack has an effect.

    tests/faults/hostile_client_test.py BIN_DIR [WORDS]     with WORDS only the attacks that have them in their name

Needs Node and the packages of tests/faults/hostile/package.json (deploy/packages.sh test); skipped (77) without them.
"""
import json
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from service import Service  # noqa: E402

PACKAGES = TESTS / "faults" / "hostile"
# About fifty steps a second on one core, for longer than the test takes.
JOB = """
name: victim
model: {{dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: only to have something that runs, DATA_SYNTHETIC: only to have something that runs}}}}
train: {{steps: 200000, seq_len: 128, batch_size: 8, lr: 1e-3, warmup_steps: 20, log_every: 1, eval_every: 0, save_every: 100000, seed: 7, out_dir: {out_dir}}}
"""


def modules():
    """The folder with the packages; None without Node or them."""
    found = subprocess.run([TESTS.parent / "deploy" / "node_packages.sh", "--where", PACKAGES], capture_output=True, text=True, check=True).stdout.strip()
    return pathlib.Path(found) if shutil.which("node") and (pathlib.Path(found) / "node_modules").is_dir() else None


def token(service, *arguments):
    made = service.ctl("token", "create", *arguments)
    assert made.returncode == 0, f"{made.stderr}\n{service.log.read_text()}"
    return made.stdout.strip()


def write_world(service, folder, only):
    tcp, http = re.search(r"gRPC on \S+ and (\S+), metrics", service.log.read_text())[1], service.address
    request_id = "submitted-by-ada"
    owner = folder / "ada.token"
    owner.touch(mode=0o600)
    owner.write_text(token(service, "ada", "--role", "submitter") + "\n")
    (folder / "job.yaml").write_text(JOB.format(out_dir=folder / "out"))
    submitted = subprocess.run([service.bin / "nsactl", "--address", tcp, "submit", folder / "job.yaml", "--request-id", request_id, "-o", "name"],
                               env={**service.environment, "NSACTL_TOKEN_FILE": str(owner)}, capture_output=True, text=True)
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    world = {
        "tcp": tcp, "http": http, "socket": f"unix:{folder}/state/coordinator.sock",
        "modules": str(modules()), "protos": str(TESTS.parent / "proto"), "nsactl": str(service.bin / "nsactl"),
        "environment": {key: service.environment[key] for key in ("NSA_STATE_DIR", "NSACTL_CONFIG")},
        "pid": service.process.pid, "node": service.ctl("nodes", "-o", "name").stdout.strip(),
        "jobId": submitted.stdout.strip(), "jobName": "victim", "requestId": request_id, "only": only,
        "tokens": {"operator": (folder / "state" / "token").read_text().strip(), "viewer": token(service, "eve", "--role", "viewer"),
                   "submitter": token(service, "mallory", "--role", "submitter"), "join": token(service, "--role", "agent", "--node", "elsewhere"),
                   "agent": secrets.token_hex(32)},
    }
    (folder / "world.json").write_text(json.dumps(world))
    return world


def main():
    if modules() is None:
        print("skipped: no Node, or not the packages of tests/faults/hostile; deploy/packages.sh test installs them")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="nsa-hostile-") as place:
        folder = pathlib.Path(place)
        with Service(sys.argv[1], folder, arguments=["--listen", "127.0.0.1:0"]) as service:
            world = write_world(service, folder, " ".join(sys.argv[2:]))
            service.wait_until(lambda: "training" in service.ctl("list").stdout, 60, "the job")
            done = subprocess.run(["node", TESTS / "faults" / "hostile_client.mjs", folder / "world.json"], timeout=840)
            alive = service.process.poll() is None
            assert done.returncode == 0 and alive, f"hostile client: {done.returncode}; the coordinator's log:\n{service.log.read_text()[-4000:]}"
            assert "FORGED" not in service.ctl("events", world["jobId"], check=True).stdout
            assert "forged" not in service.ctl("logs", world["jobId"], check=True).stdout
            log = service.log.read_text()
            for name, secret in world["tokens"].items():
                assert secret not in log, f"the coordinator's log has the {name}'s secret"
            service.ctl("stop", "--now", world["jobId"], check=True)


main()
