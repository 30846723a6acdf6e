"""The faults of a soak. Each is a function of the soak (soak.py) that begins a fault, waits and ends it; it returns what was done, for the log."""
import contextlib
import http.client
import os
import signal
import socket
import time


def a_worker(soak):
    workers = soak.service.workers()
    return soak.random.choice(workers) if workers else None


def signal_worker(soak, number):
    victim = a_worker(soak)
    if victim is None:
        return None
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim[0], number)
    return victim[1].name


def kill_worker(soak):
    return signal_worker(soak, signal.SIGKILL)


def kill_coordinator(soak):
    soak.service.kill("coordinator")


def kill_agent(soak):
    soak.service.kill("agent")


def pause(soak, pid):
    """Stops a process for a while."""
    seconds = soak.random.uniform(0.5, 3)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    return f"{seconds:.1f} s"


def pause_worker(soak):
    victim = a_worker(soak)
    return pause(soak, victim[0]) if victim else None


def hang_worker(soak):
    """Stops a worker and leaves it: the service has to notice."""
    return signal_worker(soak, signal.SIGSTOP)


def pause_coordinator(soak):
    return pause(soak, soak.service.coordinator.pid)


def pause_agent(soak):
    return pause(soak, soak.service.agent.pid)


def cut_link(soak):
    seconds = soak.random.uniform(0.2, 4)
    soak.service.link.cut()
    time.sleep(seconds)
    soak.service.link.mend()
    return f"{seconds:.1f} s"


def full_disk(soak):
    if not soak.service.disk.mounted:
        return None
    seconds = soak.random.uniform(0.5, 3)
    soak.service.disk.fill()
    time.sleep(seconds)
    soak.service.disk.free()
    return f"{seconds:.1f} s"


def step_clock(soak):
    if not soak.service.has_clock:
        return None
    seconds = soak.random.choice((-86400, -3600, -60, 60, 3600, 86400))
    soak.service.step_clock(seconds)
    return f"{seconds:+d} s"


def damage_checkpoint(soak):
    """Flips a bit in the newest checkpoint of a job and kills its workers, so that they have to go back to the one before."""
    jobs = [job for job in soak.active() if len(soak.checkpoints(job)) >= 2]
    if not jobs:
        return None
    job = soak.random.choice(jobs)
    newest = soak.checkpoints(job)[-1]
    if soak.damaged.get(job.name) or soak.step_of(newest) + 100 > job.steps:
        return None  # at least one good one is left, and the last one is not touched
    soak.damaged[job.name] = newest.name
    path = newest / soak.random.choice(("model.safetensors", "state.json"))
    try:
        with open(path, "r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
    except OSError:
        return None  # retention was faster
    for pid, folder in soak.service.workers():
        if job.id in str(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return f"{job.name}/{newest.name}/{path.name}"


def strangers(soak):
    """Bytes that are no gRPC, requests without a token or for another host, and connections that say half a sentence and stay."""
    held = []
    for _ in range(soak.random.randrange(5, 30)):
        port = soak.random.choice((soak.service.port, soak.service.http))
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=1)
            connection.sendall(soak.random.choice((b"GET /metrics HTTP/1.1\r\nHost: loc", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", soak.random.randbytes(2000))))
            held.append(connection)
    for path, host in (("/metrics", "evil.example"), ("/api/v1/fleet", "localhost"), ("/" + "x" * 5000, "localhost")):
        with contextlib.suppress(OSError, http.client.HTTPException):
            request = http.client.HTTPConnection("127.0.0.1", soak.service.http, timeout=2)
            request.request("GET", path, headers={"Host": host})
            request.getresponse().read()
            request.close()
    wrong = {**soak.service.environment, "NSACTL_TOKEN_FILE": str(soak.wrong_token)}
    address = f"127.0.0.1:{soak.service.port}"
    soak.run([soak.service.bin / "nsactl", "--timeout", "3s", "--address", address, "stop", "--now", soak.jobs[-1].name], env=wrong)
    time.sleep(soak.random.uniform(0, 1))
    for connection in held:
        connection.close()
    return f"{len(held)} connections"


# Everything but what ends a daemon, whose memory and descriptors are then compared; the numbers say how often.
GENTLE = {kill_worker: 3, pause_worker: 2, hang_worker: 1, pause_coordinator: 1, pause_agent: 1, cut_link: 3, full_disk: 2, step_clock: 2,
          damage_checkpoint: 2, strangers: 3}
ROUGH = {**GENTLE, kill_coordinator: 3, kill_agent: 3}
