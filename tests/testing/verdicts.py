"""Verdicts on job files: offline, from the coordinator and from the worker; and whether accepted jobs train their two steps."""
import json
import subprocess

import yaml

REFUSED = 2  # nsactl's exit code
# The coordinator does not ask these of a job whose paths are not allowed: they open files.
FILE_RULES = {"DATA_UNREADABLE", "RESUME_NOT_FOUND"}


def verdict(done):
    """("accepted" or "refused", the rules of the errors, or the error for a file that does not load)."""
    if done.returncode not in (0, REFUSED):
        return f"exit code {done.returncode}: {done.stderr.strip()}", frozenset()
    word = "refused" if done.returncode else "accepted"
    if not done.stdout.strip():
        return word, frozenset(done.stderr.splitlines())
    findings = json.loads(done.stdout).get("findings", [])
    rules = {f["rule"] for f in findings if f["severity"].endswith("ERROR")}
    return word, frozenset(rules - FILE_RULES if "PATH_INVALID" in rules else rules)


def worker_verdict(service, file):
    """The worker runs the accepted job to its end, in an out_dir of its own."""
    job = yaml.safe_load(file.read_text())
    if job.get("train", {}).get("out_dir", "").startswith(str(file.parent)):
        job["train"]["out_dir"] += "-by-hand"
    by_hand = file.with_suffix(".worker.yaml")
    by_hand.write_text(json.dumps(job))
    done = subprocess.run([service.bin / "nsa-worker", "--job", by_hand, "--threads", "1"], capture_output=True, text=True, timeout=120)
    refused = done.returncode != 0 and ("refused by preflight" in done.stderr or f"{by_hand}:" in done.stderr)
    return "accepted" if done.returncode == 0 else "refused" if refused else f"exit code {done.returncode}: {done.stderr.strip()}"


def check_verdicts(service, file, expected, ranks):
    """Submits the file. Returns what is wrong, and whether the job was accepted; `expected` is "accepted" or "refused". The worker is asked about jobs
    of one rank only: it cannot be several by hand."""
    offline = verdict(service.ctl("validate", file, "--offline", "-o", "json"))
    there = verdict(service.ctl("validate", file, "-o", "json"))
    wrong = []
    if offline != there:
        wrong.append(f"offline says {offline}, the coordinator {there}")
    if there[0] != expected:
        wrong.append(f"{there} ({expected})")
    if ranks == 1:
        by_hand = worker_verdict(service, file)
        if by_hand != there[0]:
            wrong.append(f"the worker says {by_hand}, the coordinator {there}")
    submitted = service.ctl("submit", file)
    if (submitted.returncode == 0) != (there[0] == "accepted"):
        wrong.append(f"submit ends with {submitted.returncode}, validate says {there}: {submitted.stderr.strip()}")
    return wrong, submitted.returncode == 0


def check_runs(service, names):
    """Every job that was accepted has trained two steps."""
    def ended():
        jobs = json.loads(service.ctl("list", "--limit", 0, "-o", "json").stdout)["jobs"]
        return jobs if all(job["state"].endswith(("SUCCEEDED", "FAILED", "STOPPED")) for job in jobs) else None
    jobs = {job["spec"]["name"]: job for job in service.wait_until(ended, 240, "the end of every job")}
    wrong = {name: [f"was accepted and is not in the list ({sorted(jobs)})"] for name in names if name not in jobs}
    for name, job in jobs.items():
        step = int(job.get("progress", {}).get("step", 0))
        if not job["state"].endswith("SUCCEEDED") or step != 2:
            wrong[name] = [f"was accepted and ended {job['state']} after step {step}: {job.get('cause', '')}"]
    return wrong
