#!/usr/bin/env python3
"""Alerts fire: a real Prometheus with the delivered rules scrapes a real coordinator whose agent is lost, whose job finds no slot, whose store cannot be
written, whose certificate ends in ten days and whose backups have stopped.

    tests/deploy/alerts_test.py BIN_DIR

The rules are those of deploy/prometheus/rules/ without `for`, the time for which an expression must have held: tests of promtool, which
tests/deploy/observability_test.py runs, are about that.
"""
import contextlib
import pathlib
import resource
import shutil
import signal
import sys
import tempfile
import time

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "testing"))
from board import Prometheus, prometheus_on  # noqa: E402
from ports import HeldPorts  # noqa: E402
from scrape_test import write_job  # noqa: E402
from service import Service  # noqa: E402

RULES = HERE.parents[1] / "deploy/prometheus/rules/nsa.rules.yml"
WATCHED = ("NsaCertificateExpiring", "NsaAgentLost", "NsaNoSlots", "NsaStoreFailing", "NsaBackupOverdue")


def rules_at_once(folder):
    """Writes the delivered rules without `for`; returns the file."""
    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(rules))
    return file


def firing(address):
    """{name of an alert: the labels of one such} for those of WATCHED that fire. Without `for`, others may on a busy machine."""
    labels = [alert["labels"] for alert in Prometheus(address).get("alerts")["alerts"] if alert["state"] == "firing"]
    return {each["alertname"]: each for each in labels if each["alertname"] in WATCHED}


def configure_tls(service, folder, port):
    """The coordinator listens with certificates of which its own ends in ten days, and loses silent machines after a second."""
    tls = folder / "tls"
    service.ctl("admin", "init-tls", tls, "--host", "127.0.0.1", "--days", "10", check=True)
    (folder / "coordinator.yaml").write_text(yaml.safe_dump({
        "local_agent": False, "node_unknown_seconds": 1, "listen_address": f"127.0.0.1:{port}", "token_file": str(tls / "token"),
        "tls": {"certificate_file": str(tls / "coordinator.crt"), "private_key_file": str(tls / "coordinator.key"), "client_ca_file": str(tls / "ca.crt")}}))
    service.process.send_signal(signal.SIGHUP)
    service.wait_until(lambda: has(service, "nsa_certificate_expiry_timestamp_seconds{"), 60, "the certificates in a scrape")


def has(service, beginning, value=""):
    """Whether a line of the metrics begins and ends in this way. Not while the coordinator reads its configuration again."""
    with contextlib.suppress(OSError):
        return any(line.startswith(beginning) and line.endswith(value) for line in service.scrape().splitlines())
    return False


def break_store(service):
    """The coordinator cannot write files for as long as a change of a job takes."""
    before = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        changed = service.ctl("label", "scraped", "by=test")
        assert changed.returncode != 0 and "jobs.sqlite" in changed.stderr, changed
    finally:
        resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, before)


def last_backup(service):
    """The time of the newest backup in a scrape."""
    return next(float(line.split()[1]) for line in service.scrape().splitlines() if line.startswith("nsa_last_backup_timestamp_seconds "))


def stop_backups(service, folder):
    """A backup is made, and none for three days afterwards."""
    assert last_backup(service) == 0, "no backup was made yet"
    (folder / "backups").mkdir()
    service.ctl("admin", "backup", folder / "backups", "--keep", 2, check=True)
    service.wait_until(lambda: time.time() - 120 < last_backup(service) <= time.time(), 60, "the backup in a scrape")
    (folder / "state" / "last-backup").write_text(f"{int(time.time()) - 3 * 86400}\n")
    service.wait_until(lambda: last_backup(service) < time.time() - 2 * 86400, 60, "the old backup in a scrape")


@contextlib.contextmanager
def alerts_on(service, folder):
    """A Prometheus that has seen nothing of the coordinator yet; yields a function that waits until these alerts fire, and no other of WATCHED."""
    folder.mkdir()
    with prometheus_on(service.address, folder, rules_at_once(folder)) as address:
        def fire(*expected):
            service.wait_until(lambda: set(firing(address)) == set(expected), 120, f"{expected} fire, and no other of {WATCHED}")
            return firing(address)

        yield fire


def main():
    if not shutil.which("prometheus"):
        print("the package prometheus is not installed")
        return 77
    ports = HeldPorts()
    with tempfile.TemporaryDirectory(prefix="nsa-alerts-") as name:
        folder = pathlib.Path(name)
        with Service(sys.argv[1], folder, agent_environment={"NSA_LOG_LEVEL": "info"}) as service:
            configure_tls(service, folder, ports.first)
            service.wait_until(lambda: has(service, "nsa_agent_up{", " 1"), 60, "the agent in a scrape")
            with alerts_on(service, folder / "well") as fire:
                assert fire("NsaCertificateExpiring")["NsaCertificateExpiring"]["file"] == str(folder / "tls/coordinator.crt")
            service.agent.kill()
            service.agent.wait(30)
            service.wait_until(lambda: has(service, "nsa_agent_up{", " 0"), 60, "the agent is lost")
            service.ctl("submit", write_job(folder), check=True)
            # NsaAgentLost looks a minute back: this Prometheus has not seen the agent.
            with alerts_on(service, folder / "lost") as fire:
                found = fire("NsaCertificateExpiring", "NsaAgentLost", "NsaNoSlots")
                assert found["NsaAgentLost"]["agent"] and found["NsaNoSlots"]["kind"] == "cpu", found
                break_store(service)
                found = fire("NsaCertificateExpiring", "NsaAgentLost", "NsaNoSlots", "NsaStoreFailing")
                assert found["NsaStoreFailing"]["op"] == "update", found
                stop_backups(service, folder)
                fire(*WATCHED)
    ports.close()
    print(f"fired: {', '.join(WATCHED)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
