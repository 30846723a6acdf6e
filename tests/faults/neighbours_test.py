#!/usr/bin/env python3
"""What a submitter, an agent and raw files can do to a coordinator, by a client of its own (grpcio), beside a job that trains: pipes and links in the
place of files, answers without an end, changes that cross, texts that are cut or turned around. None has an effect, and each is bounded in the memory
and the processor time of the coordinator, and in time.

    tests/faults/neighbours_test.py BIN_DIR [WORDS]     with WORDS only the attacks that have them in their name

Needs python3-grpcio (deploy/packages.sh test) and root, who may read what the Unix user nobody may not; skipped (77) without them.
"""
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "testing"))
from processes import processor_seconds, until  # noqa: E402
from service import Service  # noqa: E402

try:
    import grpc
    from google.protobuf import json_format
except ImportError:
    # The distribution's packages are those of its own python3, which another one may precede.
    if sys.executable != "/usr/bin/python3" and os.path.exists("/usr/bin/python3"):
        os.execv("/usr/bin/python3", ["/usr/bin/python3", *sys.argv])
    print("skipped: no python3-grpcio; deploy/packages.sh test installs it")
    sys.exit(77)

HELP_SECONDS = 0.2  # what `nsactl --help`, which asks nobody, may take on a machine that is not busy
ENDED = ("STATE_SUCCEEDED", "STATE_FAILED", "STATE_STOPPED")
MODEL = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_groups": 2, "d_k": 16, "d_v": 16}
NSA = {"l": 16, "d": 8, "l_sel": 32, "n_sel": 4, "w": 32}
REASON = "only to have something that runs"
WAIVED = {rule: REASON for rule in ("MODEL_TOO_SMALL_FOR_RUN", "DATA_SYNTHETIC")}
TRAIN = {"steps": 20, "seq_len": 128, "batch_size": 4, "lr": 1e-3, "warmup_steps": 5, "eval_every": 0, "save_every": 10, "seed": 7}


def import_protos(folder):
    """Makes the messages of proto/ and imports them as `api`, `fleet`, `jobs` and the stubs."""
    protos = sorted((TESTS.parent / "proto/nsa/v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{TESTS.parent / 'proto'}", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    f"--plugin=protoc-gen-grpc_python={shutil.which('grpc_python_plugin')}", *protos], check=True)
    sys.path.insert(0, str(folder))
    from nsa.v1 import coordinator_pb2, coordinator_pb2_grpc, fleet_pb2, fleet_pb2_grpc, job_pb2, telemetry_pb2, worker_pb2
    globals().update(api=coordinator_pb2, api_grpc=coordinator_pb2_grpc, fleet=fleet_pb2, fleet_grpc=fleet_pb2_grpc, jobs=job_pb2, telemetry=telemetry_pb2,
                     worker=worker_pb2)


class Client:
    """One caller with a connection of its own."""

    def __init__(self, address, token=""):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", 16 << 20), ("grpc.max_send_message_length", -1)])
        self.stubs = api_grpc.CoordinatorServiceStub(self.channel), fleet_grpc.FleetServiceStub(self.channel)
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def ask(self, method, request, seconds=60):
        """The code, all that an error says, and the answer, of a stream a list of them."""
        stub = next(getattr(stub, method) for stub in self.stubs if hasattr(stub, method))
        try:
            answer = stub(request, metadata=self.metadata, timeout=seconds)
            return "OK", "", list(answer) if hasattr(answer, "__next__") else answer
        except grpc.RpcError as error:
            details = " ".join(repr(value) for _, value in error.trailing_metadata() or ())
            return error.code().name, f"{error.details()} {details}", None

    def call(self, method, request):
        code, text, answer = self.ask(method, request)
        assert code == "OK", f"{method}: {code} {text}"
        return answer

    def submit(self, spec, **more):
        return self.call("SubmitJob", api.SubmitJobRequest(spec=spec, **more))

    def job(self, job):
        return self.call("GetJob", api.GetJobRequest(job=job)).job

    def state(self, job):
        return api.Job.State.Name(self.job(job).state)

    def told(self, spec):
        """All that the caller is told of a job that is checked and, if that refuses it, submitted."""
        request = api.SubmitJobRequest(spec=spec, validate_only=True)
        answers = [self.ask("SubmitJob", request)]
        if answers[0][0] != "OK" or not answers[0][2].report.accepted:
            request.validate_only = False
            answers.append(self.ask("SubmitJob", request))
        return "\n".join(f"{code} {text} {answer}" for code, text, answer in answers)


class World:
    def __init__(self, service, folder):
        self.service, self.folder = service, folder
        self.tcp = re.search(r"gRPC on \S+ and (\S+), metrics", service.log.read_text())[1]
        self.operator = Client(f"unix:{folder}/state/coordinator.sock")
        self.secret = (folder / "state" / "token").read_text().strip()
        self.ada = self.person("ada")
        self.mallory = self.person("mallory", unix_user="nobody")
        self.node = service.ctl("nodes", "-o", "name").stdout.strip()

    def token(self, **what):
        return self.operator.call("CreateToken", api.CreateTokenRequest(**what)).secret

    def person(self, name, **more):
        return Client(self.tcp, self.token(role=api.ROLE_SUBMITTER, name=name, **more))

    def spec(self, name, data=None, train=None, **more):
        return json_format.ParseDict({
            "name": name, "model": MODEL, "nsa": NSA, "data": data or {"source": "DATA_SOURCE_SYNTHETIC", "tokenizer": "TOKENIZER_BYTE"},
            "runtime": {"device": "DEVICE_CPU", "precision": "PRECISION_FP32"}, "train": {**TRAIN, "out_dir": str(self.folder / "out" / name), **(train or {})},
            "restart": {"max_restarts": 0}, "preflight": {"waive": WAIVED}, **more}, jobs.JobSpec())

    def waiting(self, client, name, **more):
        """A job that no machine has room for, and its id."""
        return client.submit(self.spec(name, resources={"require": {"place": "nowhere"}}, **{"preflight": {"waive": {**WAIVED, "REQUIRE_UNMET": REASON}}, **more})).job.id

    def busy(self):
        """How many times slower than usual this machine is."""
        began = time.monotonic()
        self.service.ctl("--help")
        return max(1.0, (time.monotonic() - began) / HELP_SECONDS)

    def peak_mib(self):
        return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{self.service.process.pid}/status").read_text())[1]) / 1024

    def page(self, path):
        text = self.service.get(path)  # UTF-8, or an error
        return len(text.encode()), text


ATTACKS = {}


def attack(name, mib, cpu, seconds):
    """What the coordinator may take at most: more memory than before, seconds of a processor, and seconds, on a machine that is not busy."""
    def add(function):
        ATTACKS[name] = function, mib, cpu, seconds
        return function
    return add


def endure(world, name):
    function, mib, cpu, seconds = ATTACKS[name]
    pid = world.service.process.pid
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    memory, spent, busy, began, step = world.peak_mib(), processor_seconds(pid), world.busy(), time.monotonic(), world.operator.job("victim").progress.step
    function(world)
    assert world.service.process.poll() is None, f"{name}: the coordinator ended:\n{world.service.log.read_text()[-4000:]}"
    took, busy = time.monotonic() - began, max(busy, world.busy())
    assert pid == world.service.process.pid
    memory, spent = world.peak_mib() - memory, processor_seconds(pid) - spent
    print(f"{name}: {took:.1f} s, {spent:.1f} s of a processor, {memory:.0f} MiB more", flush=True)
    assert memory < mib, f"{name}: {memory:.0f} MiB more (less than {mib})"
    assert spent < cpu, f"{name}: {spent:.1f} s of a processor (less than {cpu})"
    assert took < seconds * busy, f"{name}: {took:.1f} s (less than {seconds}, times {busy:.1f} because the machine is busy)"
    until(lambda: world.operator.job("victim").progress.step > step, "another step of the job that trains")


def together(calls, width=8):
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return [one.result() for one in [pool.submit(call) for call in calls]]


# ---- files that are no files, and links


def hostile_jobs(world, name, put):
    """A job for each file that preflight reads, with put(path) in its place: {what: spec}."""
    folder = world.folder / name
    (folder / "gpt").mkdir(parents=True)
    (folder / "text.txt").write_text("a text that anybody may read\n" * 4_000)
    folder.chmod(0o755)

    def placed(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path)
        return str(path)

    def data(kind, file, **more):
        return world.spec(f"{name}-{file.replace('.', '-')}", {"source": f"DATA_SOURCE_{kind}", "path": [str(folder / file)], **more})

    byte = {"tokenizer": "TOKENIZER_BYTE"}
    specs = {file: data(kind, file, **more) for kind, file, more in (("TEXT", "data.txt", byte), ("JSONL", "data.jsonl", byte), ("PARQUET", "data.parquet", byte),
                                                                     ("TOKENS", "data.npy", {"separator": "none"}), ("TOKENS", "data.bin", {"separator": "none"}))}
    for file in specs:
        placed(folder / file)
    placed(folder / "p.tokens" / "manifest.json")
    specs["manifest.json"] = data("TOKENS", "p.tokens")
    placed(folder / "bpe" / "tokenizer.json")
    specs["tokenizer.json"] = data("TEXT", "text.txt", tokenizer="TOKENIZER_BPE", tokenizer_path=str(folder / "bpe"))
    placed(folder / "gpt" / "vocab.json")
    (folder / "gpt" / "merges.txt").write_text("#version: 0.2\n")
    specs["vocab.json"] = data("TEXT", "text.txt", tokenizer="TOKENIZER_GPT2", tokenizer_path=str(folder / "gpt"))
    specs["owner.json"] = world.spec(f"{name}-owner")
    placed(pathlib.Path(specs["owner.json"].train.out_dir) / "owner.json")
    checkpoint = folder / "saved" / "checkpoints" / "step-00000005"
    placed(checkpoint / "state.json")
    for what in ("init", "resume"):
        specs[f"state.json for {what}"] = world.spec(f"{name}-{what}", restart={what: str(checkpoint)})
    return specs


@attack("pipes in the place of a job's files, 8 of each at once", mib=64, cpu=10, seconds=30)
def pipes(world):
    specs = hostile_jobs(world, "pipes", os.mkfifo)
    answers = together([lambda spec=spec: world.mallory.ask("SubmitJob", api.SubmitJobRequest(spec=spec, validate_only=True), seconds=20)
                        for spec in specs.values() for _ in range(8)], width=32)
    for what, (code, text, answer) in zip([what for what in specs for _ in range(8)], answers):
        assert code in ("OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"), f"{what}: {code} {text}"
        # Of what the Unix user may not read of an out_dir, the worker says more.
        assert code != "OK" or not answer.report.accepted or what == "owner.json", f"{what}: a pipe was accepted"
    job = world.ada.submit(world.spec("beside-pipes")).job.id
    until(lambda: world.ada.state(job) == "STATE_SUCCEEDED", "a job that is submitted beside the pipes")


@attack("pipes in the place of the files of jobs that were accepted", mib=64, cpu=15, seconds=60)
def exchanged(world):
    service, folder = world.service, world.folder / "exchanged"
    folder.mkdir()
    service.ctl("node", "cordon", world.node, "--reason", "the files are exchanged meanwhile", check=True)
    bad = []
    for at in range(8):
        data = folder / f"data-{at}.txt"
        data.write_text("a text that anybody may read\n" * 4_000)
        spec = world.spec(f"exchanged-{at}", {"source": "DATA_SOURCE_TEXT", "path": [str(data)], "tokenizer": "TOKENIZER_BYTE"})
        bad.append(world.ada.submit(spec).job.id)
        pipe = data if at % 2 else pathlib.Path(spec.train.out_dir) / "owner.json"
        pipe.parent.mkdir(parents=True, exist_ok=True)
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    good = world.ada.submit(world.spec("beside-exchanged")).job.id
    service.ctl("node", "uncordon", world.node, check=True)
    until(lambda: world.ada.state(good) == "STATE_SUCCEEDED", "the job behind those with pipes")
    for job in bad:
        code, text, _ = world.ada.ask("StopJob", api.StopJobRequest(job=job, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))
        assert code in ("OK", "FAILED_PRECONDITION"), text
        until(lambda job=job: world.ada.state(job) in ENDED, "the end of a job with a pipe")
        assert world.ada.job(job).progress.step == 0, "it was trained"
        world.ada.call("DeleteJob", api.DeleteJobRequest(job=job))


def audited(world):
    return world.operator.call("ListAudit", api.ListAuditRequest()).entries


@attack("pipes in the state folder of a coordinator that runs", mib=64, cpu=10, seconds=30)
def pipes_in_state(world):
    state = world.folder / "state"
    for file in ("access", "cordons.pb", "notices.pb", "audit.log"):
        aside = state / "aside"
        if (state / file).exists():
            (state / file).rename(aside)
        os.mkfifo(state / file)
        token = world.operator.call("CreateToken", api.CreateTokenRequest(role=api.ROLE_VIEWER, name="eve")).token.id
        world.operator.call("RevokeToken", api.RevokeTokenRequest(token=token))
        world.operator.call("CordonNode", api.CordonNodeRequest(node=world.node, reason="a try"))
        world.operator.call("UncordonNode", api.UncordonNodeRequest(node=world.node))
        audited(world)
        assert world.service.get("/healthz") == "ok\n"
        if aside.exists() and (state / file).is_fifo():
            aside.rename(state / file)
        (state / file).unlink(missing_ok=True) if (state / file).is_fifo() else aside.unlink(missing_ok=True)


@attack("links from a job's files to the operator's token and to another's file", mib=64, cpu=10, seconds=30)
def quoted(world):
    state = world.folder / "state" / "token"
    closed = world.folder / "closed"
    closed.mkdir(mode=0o700)
    short = closed / "short"
    short.write_text('{"hunter2": "correct-horse"}')
    parts = {world.secret[at:at + 6] for at in range(len(world.secret) - 5)} | {"hunter2", "correct-horse"}
    for name, target in (("of-token", state), ("of-short", short)):
        for what, spec in hostile_jobs(world, name, lambda path, target=target: path.symlink_to(target)).items():
            told = world.mallory.told(spec)
            found = [part for part in parts if part in told]
            assert not found, f"{what} to {target}: {found} in {told}"
    # The same is said of a folder that the submitter may not enter, whatever is in it.
    theirs = closed / "checkpoints" / "step-00000007"
    probes = [world.spec("of-closed", restart={"init": str(theirs)}), world.spec("of-closed", train={"out_dir": str(closed)})]

    def told():  # but for the space on the disk and the like
        return [re.sub(r"[0-9][0-9.e+]*", "N", world.mallory.told(probe)) for probe in probes]
    before = told()
    theirs.mkdir(parents=True)
    (theirs / "state.json").write_text(json.dumps({"format_version": 1, "step": 7, "spec": {"name": "theirs", "model": {"n_layers": 13}}}))
    (closed / "owner.json").write_text('{"job_id": "jtheirs"}')
    assert told() == before, f"{told()}\n{before}"


# ---- pages that have no end


class Agent:
    """An agent of its own that has joined over TCP."""

    def __init__(self, world, name):
        self.name, self.workers, self.store = name, [], ""
        secret = secrets.token_hex(16)
        joining = world.token(role=api.ROLE_AGENT, node=name)
        Client(world.tcp).call("Join", fleet.JoinRequest(node=name, join_token=joining, secret_sha256=hashlib.sha256(secret.encode()).digest()))
        self.client = Client(world.tcp, secret)
        self.node = fleet.NodeInfo(name=name, cpu_slots=1, cores=1, memory_bytes=64 << 30, free_memory_bytes=60 << 30, agent_version="hostile")

    def beat(self):
        answer = self.client.call("Heartbeat", fleet.HeartbeatRequest(node=self.node, incarnation="1", workers=self.workers, store_id=self.store))
        self.store = answer.store_id
        return answer.desired

    def take(self, world, name, ada):
        """Has a job placed here, and says that it runs. Returns its id."""
        self.node.labels["place"] = self.name
        self.beat()
        job = ada.submit(world.spec(name, resources={"require": {"place": self.name}})).job.id
        until(self.beat, "a rank for the agent")
        self.workers = [fleet.WorkerObservation(job_id=job, generation=1, rank=0, pid=1, state=fleet.WorkerObservation.STATE_RUNNING, process_state="R")]
        self.sequence = 0
        self.report(job, started=telemetry.WorkerStarted(pid=1))
        until(lambda: self.beat() and ada.state(job) == "STATE_RUNNING", "the agent's job")
        return job

    def report(self, job, **kind):
        self.sequence += 1
        record = telemetry.WorkerRecord(sequence=self.sequence, unix_nanos=time.time_ns(), **kind)
        return self.client.ask("ReportRecords", fleet.ReportRecordsRequest(job_id=job, generation=1, rank=0, records=[record]))


@attack("60 events of 4 MB of an agent", mib=128, cpu=20, seconds=60)
def large_events(world):
    agent = Agent(world, "talker")
    job = agent.take(world, "talked-of", world.ada)
    long = "x" * 3_900_000
    for at in range(60):
        event = telemetry.WorkerEvent(reason="GATE_COLLAPSE", text=long) if at % 2 else telemetry.WorkerEvent(reason=long, text="short")
        code, text, _ = agent.report(job, event=event)
        assert code == "OK", f"{code} {text}"
    bytes_of = {path: world.page(path)[0] for path in ("/api/v1/fleet", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/events")}
    assert max(bytes_of.values()) < 1 << 20, bytes_of
    events = world.ada.call("WatchEvents", api.WatchEventsRequest(job=job))
    assert max(len(one.event.text) for one in events) < 5_000 and all(len(one.event.reason) < 64 for one in events)
    world.ada.call("StopJob", api.StopJobRequest(job=job, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))


def pages(client, method, request, field):
    """The whole list, and the bytes of its largest page."""
    found, most = [], 0
    while True:
        answer = client.call(method, request)
        most = max(most, answer.ByteSize())
        found += getattr(answer, field)
        if not answer.next_page_token:
            return found, most
        request.page_token = answer.next_page_token


@attack("24 jobs of 900 KB", mib=256, cpu=60, seconds=90)
def large_jobs(world):
    deep = world.folder / "deep"
    while len(str(deep)) < 3_700:
        deep /= "d" * 200
    deep.mkdir(parents=True)
    for at in range(240):
        (deep / f"{at}.txt").write_text(f"text {at}\n" * 40)
    data = {"source": "DATA_SOURCE_TEXT", "path": [str(deep / f"{at}.txt") for at in range(240)], "tokenizer": "TOKENIZER_BYTE"}
    ids = [world.waiting(world.ada, f"large-{at}", data=data) for at in range(24)]
    found, most = pages(world.ada, "ListJobs", api.ListJobsRequest(page_size=1_000), "jobs")
    assert set(ids) <= {job.id for job in found} and most < 10 << 20, most
    listed = world.service.ctl("list", "-o", "name", check=True).stdout.split()
    assert set(ids) <= set(listed), listed
    assert world.page("/api/v1/fleet")[0] < 4 << 20
    for job in ids:
        world.ada.call("StopJob", api.StopJobRequest(job=job, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))
        world.ada.call("DeleteJob", api.DeleteJobRequest(job=job))


@attack("160 requests of strangers for the page's largest answers, which nobody reads", mib=128, cpu=60, seconds=60)
def unread(world):
    host, port = world.service.address.split(":")
    paths = ["/api/v1/fleet", *(f"/api/v1/jobs/victim/{part}" for part in ("curves", "layers", "gpus", "events"))]
    held = []
    for at in range(160):
        held.append(socket.socket())
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        held[-1].settimeout(20)
        held[-1].connect((host, int(port)))
        held[-1].sendall(f"GET {paths[at % len(paths)]} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    spent = [0.0, 1.0]
    while spent[-1] - spent[-2] > 0.3:  # until all that it can make is made
        time.sleep(1)
        spent.append(processor_seconds(world.service.process.pid))
        assert world.service.get("/healthz") == "ok\n"
    assert world.service.ctl("list").returncode == 0
    for one in held:
        one.close()


# ---- changes that cross, and texts


@attack("750 labels and notes beside resumes of specs that were read before", mib=64, cpu=30, seconds=90)
def crossing(world):
    job = world.waiting(world.ada, "crossed")
    acknowledged, over = {}, threading.Event()

    def label(who):
        for at in range(250):
            value = str(at)
            world.ada.call("EditJob", api.EditJobRequest(job=job, set_labels={f"{who}-{at % 10}": value}, note=f"{who} {at}"))
            acknowledged[f"{who}-{at % 10}"] = value

    def resume():
        steps = 20
        while not over.is_set():
            world.ada.call("StopJob", api.StopJobRequest(job=job, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))
            spec = world.ada.job(job).spec
            steps += 10
            spec.train.steps = steps
            spec.labels.clear()
            world.ada.call("ResumeJob", api.ResumeJobRequest(job=job, spec=spec))
        return steps
    with concurrent.futures.ThreadPoolExecutor() as pool:
        resumes = pool.submit(resume)
        try:
            together([lambda who=who: label(who) for who in "abc"])
        finally:
            over.set()
        steps = resumes.result()
    end = world.ada.job(job)
    assert steps >= 100 and end.spec.train.steps == steps, (steps, end.spec.train.steps)
    assert dict(end.spec.labels) == acknowledged, {key: (value, end.spec.labels.get(key)) for key, value in acknowledged.items() if end.spec.labels.get(key) != value}
    notes = [one.event.text for one in world.ada.call("WatchEvents", api.WatchEventsRequest(job=job)) if one.event.reason == "NOTE"]
    assert sorted(notes) == sorted(f"{who} {at} (ada)" for who in "abc" for at in range(250)), len(notes)


@attack("texts that are cut inside a character", mib=128, cpu=20, seconds=60)
def cut_texts(world):
    agent = Agent(world, "mute")
    job = agent.take(world, "cut", world.ada)
    for at in range(4):
        long = "x" * at + "\U0001d11e" * 20_000
        for kind in ({"event": telemetry.WorkerEvent(reason="GATE_COLLAPSE", text=long)}, {"event": telemetry.WorkerEvent(reason=long, text=long)},
                     {"checkpoint": telemetry.CheckpointRecord(step=1, error=long)}, {"sample": telemetry.SampleRecord(step=1, text=long)}):
            code, text, _ = agent.report(job, **kind)
            assert code == "OK", f"{code} {text}"
        agent.workers[0].telemetry_error = agent.workers[0].place = agent.node.cuda_problem = long[:2_000]
        assert agent.beat()
        for word in (long[:3_000], "x" * at + "\xe9" * 200):
            for method, request in (("StopJob", api.StopJobRequest(job=word)), ("EditJob", api.EditJobRequest(job=word, note="x")),
                                    ("EditJob", api.EditJobRequest(job=job, set_labels={word: word})), ("GetJob", api.GetJobRequest(job=word))):
                code, text, _ = world.ada.ask(method, request)
                assert code in ("NOT_FOUND", "INVALID_ARGUMENT"), f"{method}: {code} {text}"
    # Whatever is not UTF-8 ends these calls, in this library too.
    world.ada.call("WatchEvents", api.WatchEventsRequest(job=job))
    world.ada.call("WatchRecords", api.WatchRecordsRequest(job=job, rank=-1))
    world.ada.job(job)
    assert world.operator.call("ListNodes", api.ListNodesRequest()).nodes and audited(world)
    for path in ("/api/v1/fleet", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/events", f"/api/v1/jobs/{job}/samples"):
        json.loads(world.page(path)[1])
    log = world.service.log.read_text()
    assert "libprotobuf" not in log and "UTF-8" not in log, log[-4_000:]
    world.ada.call("StopJob", api.StopJobRequest(job=job, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))


@attack("marks that turn a text around", mib=64, cpu=10, seconds=30)
def turned(world):
    marks = "\u202e\u2066\u200f\u061c"
    job = world.waiting(world.ada, "turned")
    world.ada.call("EditJob", api.EditJobRequest(job=job, note=f"a{marks}b"))
    for request in (api.EditJobRequest(job=job, set_labels={"k": f"a{marks[0]}"}), api.EditJobRequest(job=job, set_labels={f"k{marks[0]}": "a"})):
        assert world.ada.ask("EditJob", request)[0] == "INVALID_ARGUMENT"
    for more in ({"labels": {"k": f"a{marks[0]}"}}, {"labels": {f"k{marks[0]}": "a"}}):
        assert world.ada.ask("SubmitJob", api.SubmitJobRequest(spec=world.spec("turned-2", **more)))[0] == "INVALID_ARGUMENT"
    agent = Agent(world, "turner")
    theirs = agent.take(world, "turned-by-agent", world.ada)
    assert agent.report(theirs, event=telemetry.WorkerEvent(reason="GATE_COLLAPSE", text=f"c{marks}d"))[0] == "OK"
    for path in ("/api/v1/fleet", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{job}/events", f"/api/v1/jobs/{theirs}/events"):
        text = world.page(path)[1]
        raw = json.dumps(json.loads(text), ensure_ascii=False)
        assert not [mark for mark in marks if mark in raw], path
    for command in (("events", job), ("events", theirs), ("describe", job)):
        assert not [mark for mark in marks if mark in world.service.ctl(*command, check=True).stdout], command
    world.ada.call("StopJob", api.StopJobRequest(job=theirs, stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))


# The last one: from then on the page is large.
@attack("90 agents with as much to say as a heartbeat has room for", mib=160, cpu=30, seconds=60)
def many_agents(world):
    gpus = [fleet.GpuInfo(uuid=f"{at}" + "u" * 200, name="n" * 250, fault="f" * 10_000) for at in range(64)]

    def join(at):
        agent = Agent(world, f"crowd-{at}")
        agent.node.cpu_slots = 0
        agent.node.gpus.extend(gpus)
        agent.beat()
    together([lambda at=at: join(at) for at in range(90)])
    found, most = pages(world.ada, "ListNodes", api.ListNodesRequest(), "nodes")
    assert len([node for node in found if node.info.name.startswith("crowd-")]) == 90 and most < 10 << 20, most
    assert world.service.ctl("nodes", "-o", "name", check=True).stdout.count("crowd-") == 90
    assert world.page("/api/v1/fleet")[0] < 12 << 20


# ---- what ends the coordinator, or needs another one


def end_beside_pipes(world):
    """SIGTERM ends it while calls read pipes; with a pipe in its state folder it says so and does not start."""
    service = world.service
    specs = hostile_jobs(world, "last", os.mkfifo)
    busy = world.busy()
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for spec in specs.values():
            for _ in range(4):
                pool.submit(world.mallory.ask, "SubmitJob", api.SubmitJobRequest(spec=spec, validate_only=True), 10)
        began = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(30)
        took = time.monotonic() - began
    print(f"SIGTERM beside pipes: ended after {took:.1f} s")
    assert took < 15 * busy and service.process.returncode == 0, (took, service.process.returncode)
    state = world.folder / "state"
    (state / "access").rename(state / "aside")
    os.mkfifo(state / "access")
    refused = subprocess.run([service.bin / "nsa-coordinator", *service.arguments], env=service.environment, stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=30 * busy)
    assert refused.returncode != 0 and str(state / "access") in refused.stdout + refused.stderr, refused
    (state / "aside").rename(state / "access")
    service.start()


def beneath_roots(bin_dir, folder):
    """With allowed_roots: links inside of folders that a job names lead nowhere, and shards are those of their manifest."""
    allowed, outside = folder / "allowed", folder / "outside"
    allowed.mkdir()
    outside.mkdir()
    (folder / "coordinator.yaml").write_text(f"allowed_roots: [{allowed}]\n")
    with Service(bin_dir, folder, arguments=["--listen", "127.0.0.1:0", "--config", folder / "coordinator.yaml"]) as service:
        world = World(service, folder)
        text = allowed / "text.txt"
        text.write_text("a text that anybody may read\n" * 4_000)
        job = folder / "job.yaml"
        job.write_text(json.dumps({  # which is YAML
            "name": "prepared", "model": MODEL, "nsa": NSA, "data": {"source": "text", "path": str(text), "tokenizer": "byte"},
            "runtime": {"device": "cpu", "precision": "fp32"}, "train": {**TRAIN, "out_dir": str(allowed / "prepared")}, "preflight": {"waive": WAIVED}}))
        made = service.ctl("data", "prepare", job, "--out", allowed / "set")
        assert made.returncode == 0, made
        shards = sorted(path for path in (allowed / "set").rglob("*") if path.is_file() and path.suffix not in (".json", ".yaml"))
        assert shards, list((allowed / "set").rglob("*"))
        tokens = next((allowed / "set").rglob("manifest.json")).parent

        def run(name, out_dir=None):
            """What came of a job on the prepared data: its last state, or the refusal, and all that is said of it."""
            again = world.spec(name, {"source": "DATA_SOURCE_TOKENS", "path": [str(tokens)]}, train={"out_dir": str(out_dir or allowed / name)})
            code, said, answer = world.ada.ask("SubmitJob", api.SubmitJobRequest(spec=again))
            if code != "OK":
                return code, said
            until(lambda: world.ada.state(answer.job.id) in ENDED, f"the end of {name}")
            return world.ada.state(answer.job.id), "".join(service.ctl(command, answer.job.id).stdout for command in ("describe", "events", "logs"))

        state, said = run("plain")
        assert state == "STATE_SUCCEEDED", said
        for shard in shards:
            aside = outside / shard.name
            shutil.move(shard, aside)
            shard.symlink_to(aside)
            state, said = run(f"link-{shards.index(shard)}")
            assert state in ("STATE_FAILED", "INVALID_ARGUMENT") and "link" in said, f"{shard}: {state} {said}"
            shard.unlink()
            shutil.copy(aside, shard)
            content = bytearray(shard.read_bytes())
            content[len(content) // 2] ^= 1
            shard.write_bytes(content)
            state, said = run(f"flipped-{shards.index(shard)}")
            assert state in ("STATE_FAILED", "INVALID_ARGUMENT"), f"{shard}: {state} {said}"
            shutil.copy(aside, shard)
        out_dir = allowed / "linked"
        (outside / "checkpoints").mkdir()
        out_dir.mkdir()
        (out_dir / "checkpoints").symlink_to(outside / "checkpoints")
        state, said = run("linked", out_dir)
        assert state in ("STATE_FAILED", "INVALID_ARGUMENT"), f"{state} {said}"
        assert not list((outside / "checkpoints").iterdir()), "it wrote through the link"
        print("links beneath allowed_roots: refused")


def main():
    if os.geteuid() != 0:
        print("skipped: not root")
        sys.exit(77)
    words = " ".join(sys.argv[2:])
    with tempfile.TemporaryDirectory(prefix="nsa-neighbours-") as place, contextlib.ExitStack() as closing:
        folder = pathlib.Path(place)
        folder.chmod(0o755)
        (folder / "protos").mkdir()
        import_protos(folder / "protos")
        service = closing.enter_context(Service(sys.argv[1], folder, arguments=["--listen", "127.0.0.1:0"]))
        world = World(service, folder)
        world.operator.submit(world.spec("victim", train={"steps": 200_000, "save_every": 100_000, "batch_size": 8}))
        until(lambda: world.operator.job("victim").progress.step > 0, "the first step of the job that trains")
        for name in ATTACKS:
            if words in name:
                endure(world, name)
        if words in "SIGTERM beside pipes":
            end_beside_pipes(world)
        world.operator.call("StopJob", api.StopJobRequest(job="victim", stop=worker.StopRequest(mode=worker.STOP_MODE_NOW)))
    if words in "links beneath allowed_roots":
        with tempfile.TemporaryDirectory(prefix="nsa-neighbours-") as place:
            beneath_roots(sys.argv[1], pathlib.Path(place))


main()
