#!/usr/bin/env python3
"""Dashboard, alerts, runbook and compose file agree with each other and with the table of metrics. So does a scrape, when one is given.

    tests/deploy/observability_test.py [--scrape FILE]     FILE: what a coordinator with a running job answered on /metrics

Checks that need promtool fail without it; it comes with the package prometheus.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "deploy/grafana"))
from make_dashboard import dashboard  # noqa: E402

RULES = TOP / "deploy/prometheus/rules/nsa.rules.yml"
RULE_TESTS = TOP / "deploy/prometheus/tests/nsa.test.yml"
SCRAPE = None

# What the dashboard uses of Grafana: kinds of panels, units and transformations, by Grafana's names.
KINDS = {"timeseries", "stat", "gauge", "bargauge", "table"}
UNITS = {"none", "short", "bytes", "s", "percentunit", "percent", "reqps", "flops", "celsius", "watt", "locale", "sci"}
TRANSFORMATIONS = {"merge", "organize"}

# Series that Prometheus itself creates.
BUILT_IN = {"up"}


def rows_of_families():
    """(kind, family, labels) from the tables that the coordinator registers: families of their own, and those of quantities."""
    table = (TOP / "server/watch/metrics_table.h").read_text()
    rows = re.findall(r'\{k(\w+),\s*"(\w+)",\s*"([^"]*)"', table)
    for quantity in (TOP / "common/record/quantities.h").read_text().split("{.name = ")[1:]:
        declared = re.search(r'\.series = \{"(\w+)",\s*"[^"]*"(, "branch")?', quantity)
        if declared:
            labels = "agent gpu name" if ".gpu = " in quantity else "job_id layer" if ".layer = " in quantity else "job_id"
            rows.append(("Gauge", declared[1], labels + (" branch" if declared[2] else "")))
    return rows


def families():
    """Metric name → set of label names; a histogram has three names."""
    found = {}
    for kind, name, labels in rows_of_families():
        if kind == "Histogram":
            found[name + "_bucket"] = {"le", *labels.split()}
            found[name + "_sum"] = found[name + "_count"] = set(labels.split())
        else:
            found[name] = set(labels.split())
    return found


def alerts():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels():
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions():
    """(where, expression) of every panel and alert, with Grafana's variables filled in."""
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m")
            yield f"panel '{panel['title']}'", re.sub(r"\$[a-z_]+", ".+", expression)
    for alert in alerts():
        yield f"alert {alert['alert']}", alert["expr"]


def metric_names(expression):
    """Names of metrics in an expression, and the labels each is selected or grouped by."""
    without_strings = re.sub(r'"[^"]*"', '""', expression)
    return set(re.findall(r"\b(nsa_[a-z0-9_]+|up)\b(?!\s*\()", without_strings))


def promtool(*arguments, stdin=None):
    done = subprocess.run(["promtool", *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def scraped_families():
    """Metric name → set of label names, from the scrape."""
    families = {}
    for line in SCRAPE.read_text().splitlines():
        match = re.match(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(.*)\})? ", line)
        if match and not line.startswith("#"):
            families.setdefault(match[1], set()).update(re.findall(r'([a-z_]+)="', match[3] or ""))
    return families


class Dashboard(unittest.TestCase):
    def test_its_program_writes_it(self):
        done = subprocess.run([sys.executable, TOP / "deploy/grafana/make_dashboard.py"], capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout), dashboard())

    def test_follows_the_linter_rules(self):
        board = dashboard()
        self.assertGreaterEqual(board["schemaVersion"], 39)
        self.assertIsNone(board["id"])
        self.assertTrue(board["uid"])
        self.assertFalse(board["editable"])
        self.assertNotIn("__inputs", board)
        variables = {v["name"]: v for v in board["templating"]["list"]}
        self.assertEqual(variables["datasource"]["type"], "datasource")
        for name in ("job", "instance", "job_id"):
            self.assertTrue(variables[name]["multi"] and variables[name]["includeAll"], name)
            self.assertEqual(variables[name]["refresh"], 2, f"{name} refreshes on time change")
            self.assertTrue(variables[name]["definition"].startswith("label_values("), name)

    def test_every_panel_is_complete(self):
        identities, places = set(), []
        for panel in panels():
            title = panel["title"]
            self.assertTrue(title and panel["description"], title)
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], title)
            self.assertEqual(panel["datasource"]["uid"], "$datasource", title)
            self.assertTrue(panel["targets"], title)
            for target in panel["targets"]:
                self.assertEqual(target["datasource"]["uid"], "$datasource", title)
                for selector in re.findall(r"nsa_[a-z0-9_]+(\{[^}]*\})?", target["expr"]):
                    self.assertIn('job=~"$job"', selector, title)
                    self.assertIn('instance=~"$instance"', selector, title)
                for rate in re.findall(r"(?:rate|increase)\([^[]*\[([^\]]*)\]", target["expr"]):
                    self.assertEqual(rate, "$__rate_interval", title)
            self.assertNotIn(panel["id"], identities, title)
            identities.add(panel["id"])
            grid = panel["gridPos"]
            for other in places:
                apart = (grid["x"] >= other["x"] + other["w"] or other["x"] >= grid["x"] + grid["w"] or
                         grid["y"] >= other["y"] + other["h"] or other["y"] >= grid["y"] + grid["h"])
                self.assertTrue(apart, f"{title} lies on another panel")
            places.append(grid)

    def test_uses_kinds_units_and_transformations_that_grafana_has(self):
        for panel in panels():
            title = panel["title"]
            self.assertIn(panel["type"], KINDS, title)
            properties = [entry for override in panel["fieldConfig"]["overrides"] for entry in override["properties"]]
            for unit in (panel["fieldConfig"]["defaults"]["unit"], *(entry["value"] for entry in properties if entry["id"] == "unit")):
                self.assertIn(unit, UNITS, title)
            for transformation in panel.get("transformations", []):
                self.assertIn(transformation["id"], TRANSFORMATIONS, title)

    def test_counters_are_only_used_through_rate_or_increase(self):
        for panel in panels():
            for target in panel["targets"]:
                if target["instant"] and panel["type"] in ("stat", "table"):
                    continue  # shows the count itself, not a rate
                for counter in re.findall(r"nsa_[a-z0-9_]+_total", target["expr"]):
                    self.assertRegex(target["expr"], rf"(rate|increase)\({counter}\b", panel["title"])


class Alerts(unittest.TestCase):
    def test_every_expression_parses(self):
        rules = [{"record": f"probe:e{i}", "expr": expression} for i, (_, expression) in enumerate(expressions())]
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"groups": [{"name": "probe", "rules": rules}]}, file)
            file.flush()
            code, output = promtool("check", "rules", file.name)
        self.assertEqual(code, 0, output)

    def test_rules_and_configuration_are_valid(self):
        for arguments in (("check", "rules", RULES), ("check", "config", TOP / "deploy/prometheus/prometheus.yml")):
            code, output = promtool(*arguments)
            self.assertEqual(code, 0, output)

    def test_fire_just_after_their_threshold_and_not_just_before(self):
        code, output = promtool("test", "rules", RULE_TESTS)
        self.assertEqual(code, 0, output)

    def test_are_tested_with_the_labels_of_a_scrape(self):
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
            for series in test["input_series"]:
                for label in ("job", "instance"):
                    self.assertRegex(series["series"], rf'[{{ ]{label}="[^"]+"', f"{test['name']}: a scrape adds {label}")

    def test_are_tested_on_series_that_exist(self):
        known = families()
        operations = re.search(r'for \(const char\* op : \{([^}]*)\}\)', (TOP / "server/watch/metrics.cc").read_text())[1]
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
            for series in test["input_series"]:
                name, labels = re.match(r"(\w+)\{(.*)\}$", series["series"]).groups()
                values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
                if name not in BUILT_IN:
                    self.assertEqual(set(values) - {"job", "instance"}, known[name], f"{test['name']}: {name}")
                if "op" in values:
                    self.assertIn(f'"{values["op"]}"', operations, test["name"])

    def test_each_has_a_test_of_both_sides_and_a_section_in_the_runbook(self):
        tested = {}
        for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
            for case in test.get("promql_expr_test", []):
                name = re.search(r'alertname="(\w+)"', case["expr"])
                tested.setdefault(name[1], set()).add(bool(case.get("exp_samples")))
        sections = set(re.findall(r"^## (\w+)$", (TOP / "docs/runbook.md").read_text(), re.MULTILINE))
        names = {alert["alert"] for alert in alerts()}
        self.assertEqual(sections, names)
        for name in names:
            self.assertEqual(tested.get(name), {True, False}, f"{name}: one test that it fires and one that it does not")

    def test_follow_the_conventions(self):
        for alert in alerts():
            name = alert["alert"]
            self.assertRegex(name, r"^Nsa[A-Z]")
            self.assertIn(alert["labels"]["severity"], ("warning", "critical"), name)
            self.assertEqual(set(alert["annotations"]), {"summary", "description", "runbook_url"}, name)
            self.assertNotIn("{{", alert["annotations"]["summary"], name)
            self.assertEqual(alert["annotations"]["runbook_url"], f"docs/runbook.md#{name.lower()}")


class Deployment(unittest.TestCase):
    def test_yaml_files_parse_and_their_mounts_exist(self):
        for file in (TOP / "deploy").rglob("*.y*ml"):
            documents = list(yaml.safe_load_all(file.read_text()))
            self.assertTrue(documents and all(documents), file)
        compose = yaml.safe_load((TOP / "deploy/compose.yaml").read_text())
        for name, service in compose["services"].items():
            self.assertTrue(service.get("image") or service.get("build"), name)
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("."):
                    self.assertTrue((TOP / "deploy" / source).exists(), f"{name}: {source}")
                else:
                    self.assertIn(source, compose["volumes"], name)
        self.assertTrue((TOP / "deploy" / compose["services"]["coordinator"]["build"]["context"] /
                         compose["services"]["coordinator"]["build"]["dockerfile"]).exists())


class Metrics(unittest.TestCase):
    def test_the_table_was_read(self):
        self.assertGreater(len(families()), 40)

    def test_every_metric_that_is_shown_or_alerted_on_exists(self):
        missing = sorted({f"{name} ({where})" for where, expression in expressions()
                          for name in metric_names(expression) - BUILT_IN if name not in families()})
        self.assertEqual(missing, [])

    def test_every_label_that_is_used_exists(self):
        known = families()
        for where, expression in expressions():
            used = {label.strip() for group in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in group.split(",")} - {""}
            of_all = {"job", "instance"}.union(*(known.get(name, set()) for name in metric_names(expression)))
            self.assertLessEqual(used, of_all, where)
            for name in metric_names(expression) - BUILT_IN:
                selected = re.findall(r"([a-z_]+)(?:=~|!=|=)", "".join(re.findall(rf"\b{name}\{{([^}}]*)\}}", expression)))
                self.assertLessEqual(set(selected), known[name] | {"job", "instance"}, where)

    def test_legends_name_labels_that_exist(self):
        for panel in panels():
            for target in panel["targets"]:
                known = set().union(*(families()[name] for name in metric_names(target["expr"])))
                self.assertLessEqual(set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])), known, panel["title"])

    def test_the_table_of_results_md_names_every_family_and_nothing_else(self):
        families_there = {family for _, family, _ in rows_of_families()}
        table = (TOP / "docs/results.md").read_text().split("| group | families (prefix `nsa_`) |")[1].split("\n\n")[0]
        cells = " ".join(row.split("|")[2] for row in table.splitlines()[2:])
        named = {f"nsa_{word}" for word in re.findall(r"(?<!by )(?<!of )`(\w+)`", cells)}
        self.assertEqual(families_there - named, set(), "add them to the table under Metrics in docs/results.md")
        self.assertEqual(named - families_there, set(), "docs/results.md names families that do not exist")

    def test_names_and_labels_follow_the_conventions(self):
        for name, labels in families().items():
            self.assertTrue(name.startswith("nsa_"), name)
            self.assertNotRegex(name, r"_(ms|us|milliseconds|kb|mb|mib|gib|percent)(_|$)", "base units only")
            self.assertFalse({"job", "instance"} & labels, f"{name}: job and instance are Prometheus's own")


class Scrape(unittest.TestCase):
    def setUp(self):
        if SCRAPE is None:
            self.skipTest("no --scrape")

    def test_promtool_has_no_complaint(self):
        code, output = promtool("check", "metrics", stdin=SCRAPE.read_text())
        self.assertEqual((code, output.strip()), (0, ""))

    def test_holds_what_the_table_says(self):
        known, seen = families(), scraped_families()
        for name, labels in seen.items():
            if name.startswith("nsa_"):
                self.assertIn(name, known)
                self.assertEqual(labels, known[name], name)

    def test_holds_everything_but_what_only_a_fault_a_gpu_a_notice_an_upload_tcp_or_tls_brings(self):
        only_a_fault = {"nsa_fallbacks_total", "nsa_preflight_waivers_total", "nsa_jobs_finished_total", "nsa_job_health_problem",
                        "nsa_recovery_seconds_bucket", "nsa_recovery_seconds_count", "nsa_recovery_seconds_sum"}
        only_a_gpu = {"nsa_gpu_memory_bytes", "nsa_gpu_utilization_ratio", "nsa_gpu_power_watts", "nsa_gpu_temperature_celsius",
                      "nsa_gpu_memory_clock_hertz", "nsa_gpu_uncorrected_errors", "nsa_gpu_fault", "nsa_job_gpu_info", "nsa_job_mfu_ratio"}
        only_a_notice = {"nsa_notice_events_total", "nsa_notice_failed_attempts_total", "nsa_notice_oldest_waiting_seconds"}
        only_an_upload = {"nsa_job_last_uploaded_checkpoint_step", "nsa_job_checkpoint_upload_failures_total"}
        only_tcp = {"nsa_tcp_connections", "nsa_tcp_connections_ended_total", "nsa_tcp_handshake_seconds_total"}
        only_tls = {"nsa_certificate_expiry_timestamp_seconds"}
        self.assertEqual(set(families()) - set(scraped_families()) - only_a_fault - only_a_gpu - only_a_notice - only_an_upload - only_tcp - only_tls, set())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--scrape", type=pathlib.Path)
    options, rest = parser.parse_known_args()
    SCRAPE = options.scrape
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
