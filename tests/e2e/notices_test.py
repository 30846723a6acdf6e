#!/usr/bin/env python3
"""A coordinator notifies webhooks and mail of a job, although the receivers fail in every way and the coordinator is killed.

    tests/e2e/notices_test.py BIN_DIR

The signature is checked with Python's hmac, the mail with Python's parser. No log, metric or answer may show the webhook's address or the key.
"""
import email
import email.policy
import hashlib
import hmac
import http.server
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

KEY = "canary-key-0123456789abcdef"
SECRET = "canary-path-T0B0x"
JOB = {
    "name": "told",
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "labels": {"team": "speech"},
    "train": {"steps": 4, "seq_len": 128, "batch_size": 2, "lr": 1e-3, "eval_every": 4, "eval_batches": 2, "save_every": 4, "log_every": 4},
}
SENDMAIL = """#!/bin/sh
cd "${0%/*}"
test -e mail-fails && { echo "queue is full" >&2; exit 75; }
n=$(ls mails | wc -l)
echo "$*" >arguments && cat >"mails/$n.new" && mv "mails/$n.new" "mails/$n"
"""


class Receiver(http.server.BaseHTTPRequestHandler):
    """Answers as `script` says, one entry for each request to the path: a status, "close" or "stall"; without one, 200."""
    script, taken, tried, release = {}, {}, {}, threading.Event()
    lock = threading.Lock()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.split("/")[1]
        with self.lock:
            answers = self.script.get(name, [])
            answer = answers[0] if answers else 200
            if len(answers) > 1 or (answers and answer != 503):
                answers.pop(0)  # 503 stays until the test takes it away
            self.tried.setdefault(name, []).append((time.monotonic(), answer))
            if answer == 200:
                self.taken.setdefault(name, []).append((dict(self.headers), body))
        if answer == "stall":
            self.release.wait(60)
        self.close_connection = True
        if answer in ("close", "stall"):
            return
        self.send_response(answer)
        if answer == 429:
            self.send_header("Retry-After", "3")
        if answer == 302:
            self.send_header("Location", f"/elsewhere/{SECRET}")
        text = f"Cannot POST {self.path}".encode()
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def configure(folder, port):
    (folder / "mails").mkdir()
    for name, content, mode in (("key", KEY, 0o600), ("url", f"http://127.0.0.1:{port}/json/{SECRET}", 0o600), ("sendmail", SENDMAIL, 0o700)):
        (folder / name).write_text(content)
        (folder / name).chmod(mode)
    file = folder / "notices.yaml"
    file.write_text(yaml.safe_dump({
        "allowed_urls": ["https://", f"http://127.0.0.1:{port}/"],
        "sendmail_program": str(folder / "sendmail"),
        "page_url": "https://nsa.example/",
        "notices": [
            {"name": "json", "url_file": str(folder / "url"), "secret_file": str(folder / "key"), "events": ["*"]},
            {"name": "chat", "url": f"http://127.0.0.1:{port}/chat/{SECRET}", "format": "slack", "labels": {"team": "speech"}},
            {"name": "other", "url": f"http://127.0.0.1:{port}/other/{SECRET}", "labels": {"team": "vision"}, "events": ["*"]},
            {"name": "mail", "email": ["ada@example.com", "bob@example.com"]},
        ]}))
    return file


def train(service, folder, name, *more):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**JOB, "name": name, "train": {**JOB["train"], "out_dir": str(folder / name)}}))
    service.ctl("submit", file, *(more or ["--watch"]), check=True)


def events_of(service, after=0):
    events = json.loads(service.ctl("events", "-o", "json", check=True).stdout)["events"]
    return [int(event["sequence"]) for event in events if int(event["sequence"]) > after]


def sequences(name="json"):
    with Receiver.lock:
        return [json.loads(body)["event"]["sequence"] for _, body in Receiver.taken.get(name, [])]


def check_signatures():
    for headers, body in Receiver.taken["json"]:
        seconds, code = re.fullmatch(r"t=(\d+),v1=([0-9a-f]{64})", headers["X-NSA-Signature"]).groups()
        expected = hmac.new(KEY.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
        assert hmac.compare_digest(code, expected), headers
        assert abs(time.time() - int(seconds)) < 300, seconds
        assert headers["X-NSA-Delivery"] == str(json.loads(body)["event"]["sequence"]), headers


def first_job(service, folder, history):
    """Everything works: each event once, in order, in all three forms."""
    train(service, folder, "first")
    expected = events_of(service, history)
    service.wait_until(lambda: len(sequences()) >= len(expected), 120, "all events at the webhook")
    assert sequences() == expected, (sequences(), expected)
    check_signatures()
    last = json.loads(Receiver.taken["json"][-1][1])
    assert last["format_version"] == 1 and last["notice"] == "json", last
    assert last["event"]["reason"] == "COMPLETED" and last["event"]["state"] == "SUCCEEDED", last
    assert last["job"]["name"] == "first" and last["job"]["step"] == 4 and last["job"]["labels"] == {"team": "speech"}, last
    assert last["url"] == f"https://nsa.example/#/job/{last['job']['id']}", last
    texts = service.wait_until(lambda: Receiver.taken.get("chat"), 120, "a message for the chat")
    assert "first> is finished, COMPLETED" in json.loads(texts[-1][1])["text"], texts
    mail = service.wait_until(lambda: sorted((folder / "mails").glob("[0-9]")), 120, "a mail")[-1]
    message = email.message_from_bytes(mail.read_bytes(), policy=email.policy.default)
    assert message["To"].addresses[1].addr_spec == "bob@example.com" and "first is finished, COMPLETED" in message["Subject"], message
    assert "step 4 of 4" in message.get_content() and f"/#/job/{last['job']['id']}" in message.get_content(), message.get_content()
    assert (folder / "arguments").read_text() == "-t -i\n"
    assert not Receiver.tried.get("other"), "a notice for other labels"


def failing_receivers(service, folder, history):
    """No answer, errors and a redirect; a receiver that stalls holds up nobody else."""
    before = len(sequences())
    chats = len(Receiver.taken["chat"])
    tried = len(Receiver.tried["json"])
    (folder / "mail-fails").touch()
    Receiver.script["json"] = ["close", 500, 429, "stall", 200, 302, 404]
    train(service, folder, "second")
    service.wait_until(lambda: len(Receiver.taken["chat"]) > chats, 120, "the chat's message while the other webhook fails")
    assert len(sequences()) == before, "the chat waited for the other webhook"
    expected = events_of(service, history)
    service.wait_until(lambda: len(sequences()) == len(expected) - 2, 60, "all events but the two that were refused")
    lost = [expected[before + 1], expected[before + 2]]
    assert sequences() == [one for one in expected if one not in lost], (sequences(), expected)
    times = Receiver.tried["json"][tried:]
    assert times[3][0] - times[2][0] >= 3, "Retry-After was not obeyed"
    metrics = service.scrape()
    assert 'nsa_notice_events_total{notice="json",result="refused"} 2' in metrics, metrics
    assert 'nsa_notice_failed_attempts_total{notice="json"} 4' in metrics, metrics
    assert "queue is full" in service.log.read_text()
    assert 'nsa_notice_events_total{notice="mail",result="delivered"} 1' in metrics, metrics
    (folder / "mail-fails").unlink()
    service.wait_until(lambda: (folder / "mails" / "1").exists(), 60, "the mail that could not be sent at first")


def killed(service, folder, history):
    """kill -9 while events wait and while they are sent: none is lost, and no kill repeats more than one."""
    before = len(sequences())
    Receiver.script["json"] = [200, 503]
    train(service, folder, "third")
    service.wait_until(lambda: len(sequences()) > before and Receiver.tried["json"][-1][1] == 503, 120, "a webhook that is down")
    service.kill_coordinator()
    Receiver.script["json"] = []
    service.wait_until(lambda: len(sequences()) > before + 1, 120, "the first event after the kill")
    service.kill_coordinator()
    expected = set(events_of(service, history)[before + 2:])  # two were refused before
    service.wait_until(lambda: expected <= set(sequences()), 120, "every event")
    told = sequences()[before:]
    assert len(told) - len(set(told)) <= 2, told
    assert told == sorted(told), told


def secrets_stay_secret(service):
    job = service.ctl("describe", "first", "-o", "yaml", check=True).stdout
    arguments = pathlib.Path(f"/proc/{service.process.pid}/cmdline").read_text()
    log = service.log.read_text()
    assert "webhook http://127.0.0.1:" in log and "refused by webhook" in log, log
    for what, text in {"log": log, "metrics": service.scrape(), "describe": job, "page": service.get("/api/v1/fleet"), "ps": arguments}.items():
        assert SECRET not in text and KEY not in text, f"a secret is in: {what}"


def threads(pid):
    return [task.read_text().strip() for task in pathlib.Path(f"/proc/{pid}/task").glob("*/comm")].count("notice")


def ends_soon(service, folder):
    """SIGTERM while a receiver says nothing."""
    Receiver.release.clear()
    Receiver.script["json"] = ["stall"]
    tried = len(Receiver.tried["json"])
    train(service, folder, "fourth", "-o", "name")
    service.wait_until(lambda: len(Receiver.tried["json"]) > tried, 120, "a request that stalls")
    begin = time.monotonic()
    service.process.terminate()
    assert service.process.wait(30) == 0
    assert time.monotonic() - begin < 12, "the end waited for the receiver"
    Receiver.release.set()
    Receiver.script["json"] = []
    service.start()

    def all_succeeded():
        return all(job["state"] == "STATE_SUCCEEDED" for job in json.loads(service.ctl("list", "-o", "json", check=True).stdout)["jobs"])

    service.wait_until(all_succeeded, 120, "the job's end")
    last = events_of(service)[-1]
    service.wait_until(lambda: last in sequences(), 120, "the event that stalled and those after it")


def samples(service, folder, port):
    config = folder / "samples.yaml"
    config.write_text(yaml.safe_dump({"allowed_urls": [f"http://127.0.0.1:{port}/"], "notices": [
        {"name": "sample", "url": f"http://127.0.0.1:{port}/sample/{SECRET}"}]}))

    def run(name):
        return subprocess.run([service.bin / "nsa-coordinator", "--config", config, "--test-notice", name], env=service.environment,
                              capture_output=True, text=True, check=False, timeout=60)
    good = run("sample")
    assert json.loads(Receiver.taken["sample"][0][1])["sample"] is True
    assert good.returncode == 0 and "notice sample: webhook http://127.0.0.1:" in good.stdout and "HTTP 200" in good.stdout, good
    Receiver.script["sample"] = [404]
    bad = run("sample")
    assert bad.returncode == 1 and "HTTP 404" in bad.stderr and SECRET not in bad.stderr, bad
    unknown = run("smaple")
    assert unknown.returncode == 2 and "did you mean 'sample'?" in unknown.stderr, unknown


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with Service(sys.argv[1], folder) as service:
            train(service, folder, "before")
            assert threads(service.process.pid) == 0, "a coordinator without notices has threads for them"
            config = configure(folder, server.server_port)
            service.arguments = [*service.arguments, "--config", config]
            service.kill_coordinator()
            assert threads(service.process.pid) == 4
            history = events_of(service)[-1]
            first_job(service, folder, history)
            failing_receivers(service, folder, history)
            killed(service, folder, history)
            ends_soon(service, folder)
            samples(service, folder, server.server_port)
            secrets_stay_secret(service)
            print(f"{len(sequences())} events told, {len(Receiver.tried['json'])} requests to one webhook")
    server.shutdown()


if __name__ == "__main__":
    main()
