#!/usr/bin/env python3
"""An agent's certificate ends while its job trains, and the coordinator is started again, which shuts the agent out. The renewed certificate brings both back: the
agent is the same process, and so is the worker. As docs/security.md says, but for the copying between machines.

    tests/e2e/renewal_test.py BIN_DIR

Needs openssl, for a certificate of some seconds; skipped (77) without it.
"""
import datetime
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from failover_test import Host, end_all, start_agent

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from ports import HeldPorts  # noqa: E402

LASTS_SECONDS = 20  # the agent's first certificate
AUTHORITY = """
[ca]
default_ca = lab
[lab]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = policy
x509_extensions = client
[policy]
commonName = supplied
[client]
extendedKeyUsage = clientAuth
"""


def tls_of(folder, name):
    return {"certificate_file": f"{folder}/tls/{name}.crt", "private_key_file": f"{folder}/tls/{name}.key", "client_ca_file": f"{folder}/tls/ca.crt"}


def sign_for_seconds(folder, name):
    """Replaces a certificate by one of the same authority, for the same key, that ends soon; returns when."""
    own, tls = folder / "authority", folder / "tls"
    own.mkdir()
    (own / "index.txt").touch()
    (own / "ca.cnf").write_text(AUTHORITY.format(folder=own))
    now = datetime.datetime.now(datetime.timezone.utc)
    end = now + datetime.timedelta(seconds=LASTS_SECONDS)
    begin, until = (f"{when:%Y%m%d%H%M%S}Z" for when in (now - datetime.timedelta(hours=1), end))
    for command in (["req", "-new", "-key", tls / f"{name}.key", "-subj", f"/CN={name}", "-out", own / "request"],
                    ["ca", "-batch", "-notext", "-config", own / "ca.cnf", "-cert", tls / "ca.crt", "-keyfile", tls / "ca.key", "-in", own / "request",
                     "-startdate", begin, "-enddate", until, "-out", own / "signed"]):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    (tls / f"{name}.crt").write_bytes((own / "signed").read_bytes())
    return end.timestamp()


def check_renewal(host, agent, ends):
    folder = host.folder
    said = (folder / "agent" / "log").read_text
    before = host.job("old")
    time.sleep(max(0, ends + 1 - time.time()))
    host.process.kill()
    host.process.wait(30)
    host.start()
    host.wait_until(lambda: "no heartbeat is answered, and the files of tls cannot be used" in said(), 120, "the agent says why it is shut out")
    assert "gpu-01.crt ended on" in said() and "READY" not in host.ctl("nodes").stdout, said()

    host.ctl("admin", "renew-tls", folder / "tls", check=True)
    host.wait_until(lambda: "READY" in host.ctl("nodes").stdout, 120, "the agent is back")
    assert "the files of tls have changed and are used from now on" in said() and agent.poll() is None, said()
    at = int(before["progress"]["step"])
    host.wait_until(lambda: host.step("old") > at + 100, 120, "the job goes on")
    now = host.job("old")
    assert now["generation"] == before["generation"] and now["ranks"][0]["pid"] == before["ranks"][0]["pid"], (before, now)


def main():
    if not shutil.which("openssl"):
        print("skipped: no openssl")
        return 77
    with tempfile.TemporaryDirectory(prefix="nsa-renewal-") as name:
        folder = pathlib.Path(name).resolve()
        bin_dir = pathlib.Path(sys.argv[1]).resolve()
        ports = HeldPorts()
        address = f"127.0.0.1:{ports.first}"
        subprocess.run([bin_dir / "nsactl", "admin", "init-tls", folder / "tls", "--host", "127.0.0.1", "--agent", "gpu-01"], check=True, capture_output=True)
        host = Host(bin_dir, folder, "lab", address, token_file=str(folder / "tls" / "token"), tls=tls_of(folder, "coordinator"))
        host.start()
        ends = sign_for_seconds(folder, "gpu-01")
        agent = start_agent(host, address, tls=tls_of(folder, "gpu-01"))
        try:
            host.submit("old")
            assert time.time() < ends, "the certificate must end while the job trains"
            check_renewal(host, agent, ends)
        finally:
            end_all(folder, bin_dir, host.process, agent)
    print("an agent whose certificate had ended came back with the renewed one; its worker never stopped")
    return 0


sys.exit(main())
