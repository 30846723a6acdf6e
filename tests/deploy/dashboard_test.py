#!/usr/bin/env python3
"""Every panel of the dashboard has data while a job trains on two ranks: a real Prometheus scrapes a real coordinator, and every query of the
dashboard is asked as Grafana asks it.

    tests/deploy/dashboard_test.py BIN_DIR
"""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "testing"), str(HERE.parents[1] / "deploy/grafana")]
from board import SCRAPE_SECONDS, Board, Prometheus, interpolate, pattern, prometheus_on  # noqa: E402
from make_dashboard import dashboard  # noqa: E402
from scrape_test import write_job  # noqa: E402
from service import Service  # noqa: E402

# Panels that stay empty without a GPU, without notices, without a TCP port, and that of a healthy run.
MAY_BE_EMPTY = ("Health", "MFU", "Memory of the GPUs", "GPU utilisation", "GPU power", "GPU temperature", "GPUs with errors",
                "Oldest event that waits for delivery", "Events delivered and not delivered", "Connections of the gRPC port")


def check_questions():
    """Variables and built-in intervals are filled in as Grafana does it, and a query that fails or is empty is found."""
    assert interpolate('a{j=~"$job",k="${job:regex}"}[$__rate_interval] + $unknown', {"job": "x", "__rate_interval": "4s"}) == \
        'a{j=~"x",k="x"}[4s] + $unknown'
    assert pattern(["a.b"]) == r"a\\.b" and pattern(["a.b", "c"]) == r"(a\\.b|c)", "a backslash in a PromQL string is written twice"

    class Source:
        def label_values(self, label, selector, start, end):
            return ["a", "b"] if label == "id" else []

        def numbers(self, expression, start, end, instant):
            if expression == "wrong":
                raise ValueError("parse error")
            return [1.0] if expression == 'full{id=~"(a|b)"}' else []

    variables = [{"name": "datasource", "type": "datasource"}, {"name": "id", "type": "query", "definition": "label_values(up, id)"},
                 {"name": "gone", "type": "query", "definition": "label_values(up, gone)"}]
    targets = [{"refId": name, "expr": text} for name, text in (("A", 'full{id=~"$id"}'), ("B", "empty"), ("C", "wrong"))]
    board = {"templating": {"list": variables}, "panels": [{"title": "Row"}, {"title": "P", "targets": targets}]}
    assert Board(board, Source(), 0, 9, 1).problems() == {"variable gone": ["there is no value to choose"], "P": ["query B returned nothing: empty", "query C failed (parse error): wrong"]}


def main():
    check_questions()
    if not shutil.which("prometheus"):
        print("the package prometheus is not installed")
        return 77
    board = dashboard()
    unknown = set(MAY_BE_EMPTY) - {panel["title"] for panel in board["panels"]}
    assert not unknown, f"the dashboard has no panels {unknown}"
    with tempfile.TemporaryDirectory(prefix="nsa-dashboard-") as name:
        folder = pathlib.Path(name)
        job = write_job(folder)
        with Service(sys.argv[1], folder) as service:
            start = time.time()
            with prometheus_on(service.address, folder) as address:
                service.ctl("submit", job, check=True)
                with subprocess.Popen([service.bin / "nsactl", "watch", "scraped"], env=service.environment, stdout=subprocess.DEVNULL) as watcher:
                    problems = {}

                    def all_filled():
                        problems.clear()
                        found = Board(board, Prometheus(address), start, time.time(), SCRAPE_SECONDS).problems()
                        problems.update({title: why for title, why in found.items() if title not in MAY_BE_EMPTY})
                        return not problems

                    try:
                        service.wait_until(all_filled, 120, "data in every panel")
                    except AssertionError:
                        sys.exit("\n".join(f"panel '{title}': {line}" for title, lines in problems.items() for line in lines))
                    finally:
                        service.ctl("stop", "scraped", "--now")
                        watcher.wait(30)
                service.wait_until(lambda: not service.processes("nsa-worker"), 120, "the workers' end")
    print(f"{sum('targets' in panel for panel in board['panels'])} panels have data, or may be empty without a GPU")
    return 0


if __name__ == "__main__":
    sys.exit(main())
