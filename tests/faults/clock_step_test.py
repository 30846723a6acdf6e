#!/usr/bin/env python3
"""The wall clock of both daemons is stepped while jobs train, and some seconds later the link between the daemons is cut.

    tests/faults/clock_step_test.py BIN_DIR [--seed N]

gRPC 1.51 sleeps until times of the wall clock. A step back makes a sleep in progress last as much longer: no timer fires any more, and gRPC does not try
a lost connection again. Every job must end in time all the same, with the bits of an unbroken run, and no daemon may have ended by itself.
"""
import sys
import time

import soak as soaking
from service import Service  # from soak/, which soak.py has made known
import seeded

# Each from the one before: an hour back, two forward, a day back, to the right time.
SHIFTS = (-3600, 3600, -86400, 0)
ASLEEP_SECONDS = 8  # longer than the deadline of any call: what gRPC waited for at the step is overdue
CUT_SECONDS = 1.5
END_SECONDS = soaking.WAIT_SECONDS  # for jobs of some seconds; without a connection they would not end


def step(service, soak, shift):
    """One job of each kind; a step and a cut while they train."""
    for kind in soaking.KINDS:
        soak.submit(kind)
    service.wait_until(lambda: service.workers(), END_SECONDS, "workers run")
    service.step_clock(shift)
    time.sleep(ASLEEP_SECONDS)
    soak.submit("one")  # to be placed after the cut
    service.link.cut()
    time.sleep(CUT_SECONDS)
    service.link.mend()
    began = time.monotonic()
    soak.wait_for_jobs(END_SECONDS)
    print(f"clock {shift:+d} s: all jobs have ended {time.monotonic() - began:.1f} s after the link was mended", flush=True)


def run(options, folder):
    service = Service(options.bin_dir, folder)
    assert service.has_clock, "clock_shift.so: not built"
    soak = soaking.Soak(service, folder, options.seed)
    try:
        service.start()
        daemons = (service.coordinator.pid, service.agent.pid)
        for kind in soaking.KINDS:
            soak.submit(kind)
            soak.wait_for_jobs(END_SECONDS)
        for shift in SHIFTS:
            step(service, soak, shift)
        soak.check_processes()
        assert daemons == (service.coordinator.pid, service.agent.pid), "a daemon has ended by itself"
        service.close()
    except BaseException:
        soaking.print_logs(folder)
        raise
    finally:
        soak.watching = False
        service.end()
    print(f"clock steps: {len(soak.jobs)} jobs with the bits of unbroken runs")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
