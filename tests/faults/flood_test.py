#!/usr/bin/env python3
"""Floods of a stranger, without a token, and of a viewer, beside an honest client and a job that trains: the coordinator goes on, is small, and answers.

    tests/faults/flood_test.py BIN_DIR [--seconds 10] [--tls] [WORDS]     each flood takes that long; with WORDS only those that have them in their name

Each flood is a process of its own, over loopback, with sockets and bytes by hand; two or three go on at the same time. With --tls the port speaks TLS, the
coordinator may open 1,024 files only, and the stranger has another address and a valid certificate.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import re
import resource
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from processes import processor_seconds  # noqa: E402
from service import Service  # noqa: E402

MEMORY_MIB = 512
CALL_SECONDS = 1.0
HEALTH_SECONDS = 0.1
PROCESSORS = 1.0  # what the coordinator takes of the machine's, on average of a phase
HELP_SECONDS = 0.2  # what `nsactl --help`, which asks nobody, may take on a machine that is not busy
STRANGER = "127.0.0.9"  # another neighbour than the honest client
# Some steps a second on one core, for longer than the test takes.
JOB = """
name: victim
model: {{dim: 64, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}}
nsa: {{l: 16, d: 8, l_sel: 32, n_sel: 4, w: 32}}
data: {{source: synthetic, tokenizer: byte}}
runtime: {{device: cpu, precision: fp32}}
preflight: {{waive: {{MODEL_TOO_SMALL_FOR_RUN: only to have something that runs, DATA_SYNTHETIC: only to have something that runs}}}}
train: {{steps: 200000, seq_len: 128, batch_size: 8, lr: 1e-3, warmup_steps: 20, log_every: 1, eval_every: 0, save_every: 100000, seed: 7, out_dir: {out_dir}}}
"""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def text(value):
    return bytes([len(value)]) + value


SETTINGS = frame(4, 0, 0)


def block_of(method, *headers):
    """The headers of a call, in HPACK without its tables."""
    return b"\x83\x86\x04" + text(b"/nsa.v1.CoordinatorService/" + method) + b"\x01" + text(b"x") + b"".join(
        b"\x00" + text(name) + text(value) for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers"), *headers))


BLOCK = block_of(b"SubmitJob")


class Target:
    """Where a flood goes: the gRPC port, by TLS if there is a context for it, and the page's port."""

    def __init__(self, grpc, http, viewer, tls=None):
        self.grpc, self.http, self.viewer, self.tls = grpc, http, viewer, tls
        self.source = STRANGER if tls else ""

    def connect(self, address, tls):
        host, port = address.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=1, source_address=(self.source, 0))
        if tls and self.tls:
            connection = self.tls.wrap_socket(connection)
        connection.settimeout(0.2)
        return connection


class Attacker:
    """Connections to one address that are opened again when they are closed."""

    def __init__(self, target, count, greeting, address="", tls=True):
        self.target, self.address, self.tls = target, address or target.grpc, tls
        self.greeting, self.opened = greeting, 0
        self.sockets = [self.open() for _ in range(count)]

    def open(self):
        self.opened += 1
        try:
            connection = self.target.connect(self.address, self.tls)
            connection.sendall(self.greeting)
            return connection
        except OSError:
            return None

    def send(self, at, data):
        """False when the connection was closed, or takes no more; it is opened again."""
        return self.attempt(at, lambda connection: connection.sendall(data)) is not False

    def pour(self, at, data):
        """What is left of the data, because the connection takes no more now; False as send()."""
        def send_part(connection):
            try:
                return data[connection.send(data):]
            except TimeoutError:
                return data
        return self.attempt(at, send_part)

    def attempt(self, at, use):
        try:
            result = use(self.sockets[at])
            while select.select([self.sockets[at]], [], [], 0)[0]:
                if not self.sockets[at].recv(1 << 16):
                    raise OSError("closed")
            return result
        except (OSError, ValueError, AttributeError):
            if self.sockets[at] is not None:
                self.sockets[at].close()
            time.sleep(0.01)
            self.sockets[at] = self.open()
            return False


def until(end):
    while time.monotonic() < end:
        yield
        time.sleep(0)


def rapid_reset(target, end):
    """The gate lets a few of them through a second, and ends the connection after three: until then it stays, also when it takes no more."""
    attacker, streams, rest = Attacker(target, 6, PREFACE + SETTINGS), [1] * 6, [b""] * 6
    for _ in until(end):
        for at in range(6):
            if not rest[at]:
                rest[at] = b"".join(frame(1, 4, stream, BLOCK) + frame(3, 0, stream, b"\0\0\0\x08") for stream in range(streams[at], streams[at] + 400, 2))
                streams[at] += 400
            left = attacker.pour(at, rest[at])
            if left is False:
                streams[at], left = 1, b""
            rest[at] = left


def continuation(target, end):
    """Before the settings are acknowledged: they never are."""
    attacker, part = Attacker(target, 2, PREFACE + SETTINGS + frame(1, 0, 1, BLOCK)), frame(9, 0, 1, b"\x00" + text(b"a") + b"\x7f\x80\x7d" + b"a" * 16_000)
    for _ in until(end):
        for at in range(2):
            attacker.send(at, part * 8)


def idle(target, end):
    # Handshakes of its own take a client as long as the coordinator.
    greetings = 100 if target.tls else 1_500
    silent, greeted = Attacker(target, 1_500, b"", tls=False), Attacker(target, greetings, PREFACE + SETTINGS)
    for _ in until(end):
        time.sleep(0.1)
    assert (silent.opened, greeted.opened) == (1_500, greetings)


def questions(target, end):
    """Frames that want an answer, which nobody reads, and frames of nothing."""
    kinds = (SETTINGS, frame(6, 0, 0, b"12345678"), frame(0, 0, 1), frame(8, 0, 0, b"\0\0\0\1"))
    attacker = Attacker(target, 4, PREFACE + SETTINGS + frame(1, 4, 1, BLOCK))
    for _ in until(end):
        for at, kind in enumerate(kinds):
            attacker.send(at, kind * 2_000)


class Caller:
    """Whole calls on one connection, as many at once as the flow control of HTTP/2 lets through."""

    def __init__(self, target, block, body, at_once=100):
        self.target, self.block, self.at_once = target, block, at_once
        self.message = b"\x00" + len(body).to_bytes(4, "big") + body
        self.answered = 0
        self.socket = None

    def open(self):
        self.socket = self.target.connect(self.target.grpc, tls=True)
        self.socket.settimeout(2)
        self.socket.sendall(PREFACE + SETTINGS)
        self.window, self.initial, self.next, self.read = 65_535, 65_535, 1, b""
        self.calls = {}  # stream: its window, and how much of the message has been sent

    def turn(self):
        """Reads what there is, and sends what may be sent; opens the connection when there is none, or none any more."""
        try:
            if self.socket is None:
                self.open()
            while select.select([self.socket], [], [], 0)[0] or (self.target.tls and self.socket.pending()):
                data = self.socket.recv(1 << 16)
                if not data:
                    raise OSError("closed")
                self.read += data
            self.take_frames()
            self.send()
        except (OSError, ValueError):
            if self.socket is not None:
                self.socket.close()
            self.socket = None
            time.sleep(0.01)

    def take_frames(self):
        while len(self.read) >= 9 and len(self.read) >= 9 + int.from_bytes(self.read[:3], "big"):
            size, kind, flags, stream = int.from_bytes(self.read[:3], "big"), self.read[3], self.read[4], int.from_bytes(self.read[5:9], "big")
            payload, self.read = self.read[9:9 + size], self.read[9 + size:]
            if kind == 0 and size > 0:
                self.socket.sendall(frame(8, 0, 0, size.to_bytes(4, "big")))  # it is read
            if kind == 3 or (kind in (0, 1) and flags & 1):  # reset, or the last of an answer
                self.answered += self.calls.pop(stream, None) is not None
            elif kind == 4 and not flags & 1:
                for at in range(0, size, 6):
                    if payload[at:at + 2] == b"\x00\x04":
                        grown = int.from_bytes(payload[at + 2:at + 6], "big") - self.initial
                        self.initial += grown
                        self.calls = {key: [window + grown, sent] for key, (window, sent) in self.calls.items()}
                self.socket.sendall(frame(4, 1, 0))
            elif kind == 6 and not flags & 1:
                self.socket.sendall(frame(6, 1, 0, payload))
            elif kind == 7:
                raise OSError("the peer leaves")
            elif kind == 8 and stream == 0:
                self.window += int.from_bytes(payload, "big")
            elif kind == 8 and stream in self.calls:
                self.calls[stream][0] += int.from_bytes(payload, "big")

    def send(self):
        data = []
        while len(self.calls) < self.at_once and self.window > 0:
            data.append(frame(1, 4, self.next, self.block))
            self.calls[self.next], self.next = [self.initial, 0], self.next + 2
            if self.next > 1 << 30:
                raise OSError("no numbers are left")
            self.push(self.next - 2, data)
        for stream in self.calls:
            self.push(stream, data)
        self.socket.sendall(b"".join(data))

    def push(self, stream, data):
        window, sent = self.calls[stream]
        while sent < len(self.message) and min(self.window, window) > 0:
            part = self.message[sent:sent + min(self.window, window, 16_384)]
            sent, window, self.window = sent + len(part), window - len(part), self.window - len(part)
            data.append(frame(0, sent == len(self.message), stream, part))
        self.calls[stream] = [window, sent]


def call(callers, end):
    for _ in until(end):
        for caller in callers:
            caller.turn()
    answered = [caller.answered for caller in callers]
    print(f"calls that were answered, by connection: {answered}", flush=True)
    assert sum(answered) > 100, answered


def messages(target, end):
    """Whole calls of strangers: small ones without a pause on four connections, and on two such of 4 MB."""
    small, large = b"\x0a\x01x", b"\x78\x01" * 2_000_000  # GetJob of x; fields that are not known
    call([Caller(target, block_of(b"GetJob"), small) for _ in range(4)] + [Caller(target, block_of(b"GetJob"), large, at_once=4) for _ in range(2)], end)


def viewers_calls(target, end):
    """The same by one whose token lets them in; the large ones are too large for their method, or take a hundred times their bytes."""
    bearer = (b"authorization", b"Bearer " + target.viewer)
    small = [Caller(target, block_of(b"ListJobs", bearer), b"") for _ in range(2)]
    large = [Caller(target, block_of(b"ListJobs", bearer), body, at_once=4) for body in (b"\x78\x01" * 2_000_000, b"\x22\x00" * 30_000)]
    call(small + large, end)


def half_requests(target, end):
    """Of the page's port; every connection that is closed begins again."""
    attacker = Attacker(target, 300, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", target.http, tls=False)
    for _ in until(end):
        for at in range(300):
            attacker.send(at, b"X-Part: %d\r\n" % at)
        time.sleep(0.5)


def client_hello():
    outgoing = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def half_handshakes(target, end):
    """They begin, and begin again when they are ended."""
    hello = client_hello()
    attacker = Attacker(target, 300, hello[:len(hello) // 2], tls=False)
    for _ in until(end):
        for at in range(300):
            attacker.send(at, b"")
        time.sleep(0.5)


def handshakes(target, end):
    """Each costs the coordinator a signature, and this client nothing."""
    hello, held = client_hello(), []
    for _ in until(end):
        try:
            held.append(target.connect(target.grpc, tls=False))
            held[-1].sendall(hello)
        except OSError:
            time.sleep(0.001)
        if len(held) > 100:
            held.pop(0).close()


# Those of one row go on at the same time.
FLOODS = [{"rapid reset": rapid_reset, "continuation": continuation},
          {"idle connections": idle, "half requests": half_requests},
          {"questions": questions, "messages": messages, "viewer's calls": viewers_calls}]
TLS_FLOODS = [{"rapid reset": rapid_reset, "continuation": continuation},
              {"idle connections": idle, "half handshakes": half_handshakes},
              {"handshakes": handshakes, "messages": messages, "viewer's calls": viewers_calls}]


def run_flood(flood, target, seconds):
    os.nice(10)  # a flood from elsewhere takes no processor of the coordinator's machine
    allow_files(20_000)
    flood(target, time.monotonic() + seconds)


def allow_files(count):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count), hard))


class Honest:
    def __init__(self, service, grpc, token, tls):
        self.service = service
        self.environment = {**service.environment, "NSACTL_CONFIG": str(service.log.with_name("nsactl.yaml"))}
        files = [word for option, name in (("ca-file", "ca.crt"), ("certificate-file", "ada.crt"), ("private-key-file", "ada.key"))
                 for word in (f"--{option}", tls / name)] if tls else []
        made = self.run("context", "set", "flooded", "--address", grpc, "--token-file", token, *files)[1]
        assert made.returncode == 0, made.stderr

    def run(self, *words):
        began = time.monotonic()
        done = subprocess.run([self.service.bin / "nsactl", *map(str, words)], env=self.environment, capture_output=True, text=True, timeout=60)
        return time.monotonic() - began, done

    def busy(self):
        """How many times slower than usual this machine is."""
        return max(1.0, self.run("--help")[0] / HELP_SECONDS)

    def call(self):
        """The seconds of a call over TCP on a connection of its own, for a machine that is not busy."""
        busy = self.busy()
        seconds, done = self.run("--context", "flooded", "list")
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


def endure(floods, service, honest, target, seconds):
    name = ", ".join(floods)
    context = multiprocessing.get_context("fork")
    began, spent = time.monotonic(), processor_seconds(service.process.pid)
    running = [context.Process(target=run_flood, args=(flood, target, seconds), name=each) for each, flood in floods.items()]
    for flood in running:
        flood.start()
    calls, healths = [], []
    while any(flood.is_alive() for flood in running):
        calls.append(honest.call())
        healths.append(honest.health())
        assert service.process.poll() is None, f"{name}: the coordinator ended with {service.process.returncode}:\n{service.log.read_text()[-4000:]}"
        time.sleep(0.1)
    for flood in running:
        flood.join()
        assert flood.exitcode == 0, f"{flood.name}: the flood ended with {flood.exitcode}"
    spent, took = processor_seconds(service.process.pid) - spent, time.monotonic() - began
    peak = peak_mib(service.process.pid)
    print(f"{name}: {len(calls)} calls, {usual(calls):.2f} s, at most {max(calls):.2f} s; /healthz {usual(healths):.3f} s, at most {max(healths):.3f} s; "
          f"memory at most {peak:.0f} MiB; {spent:.1f} s of a processor in {took:.0f} s", flush=True)
    for what, times, limit in (("nsactl list", calls, CALL_SECONDS), ("/healthz", healths, HEALTH_SECONDS)):
        assert usual(times) <= limit and max(times) <= 10 * limit, f"{name}: {what} took {sorted(times)} s (nine of ten at most {limit}, each 10 times that)"
    assert peak < MEMORY_MIB, f"{name}: {peak:.0f} MiB (less than {MEMORY_MIB})"
    assert spent < PROCESSORS * took, f"{name}: {spent:.1f} s of a processor in {took:.0f} s (at most {PROCESSORS * took:.0f})"


def make_tls(bin_dir, folder):
    """An authority, with certificates of the coordinator, of the honest client and of a stranger, and the coordinator's configuration."""
    tls = folder / "tls"
    subprocess.run([pathlib.Path(bin_dir) / "nsactl", "admin", "init-tls", tls, "--host", "127.0.0.1", "--client", "ada", "--client", "mallory"],
                   check=True, capture_output=True)
    (folder / "tls.yaml").write_text(f"tls: {{certificate_file: {tls}/coordinator.crt, private_key_file: {tls}/coordinator.key, client_ca_file: {tls}/ca.crt}}\n")
    return tls


def stranger_context(tls):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls / "ca.crt")
    context.load_cert_chain(tls / "mallory.crt", tls / "mallory.key")
    context.set_alpn_protocols(["h2"])
    return context


def start_job(service, folder):
    (folder / "job.yaml").write_text(JOB.format(out_dir=folder / "out"))
    submitted = service.ctl("submit", folder / "job.yaml", "-o", "name")
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    service.wait_until(lambda: step(service, job) > 0, 60, "the first step")
    return job


def step(service, job):
    return int(json.loads(service.ctl("describe", job, "-o", "json", check=True).stdout).get("progress", {}).get("step", 0))


def be_silent(address):
    """Until the coordinator ends the connection. In a flood others take its place first, if the machine is slow."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 60) as quiet:
        try:
            assert quiet.recv(1) == b""
        except ConnectionResetError:
            pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("words", nargs="*")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args()
    allow_files(1_024 if options.tls else 20_000)
    with tempfile.TemporaryDirectory(prefix="nsa-flood-") as place:
        folder = pathlib.Path(place)
        tls = make_tls(options.bin, folder) if options.tls else None
        arguments = ["--config", folder / "tls.yaml"] if tls else []
        with Service(options.bin, folder, arguments=["--listen", "127.0.0.1:0", *arguments]) as service:
            grpc = re.search(r"gRPC on \S+ and (\S+), metrics", service.log.read_text())[1]
            honest = Honest(service, grpc, folder / "state" / "token", tls)
            honest.call()
            job = start_job(service, folder)
            viewer = service.ctl("token", "create", "eve", "--role", "viewer", check=True).stdout.strip()
            target = Target(grpc, service.address, viewer.encode(), stranger_context(tls) if tls else None)
            phases = [{name: flood for name, flood in phase.items() if all(word in name for word in options.words)} for phase in (TLS_FLOODS if tls else FLOODS)]
            for phase in filter(None, phases):
                before = step(service, job)
                endure(phase, service, honest, target, options.seconds)
                assert step(service, job) > before, "the job has not trained on"
            if tls:
                be_silent(grpc)
            ended = re.findall(r'nsa_tcp_connections_ended_total\{reason="(\w+)"\} (\S+)', service.scrape())
            print(f"ended: {', '.join(f'{reason} {float(count):.0f}' for reason, count in ended)}")
            expected = {"rst_stream", "continuation", "displaced", *(("silent", "tls") if tls else ("settings",))}
            assert options.words or expected <= {reason for reason, _ in ended}, ended
            if tls:
                spent = float(re.search(r"^nsa_tcp_handshake_seconds_total (\S+)", service.scrape(), re.MULTILINE)[1])
                allowed = 0.1 * options.seconds * len(TLS_FLOODS) + 2  # of the stranger's address, and those of the honest client
                print(f"handshakes took {spent:.2f} s of a processor (at most {allowed:.2f})")
                assert 0 < spent < allowed, spent
            service.ctl("stop", "--now", job, check=True)


main()
