"""What the daemons take of the machine when they have nothing to do, and whether that grows with the jobs that have ended."""
import collections
import contextlib
import dataclasses
import http.client
import os
import pathlib
import time
import urllib.request

# The resident memory of a daemon that loses nothing still moves: the allocator keeps what was freed, and a thread touches its stack for the first time.
RESIDENT_SHARE, RESIDENT_BYTES = 0.05, 4 << 20
# What the coordinator has allocated and not freed does not move with the number of jobs once these are deleted. The first figure is for what comes
# and goes with connections and faults (buffers of gRPC; 0.1 MiB were seen) and for SQLite's pages until their 2 MiB are full, the second is the most
# that a job may leave.
HEAP_BYTES, HEAP_BYTES_A_JOB = 512 << 10, 2 << 10
SETTLED_BYTES, SETTLE_SECONDS = 16 << 10, 60


@dataclasses.dataclass
class Footprint:
    jobs: int  # that had ended
    pid: int
    resident: int  # bytes
    descriptors: collections.Counter  # by what they are
    heap: int = 0  # bytes; only of the coordinator

    def __str__(self):
        heap = f", heap {self.heap / 2**20:.2f} MiB" if self.heap else ""
        return f"{self.resident / 2**20:.1f} MiB{heap}, {self.descriptors.total()} descriptors after {self.jobs} jobs"


def kind_of(descriptor):
    """What a descriptor leads to; none if it was closed since it was listed."""
    try:
        return os.readlink(descriptor).split(":[")[0]
    except FileNotFoundError:
        return None


def process(jobs, pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10
    kinds = filter(None, map(kind_of, pathlib.Path(f"/proc/{pid}/fd").iterdir()))
    return Footprint(jobs, pid, resident, collections.Counter(kinds))


def heap_of(service):
    """The coordinator's heap, as it says itself once a second."""
    found = []

    def answered():
        with contextlib.suppress(OSError, http.client.HTTPException):
            with urllib.request.urlopen(f"http://127.0.0.1:{service.http}/metrics", timeout=30) as answer:
                lines = answer.read().decode().splitlines()
            found.extend(float(line.split()[1]) for line in lines if line.startswith('nsa_coordinator_memory_bytes{kind="heap"}'))
        return found
    service.wait_until(answered, 300, "the coordinator's metrics")
    return int(found[-1])


def settled_heap(service):
    """The heap once it has stood still for three seconds: what ended jobs have left is removed in the background."""
    heaps = [heap_of(service)]
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(1)
        heaps.append(heap_of(service))
        if len(heaps) > 3 and max(heaps[-4:]) - min(heaps[-4:]) < SETTLED_BYTES:
            break
    return min(heaps[-4:])


def measure(service, jobs):
    heap = settled_heap(service)
    prints = {name: process(jobs, getattr(service, name).pid) for name in ("coordinator", "agent")}
    prints["coordinator"].heap = heap
    return prints


def check_growth(name, before, after):
    jobs = after.jobs - before.jobs
    growth = after.heap - before.heap
    print(f"{name}: {before}; then {after}: {growth / max(jobs, 1) / 1024:+.2f} KiB of heap a job", flush=True)
    assert after.pid == before.pid, f"the {name} ended by itself"
    assert growth <= HEAP_BYTES + jobs * HEAP_BYTES_A_JOB, f"the {name}'s heap has grown with the jobs"
    assert after.resident <= before.resident + max(RESIDENT_SHARE * before.resident, RESIDENT_BYTES), f"the {name} has grown"


def check_descriptors(name, measured):
    """A daemon that loses descriptors has more of a kind at every measurement. One that opens another when it first needs it has not: 17 and then 19
    twice were seen of a coordinator that had to do with faults."""
    for kind in measured[-1].descriptors:
        counts = [one.descriptors[kind] for one in measured]
        assert any(later <= earlier for earlier, later in zip(counts, counts[1:])), f"the {name} loses descriptors of the kind {kind}: {counts}"
