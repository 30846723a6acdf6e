#!/usr/bin/env python3
"""The page and /metrics where other machines reach them: over TLS, with a token, for a browser and for a Prometheus; never in the clear.

    tests/e2e/https_page_test.py BIN_DIR
"""
import base64
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from ports import HeldPorts
from service import environment_of

CONFIG = """\
metrics_address: 0.0.0.0:{port}
local_agent: false
token_file: {tls}/token
tls: {{certificate_file: {tls}/coordinator.crt, private_key_file: {tls}/coordinator.key, client_ca_file: {tls}/ca.crt}}
"""
PROMETHEUS = """\
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: nsa-coordinator
  scheme: https
  tls_config: {{ca_file: {tls}/ca.crt}}
  authorization: {{credentials_file: {token}}}
  static_configs: [{{targets: ["localhost:{port}"]}}]
"""


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return found


class Coordinator:
    def __init__(self, bin_dir, folder):
        self.bin = pathlib.Path(bin_dir).resolve()
        self.folder = folder
        self.environment = environment_of(folder / "state")
        self.ports = HeldPorts()
        self.port = self.ports.first
        self.ctl("admin", "init-tls", folder / "tls", "--host", "localhost", "--client", "ada", check=True)
        (folder / "coordinator.yaml").write_text(CONFIG.format(port=self.port, tls=folder / "tls"))
        self.log = (folder / "log").open("wb")
        self.process = subprocess.Popen([self.bin / "nsa-coordinator", "--config", folder / "coordinator.yaml"], env=self.environment, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)
        wait_for(lambda: self.ctl("nodes").returncode == 0, 120, "the coordinator answers")
        self.trust = ssl.create_default_context(cafile=folder / "tls/ca.crt")

    def ctl(self, *arguments, check=False):
        return subprocess.run([self.bin / "nsactl", *map(str, arguments)], env=self.environment, capture_output=True, text=True, check=check)

    def token(self, name, role):
        return self.ctl("token", "create", name, "--role", role, check=True).stdout.strip()

    def get(self, path, authorization=None, data=None):
        """Status and text."""
        request = urllib.request.Request(f"https://localhost:{self.port}{path}", data=data, headers={"Authorization": authorization} if authorization else {})
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.trust) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        self.log.close()


def check_tokens(service):
    viewer, submitter = service.token("wall", "viewer"), service.token("sub", "submitter")
    basic = base64.b64encode(f"anybody:{viewer}".encode()).decode()
    for path in "/metrics", "/", "/api/v1/fleet":
        assert service.get(path)[0] == 401, path
        assert service.get(path, "Bearer " + "0" * 64)[0] == 401, path
        assert service.get(path, f"Bearer {submitter}")[0] == 401, "a submitter may not see all jobs"
        assert service.get(path, f"Basic {basic}")[0] == 200, path
    assert "nsa_build_info" in service.get("/metrics", f"Bearer {viewer}")[1]
    assert service.get("/healthz")[0] == 200, "load balancers have no token"
    # What a browser sends by itself is no right to change something: that needs an operator's token in the page's own header.
    operator = (service.folder / "tls/token").read_text().strip()
    ambient = base64.b64encode(f"anybody:{operator}".encode()).decode()
    status, said = service.get("/api/v1/jobs/none/stop", f"Basic {ambient}", data=b"{}")
    assert status in (401, 403), (status, said)
    service.ctl("token", "revoke", "wall", check=True)
    assert service.get("/metrics", f"Bearer {viewer}")[0] == 401, "revoked"
    print("ok: tokens")


def check_strangers(service):
    with socket.create_connection(("127.0.0.1", service.port), 30) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answer = plain.recv(4096)
        except ConnectionResetError:
            answer = b""
        assert b"HTTP" not in answer, "answered in the clear"
    # Half requests occupy only their own connection, and end.
    half = []
    for _ in range(600):
        half.append(socket.create_connection(("127.0.0.1", service.port), 30))
        half[-1].sendall(b"\x16\x03")
    assert service.get("/healthz")[0] == 200, "others are still served"
    for connection in half:
        connection.close()
    huge = ssl.create_default_context(cafile=service.folder / "tls/ca.crt")
    with socket.create_connection(("localhost", service.port), 30) as raw, huge.wrap_socket(raw, server_hostname="localhost") as secure:
        secure.sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n")
        assert secure.recv(64).startswith(b"HTTP/1.1 431"), "a head of 20,000 bytes"
    # Whoever leaves while a long reply is written ends nothing else.
    viewer = service.token("leaver", "viewer")
    for _ in range(30):
        with socket.create_connection(("localhost", service.port), 30) as raw, service.trust.wrap_socket(raw, server_hostname="localhost") as secure:
            secure.sendall(f"GET /metrics HTTP/1.1\r\nAuthorization: Bearer {viewer}\r\n\r\n".encode())
    assert service.get("/healthz")[0] == 200, "the coordinator goes on"
    print("ok: strangers")


def check_prometheus(service):
    """The configuration of docs/deploy.md, by a Prometheus."""
    if shutil.which("prometheus") is None:
        print("no prometheus here")
        return
    token = service.folder / "prometheus.token"
    token.write_text(service.token("prometheus", "viewer"))
    config = service.folder / "prometheus.yml"
    config.write_text(PROMETHEUS.format(tls=service.folder / "tls", token=token, port=service.port))
    ports = HeldPorts()
    where = f"127.0.0.1:{ports.first}"
    with (service.folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--web.listen-address={where}", f"--storage.tsdb.path={service.folder / 'tsdb'}"],
                                   stdout=log, stderr=log)

    def up():
        try:
            with urllib.request.urlopen(f"http://{where}/api/v1/query?query=up", timeout=10) as answer:
                return '"1"]' in answer.read().decode()
        except OSError:
            return False
    try:
        wait_for(up, 90, "a scrape by Prometheus over TLS")
    finally:
        process.terminate()
        process.wait(30)
    print("ok: Prometheus")


def main():
    with tempfile.TemporaryDirectory(prefix="nsa-https-") as name:
        service = Coordinator(sys.argv[1], pathlib.Path(name))
        try:
            check_tokens(service)
            check_strangers(service)
            check_prometheus(service)
            assert f"https://0.0.0.0:{service.port}/" in service.ctl("version").stdout
        finally:
            service.close()


main()
