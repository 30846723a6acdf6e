"""Asks a Prometheus for what the panels of a Grafana dashboard show, as Grafana would: variables, intervals, instant and range queries."""
import contextlib
import json
import math
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "testing"))
from ports import HeldPorts  # noqa: E402

SCRAPE_SECONDS = 1


def interpolate(text, values):
    """Replaces $name, ${name} and ${name:format} by values[name]; unknown names stay as they are."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", lambda match: values.get(match[1] or match[2], match[0]), text)


def pattern(values):
    """A regular expression inside a PromQL string that matches exactly these values."""
    escaped = [re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value) for value in values]
    return escaped[0] if len(escaped) == 1 else "(" + "|".join(escaped) + ")"


@contextlib.contextmanager
def prometheus_on(target, folder, *rule_files):
    """A Prometheus that scrapes `target` and evaluates these rules; yields its address once it answers."""
    ports = HeldPorts()
    config, address = folder / "prometheus.yml", f"127.0.0.1:{ports.first}"
    config.write_text(json.dumps({"global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s",
                                             "evaluation_interval": f"{SCRAPE_SECONDS}s"},
                                  "rule_files": [str(file) for file in rule_files],
                                  "scrape_configs": [{"job_name": "nsa-coordinator", "static_configs": [{"targets": [target]}]}]}))
    with open(folder / "prometheus.log", "wb") as log:
        process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/-/ready", timeout=5):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"prometheus is not ready:\n{(folder / 'prometheus.log').read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()
        ports.close()


class Prometheus:
    def __init__(self, address):
        self.address = address

    def get(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error)["error"]) from error

    def numbers(self, expression, start, end, instant):
        """Every finite value of every series."""
        if instant:
            data = self.get("query", query=expression, time=end)
        else:
            data = self.get("query_range", query=expression, start=start, end=end, step=1)
        if data["resultType"] == "scalar":
            texts = [data["result"][1]]
        else:
            texts = [text for series in data["result"] for _, text in series.get("values", [series.get("value")])]
        return [value for value in map(float, texts) if math.isfinite(value)]

    def label_values(self, label, selector, start, end):
        return sorted(self.get(f"label/{label}/values", start=start, end=end, **{"match[]": selector}))


class Board:
    """A dashboard over one time range, with "All" chosen in every variable."""

    def __init__(self, board, source, start, end, scrape_seconds):
        self.board, self.source, self.start, self.end = board, source, start, end
        span, rate = f"{math.ceil(end - start)}s", f"{math.ceil(4 * scrape_seconds)}s"
        self.values = {"__interval": "1s", "__rate_interval": rate, "__range": span}
        self.empty = []  # variables without a value to choose
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found = self._label_values(variable)
                if not found:
                    self.empty.append(variable["name"])
                self.values[variable["name"]] = variable.get("allValue") or pattern(found or ["none"])

    def _label_values(self, variable):
        definition = interpolate(variable["definition"], self.values)
        match = re.fullmatch(r"label_values\((.+),\s*(\w+)\)", definition)
        if not match:
            raise ValueError(f"variable '{variable['name']}': '{definition}' is not label_values(metric, label)")
        return self.source.label_values(match[2], match[1], self.start, self.end)

    def problems(self):
        """{title of a panel: [what is wrong with its queries]} for the panels that have an empty or a failing query, and the empty variables."""
        found = {f"variable {name}": ["there is no value to choose"] for name in self.empty}
        for panel in self.board["panels"]:
            for target in panel.get("targets", []):
                expression = interpolate(target["expr"], self.values)
                try:
                    problem = None if self.source.numbers(expression, self.start, self.end, target.get("instant")) else "returned nothing"
                except ValueError as error:
                    problem = f"failed ({error})"
                if problem:
                    found.setdefault(panel["title"], []).append(f"query {target['refId']} {problem}: {expression}")
        return found
