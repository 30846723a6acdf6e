#!/usr/bin/env python3
"""Data, checkpoints and exports in an object store (tests/e2e/s3/server.mjs) that verifies signatures, fails 5 % of the requests, and is killed in an upload; and so is the worker.

    tests/e2e/s3_test.py BIN_DIR

Needs Node and the packages of tests/e2e/s3/package.json (deploy/packages.sh test); skipped (77) without them.
"""
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from ports import HeldPorts  # noqa: E402
from service import Service  # noqa: E402

PACKAGES = TESTS / "e2e" / "s3"
SECRET = "hush/hush+hush"
# Optimizer shards of 26 MB: two parts.
JOB = """
name: {name}
model: {{dim: 256, n_layers: 4, n_heads: 4, n_kv_groups: 2, d_k: 32, d_v: 32}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}}
data: {{source: jsonl, tokenizer: byte, path: ["s3://bucket/sets/a b.jsonl", "s3://bucket/sets/c.jsonl.zst"], val_fraction: 0.1}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: {steps}, seq_len: 64, batch_size: 1, lr: 1e-3, warmup_steps: 5, log_every: 1, eval_every: 0, save_every: 10, keep_checkpoints: 2, seed: 7, out_dir: {out}{more}}}
restart: {{backoff_seconds: 0}}
"""


@functools.cache
def modules():
    found = subprocess.run([TESTS.parent / "deploy" / "node_packages.sh", "--where", PACKAGES], capture_output=True, text=True, check=True).stdout.strip()
    return pathlib.Path(found) / "node_modules"


class Store:
    """The server, and what it has said."""

    def __init__(self, folder, failures=0.05, skew=0):
        self.folder, self.arguments = folder, [failures, skew]
        folder.mkdir()
        self.port = HeldPorts()
        self.address = f"http://127.0.0.1:{self.port.first}"
        self.log = folder.with_suffix(".log")
        self.start()

    def start(self):
        before = self.said().count("ready")
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(["node", PACKAGES / "server.mjs", modules(), self.folder, str(self.port.first), *map(str, self.arguments)], stdout=log, stderr=log)
        self.await_text(lambda: self.said().count("ready") > before)
        self.behind = re.findall(r"ready (\d+)", self.said())[-1]

    def said(self):
        return self.log.read_text() if self.log.exists() else ""

    def await_text(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.said()[-4000:]
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait(30)

    def put(self, key, content):
        """Past the door: what somebody else has stored."""
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.behind}/bucket/{urllib.request.quote(key)}", content, method="PUT"), timeout=60)

    def get(self, key):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.behind}/bucket/{urllib.request.quote(key)}", timeout=60) as answer:
            return answer.read()

    def keys(self, prefix):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.behind}/bucket?list-type=2&prefix={urllib.request.quote(prefix)}", timeout=60) as answer:
            return re.findall(r"<Key>([^<]*)</Key>", answer.read().decode())


def write_data(store, folder):
    rows = [json.dumps({"text": f"row {i}: the quick brown fox jumps over the lazy dog {i * 7919 % 1000}"}) + "\n" for i in range(3000)]
    store.put("sets/a b.jsonl", "".join(rows[:1500]).encode())
    plain = folder / "c.jsonl"
    plain.write_text("".join(rows[1500:]))
    subprocess.run(["zstd", "-q", plain], check=True)
    store.put("sets/c.jsonl.zst", (folder / "c.jsonl.zst").read_bytes())


def credentials(store, secret=SECRET):
    return {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL_S3": store.address, "AWS_REGION": "eu-test-1"}


def check_refusals(bin_dir, store, folder):
    """What nsactl says about data in a store, with its own credentials."""
    file = folder / "data.yaml"

    def validate(environment, change=("", "")):
        file.write_text(JOB.format(name="data", steps=20, out=folder / "none", more="").replace(*change))
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        done = subprocess.run([bin_dir / "nsactl", "validate", file, "--data", "--offline"], env={**clean, "HOME": str(folder), "NSACTL_CONFIG": "/dev/null", **environment},
                              capture_output=True, text=True, timeout=120)
        said = done.stdout + done.stderr
        assert SECRET not in said and "hush" not in said, said
        return done.returncode, said

    code, said = validate(credentials(store))
    assert code == 0 and "documents" in said, said
    # The usual file, with the endpoint in the other one.
    aws = folder / ".aws"
    aws.mkdir()
    (aws / "credentials").write_text(f"[default]\naws_access_key_id = AKIAWRONG\naws_secret_access_key = x\n\n[lab]\naws_access_key_id=AKIATEST\naws_secret_access_key = {SECRET}\n")
    (aws / "config").write_text(f"[profile lab]\nregion = eu-test-1\nendpoint_url = {store.address}/\n")
    code, said = validate({"AWS_PROFILE": "lab"})
    assert code == 0, said
    for environment, change, expected in (
            ({"AWS_PROFILE": "none"}, ("", ""), "AWS_PROFILE: none is not a section"),
            ({"AWS_ENDPOINT_URL_S3": store.address}, ("", ""), "InvalidAccessKeyId"),
            (credentials(store, "wrong"), ("", ""), "SignatureDoesNotMatch"),
            ({**credentials(store), "AWS_SECRET_ACCESS_KEY": ""}, ("", ""), "half a key"),
            ({"AWS_ENDPOINT_URL_S3": store.address, "AWS_SHARED_CREDENTIALS_FILE": ""}, ("", ""), "there are no credentials"),
            (credentials(store), ("s3://bucket/sets/a b", "s3://no-bucket/x"), "NoSuchBucket"),
            (credentials(store), ("a b.jsonl", "none.jsonl"), "NoSuchKey")):
        code, said = validate(environment, change)
        assert code != 0 and expected in said, (expected, code, said)
    late = Store(folder / "late", failures=0, skew=3600)
    code, said = validate(credentials(late))
    late.kill()
    assert code != 0 and "RequestTimeTooSkewed" in said and "clock of this machine" in said, said


def same_as_local(store, job, out, step):
    local = out / "checkpoints" / f"step-{step:08d}"
    for file in sorted(local.iterdir()):
        stored = store.get(f"runs/{job}/{local.name}/{file.name}")
        assert hashlib.sha256(stored).digest() == hashlib.sha256(file.read_bytes()).digest(), file


def complete_steps(store, job):
    return sorted(int(found[1]) for key in store.keys(f"runs/{job}/") if (found := re.search(r"/step-(\d+)/state\.json$", key)))


def describe(service, job):
    return json.loads(service.ctl("describe", job, "-o", "json", check=True).stdout)


def events(service, job):
    return service.ctl("events", job, check=True).stdout


def check_checkpoints(service, store, folder):
    out = folder / "out"
    file = folder / "job.yaml"
    file.write_text(JOB.format(name="kept", steps=30, out=out, more=", checkpoint_url: s3://bucket/runs"))
    refused = service.ctl("submit", file, "--set", "train.checkpoint_url=s3://other-bucket/runs", "--set", f"train.out_dir={folder}/other")
    assert refused.returncode == 2 and "allowed_urls" in refused.stderr, refused.stderr
    job = service.ctl("submit", file, "-o", "name", check=True).stdout.strip()

    def part(number, seen):
        return len(re.findall(rf"PUT \S*/runs/\S+partNumber={number}&\S+ 200", store.said())) > seen

    # The worker is killed between the parts of an upload, then the store is.
    store.await_text(lambda: part(1, 0))
    for pid in service.workers():
        os.kill(pid, signal.SIGKILL)
    store.await_text(lambda: part(1, 1))
    store.kill()
    service.wait_until(lambda: "CHECKPOINT_UPLOAD_FAILED" in events(service, job) or "finished" in service.ctl("list").stdout, 240, "a failed upload")
    said = service.ctl("describe", job, check=True).stdout
    store.start()
    service.wait_until(lambda: "finished" in service.ctl("list").stdout, 300, "the job")
    assert "CHECKPOINT_UPLOAD_FAILED" in events(service, job) and "CHECKPOINT_UPLOAD_RESTORED" in events(service, job), events(service, job)
    assert "Not uploaded" in said, said
    assert re.search(r"^Uploaded:? +step 30,", service.ctl("describe", job, check=True).stdout, re.MULTILINE)
    uploads = [line for line in service.scrape().splitlines() if "uploaded" in line]
    assert f'nsa_job_last_uploaded_checkpoint_step{{job_id="{job}"}} 30' in uploads, uploads
    assert complete_steps(store, job) == [20, 30], store.keys("runs/")
    assert not [key for key in store.keys(f"runs/{job}/") if not re.search("step-000000[23]0/", key)], store.keys("runs/")
    for step in (20, 30):
        same_as_local(store, job, out, step)

    # Another machine has nothing of it.
    shutil.rmtree(out / "checkpoints")
    service.ctl("resume", job, "--set", "train.steps=40", "--set", "restart.allow_new_schedule=true", check=True)
    service.wait_until(lambda: {"finished", "failed"} & set(service.ctl("list").stdout.split()), 300, "the resumed job's end")
    told = events(service, job)
    assert "CHECKPOINT_DOWNLOADED" in told and re.search(r"RESUMED .*30", told), told
    assert complete_steps(store, job) == [30, 40], store.keys("runs/")
    same_as_local(store, job, out, 40)
    everything = told + service.ctl("logs", job).stdout + service.log.read_text() + service.ctl("describe", job, "-o", "json").stdout
    assert "hush" not in everything
    for pid in service.processes("nsa-agent"):
        assert b"hush" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()


def check_export(service, store, folder):
    done = service.ctl("export", "kept", "s3://bucket/models/kept")
    assert done.returncode == 0, done.stderr
    service.ctl("export", "kept", folder / "exported", check=True)
    names = sorted(file.name for file in (folder / "exported").iterdir())
    assert store.keys("models/kept/") == [f"models/kept/{name}" for name in names]
    for name in names:
        assert store.get(f"models/kept/{name}") == (folder / "exported" / name).read_bytes(), name
    again = service.ctl("export", "kept", "s3://bucket/models/kept")
    assert again.returncode == 6 and "has objects" in again.stderr, again.stderr
    # What breaks off leaves nothing in the store, so that it can be tried again, and nothing on this machine.
    refused = service.ctl("export", "kept", "s3://bucket/models/half")
    assert refused.returncode != 0 and "may not do this" in refused.stderr, refused.stderr
    assert "PUT /bucket/models/half/config.json" in store.said() and store.keys("models/half/") == [], store.keys("models/half/")
    scratch = folder / "scratch"
    scratch.mkdir()
    store.process.send_signal(signal.SIGSTOP)
    try:
        export = subprocess.Popen([service.bin / "nsactl", "export", "kept", "s3://bucket/models/cut"], env={**service.environment, "TMPDIR": str(scratch)},
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        service.wait_until(lambda: list(scratch.glob("nsa-export-*/modeling_nsa.py")), 60, "the exported folder")
        export.send_signal(signal.SIGINT)
        said = export.communicate(timeout=60)[1]
    finally:
        store.process.send_signal(signal.SIGCONT)
    assert export.returncode == 130 and list(scratch.iterdir()) == [], (export.returncode, said, list(scratch.iterdir()))


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    if not modules().is_dir() or not shutil.which("node"):
        print("skipped: no Node, or not the packages of tests/e2e/s3; deploy/packages.sh test installs them")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="nsa-s3-") as name:
        folder = pathlib.Path(name)
        store = Store(folder / "store")
        try:
            write_data(store, folder)
            check_refusals(bin_dir, store, folder)
            os.environ.update(credentials(store), HOME=str(folder / "home"))
            (folder / "coordinator.yaml").write_text('allowed_urls: ["s3://bucket/"]\n')
            with Service(bin_dir, folder, arguments=["--config", folder / "coordinator.yaml"]) as service:
                check_checkpoints(service, store, folder)
                check_export(service, store, folder)
        finally:
            store.kill()


main()
