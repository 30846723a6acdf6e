#!/usr/bin/env python3
"""Every panel of the dashboard has data while a job trains on two ranks: metrics recorded from a real coordinator, evaluated by Prometheus.

    tests/deploy/dashboard_test.py BIN_DIR
"""
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PLOT = HERE.parents[1] / "deploy/plot"
sys.path.insert(0, str(HERE.parent / "testing"))
from scrape_test import JOB, NEEDED  # noqa: E402
from service import Service  # noqa: E402

# Panels that stay empty without a GPU, and that of a healthy run.
MAY_BE_EMPTY = ("Health", "MFU", "Memory of the GPUs", "GPU utilisation", "GPU power", "GPU temperature", "GPUs with errors")
RECORDED_SECONDS = 8


def main():
    if not shutil.which("prometheus"):
        print("the package prometheus is not installed")
        return 77
    with tempfile.TemporaryDirectory(prefix="nsa-dashboard-") as name:
        folder = pathlib.Path(name)
        job, recording = folder / "job.yaml", folder / "metrics.om"
        job.write_text(JOB.format(out_dir=folder / "out"))
        with Service(sys.argv[1], folder) as service:
            address = re.search(r"metrics on (\S+)", service.log.read_text())[1]
            recorder = subprocess.Popen([sys.executable, PLOT / "record_metrics.py", "-o", recording, "--address", address, "--every", "0.5"])
            service.ctl("submit", job, check=True)
            watcher = subprocess.Popen([service.bin / "nsactl", "watch", "scraped"], env=service.environment, stdout=subprocess.DEVNULL)

            def checkpoints():
                text = service.scrape()
                saved = re.search(r"^nsa_job_checkpoints_total\{.*\} (\d+)$", text, re.MULTILINE)
                return int(saved[1]) if saved and all(word in text for word in NEEDED) else 0

            service.wait_until(checkpoints, 60, f"a scrape with {NEEDED}")
            before = checkpoints()
            try:
                recorder.wait(RECORDED_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            # Rates need two checkpoints, which take longer on a slow machine.
            service.wait_until(lambda: checkpoints() >= before + 2, 60, "two more checkpoints")
            recorder.send_signal(signal.SIGTERM)
            recorder.wait(30)
            service.ctl("stop", "scraped", "--now", check=True)
            service.wait_until(lambda: not service.processes("nsa-worker"), 30, "the workers' end")
            watcher.wait(30)
        allowed = [word for title in MAY_BE_EMPTY for word in ("--empty-ok", title)]
        return subprocess.run([sys.executable, PLOT / "dashboard.py", "--recording", recording, "--strict", *allowed], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
