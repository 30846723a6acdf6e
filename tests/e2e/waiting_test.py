#!/usr/bin/env python3
"""Jobs that wait for another one and for a time, and alerts that reach a receiver, with real programs and a coordinator that is killed in between.

    tests/e2e/waiting_test.py BIN_DIR
"""
import http.server
import json
import pathlib
import sys
import tempfile
import threading
import time

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "data": {"source": "text", "path": ["/usr/share/common-licenses/GPL-3"], "val_path": ["/usr/share/common-licenses/Artistic"]},
    "runtime": {"device": "cpu"},
    "train": {"steps": 12, "seq_len": 128, "batch_size": 2, "lr": 1e-3, "eval_every": 6, "eval_batches": 2, "save_every": 6, "log_every": 6},
}


class Receiver(http.server.BaseHTTPRequestHandler):
    taken = {}
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.taken.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()


def told(name):
    with Receiver.lock:
        return [body["event"] for body in Receiver.taken.get(f"/{name}", [])]


def configure(folder, port):
    file = folder / "notices.yaml"
    file.write_text(yaml.safe_dump({
        "allowed_urls": ["https://", f"http://127.0.0.1:{port}/"],
        "notices": [{"name": name, "url": f"http://127.0.0.1:{port}/{name}", "events": ["COMPLETED"]} for name in ("chat", "pager")]}))
    return file


class Jobs:
    def __init__(self, service, folder):
        self.service, self.folder = service, folder

    def submit(self, name, *more, **keys):
        file = self.folder / f"{name}.yaml"
        train = {**JOB["train"], **keys.pop("train", {}), "out_dir": str(self.folder / name)}
        file.write_text(yaml.safe_dump({**JOB, "name": name, "train": train, **keys}))
        return self.service.ctl("submit", "-q", file, *more)

    def get(self, name):
        return json.loads(self.service.ctl("describe", name, "-o", "json", check=True).stdout)

    def history(self, name):
        return [event["reason"] for event in json.loads(self.service.ctl("events", name, "-o", "json", check=True).stdout)["events"]]

    def until(self, name, what, condition, seconds=180):
        """Waits until the job is so, and returns it."""
        def job_if_so():
            job = self.get(name)
            return job if condition(job) else None
        return self.service.wait_until(job_if_so, seconds, f"{name}: {what}")

    def ended(self, name):
        self.until(name, "its end", lambda job: job["state"] == "STATE_SUCCEEDED")


def refused(jobs):
    for name, keys in {"lost": {"after": "nobody"}, "late": {"not_before": "tomorrow"}, "high": {"alerts": [{"when": "lost > 3"}]},
                       "unheard": {"alerts": [{"when": "loss > 3", "notify": "chatt"}]}}.items():
        answer = jobs.submit(name, **keys)
        assert answer.returncode == 2, (name, answer)
    assert "AFTER_INVALID" in jobs.submit("lost", after="nobody").stderr
    assert "did you mean chat?" in answer.stderr, answer


def chain(jobs, service):
    """The second job waits for the first, over a kill of the coordinator, and says so everywhere; the third for a time."""
    assert jobs.submit("prep", train={"steps": 4_900, "eval_every": 100, "save_every": 100}).returncode == 0
    assert jobs.submit("train", "--after", "prep", after="somebody-else").returncode == 0
    held = jobs.until("train", "that it waits", lambda job: job.get("reason") == "WAITING_FOR_JOBS")
    prep = jobs.get("prep")["id"]
    assert held["after"] == [{"id": prep, "name": "prep", "state": "STATE_AWAITED"}] and held["spec"]["after"] == ["prep"], held
    assert "WAITING_FOR_JOBS" in service.ctl("list", check=True).stdout
    page = json.loads(service.get("/api/v1/jobs/train"))
    assert page["reason"] == "WAITING_FOR_JOBS" and prep in page["message"], page
    jobs.until("prep", "that it trains", lambda job: job["state"] == "STATE_RUNNING")

    service.ctl("stop", "prep", "--now", check=True)
    jobs.until("train", "that it waits in vain", lambda job: job.get("reason") == "DEPENDENCY_NEVER_SATISFIED")
    page = json.loads(service.get("/api/v1/jobs/train"))
    assert page["needs_you"] and page["problems"][0]["word"] == "DEPENDENCY_NEVER_SATISFIED", page
    service.kill_coordinator()
    checkpoint = int(jobs.get("prep")["progress"].get("checkpoint_step", 0))
    service.ctl("resume", "prep", "--set", f"train.steps={checkpoint + 100}", "--set", "restart.allow_new_schedule=true", check=True)
    jobs.ended("prep")
    jobs.ended("train")
    history = jobs.history("train")
    assert history[:4] == ["SUBMITTED", "DEPENDENCY_NEVER_SATISFIED", "WAITING_FOR_JOBS", "RELEASED"], history
    assert float(jobs.get("train")["start_unix_nanos"]) >= float(jobs.get("prep")["end_unix_nanos"]), "it began before the other one had ended"


def not_before(jobs, service):
    began = time.time()
    assert jobs.submit("later", not_before="+15s").returncode == 0
    job = jobs.until("later", "that it waits", lambda job: job.get("reason") == "WAITING_FOR_TIME")
    start = int(job["not_before_unix_nanos"]) / 1e9
    assert 14 < start - began < 75, job
    assert "not before" in service.ctl("list", "-o", "wide", check=True).stdout
    assert jobs.submit("meanwhile").returncode == 0
    jobs.ended("meanwhile")
    jobs.ended("later")
    assert int(jobs.get("later")["start_unix_nanos"]) / 1e9 >= start, jobs.get("later")
    assert "RELEASED" in jobs.history("later")


def alerts(jobs, service):
    """Raised and cleared for one receiver or both; the page shows the problem."""
    assert jobs.submit("watched", train={"warmup_steps": 6},
                       alerts=[{"when": "loss > 0.5 for 3 steps", "notify": "pager"}, {"when": "val_loss > 0.5", "notify": ["chat", "pager"]},
                               {"when": "learning_rate < 0.0005", "notify": "chat"}]).returncode == 0
    jobs.ended("watched")
    expected = ["ALERT_RAISED", "ALERT_CLEARED", "ALERT_RAISED", "COMPLETED"]
    service.wait_until(lambda: [event["reason"] for event in told("chat")][-4:] == expected, 120, "the alerts in the chat")
    service.wait_until(lambda: [event["reason"] for event in told("pager")][-3:] == ["ALERT_RAISED", "ALERT_RAISED", "COMPLETED"], 120, "both at the pager")
    assert "val_loss > 0.5" in told("chat")[-2]["text"], told("chat")
    job = jobs.get("watched")
    assert [alert.get("raised", False) for alert in job["progress"]["alerts"]] == [True, True, False], job
    assert [problem["word"] for problem in job["problems"]] == ["ALERT_1", "ALERT_2"], job["problems"]
    page = json.loads(service.get("/api/v1/jobs/watched"))
    assert [problem["word"] for problem in page["problems"]] == ["ALERT_1", "ALERT_2"] and not page["needs_you"], page
    assert "val_loss > 0.5" in service.ctl("describe", "watched", check=True).stdout

    # The copy is watched, too, but does not wait.
    service.ctl("fork", "train", "--at-step", "0", "--name", "again", "--set", "alerts=[{when: loss > 0.5}]", check=True)
    jobs.ended("again")
    assert not jobs.get("again")["spec"].get("after") and "ALERT_RAISED" in jobs.history("again")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = configure(folder, server.server_port)
        with Service(sys.argv[1], folder, arguments=["--config", config]) as service:
            jobs = Jobs(service, folder)
            refused(jobs)
            chain(jobs, service)
            not_before(jobs, service)
            alerts(jobs, service)
    print("waiting_test: ok")


if __name__ == "__main__":
    main()
