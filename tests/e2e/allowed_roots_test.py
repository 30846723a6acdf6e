#!/usr/bin/env python3
"""A worker keeps to the coordinator's allowed_roots: coordinator, agent and worker, and a file that becomes a link at the last moment.

    tests/e2e/allowed_roots_test.py BIN_DIR

Preflight has read the data of the job beneath allowed_roots. Then, before the worker opens it, it is exchanged for a link to a file outside: the worker's
program is a script that does this. The worker must refuse it, which it can only when the roots have come to it with its orders.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
import seeded  # noqa: E402
from service import Service  # noqa: E402

SECONDS = 120  # for what takes moments on a machine with nothing else to do
JOB = """\
name: {name}
model: {{dim: 32, n_layers: 1, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 16, n_sel: 3, w: 32, audit_every: 0}}
data: {{source: text, tokenizer: byte, path: [{data}]}}
runtime: {{device: cpu}}
train: {{steps: 20, seq_len: 64, batch_size: 2, lr: 1.0e-3, eval_every: 0, save_every: 10, log_every: 10, out_dir: {out_dir}}}
restart: {{max_restarts: 0}}
preflight: {{policy: experiment, waive: {{MODEL_TOO_SMALL_FOR_RUN: a test}}}}
"""
WORKER = """\
#!/bin/sh
# The worker, and before its first start with this file there: the data becomes a link.
if [ "$1" = --run-dir ] && [ -e '{now}' ]; then
  rm '{now}'
  mv '{data}' '{data}.aside'
  ln -s '{outside}' '{data}'
fi
exec '{worker}' "$@"
"""
REFUSED = "leads through a symbolic link; put the file itself there"  # a worker's words; the coordinator's are others


class RootedService(Service):
    def __init__(self, bin_dir, folder):
        self.folder = folder
        self.allowed = folder / "allowed"
        self.data = self.allowed / "data.txt"
        self.outside = folder / "outside.txt"
        self.now = folder / "now"
        self.allowed.mkdir()
        self.data.write_text("a text that anybody may read\n" * 2_000)
        self.outside.write_text("a classified text of somebody else\n" * 2_000)
        super().__init__(bin_dir, folder, agent_environment={"LC_ALL": "C"})

    def launch(self):
        (self.folder / "coordinator.yaml").write_text(f"local_agent: false\nallowed_roots: [{self.allowed}]\n")
        super().launch()

    def start_agent(self):
        script = self.folder / "worker.sh"
        script.write_text(WORKER.format(now=self.now, data=self.data, outside=self.outside, worker=self.bin / "nsa-worker"))
        script.chmod(0o755)
        with open(self.folder / "agent.yaml", "a") as config:
            config.write(f"worker_program: {script}\n")
        super().start_agent()

    def submit(self, name):
        file = self.folder / f"{name}.yaml"
        file.write_text(JOB.format(name=name, data=self.data, out_dir=self.allowed / name))
        return self.ctl("submit", file)

    def job(self, name):
        return json.loads(self.ctl("describe", name, "-o", "json", check=True).stdout)

    def end_of(self, name):
        """The state in which it ends."""
        ends = ("STATE_SUCCEEDED", "STATE_FAILED", "STATE_STOPPED")
        return self.wait_until(lambda: self.job(name)["state"] if self.job(name)["state"] in ends else "", SECONDS,
                               f"{name} ends: {self.ctl('describe', name).stdout}")


def run(options, folder):
    with RootedService(options.bin_dir, folder) as service:
        submitted = service.submit("plain")
        assert submitted.returncode == 0, submitted
        assert service.end_of("plain") == "STATE_SUCCEEDED", service.ctl("describe", "plain").stdout

        service.now.touch()
        submitted = service.submit("exchanged")
        assert submitted.returncode == 0, submitted
        assert service.end_of("exchanged") == "STATE_FAILED", service.ctl("describe", "exchanged").stdout
        assert not service.now.exists() and service.data.is_symlink(), "the worker was never started"
        said = service.ctl("describe", "exchanged").stdout + service.ctl("events", "exchanged").stdout
        assert REFUSED in " ".join(said.split()), said
        assert "classified" not in said + service.ctl("logs", "exchanged").stdout
        assert not list((service.allowed / "exchanged").glob("checkpoints/step-*")), "it was trained on"

        refused = service.submit("link")
        assert refused.returncode != 0 and "is not beneath allowed_roots" in refused.stderr, refused


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
