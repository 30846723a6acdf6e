#!/usr/bin/env python3
"""The tools of deploy/plot: a dashboard is resolved as Grafana does and its empty panels are found, a recording is what Prometheus
would have stored, a terminal's screen is what was seen. Parts that need Prometheus or matplotlib are skipped without them.

    tests/deploy/plot_test.py
"""
import gzip
import http.server
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import xml.etree.ElementTree

TOP = pathlib.Path(__file__).resolve().parents[2]
PLOT = TOP / "deploy/plot"
sys.path.insert(0, str(PLOT))
import board  # noqa: E402
import grafana_units  # noqa: E402
import prometheus_api  # noqa: E402
import record_metrics  # noqa: E402
import terminal  # noqa: E402
from terminal_screen import Screen  # noqa: E402

WITH_PROMETHEUS = unittest.skipUnless(shutil.which("prometheus") and shutil.which("promtool"), "the package prometheus is not installed")
# The matplotlib package of Debian is only visible to Debian's Python.
DRAWS = subprocess.run(["/usr/bin/python3", "-c", "import matplotlib, PIL"], capture_output=True, check=False).returncode == 0


def run(*arguments, **more):
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, check=False, timeout=120, **more)


def panel(kind, *targets, unit="none", **more):
    return {"id": 1, "type": kind, "title": kind, "gridPos": {"x": 0, "y": 1, "w": 8, "h": 8},
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "options": {"reduceOptions": {}, "textMode": "auto", "graphMode": "area"},
            "targets": [{"refId": chr(65 + i), "expr": expression, "legendFormat": legend, "instant": kind != "timeseries"}
                        for i, (expression, legend) in enumerate(targets)], **more}


def dashboard(*panels):
    return {"title": "Board", "panels": [{"type": "row", "title": "Row", "panels": []}, *panels], "templating": {"list": [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "current": {"value": "prometheus"}},
        {"name": "job", "label": "Job", "type": "query", "definition": "label_values(up, job)", "multi": True, "includeAll": True,
         "allValue": ".+", "current": {"value": ["$__all"]}},
        {"name": "job_id", "type": "query", "definition": 'label_values(nsa_job_info{job=~"$job"}, job_id)', "multi": True,
         "includeAll": True, "current": {"value": ["$__all"]}}]}}


class FakePrometheus:
    """Answers from a table: expression → [(labels, value)]."""

    def __init__(self, answers):
        self.answers, self.asked = answers, []

    def label_values(self, label, selector, start, end):
        self.asked.append((label, selector))
        return {"job": ["nsa"], "job_id": ["a.b", "c"]}[label]

    def query(self, expression, moment):
        return [(labels, [(moment, value)]) for labels, value in self.answers[expression]]

    def query_range(self, expression, start, end, step):
        self.asked.append((expression, start, end, step))
        return [(labels, [(start, value), (end, value)]) for labels, value in self.answers[expression]]


class Resolution(unittest.TestCase):
    def test_steps_and_rate_intervals_are_those_of_grafana(self):
        for wanted, interval in ((7, 1), (12, 10), (3600, 5000), (8999, 10000), (20000, 20000), (1e9, 604800000)):
            self.assertEqual(board.round_interval(wanted), interval, wanted)
        self.assertEqual(board.rate_interval(15, 15), 60)
        self.assertEqual(board.rate_interval(300, 15), 315)
        view = board.Board(dashboard(), FakePrometheus({}), 0, 3600, 5.0)
        # 3600 s on 533 points is 6.8 s, which is rounded to 5 s.
        self.assertEqual(view.intervals(panel("timeseries")), (5.0, 20.0))

    def test_variables_become_patterns_in_the_order_in_which_they_need_each_other(self):
        source = FakePrometheus({})
        everything = board.Board(dashboard(), source, 0, 60)
        self.assertEqual(source.asked, [("job", "up"), ("job_id", 'nsa_job_info{job=~".+"}')])
        self.assertEqual(everything.values["job"], ".+")
        self.assertEqual(everything.values["job_id"], r"(a\\.b|c)")  # a backslash inside a PromQL string is written twice
        one = board.Board(dashboard(), source, 0, 60, chosen={"job_id": ["a.b"]})
        self.assertEqual(one.values["job_id"], r"a\\.b")
        with self.assertRaisesRegex(ValueError, "no_such"):
            board.Board(dashboard(), source, 0, 60, chosen={"no_such": ["x"]})

    def test_expressions_are_filled_in(self):
        view = board.Board(dashboard(), FakePrometheus({}), 0, 60, 2.0, {"job": ["x"]})
        target = {"expr": 'rate(t{job=~"$job",other="${job:regex}"}[$__rate_interval]) + $__interval_ms + $unknown'}
        self.assertEqual(view.expression(panel("timeseries"), target), 'rate(t{job=~"x",other="x"}[8s]) + 2000 + $unknown')

    def test_a_query_that_fails_or_returns_nothing_or_no_number_is_a_problem(self):
        source = FakePrometheus({"good": [({"rank": "0"}, 1.0)], "empty": [], "nan": [({}, float("nan"))]})
        view = board.Board(dashboard(), source, 100.5, 160.5, 2.0)
        data = view.evaluate(panel("timeseries", ("good", "rank {{rank}}"), ("empty", ""), ("nan", ""), ("unknown", "")))
        self.assertEqual([series.name for series in data.series], ["rank 0"])
        self.assertEqual([problem.split(":")[0].split(" (")[0] for problem in data.problems],
                         ["query B returned nothing", "query C returned nothing", "query D failed"])
        self.assertIn(("good", 100.0, 160.0, 2.0), source.asked, "on the grid of its step, as Grafana asks")
        self.assertEqual(len(view.evaluate(panel("piechart", ("good", ""))).problems), 1)

    def test_a_table_joins_what_its_queries_say_about_the_same_job(self):
        source = FakePrometheus({"info": [({"id": "1", "name": "x"}, 1.0), ({"id": "2", "name": "y"}, 1.0)],
                                 "loss": [({"id": "2"}, 2.5)], "step": [({"id": "1"}, 7.0), ({"id": "2"}, 9.0)]})
        transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": {
            "excludeByName": {"Time": True, "Value #A": True}, "indexByName": {"name": 0, "id": 1, "Value #C": 2, "Value #B": 3},
            "renameByName": {"name": "Name", "Value #C": "Step", "Value #B": "Loss"}}}]
        data = board.Board(dashboard(), source, 0, 60).evaluate(
            panel("table", ("info", ""), ("loss", ""), ("step", ""), transformations=transformations))
        self.assertEqual(data.problems, [])
        self.assertEqual(data.table.headings, ["Name", "id", "Step", "Loss"])
        self.assertEqual(data.table.rows, [["x", "1", 7.0, None], ["y", "2", 9.0, 2.5]])

    def test_overrides_and_thresholds_choose_colours(self):
        one = panel("stat", ("x", ""))
        one["fieldConfig"]["overrides"] = [{"matcher": {"id": "byName", "options": "FAILED"},
                                            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": "red"}}]}]
        self.assertEqual(board.field_config(one, "FAILED")["color"]["fixedColor"], "red")
        self.assertNotIn("color", board.field_config(one, "RUNNING"))
        steps = {"thresholds": {"steps": [{"color": "green", "value": None}, {"color": "red", "value": 3}]}}
        self.assertEqual([board.threshold_colour(steps, value) for value in (-1, 2.9, 3)], ["green", "green", "red"])

    def test_every_panel_of_our_dashboard_is_of_a_known_kind_and_unit(self):
        for one in json.loads((TOP / "deploy/grafana/dashboards/nsa.json").read_text())["panels"]:
            if one["type"] == "row":
                continue
            self.assertIn(one["type"], board.KINDS, one["title"])
            properties = [entry for override in one["fieldConfig"]["overrides"] for entry in override["properties"]]
            for unit in [one["fieldConfig"]["defaults"]["unit"], *(entry["value"] for entry in properties if entry["id"] == "unit")]:
                grafana_units.format_value(1.5, unit)
            for transformation in one.get("transformations", []):
                self.assertIn(transformation["id"], ("merge", "organize"))


class Units(unittest.TestCase):
    def test_numbers_are_written_as_grafana_writes_them(self):
        for value, unit, text in ((0.25, "percentunit", "25%"), (11702.0, "short", "11.7 K"), (2.5e6, "short", "2.50 Mil"), (0.094, "s", "94 ms"),
                                  (61, "s", "1.02 mins"), (7200.0, "s", "2 hours"), (62693376, "bytes", "59.8 MiB"), (0, "s", "0 s"),
                                  (788e12, "flops", "788 TFLOP/s"), (1234567, "locale", "1,234,567"), (0.0003, "sci", "3.000e-04"),
                                  (-0.0001, "none", "-0.000100"), (20, "reqps", "20 req/s")):
            self.assertEqual(grafana_units.format_value(value, unit), text, (value, unit))
        self.assertEqual(grafana_units.format_value(2.50449, "none", 3), "2.504")
        with self.assertRaisesRegex(ValueError, "furlong"):
            grafana_units.format_value(1, "furlong")


class Coordinator(http.server.BaseHTTPRequestHandler):
    """Answers /metrics for a job that ends with the third scrape."""
    scrapes = 0

    def do_GET(self):
        Coordinator.scrapes += 1
        state = "SUCCEEDED" if Coordinator.scrapes >= 3 else "RUNNING"
        text = ('# HELP nsa_job_tokens_total Tokens, "all" of them.\n# TYPE nsa_job_tokens_total counter\n'
                f'nsa_job_tokens_total{{job_id="j1"}} {1000 * Coordinator.scrapes}\n# TYPE nsa_build_info gauge\nnsa_build_info 1\n'
                'nsa_job_info{job_id="j1",name="a } b"} 1\n'
                f'nsa_job_state{{job_id="j1",state="{state}"}} 1\nnsa_job_state{{job_id="j1",state="STARTING"}} 0\n').encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Recording(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Coordinator)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.address = f"127.0.0.1:{self.server.server_port}"
        Coordinator.scrapes = 0

    def record(self, name, *more):
        done = run(sys.executable, PLOT / "record_metrics.py", "-o", self.folder / name, "--address", self.address, "--every", 0.2, *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.folder / name

    def test_ends_after_its_job_and_names_its_target_and_time(self):
        path = self.record("m.om.gz", "--for", 60, "--job", "a } b", "--after", 0.5)
        self.assertLess(Coordinator.scrapes, 12, "it ended with the job, not after a minute")
        lines = gzip.open(path, "rt").read().splitlines()
        self.assertEqual(lines[-1], "# EOF")
        self.assertEqual(lines.count("# TYPE nsa_job_tokens counter"), 1)
        tokens = [line for line in lines if line.startswith("nsa_job_tokens_total{")]
        self.assertEqual(len(tokens), Coordinator.scrapes)
        self.assertRegex(tokens[0], rf'^nsa_job_tokens_total{{job_id="j1",instance="{self.address}",job="nsa-coordinator"}} 1000 \d+\.\d{{3}}$')
        self.assertIn(f'nsa_build_info{{instance="{self.address}",job="nsa-coordinator"}} 1 ', "\n".join(lines))
        self.assertTrue(any(line.startswith("up{") and " 1 " in line for line in lines))

    def test_a_coordinator_that_does_not_answer_is_down_and_the_exit_code_says_so(self):
        done = run(sys.executable, PLOT / "record_metrics.py", "-o", self.folder / "m.om", "--address", "127.0.0.1:1", "--every", 0.1, "--for", 0.3)
        self.assertEqual(done.returncode, 1)
        self.assertRegex((self.folder / "m.om").read_text(), r'up\{instance="127.0.0.1:1",job="nsa-coordinator"\} 0 ')

    def test_a_job_of_the_same_name_that_still_runs_keeps_it_going(self):
        text = ('nsa_job_info{job_id="1",name="x"} 1\nnsa_job_info{job_id="2",name="x"} 1\nnsa_job_state{job_id="1",state="FAILED"} 1\n'
                'nsa_job_state{job_id="2",state="RUNNING"} 1\n')
        self.assertFalse(record_metrics.has_ended(text, "x"))
        self.assertTrue(record_metrics.has_ended(text, "1"))
        self.assertFalse(record_metrics.has_ended(text, "unknown"))

    def killed(self, name):
        """A recording whose recorder was killed after some scrapes."""
        process = subprocess.Popen([sys.executable, PLOT / "record_metrics.py", "-o", self.folder / name, "--address", self.address,
                                    "--every", "0.2"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while Coordinator.scrapes < 8 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        return self.folder / name

    def test_one_that_was_killed_is_still_complete(self):
        for name in ("m.om", "m.om.gz"):
            text = prometheus_api.complete_text(self.killed(name))
            self.assertTrue(text.endswith(b"\n# EOF\n"))
            self.assertGreaterEqual(text.count(b"nsa_build_info{"), 7, name)
            Coordinator.scrapes = 0

    @WITH_PROMETHEUS
    def test_prometheus_stores_it_and_the_dashboard_says_what_is_missing(self):
        path = self.killed("m.om")
        with prometheus_api.prometheus_over(path) as (prometheus, start, end, interval):
            self.assertAlmostEqual(interval, 0.2, delta=0.15)
            self.assertLess(start, end)
            self.assertEqual(prometheus.label_values("job_id", "nsa_job_info", start, end), ["j1"])
            ((labels, points),) = prometheus.query_range("nsa_job_tokens_total", start, end, 0.2)
            self.assertEqual((labels["instance"], points[0][1]), (self.address, 1000.0))
            self.assertEqual(points[-1][1] % 1000, 0)
            with self.assertRaisesRegex(prometheus_api.PrometheusError, "parse error"):
                prometheus.query("sum(", end)
        good, bad = panel("timeseries", ("rate(nsa_job_tokens_total[$__rate_interval])", "{{job_id}}")), panel("stat", ("nsa_none", ""))
        for panels, code in (((good,), 0), ((good, bad), 1)):
            file = self.folder / "board.json"
            file.write_text(json.dumps(dashboard(*panels)))
            done = run(sys.executable, PLOT / "dashboard.py", "--recording", path, "--dashboard", file, "--strict")
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn("panel 'stat': query A returned nothing: nsa_none", done.stderr)
        done = run(sys.executable, PLOT / "dashboard.py", "--recording", path, "--dashboard", file, "--strict", "--empty-ok", "stat")
        self.assertEqual(done.returncode, 0, done.stderr)

    @WITH_PROMETHEUS
    @unittest.skipUnless(DRAWS, "python3-matplotlib is not installed")
    def test_a_dashboard_becomes_a_picture(self):
        path = self.killed("m.om.gz")
        picture, file = self.folder / "d.png", self.folder / "board.json"
        file.write_text(json.dumps(dashboard(panel("timeseries", ("nsa_job_tokens_total", "{{job_id}}")), panel("stat", ("nsa_none", "")),
                                             panel("stat", ("nsa_build_info", "")))))
        done = run(PLOT / "dashboard.py", "--recording", path, "--dashboard", file, "-o", picture)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(picture.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


class Terminal(unittest.TestCase):
    def test_a_block_that_is_drawn_again_in_place_is_seen_once(self):
        screen = Screen(20, 5)
        screen.feed("above\r\n\x1b[?25l\r\x1b[Jbar   10 %\r\nloss 3.00\r\n\x1b[2A\r\x1b[J\x1b[32mbar\x1b[0m   20 %\r\n")
        screen.feed("loss 2.")
        screen.feed("50\r\n\x1b[")  # a sequence in two pieces
        screen.feed("?25h")
        self.assertEqual(screen.text(), "above\nbar   20 %\nloss 2.50")
        self.assertEqual(screen.lines()[1][0][1].front, 2)
        self.assertIsNone(screen.lines()[1][3][1].front)

    def test_lines_wrap_and_scroll(self):
        screen = Screen(4, 2)
        screen.feed("abcd")
        self.assertEqual(screen.text(), "abcd")  # the cursor stays after the last column
        screen.feed("efgh\r\nij\x1b[1K\bX")
        self.assertEqual(screen.text(), "efgh\n X")
        screen.feed("\x1b[?1049h\x1b[2;2Hq")
        self.assertEqual(screen.text(), "\n q")
        screen.feed("\x1b[?1049l")
        self.assertEqual(screen.text(), "efgh\n X")

    def test_a_recorded_program_has_a_terminal_and_keeps_its_exit_code(self):
        with tempfile.TemporaryDirectory() as folder:
            cast, svg = pathlib.Path(folder) / "x.cast", pathlib.Path(folder) / "x.svg"
            script = 'test -t 1 && stty size; printf "\\033[1;31m<red & bold>\\033[0m ██░ \\n"; sleep 1.5; echo end; exit 3'
            done = run(sys.executable, PLOT / "terminal.py", "record", "-o", cast, "--columns", 40, "--lines", 10, "--", "sh", "-c", script)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertEqual(terminal.load(cast, None).text(), "10 40\n<red & bold> ██░\nend")
            self.assertEqual(terminal.load(cast, -1.0).text(), "10 40\n<red & bold> ██░")
            done = run(sys.executable, PLOT / "terminal.py", "draw", cast, "-o", svg, "--title", "A < B")
            self.assertEqual(done.returncode, 0, done.stderr)
            texts = [element for element in xml.etree.ElementTree.parse(svg).iter() if element.tag.endswith("}text")]
            self.assertEqual(texts[0].text, "A < B")
            red = next(element for element in texts if element.text == "<red & bold>")
            self.assertEqual((red.get("fill"), red.get("font-weight")), (terminal.DARK["colours"][1], "bold"))

    def test_a_program_that_runs_for_ever_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            cast = pathlib.Path(folder) / "x.cast"
            begin = time.monotonic()
            done = run(sys.executable, PLOT / "terminal.py", "record", "-o", cast, "--for", 0.5, "--", "sh", "-c", "echo on; sleep 300")
            self.assertLess(time.monotonic() - begin, 60)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(terminal.load(cast, None).text()[:2], "on")

    def test_a_screen_that_tmux_captured_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "screen.txt"
            path.write_text("\x1b[1mbold\x1b[0m\n\x1b[38;5;196m256\x1b[39m \x1b[48;2;1;2;3mtrue\x1b[49m\n")
            screen = terminal.load(path, None)
            self.assertEqual(screen.text(), "bold\n256 true")
            styles = [style for _, style in screen.lines()[1]]
            self.assertEqual((styles[0].front, styles[4].back), (196, (1, 2, 3)))
            self.assertEqual(terminal.colour(terminal.DARK, 196, None), "#ff0000")


if __name__ == "__main__":
    unittest.main(verbosity=2)
