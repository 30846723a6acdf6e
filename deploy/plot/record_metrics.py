#!/usr/bin/env python3
"""Records a coordinator's metrics into a file, on a machine without Prometheus. Needs only Python's standard library.

    deploy/plot/record_metrics.py -o metrics.om [--address 127.0.0.1:9464] [--every 2] [--for 600] [--job NAME_OR_ID]

Ends after --for seconds, --after seconds after the end of --job, or on SIGINT or SIGTERM, whichever comes first. Every scrape is on
disk before the next one. A file whose name ends in .gz is compressed. The file holds what Prometheus would have stored: the samples
with the time of their scrape, the labels job and instance, and the series `up`. It can be read by

    deploy/plot/dashboard.py --recording metrics.om -o dashboard.png
    promtool tsdb create-blocks-from openmetrics metrics.om DATA_DIR     for any Prometheus, and any Grafana that uses it

Exit code 1 when no scrape was answered.
"""
import argparse
import gzip
import math
import re
import signal
import sys
import threading
import time
import urllib.request

SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?$")
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def labels_of(text):
    """{name: value} from the text between the braces."""
    return {name: re.sub(r"\\(.)", lambda m: {"n": "\n"}.get(m[1], m[1]), value)
            for name, value in re.findall(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', text or "")}


def fetch(address, timeout):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=timeout) as answer:
        return answer.read().decode()


class Recording:
    """An OpenMetrics file to which scrapes are appended."""

    def __init__(self, path, job, instance):
        opener = gzip.open if path.endswith(".gz") else open
        self.file = opener(path, "wt", encoding="utf-8", newline="\n")
        self.own = f'instance="{instance}",job="{job}"'
        self.described = set()
        self.scrapes = self.samples = 0

    def add(self, text, moment, seconds):
        """Appends one scrape; `text` is None when it failed."""
        lines, count = [], 0
        for line in (text or "").splitlines():
            if line.startswith("#"):
                self._describe(line, lines)
                continue
            match = SAMPLE.match(line)
            if match:
                name, labels, value = match.groups()
                own = f"{labels},{self.own}" if labels else self.own
                lines.append(f"{name}{{{own}}} {value} {moment:.3f}")
                count += 1
        for name, value in (("up", int(text is not None)), ("scrape_duration_seconds", round(seconds, 6)),
                            ("scrape_samples_scraped", count)):
            lines.append(f"{name}{{{self.own}}} {value} {moment:.3f}")
        self.file.write("\n".join(lines) + "\n")
        self.file.flush()
        self.scrapes += text is not None
        self.samples += count

    def _describe(self, line, lines):
        words = line.split(" ", 3)
        if len(words) != 4 or words[1] not in ("HELP", "TYPE") or (words[1], words[2]) in self.described:
            return
        self.described.add((words[1], words[2]))
        # In OpenMetrics the name of a counter's family does not end in _total.
        words[2] = re.sub(r"_total$", "", words[2])
        lines.append(" ".join(words))

    def close(self):
        self.file.write("# EOF\n")
        self.file.close()


def has_ended(text, job):
    """Whether the job of this name or id is in a final state. A name means the newest job that has it."""
    ids, states = [], {}
    for match in filter(None, map(SAMPLE.match, text.splitlines())):
        if match[1] not in ("nsa_job_info", "nsa_job_state") or float(match[3]) != 1:
            continue
        labels = labels_of(match[2])
        if match[1] == "nsa_job_state":
            states[labels["job_id"]] = labels["state"]
        elif job in (labels["job_id"], labels["name"]):
            ids.append(labels["job_id"])
    # Several jobs of one name: all of them must have ended.
    return bool(ids) and all(states.get(identity) in ENDED for identity in ids)


def record(arguments, stop):
    recording = Recording(arguments.output, arguments.job_label, arguments.address)
    begin = time.monotonic()
    end = begin + arguments.seconds
    count = 0
    while not stop.is_set():
        moment, started = time.time(), time.monotonic()
        try:
            text = fetch(arguments.address, max(arguments.every, 1.0))
        except (OSError, ValueError) as error:
            text = None
            print(f"record_metrics.py: {arguments.address}: {error}", file=sys.stderr)
        recording.add(text, moment, time.monotonic() - started)
        if text and arguments.job and has_ended(text, arguments.job):
            end = min(end, time.monotonic() + arguments.after)
            arguments.job = None
        # Scrapes stay on a fixed grid however long one takes; missed ones are left out.
        count = max(count + 1, math.ceil((time.monotonic() - begin) / arguments.every))
        next_time = begin + count * arguments.every
        if next_time > end:
            break
        stop.wait(max(0.0, next_time - time.monotonic()))
    recording.close()
    print(f"{arguments.output}: {recording.scrapes} scrapes, {recording.samples} samples in {time.monotonic() - begin:.0f} s")
    return 0 if recording.scrapes else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--address", default="127.0.0.1:9464")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--for", dest="seconds", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--job", help="stop after the end of this job (name or id)")
    parser.add_argument("--after", type=float, default=10.0, metavar="SECONDS", help="how long after its end")
    parser.add_argument("--job-label", default="nsa-coordinator", help="the label job of a Prometheus' scrape configuration")
    arguments = parser.parse_args()
    if arguments.every <= 0:
        parser.error("--every: more than 0 seconds")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return record(arguments, stop)


if __name__ == "__main__":
    sys.exit(main())
