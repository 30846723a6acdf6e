"""Queries a Prometheus: one that is already running, or one that is started over recorded data and ends with this program."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib

STARTS_WITHIN_SECONDS = 60
PACKAGE = "it comes with the package prometheus: deploy/packages.sh plot"


class PrometheusError(Exception):
    """An error that the user can act on."""


class Prometheus:
    """The queries that Grafana's Prometheus data source makes. Times are Unix seconds."""

    def __init__(self, address):
        self.address = address if "://" in address else f"http://{address}"

    def get(self, path, **parameters):
        query = urllib.parse.urlencode({key: value for key, value in parameters.items() if value is not None}, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.address}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            body = error.read().decode(errors="replace")
            with contextlib.suppress(ValueError, KeyError):
                body = json.loads(body)["error"]
            raise PrometheusError(f"{path}: {body}") from error
        except (OSError, ValueError) as error:
            raise PrometheusError(f"{self.address}: {error}") from error

    def query_range(self, expression, start, end, step):
        """[(labels, [(time, value)])]."""
        data = self.get("query_range", query=expression, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")
        return [(series["metric"], [(float(t), float(v)) for t, v in series["values"]]) for series in data["result"]]

    def query(self, expression, moment):
        """[(labels, [(time, value)])], one value each."""
        data = self.get("query", query=expression, time=f"{moment:.3f}")
        if data["resultType"] == "scalar":
            return [({}, [(float(data["result"][0]), float(data["result"][1]))])]
        return [(series["metric"], [(float(series["value"][0]), float(series["value"][1]))]) for series in data["result"]]

    def label_values(self, label, selector, start, end):
        return sorted(self.get(f"label/{label}/values", start=f"{start:.3f}", end=f"{end:.3f}", **{"match[]": selector}))


def tool(name):
    found = shutil.which(name)
    if not found:
        raise PrometheusError(f"{name}: not installed; {PACKAGE}")
    return found


def complete_text(path):
    """The text of a recording. If it was cut off because its recorder was killed, the incomplete last line is dropped."""
    text = path.read_bytes()
    if path.suffix == ".gz":
        text = zlib.decompressobj(wbits=31).decompress(text)
    if not text.endswith(b"# EOF\n"):
        text = text[:text.rfind(b"\n") + 1] + b"# EOF\n"
    return text


def spacing(text):
    """Seconds between the scrapes of a recording, taken from the series `up`."""
    times = [float(match) for match in re.findall(rb"^up\{[^\n]*\} \S+ (\S+)$", text, re.MULTILINE)]
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    return round(gaps[len(gaps) // 2], 3) if gaps else None


def import_recording(path, folder):
    """Converts a recording to Prometheus blocks; returns the seconds between its scrapes."""
    text = complete_text(path)
    plain = folder / "recording.om"
    plain.write_bytes(text)
    done = subprocess.run([tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", plain, folder / "data"], capture_output=True,
                          text=True, check=False)
    plain.unlink()
    if done.returncode != 0:
        raise PrometheusError(f"{path}: promtool could not import it: {(done.stderr or done.stdout).strip()}")
    return spacing(text)


def copy_blocks(source, target):
    """Copies the blocks of a data folder as hard links: Prometheus never changes a file of a block."""
    blocks = sorted(meta.parent for meta in source.glob("*/meta.json"))
    if not blocks:
        raise PrometheusError(f"{source}: no folder with a meta.json in it; is it Prometheus' data folder?")

    def link(a, b):
        try:
            os.link(a, b)
        except OSError:
            shutil.copy2(a, b)
    for block in blocks:
        shutil.copytree(block, target / block.name, copy_function=link)


def time_range(data):
    """First and last time in the blocks of a data folder, in Unix seconds."""
    metas = [json.loads(meta.read_text()) for meta in data.glob("*/meta.json")]
    if not metas:
        raise PrometheusError("no sample in it: the coordinator never answered")
    return min(meta["minTime"] for meta in metas) / 1000, (max(meta["maxTime"] for meta in metas) - 1) / 1000


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def prometheus_over(source):
    """Starts Prometheus on a loopback port over a recording (a file) or blocks (a folder). Yields (Prometheus, first time, last
    time, seconds between scrapes or None)."""
    with tempfile.TemporaryDirectory(prefix="nsa-plot-") as name:
        folder = pathlib.Path(name)
        interval = None
        (folder / "data").mkdir()
        if source.is_dir():
            copy_blocks(source, folder / "data")
        else:
            interval = import_recording(source, folder)
        start, end = time_range(folder / "data")
        (folder / "empty.yml").write_text("global: {}\n")
        port = free_port()
        # A recording does not mark where a series ends. With a short look-back it ends where it would in a Prometheus that scrapes.
        lookback = [f"--query.lookback-delta={max(3 * interval, 1.0):.0f}s"] if interval else []
        log = folder / "log"
        with open(log, "wb") as out, subprocess.Popen(
                [tool("prometheus"), f"--config.file={folder}/empty.yml", f"--storage.tsdb.path={folder}/data",
                 "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", *lookback],
                stdout=out, stderr=out) as process:
            try:
                wait_until_ready(process, port, log)
                yield Prometheus(f"127.0.0.1:{port}"), start, end, interval
            finally:
                process.terminate()
                process.wait()


def wait_until_ready(process, port, log):
    deadline = time.monotonic() + STARTS_WITHIN_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PrometheusError(f"prometheus ended with {process.returncode}: {log.read_text(errors='replace')[-2000:]}")
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        time.sleep(0.1)
    raise PrometheusError(f"prometheus: not ready within {STARTS_WITHIN_SECONDS} s: {log.read_text(errors='replace')[-2000:]}")
