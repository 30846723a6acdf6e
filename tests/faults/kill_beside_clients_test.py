#!/usr/bin/env python3
"""SIGKILL of the coordinator beside clients that change the same jobs in pairs: what it has acknowledged is there afterwards, once.

    tests/faults/kill_beside_clients_test.py BIN_DIR [--kills 20] [--seed 1]

Of each pair one client stops and resumes a job, the other writes notes; both set labels. They speak HTTP over sockets of their own, as the page does. A change
without an answer is sent again with the same request id, until there is one. No job has a machine, so that a stop and a resume count at once.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import sys
import tempfile
import threading
import time
import uuid

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from service import Service  # noqa: E402

JOBS = 25
PAUSE = 0.1  # of a client between two changes
PATIENCE = 60  # until a change is answered, over all attempts
JOB = """
name: pair-{at}
model: {{dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: it never starts, DATA_SYNTHETIC: it never starts}}}}
train: {{steps: 200, seq_len: 128, batch_size: 8, lr: 1e-3, warmup_steps: 20, eval_every: 0, save_every: 100, seed: 7, out_dir: {folder}/out-{at}}}
"""


class Client(threading.Thread):
    """Changes one job again and again, and keeps what was acknowledged."""

    def __init__(self, address, token, job, name, over):
        super().__init__(daemon=True)
        self.address, self.token, self.job, self.name, self.over = address, token, job, name, over
        self.attempts = 0
        self.problem = None
        self.label = 0  # the newest value that was acknowledged, and that was asked for
        self.asked_label = 0

    def post(self, verb, body):
        """The status and the text of one attempt; (0, why) when the connection ended without an answer."""
        self.attempts += 1
        try:
            connection = http.client.HTTPConnection(self.address, timeout=20)
            connection.request("POST", f"/api/v1/jobs/{self.job}/{verb}", json.dumps(body), {"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def change(self, verb, body, repeated=()):
        """Sends a change until it is answered. `repeated`: what a second attempt may be answered when the first one counted."""
        end = time.monotonic() + PATIENCE
        for attempt in range(1_000_000):
            status, text = self.post(verb, body)
            if status == 200 or (attempt > 0 and status in repeated):
                return
            assert status in (0, 503), f"{self.name}: {verb} {body}: {status} {text}"
            assert time.monotonic() < end, f"{self.name}: {verb}: no answer within {PATIENCE} s, the last was {status} {text}"
            time.sleep(0.05)

    def set_label(self):
        self.asked_label += 1
        self.change("label", {"set": {self.name: str(self.asked_label)}, "request_id": str(uuid.uuid4())})
        self.label = self.asked_label

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
                self.set_label()
                time.sleep(PAUSE)
        except Exception as problem:  # pylint: disable=broad-except
            self.problem = problem


class Stopper(Client):
    """Ends with a job that waits, so that as many resumes as stops were acknowledged."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.rounds = 0

    def step(self):
        self.change("stop", {"mode": "now"}, repeated=(409,))
        self.change("resume", {"request_id": str(uuid.uuid4())})
        self.rounds += 1


class Writer(Client):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.notes = []

    def step(self):
        note = f"{self.name} writes {len(self.notes)}"
        self.change("note", {"text": note, "request_id": str(uuid.uuid4())})
        self.notes.append(note)


def submit(service, folder):
    jobs = []
    for at in range(JOBS):
        (folder / "job.yaml").write_text(JOB.format(at=at, folder=folder))
        submitted = service.ctl("submit", folder / "job.yaml", "-o", "name")
        assert submitted.returncode == 0, submitted.stderr
        jobs.append(submitted.stdout.strip())
    return jobs


def check(service, job, stopper, writer):
    described = json.loads(service.ctl("describe", job, "-o", "json", check=True).stdout)
    labels = described["spec"].get("labels", {})
    for client in (stopper, writer):
        assert int(labels[client.name]) == client.label, f"{job}: label {client.name} is {labels[client.name]} ({client.label} was acknowledged)"
    assert described["state"] == "STATE_QUEUED", f"{job}: {described['state']} after a resume that was acknowledged"
    events = json.loads(service.ctl("events", job, "-o", "json", check=True).stdout)["events"]
    sequences = [int(event["sequence"]) for event in events]
    assert sequences == sorted(set(sequences)), f"{job}: sequences of events are not ascending: {sequences}"
    reasons = collections.Counter(event["reason"] for event in events)
    for reason in ("STOPPED_BY_USER", "RESUMED"):
        assert reasons[reason] == stopper.rounds, f"{job}: {reasons[reason]} events {reason} of {stopper.rounds} that were acknowledged"
    texts = collections.Counter(event["text"] for event in events if event["reason"] == "NOTE")
    for note in writer.notes:
        written = sum(count for text, count in texts.items() if note + " " in text + " ")
        assert written == 1, f"{job}: the note '{note}' was written {written} times"
    assert texts.total() == len(writer.notes), f"{job}: {texts.total()} notes of {len(writer.notes)}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="nsa-kill-") as place:
        folder = pathlib.Path(place)
        with Service(options.bin, folder) as service:
            node = service.ctl("nodes", "-o", "name").stdout.strip()
            service.ctl("node", "cordon", node, "--reason", "no job of this test starts", check=True)
            jobs = submit(service, folder)
            token = (folder / "state" / "token").read_text().strip()
            over = threading.Event()
            pairs = [(Stopper(service.address, token, job, f"stopper-{at}", over), Writer(service.address, token, job, f"writer-{at}", over))
                     for at, job in enumerate(jobs)]
            clients = [client for pair in pairs for client in pair]
            for client in clients:
                client.start()
            for _ in range(options.kills):
                time.sleep(moments.uniform(0.2, 3))
                service.process.kill()
                service.process.wait(30)
                service.start()
            time.sleep(1)
            over.set()
            for client in clients:
                client.join(2 * PATIENCE)
                assert not client.is_alive(), f"{client.name} has no end"
                assert client.problem is None, repr(client.problem)
            for job, (stopper, writer) in zip(jobs, pairs):
                check(service, job, stopper, writer)
            changes = sum(client.label for client in clients) + sum(2 * stopper.rounds + len(writer.notes) for stopper, writer in pairs)
            attempts = sum(client.attempts for client in clients)
            print(f"{options.kills} kills, {changes} changes that were acknowledged, {attempts - changes} attempts without an answer, nothing lost")
            assert changes > 50 * options.kills and attempts > changes, "the clients hardly did anything"


main()
