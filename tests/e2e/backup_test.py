#!/usr/bin/env python3
"""nsactl admin backup and restore with jobs that train, and SIGHUP of a coordinator with a good and a wrong configuration.

    tests/e2e/backup_test.py BIN_DIR
"""
import json
import pathlib
import signal
import sys
import tempfile

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from service import Service

JOB = {
    "model": {"dim": 32, "n_layers": 1, "n_heads": 2, "n_kv_groups": 1, "d_k": 16, "d_v": 16},
    "nsa": {"l": 16, "d": 8, "l_sel": 16, "n_sel": 3, "w": 32, "audit_every": 0},
    "runtime": {"device": "cpu"},
    "train": {"steps": 2000000, "seq_len": 64, "batch_size": 2, "eval_every": 0, "save_every": 100, "log_every": 100},
    "preflight": {"waive": {"MODEL_TOO_SMALL_FOR_RUN": "a test", "DATA_SYNTHETIC": "a test"}},
}


def describe(service, job):
    found = service.ctl("describe", job, "-o", "json")
    return json.loads(found.stdout) if found.returncode == 0 else None


def submit(service, folder, name):
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**JOB, "name": name, "train": {**JOB["train"], "out_dir": str(folder / name)}}))
    return service.ctl("submit", file)


def train(service, folder, name):
    """Submits a job and waits until it has done 100 steps; returns its description."""
    submitted = submit(service, folder, name)
    assert submitted.returncode == 0, submitted
    service.wait_until(lambda: int(describe(service, name)["progress"]["step"]) >= 100, 60, f"100 steps of {name}")
    return describe(service, name)


def require_same_process(service, before):
    """A coordinator that has just started knows a process only once the next heartbeat has named it."""
    service.wait_until(lambda: describe(service, "old")["ranks"][0]["pid"] not in ("", "0"), 120, "the process of old")
    now = describe(service, "old")
    assert now["generation"] == before["generation"] and now["ranks"][0]["pid"] == before["ranks"][0]["pid"], (now, before)


def kept_files(state):
    """What a backup must have of a state folder: everything in it that does not describe a process, but for empty folders."""
    of_processes = {"agent", "agent.log", "agent.lock", "coordinator.lock", "coordinator.sock", "jobs.sqlite-wal", "jobs.sqlite-shm"}
    return {path.name for path in state.iterdir() if path.name not in of_processes and (path.is_file() or any(path.rglob("*")))}


def stop(service):
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0


def check_backup(service, folder):
    old = train(service, folder, "old")
    service.wait_until(lambda: "logs" in kept_files(folder / "state"), 60, "a log in the state folder")
    kept = kept_files(folder / "state")
    copied = service.ctl("admin", "backup", folder / "backup", check=True)
    assert f"backup of {folder}/state in {folder}/backup: " in copied.stdout, copied
    assert (folder / "backup").stat().st_mode & 0o777 == 0o700
    missing = kept - {path.name for path in (folder / "backup").iterdir()}
    assert not missing, f"in the state folder and not in its backup: {missing}"
    again = service.ctl("admin", "backup", folder / "backup")
    assert again.returncode == 6 and "exists" in again.stderr, again
    young = train(service, folder, "young")
    running = service.ctl("admin", "restore", folder / "backup")
    assert running.returncode == 6 and f"process {service.process.pid}" in running.stderr, running

    stop(service)
    nowhere = service.ctl("admin", "restore", folder / "backup", "--state-dir", folder / "nowhere")
    assert nowhere.returncode == 6 and "never been a coordinator's state folder" in nowhere.stderr and not (folder / "nowhere").exists(), nowhere
    (folder / "state" / "smtp.password").write_text("kept")
    restored = service.ctl("admin", "restore", folder / "backup", check=True)
    assert (folder / "state" / "smtp.password").read_text() == "kept"
    assert "what was there before is in " in restored.stdout, restored
    service.start()
    service.wait_until(lambda: service.ctl("nodes", "-o", "name").stdout.strip(), 120, "an agent")
    assert describe(service, "young") is None, "the backup is older"
    service.wait_until(lambda: young["ranks"][0]["pid"] not in {str(pid) for pid in service.workers()}, 120, "the end of young's worker")
    newest = max(int(path.name.removeprefix("step-")) for path in (folder / "young" / "checkpoints").glob("step-*"))
    assert newest >= int(young["progress"]["step"]), "it ended with a checkpoint"
    log = service.log.read_text()
    assert f"job {young['id']} generation 1 rank 0 is not known to store" in log, log
    service.wait_until(lambda: "ended with code 0" in (folder / "state" / "agent" / "agent.log").read_text(), 60, "the agent has seen the end")
    service.wait_until(lambda: int(describe(service, "old")["progress"]["step"]) > int(old["progress"]["step"]) + 100, 60, "old goes on")
    now = describe(service, "old")
    assert now["state"] == "STATE_RUNNING" and now["generation"] == old["generation"] == "1", now
    require_same_process(service, old)
    # Its out_dir belongs to a job that nobody knows; once that job is declared over, the same job file continues from its checkpoints.
    taken = submit(service, folder, "young")
    assert taken.returncode == 2 and f"OUT_DIR_TAKEN: train.out_dir: belongs to job {young['id']}" in taken.stderr, taken
    (folder / "young" / "owner.json").unlink()
    known = train(service, folder, "young")
    assert known["id"] != young["id"] and json.loads((folder / "young" / "owner.json").read_text())["job_id"] == known["id"]
    assert "RESUMED" in service.ctl("events", "young").stdout
    return copied, restored


def check_reload(service, folder, config):
    pid = service.process.pid
    before = describe(service, "old")
    config.write_text("allowed_roots: [/nowhere\n")
    service.process.send_signal(signal.SIGHUP)
    service.wait_until(lambda: "got HUP: the configuration is refused and nothing changes" in service.log.read_text(), 120, "the refusal")
    assert describe(service, "old") is not None

    config.write_text(yaml.safe_dump({"allowed_roots": [str(folder / "allowed")]}))
    service.process.send_signal(signal.SIGHUP)
    service.wait_until(lambda: "got HUP: starting anew" in service.log.read_text(), 120, "the reload")
    service.wait_until(lambda: submit(service, folder, "outside").returncode == 2, 120, "a refusal by the new allowed_roots")
    assert service.process.poll() is None and service.process.pid == pid
    service.wait_until(lambda: int(describe(service, "old")["progress"]["step"]) > int(before["progress"]["step"]), 60, "old goes on")
    require_same_process(service, before)


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-backup-") as name:
        folder = pathlib.Path(name)
        config = folder / "coordinator.yaml"
        config.write_text("{}\n")
        with Service(pathlib.Path(sys.argv[1]).resolve(), folder, arguments=("--config", config)) as service:
            copied, restored = check_backup(service, folder)
            check_reload(service, folder, config)
    print(copied.stdout + restored.stdout)


if __name__ == "__main__":
    main()
