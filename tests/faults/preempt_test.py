#!/usr/bin/env python3
"""A job gives way to one of higher priority while it trains: one coordinator with two agents on this machine, one of them cordoned.

    tests/faults/preempt_test.py BIN_DIR

Nothing happens before the configuration allows it (SIGHUP). Then the job saves a checkpoint, gives way, and continues when the other has ended: it must
lose no step and end with the bits of a job that was left alone. The coordinator is killed while the ranks end, and again when the waiting job starts.
"""
import os
import signal
import sys
import time

from drain_test import SAVE_EVERY, SECONDS, TwoMachines, number_after, seeded


class Scheduling(TwoMachines):
    """The service, with `scheduling` as it is set at present."""

    scheduling = "{}"

    def start(self):
        self.write_configuration()
        super().start()

    def write_configuration(self):
        (self.log.parent / "coordinator.yaml").write_text(f"local_agent: false\nscheduling: {self.scheduling}\n")

    def reload(self, scheduling):
        self.scheduling = scheduling
        self.write_configuration()
        self.process.send_signal(signal.SIGHUP)
        self.wait_until(lambda: "got HUP: starting anew" in self.log.read_text(), SECONDS, "the reload")
        self.wait_until(lambda: len(self.nodes()) == 2, SECONDS, "both agents are back")


def check_gives_way(service, wanted):
    service.submit("low")
    service.wait_for_step("low", SAVE_EVERY // 2)
    held = service.workers()[0]  # so that its ranks do not end before the coordinator is killed
    os.kill(held, signal.SIGSTOP)
    service.submit("urgent", "priority: 10\n")
    service.wait_until(lambda: service.job("urgent")["reason"] == "WAITING_FOR_SLOTS", SECONDS, "urgent waits")
    time.sleep(2)
    assert service.job("low")["state"] == "STATE_RUNNING", "preempted although the configuration does not say so"

    service.reload("{preempt: true, preempt_after_seconds: 1}")
    for again in (False, True):
        service.wait_until(lambda: service.job("low")["reason"] == "GIVING_WAY", SECONDS, "low gives way")
        service.wait_until(lambda: "1 job gives way to it" in service.job("urgent")["message"], SECONDS, "urgent says why it waits")
        assert "priority 10; this job's priority is 0" in service.done("describe", "low"), service.done("describe", "low")
        if not again:
            service.kill_coordinator()
    os.kill(held, signal.SIGCONT)

    service.wait_until(lambda: service.job("urgent")["state"] != "STATE_QUEUED", SECONDS, "urgent is placed")
    service.kill_coordinator()
    service.wait_until(lambda: service.machine("urgent"), SECONDS, "urgent runs")
    low = service.job("low")
    assert low["state"] == "STATE_QUEUED" and low["reason"] == "PREEMPTED" and "gave way to job urgent" in low["message"], low
    urgent = service.wait_for_state("urgent", "SUCCEEDED")
    low = service.wait_for_state("low", "SUCCEEDED")

    stopped, resumed = service.events("low", "PREEMPTED"), service.events("low", "RESUMED")
    assert len(stopped) == 1 and len(service.events("low", "GIVING_WAY")) == 1 and resumed, service.done("events", "low")
    assert number_after("at step", stopped[0]) > 0
    assert number_after("step", resumed[0]) == number_after("at step", stopped[0]), f"steps were lost:\n{stopped[0]}\n{resumed[0]}"
    assert "job low" in service.events("urgent", "PREEMPTING")[0], service.done("events", "urgent")
    assert int(low.get("restarts", 0)) == 0 and int(low["generation"]) == 2 and int(urgent["generation"]) == 1, (low, urgent)
    for name in ("low", "urgent"):
        assert service.weights(name) == wanted, f"{name}: other bits than those of a job that was left alone"


def run(options, folder):
    with Scheduling(options.bin_dir, folder, agent_environment={"NSA_LOG_LEVEL": "info"}) as service:
        service.done("node", "cordon", "b")
        service.submit("alone")
        service.wait_for_state("alone", "SUCCEEDED")
        check_gives_way(service, service.weights("alone"))
        print("gave way over two kills of the coordinator: the same bits")


if __name__ == "__main__":
    sys.exit(seeded.main(__doc__, run, seed=1))
