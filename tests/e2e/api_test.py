#!/usr/bin/env python3
"""The two programs of docs/api.md as they stand, but for the coordinator's address, against a coordinator with TLS and a submitter's token. Also: the table of exit codes
in docs/commands.md is that of nsactl --help.

    tests/e2e/api_test.py BIN_DIR

Needs python3-grpcio, and Node with the packages of tests/faults/hostile/package.json (deploy/packages.sh test); skipped (77) without them.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests/testing"))
from ports import HeldPorts  # noqa: E402
from service import Service  # noqa: E402

PAGE = (TOP / "docs/api.md").read_text()
PACKAGES = TOP / "tests/faults/hostile"


# The distribution's packages are those of its own python3, which another one may precede.
PATH = f"/usr/bin:{os.environ['PATH']}"


def has_grpc():
    return subprocess.run(["python3", "-c", "import grpc, google.protobuf"], env={**os.environ, "PATH": PATH}, capture_output=True).returncode == 0


def modules():
    found = subprocess.run([TOP / "deploy/node_packages.sh", "--where", PACKAGES], capture_output=True, text=True, check=True).stdout.strip()
    return pathlib.Path(found) / "node_modules"


def block(language):
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, language
    return found


def make_folder(service, folder, address):
    """The files that the page asks for."""
    work = folder / "work"
    work.mkdir()
    (work / "proto").symlink_to(TOP / "proto")
    (work / "my-text.txt").write_text("The quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 4000)
    for name in ("ca.crt", "ada.crt", "ada.key"):
        shutil.copy(folder / "tls" / name, work / name)
    made = service.ctl("token", "create", "ada", "--role", "submitter", check=True)
    (work / "token").write_text(made.stdout)
    (work / "node_modules").symlink_to(modules())
    (work / "submit_and_watch.py").write_text(block("python")[0].replace("lab:50951", address))
    (work / "submit_and_watch.mjs").write_text(block("js")[0].replace("lab:50951", address))
    return work


def run(work, service, name, command):
    done = subprocess.run(["bash", "-ec", command], cwd=work, env={**service.environment, "PATH": PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{service.log.read_text()}"
    ended = re.search(r"^STATE_STOPPED at step (\d+)$", done.stdout, re.MULTILINE)
    assert ended and 20 <= int(ended[1]) < 2000, done.stdout
    assert re.search(r"^step 1: loss [4-6]\.\d{3}$", done.stdout, re.MULTILINE), done.stdout
    assert (work / "out" / name / "checkpoints" / f"step-{int(ended[1]):08d}" / "state.json").is_file(), done.stdout
    job = service.ctl("describe", name, "-o", "json", check=True).stdout
    assert '"owner": "ada"' in job, job


def check_exit_codes(service):
    table = (TOP / "docs/commands.md").read_text().partition("## Exit codes")[2].partition("\n\nAn error is")[0]
    documented = set(re.findall(r"^\| (\d+) \|", table, re.MULTILINE))
    printed = set(re.findall(r"^  (\d+)  ", service.ctl("--help").stdout.partition("Exit codes:")[2], re.MULTILINE))
    coded = set(re.findall(r"^  k\w+ = (\d+)", (TOP / "client/exit_code.h").read_text(), re.MULTILINE))
    assert documented == printed == coded and len(coded) >= 9, (documented, printed, coded)


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    if not has_grpc() or not modules().is_dir() or not shutil.which("node"):
        print("skipped: no python3-grpcio, no Node, or not the packages of tests/faults/hostile; deploy/packages.sh test installs them")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="nsa-api-") as name:
        folder = pathlib.Path(name)
        subprocess.run([bin_dir / "nsactl", "admin", "init-tls", folder / "tls", "--host", "127.0.0.1", "--client", "ada"], check=True, capture_output=True)
        port = HeldPorts()
        address = f"127.0.0.1:{port.first}"
        (folder / "coordinator.yaml").write_text(
            f"listen_address: {address}\ntls: {{certificate_file: {folder}/tls/coordinator.crt, private_key_file: {folder}/tls/coordinator.key, "
            f"client_ca_file: {folder}/tls/ca.crt}}\n")
        with Service(bin_dir, folder, arguments=["--config", folder / "coordinator.yaml"]) as service:
            check_exit_codes(service)
            work = make_folder(service, folder, address)
            python, node = block("sh")
            run(work, service, "from-python", python)
            run(work, service, "from-node", node.partition("\n")[2])  # without npm install: the packages are there, in these versions
            pinned = (PACKAGES / "package.json").read_text()
            for package, version in re.findall(r"(@grpc/[a-z-]+)@([\d.]+)", node):
                assert f'"{package}": "{version}"' in pinned, (package, version)


main()
