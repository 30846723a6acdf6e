#!/usr/bin/env python3
"""The coordinator hangs while a job trains: it accepts connections and answers nothing.

    tests/faults/silent_coordinator_test.py BIN_DIR

The agent must try ten fresh connections, 10 s each, and then end with exit code 7; the worker must train on. A coordinator that goes on and an agent
that is started again must find the same worker: no restart, no second one.
"""
import json
import os
import pathlib
import re
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

JOB = """\
name: silence
model: {{dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 16, n_sel: 4, w: 16}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: 10000000, seq_len: 64, batch_size: 2, lr: 1.0e-3, log_every: 100, eval_every: 0, save_every: 1000, keep_checkpoints: 2, seed: 3, out_dir: {out_dir}}}
resources: {{gpus: 1}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, DATA_SYNTHETIC: a test}}}}
"""
SECONDS = 120  # for what takes a moment on a machine with nothing else to do


def job(service):
    shown = json.loads(service.ctl("describe", "silence", "-o", "json", check=True).stdout)
    return shown.get("job", shown)


def step(service):
    return int(job(service).get("progress", {}).get("step", 0))


def run(options, folder):
    with Service(options.bin_dir, folder, agent_environment={"NSA_LOG_LEVEL": "info"}) as service:
        (folder / "job.yaml").write_text(JOB.format(out_dir=folder / "out"))
        submitted = service.ctl("submit", folder / "job.yaml")
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        service.wait_until(lambda: step(service) > 100, SECONDS, "the job trains")
        worker, before = service.workers(), step(service)
        assert len(worker) == 1, worker
        # It trains through all of the silence, so it leaves the processor to the other tests.
        for thread in pathlib.Path(f"/proc/{worker[0]}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)

        os.kill(service.process.pid, signal.SIGSTOP)
        try:
            code = service.agent.wait(10 * 10 + SECONDS)
        finally:
            os.kill(service.process.pid, signal.SIGCONT)
        log = (folder / "agent.log").read_text()
        assert code == 7, f"the agent ended with {code}:\n{log}"
        tried = [int(number) for number in re.findall(r"fresh connection (\d+) of 10", log)]
        assert tried == list(range(1, 11)), f"fresh connections {tried}:\n{log}"
        assert "its workers keep running" in log, log
        assert service.workers() == worker, f"worker {worker} became {service.workers()}"

        service.start_agent()
        service.wait_until(lambda: step(service) > before, SECONDS, "the agent reports the job's steps again")
        assert service.workers() == worker, f"worker {worker} became {service.workers()}"
        after = job(service)
        assert after["state"] == "STATE_RUNNING" and int(after["generation"]) == 1, after
        print(f"exit code 7 after ten connections; the worker went on from step {before} to {step(service)}")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
