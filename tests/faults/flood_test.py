#!/usr/bin/env python3
"""Floods of a stranger, without a token, beside an honest client: the coordinator goes on, is small, and answers.

    tests/faults/flood_test.py BIN_DIR [--seconds 10] [WORDS]     each flood takes that long; with WORDS only those that have them in their name

The floods come from a process of their own, over loopback, with sockets and bytes by hand.
"""
import argparse
import multiprocessing
import os
import pathlib
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from service import Service  # noqa: E402

MEMORY_MIB = 512
CALL_SECONDS = 1.0
HEALTH_SECONDS = 0.1
HELP_SECONDS = 0.2  # what `nsactl --help`, which asks nobody, may take on a machine that is not busy
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def text(value):
    return bytes([len(value)]) + value


SETTINGS = frame(4, 0, 0)
BLOCK = (b"\x83\x86\x04" + text(b"/nsa.v1.CoordinatorService/SubmitJob") + b"\x01" + text(b"x") + b"\x00" + text(b"content-type") +
         text(b"application/grpc") + b"\x00" + text(b"te") + text(b"trailers"))


class Attacker:
    """Connections to one address that are opened again when they are closed."""

    def __init__(self, address, count, greeting):
        host, port = address.rsplit(":", 1)
        self.address, self.greeting, self.opened = (host, int(port)), greeting, 0
        self.sockets = [self.open() for _ in range(count)]

    def open(self):
        self.opened += 1
        try:
            connection = socket.create_connection(self.address, timeout=1)
            connection.settimeout(0.2)
            connection.sendall(self.greeting)
            return connection
        except OSError:
            return None

    def send(self, at, data):
        """False when the connection was closed; it is opened again."""
        try:
            self.sockets[at].sendall(data)
            while select.select([self.sockets[at]], [], [], 0)[0]:
                if not self.sockets[at].recv(1 << 16):
                    raise OSError("closed")
            return True
        except (OSError, AttributeError):
            if self.sockets[at] is not None:
                self.sockets[at].close()
            time.sleep(0.01)
            self.sockets[at] = self.open()
            return False


def until(end):
    while time.monotonic() < end:
        yield
        time.sleep(0)


def rapid_reset(grpc, _http, end):
    attacker, streams = Attacker(grpc, 6, PREFACE + SETTINGS), [1] * 6
    for _ in until(end):
        for at in range(6):
            data = b"".join(frame(1, 4, stream, BLOCK) + frame(3, 0, stream, b"\0\0\0\x08") for stream in range(streams[at], streams[at] + 400, 2))
            streams[at] = streams[at] + 400 if attacker.send(at, data) else 1


def continuation(grpc, _http, end):
    """Before the settings are acknowledged: they never are."""
    attacker, part = Attacker(grpc, 2, PREFACE + SETTINGS + frame(1, 0, 1, BLOCK)), frame(9, 0, 1, b"\x00" + text(b"a") + b"\x7f\x80\x7d" + b"a" * 16_000)
    for _ in until(end):
        for at in range(2):
            attacker.send(at, part * 8)


def idle(grpc, _http, end):
    silent, greeted = Attacker(grpc, 1_500, b""), Attacker(grpc, 1_500, PREFACE + SETTINGS)
    for _ in until(end):
        time.sleep(0.1)
    assert silent.opened == greeted.opened == 1_500


def questions(grpc, _http, end):
    """Frames that want an answer, which nobody reads, and frames of nothing."""
    kinds = (SETTINGS, frame(6, 0, 0, b"12345678"), frame(0, 0, 1), frame(8, 0, 0, b"\0\0\0\1"))
    attacker = Attacker(grpc, 4, PREFACE + SETTINGS + frame(1, 4, 1, BLOCK))
    for _ in until(end):
        for at, kind in enumerate(kinds):
            attacker.send(at, kind * 2_000)


def half_requests(_grpc, http, end):
    """Of the page's port; every connection that is closed begins again."""
    attacker = Attacker(http, 300, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    for _ in until(end):
        for at in range(300):
            attacker.send(at, b"X-Part: %d\r\n" % at)
        time.sleep(0.5)


FLOODS = {"rapid reset": rapid_reset, "continuation": continuation, "idle connections": idle, "questions": questions, "half requests": half_requests}


def run_flood(name, grpc, http, seconds):
    os.nice(10)  # a flood from elsewhere takes no processor of the coordinator's machine
    FLOODS[name](grpc, http, time.monotonic() + seconds)


class Honest:
    def __init__(self, service, grpc, token):
        self.service, self.grpc = service, grpc
        self.environment = {**service.environment, "NSACTL_TOKEN_FILE": str(token)}

    def run(self, *words):
        began = time.monotonic()
        done = subprocess.run([self.service.bin / "nsactl", *words], env=self.environment, capture_output=True, text=True, timeout=60)
        return time.monotonic() - began, done

    def busy(self):
        """How many times slower than usual this machine is."""
        return max(1.0, self.run("--help")[0] / HELP_SECONDS)

    def call(self):
        """The seconds of a call over TCP on a connection of its own, for a machine that is not busy."""
        busy = self.busy()
        seconds, done = self.run("--address", self.grpc, "list")
        assert done.returncode == 0, f"nsactl list after {seconds:.2f} s: {done.stderr}"
        return seconds / busy

    def health(self):
        busy = self.busy()
        began = time.monotonic()
        assert self.service.get("/healthz") == "ok\n"
        return (time.monotonic() - began) / busy


def usual(seconds):
    """Nine of ten are not longer; the others may have waited for a processor of this machine."""
    return sorted(seconds)[len(seconds) * 9 // 10]


def peak_mib(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def endure(name, service, honest, seconds):
    flood = multiprocessing.get_context("fork").Process(target=run_flood, args=(name, honest.grpc, service.address, seconds))
    flood.start()
    calls, healths = [], []
    while flood.is_alive():
        calls.append(honest.call())
        healths.append(honest.health())
        assert service.process.poll() is None, f"{name}: the coordinator ended with {service.process.returncode}:\n{service.log.read_text()[-4000:]}"
        time.sleep(0.1)
    flood.join()
    assert flood.exitcode == 0, f"{name}: the flood ended with {flood.exitcode}"
    peak = peak_mib(service.process.pid)
    print(f"{name}: {len(calls)} calls, {usual(calls):.2f} s, at most {max(calls):.2f} s; /healthz {usual(healths):.3f} s, at most {max(healths):.3f} s; "
          f"memory at most {peak:.0f} MiB", flush=True)
    for what, seconds, limit in (("nsactl list", calls, CALL_SECONDS), ("/healthz", healths, HEALTH_SECONDS)):
        assert usual(seconds) <= limit and max(seconds) <= 10 * limit, f"{name}: {what} took {sorted(seconds)} s (nine of ten at most {limit}, each 10 times that)"
    assert peak < MEMORY_MIB, f"{name}: {peak:.0f} MiB (less than {MEMORY_MIB})"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    with tempfile.TemporaryDirectory(prefix="nsa-flood-") as place:
        folder = pathlib.Path(place)
        with Service(options.bin, folder, arguments=["--listen", "127.0.0.1:0"]) as service:
            grpc = re.search(r"gRPC on \S+ and (\S+), metrics", service.log.read_text())[1]
            honest = Honest(service, grpc, folder / "state" / "token")
            honest.call()
            for name in FLOODS:
                if all(word in name for word in options.words):
                    endure(name, service, honest, options.seconds)
            ended = re.findall(r'nsa_tcp_connections_ended_total\{reason="(\w+)"\} (\S+)', service.scrape())
            print(f"ended: {', '.join(f'{reason} {float(count):.0f}' for reason, count in ended)}")
            assert options.words or {"rst_stream", "continuation", "displaced", "settings"} <= {reason for reason, _ in ended}, ended


main()
