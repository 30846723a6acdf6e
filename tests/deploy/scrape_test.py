#!/usr/bin/env python3
"""The metrics of a coordinator whose job trains on two ranks agree with the table of metrics, the dashboard and the alerts. A job beyond its owner's quota is refused.

    tests/deploy/scrape_test.py BIN_DIR
"""
import json
import pathlib
import subprocess
import sys
import tempfile
from random import Random

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testing"))
from service import Service  # noqa: E402

JOB = """\
name: scraped
model: {{dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16, audit_every: 1}}
data:
  val_fraction: 0.1
  mix:
    - {{name: many, source: jsonl, path: "{folder}/many.jsonl", weight: 3}}
    - {{name: few, source: jsonl, path: "{folder}/few.jsonl", weight: 1}}
  val: {{named: "{folder}/named.jsonl"}}
runtime: {{device: cpu, precision: fp32}}
train: {{steps: 100000, seq_len: 128, batch_size: 4, lr: 1.0e-3, eval_every: 5, eval_batches: 1, save_every: 10, out_dir: "{folder}/out"}}
resources: {{gpus: 2}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: a test, THROUGHPUT_GUARD_OFF: a test, DATA_REPEATED: a test, LOST_WORK: a test}}}}
"""
NEEDED = ("nsa_rpc_streams_active{", "nsa_job_val_loss{", "nsa_job_last_checkpoint_step{", "nsa_gate_entropy{", "nsa_job_attention_mass_kept{", "nsa_job_source_loss{", "nsa_job_val_set_loss{",
          'rank="1"', "nsa_worker_up{", "nsa_job_goodput_ratio{", "nsa_owner_quota_used_ratio{")


def write_job(folder):
    """Writes a job that trains on a mixture and validates on a named set, with its texts; returns the file."""
    random = Random(1)
    for name, lines in (("many", 400), ("few", 200), ("named", 100)):
        texts = (" ".join(random.choices("alpha beta gamma delta epsilon zeta eta theta".split(), k=40)) for _ in range(lines))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    job = folder / "job.yaml"
    job.write_text(JOB.format(folder=folder))
    return job


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-scrape-") as name:
        folder = pathlib.Path(name)
        job = write_job(folder)
        config = folder / "coordinator.yaml"
        config.write_text("quotas: [{owner: local, jobs: 1}]\n")
        with Service(sys.argv[1], folder, arguments=("--config", config)) as service:
            submitted = service.ctl("submit", job)
            if submitted.returncode != 0:
                sys.exit(f"submit: {submitted.returncode}\n{submitted.stdout}{submitted.stderr}")

            second = folder / "second.yaml"
            second.write_text(job.read_text().replace("name: scraped", "name: second").replace("/out\"", "/out-2\""))
            refused = service.ctl("submit", second)
            assert refused.returncode == 6 and "local has 1 " in refused.stderr and "at most 1" in refused.stderr, f"a job beyond the quota: {refused}"

            watcher = subprocess.Popen([service.bin / "nsactl", "watch", "scraped"], env=service.environment,
                                       stdout=subprocess.DEVNULL)  # an open stream

            def scrape_with_everything():
                text = service.scrape()
                return text if all(word in text for word in NEEDED) else None

            text = service.wait_until(scrape_with_everything, 120, f"a scrape with {NEEDED}")
            service.ctl("stop", "scraped", "--now", check=True)
            service.wait_until(lambda: not service.processes("nsa-worker"), 120, "the workers' end")
            watcher.wait(30)
        scrape = folder / "scrape.prom"
        scrape.write_text(text)
        return subprocess.run([sys.executable, HERE / "observability_test.py", "--scrape", scrape, "Scrape"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
