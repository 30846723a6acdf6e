"""Evaluates a Grafana dashboard as Grafana does: resolves variables and intervals, runs the queries, builds the tables.

Supports what this project's dashboards use: variables of the types datasource and query (label_values), custom, constant and textbox;
the transformations merge and organize. Anything else is reported as a problem of its panel, never left out silently.
"""
import dataclasses
import math
import re

# Grafana's rounding of intervals, in milliseconds: an interval below the first number becomes the second.
ROUND_INTERVALS = [
    (10, 1), (15, 10), (35, 20), (75, 50), (150, 100), (350, 200), (750, 500), (1500, 1000), (3500, 2000), (7500, 5000), (12500, 10000),
    (17500, 15000), (25000, 20000), (45000, 30000), (90000, 60000), (210000, 120000), (450000, 300000), (750000, 600000),
    (1050000, 900000), (1500000, 1200000), (2700000, 1800000), (5400000, 3600000), (9000000, 7200000), (16200000, 10800000),
    (32400000, 21600000), (64800000, 43200000), (518400000, 86400000)]
KINDS = ("timeseries", "stat", "gauge", "bargauge", "table")


@dataclasses.dataclass
class Series:
    name: str
    labels: dict
    points: list  # [(Unix seconds, finite value)]

    @property
    def last(self):
        return self.points[-1][1] if self.points else None


@dataclasses.dataclass
class Table:
    headings: list
    rows: list  # each a list of numbers, text or None


@dataclasses.dataclass
class PanelData:
    panel: dict
    series: list = dataclasses.field(default_factory=list)
    table: Table | None = None
    problems: list = dataclasses.field(default_factory=list)
    step: float = 0.0


def round_interval(milliseconds):
    for limit, interval in ROUND_INTERVALS:
        if milliseconds < limit:
            return interval
    return 604800000


def duration(seconds):
    """A duration in PromQL, to the millisecond."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def rate_interval(interval, scrape_interval):
    return max(interval + scrape_interval, 4 * scrape_interval)


def escaped(value):
    """Escapes a value for a regular expression inside a PromQL string."""
    return re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value)


def interpolate(text, values):
    """Replaces $name, ${name} and ${name:format} by values[name]; unknown names stay as they are."""
    def value(match):
        return values.get(match[1] or match[2], match[0])
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::\w+)?\})", value, text)


class Board:
    """One dashboard over one time range. `source` has the methods query_range, query and label_values (see prometheus_api.py)."""

    def __init__(self, board, source, start, end, scrape_interval=15.0, chosen=None, page_width=1600):
        self.board, self.source, self.start, self.end = board, source, start, end
        self.scrape_interval, self.page_width = scrape_interval, page_width
        self.chosen = chosen or {}
        known = {variable["name"] for variable in board["templating"]["list"]}
        for name in self.chosen:
            if name not in known:
                raise ValueError(f"variable '{name}': the dashboard has none of this name ({', '.join(sorted(known))})")
        self.values = {}
        self.shown = []  # [(label, text)] of the variables, for the header of the picture
        for variable in board["templating"]["list"]:
            self._resolve(variable)

    def _resolve(self, variable):
        name, kind = variable["name"], variable["type"]
        options = []
        if kind == "query":
            options = self._label_values(variable)
            wanted = self.chosen.get(name) or variable["current"]["value"]
        elif kind in ("datasource", "custom", "constant", "textbox"):
            wanted = self.chosen.get(name) or variable.get("current", {}).get("value") or variable["query"]
        else:
            raise ValueError(f"variable '{name}': type '{kind}' is not known here")
        wanted = wanted if isinstance(wanted, list) else [wanted]
        if "$__all" in wanted:
            self.shown.append((variable.get("label", name), "All"))
            self.values[name] = variable.get("allValue") or self._pattern(options)
            return
        if kind != "datasource":
            self.shown.append((variable.get("label", name), " + ".join(wanted)))
        self.values[name] = self._pattern(wanted) if variable.get("multi") else wanted[0]

    @staticmethod
    def _pattern(values):
        return escaped(values[0]) if len(values) == 1 else "(" + "|".join(map(escaped, values)) + ")"

    def _label_values(self, variable):
        definition = interpolate(variable["definition"], self.values)
        match = re.fullmatch(r"label_values\((?:(.+),\s*)?(\w+)\)", definition)
        if not match:
            raise ValueError(f"variable '{variable['name']}': '{definition}' is not label_values(metric, label)")
        return self.source.label_values(match[2], match[1], self.start, self.end)

    def rows(self):
        """[(title, [panel])] in order; panels before the first row have the title None."""
        rows = []
        for panel in self.board["panels"]:
            if panel["type"] == "row":
                rows.append((panel["title"], list(panel["panels"])))
            elif rows:
                rows[-1][1].append(panel)
            else:
                rows.append((None, [panel]))
        return rows

    def intervals(self, panel):
        """(step, $__rate_interval) of a panel in seconds: as many points as it is wide, but no finer than the scrape interval."""
        points = panel.get("maxDataPoints") or max(1, self.page_width * panel["gridPos"]["w"] // 24)
        step = max(round_interval((self.end - self.start) * 1000 / points) / 1000, self.scrape_interval)
        return step, rate_interval(step, self.scrape_interval)

    def expression(self, panel, target):
        step, of_rates = self.intervals(panel)
        span = self.end - self.start
        built_in = {"__interval": duration(step), "__interval_ms": f"{step * 1000:.0f}", "__rate_interval": duration(of_rates),
                    "__range": duration(round(span)), "__range_s": f"{span:.0f}", "__range_ms": f"{span * 1000:.0f}"}
        return interpolate(target["expr"], {**self.values, **built_in})

    def evaluate(self, panel):
        """The panel's data, with a problem for every query that fails or returns nothing."""
        data = PanelData(panel)
        if panel["type"] not in KINDS:
            data.problems.append(f"type '{panel['type']}' is not known here ({', '.join(KINDS)})")
            return data
        data.step = self.intervals(panel)[0]
        answers = []
        for target in panel["targets"]:
            answer, problem = self._ask(panel, target)
            answers.append((target["refId"], answer))
            if problem:
                data.problems.append(f"query {target['refId']} {problem}: {self.expression(panel, target)}")
            data.series += [Series(legend(target, labels), labels, points) for labels, points in answer]
        if panel["type"] == "table":
            try:
                data.table = make_table(answers, panel.get("transformations", []))
            except ValueError as error:
                data.problems.append(str(error))
        return data

    def _ask(self, panel, target):
        """([(labels, finite points)], what was wrong or None)."""
        expression = self.expression(panel, target)
        step, _ = self.intervals(panel)
        try:
            if target.get("instant"):
                answer = self.source.query(expression, self.end)
            else:
                first, last = (math.floor(moment / step) * step for moment in (self.start, self.end))
                answer = self.source.query_range(expression, first, last, step)
        except Exception as error:  # of any type that the source raises: it is this panel's problem and must not end the picture
            return [], f"failed ({error})"
        finite = [(labels, [point for point in points if math.isfinite(point[1])]) for labels, points in answer]
        finite = [(labels, points) for labels, points in finite if points]
        return finite, None if finite else "returned nothing"


def legend(target, labels):
    """The name of a series in the legend."""
    form = target.get("legendFormat") or "__auto"
    if form == "__auto":
        own = ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items()) if key != "__name__")
        return labels.get("__name__", "") + (f"{{{own}}}" if own else "")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form).strip()


def make_table(answers, transformations):
    """Applies the panel's transformations to the frames of its instant queries."""
    frames = []
    for ref, answer in answers:
        names = sorted({name for labels, _ in answer for name in labels})
        frames.append(Table(["Time", *names, f"Value #{ref}"],
                            [[points[-1][0], *(labels.get(name) for name in names), points[-1][1]] for labels, points in answer]))
    for transformation in transformations:
        if transformation["id"] == "merge":
            frames = [merged([frame for frame in frames if frame.rows])]
        elif transformation["id"] == "organize":
            frames = [organized(frame, transformation["options"]) for frame in frames]
        else:
            raise ValueError(f"transformation '{transformation['id']}' is not known here (merge, organize)")
    if len(frames) != 1:
        raise ValueError(f"{len(frames)} frames in one table; a transformation 'merge' makes them one")
    return frames[0]


def merged(frames):
    """Merges rows that agree in all columns that every frame has, if their other cells do not contradict each other."""
    headings = list(dict.fromkeys(name for frame in frames for name in frame.headings))
    keys = [name for name in headings if all(name in frame.headings for frame in frames)]
    rows = []
    for frame in frames:
        for cells in frame.rows:
            row = dict(zip(frame.headings, cells))
            for other in rows:
                if all(other.get(key) == row[key] for key in keys) and all(
                        other.get(name) in (None, value) for name, value in row.items() if value is not None):
                    other.update(row)
                    break
            else:
                rows.append(row)
    return Table(headings, [[row.get(name) for name in headings] for row in rows])


def organized(frame, options):
    order = options.get("indexByName", {})
    kept = [name for name in frame.headings if not options.get("excludeByName", {}).get(name)]
    kept.sort(key=lambda name: order.get(name, len(order)))
    places = [frame.headings.index(name) for name in kept]
    return Table([options.get("renameByName", {}).get(name) or name for name in kept], [[row[i] for i in places] for row in frame.rows])


def field_config(panel, name):
    """The panel's field configuration for one series or column, with its overrides."""
    config = dict(panel["fieldConfig"]["defaults"])
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"] == {"id": "byName", "options": name}:
            config.update({entry["id"]: entry["value"] for entry in override["properties"]})
    return config


def threshold_colour(config, value):
    """Name of the colour that the thresholds give a value."""
    colour = "text"
    for step in config.get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    return colour
