"""The kinds of Grafana panels that make_dashboard.py uses. Each function makes a Panel; render() turns it into the classic JSON.

A target is (PromQL, legend). Steps are thresholds: (lowest value, colour); the first one is the base colour.
"""
import dataclasses

DATASOURCE = {"type": "prometheus", "uid": "$datasource"}
REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}


@dataclasses.dataclass
class Panel:
    kind: str
    title: str
    unit: str
    description: str
    targets: tuple
    width: int
    height: int
    now: bool = False  # one value at the end of the time range, not a line
    defaults: dict = dataclasses.field(default_factory=dict)
    overrides: list = dataclasses.field(default_factory=list)
    options: dict = dataclasses.field(default_factory=dict)
    transformations: list = dataclasses.field(default_factory=list)


def thresholds(steps):
    return {"mode": "absolute", "steps": [{"color": colour, "value": None if i == 0 else value} for i, (value, colour) in enumerate(steps)]}


def bounds(minimum, maximum):
    return {key: value for key, value in (("min", minimum), ("max", maximum)) if value is not None}


def series(title, unit, description, *targets, log=False, stacked=False, minimum=None, maximum=None, width=8):
    """Lines over time."""
    custom = {"lineWidth": 1, "fillOpacity": 60 if stacked else 0, "showPoints": "never", "spanNulls": False,
              "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
              "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    if maximum is not None:
        minimum = 0 if minimum is None else minimum
    return Panel("timeseries", title, unit, description, targets, width, 8,
                 defaults={"custom": custom, "color": {"mode": "palette-classic"}, **bounds(minimum, maximum)},
                 options={"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                          "tooltip": {"mode": "multi", "sort": "desc"}})


def stat(title, unit, description, *targets, graph=False, now=False, text="auto", decimals=None, steps=((0, "text"),), colours=None):
    """One number per series. `colours` maps names of series to colours."""
    return Panel("stat", title, unit, description, targets, 4, 4, now=now,
                 defaults={"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), "noValue": "–",
                           **({} if decimals is None else {"decimals": decimals})},
                 overrides=[{"matcher": {"id": "byName", "options": name},
                             "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]}
                            for name, colour in (colours or {}).items()],
                 options={"reduceOptions": REDUCE, "colorMode": "value", "graphMode": "area" if graph else "none", "textMode": text,
                          "justifyMode": "auto", "orientation": "auto"})


def gauge(title, unit, description, *targets, maximum, steps=((0, "blue"),)):
    """One half circle per series."""
    return Panel("gauge", title, unit, description, targets, 4, 4, now=True,
                 defaults={"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), **bounds(0, maximum)},
                 options={"reduceOptions": REDUCE, "showThresholdLabels": False, "showThresholdMarkers": False, "orientation": "auto"})


def bars(title, unit, description, *targets, maximum, steps, decimals=None):
    """One horizontal bar per series."""
    return Panel("bargauge", title, unit, description, targets, 8, 8, now=True,
                 defaults={"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), **bounds(0, maximum),
                           **({} if decimals is None else {"decimals": decimals})},
                 options={"reduceOptions": REDUCE, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True,
                          "valueMode": "text"})


def table(title, description, columns, labels, hidden, colours, height):
    """One row per set of labels. `columns` are (name, PromQL, unit, extras). `labels` maps the labels that are shown to their headings;
    they come first, in this order. The values of `hidden` columns are not shown: their queries only provide labels."""
    names = {f"Value #{chr(ord('A') + i)}": column[0] for i, column in enumerate(columns)}
    shown = [value for value, name in names.items() if name not in hidden]
    order = [*labels, *shown]
    overrides = []
    for name, _, unit, extra in columns:
        properties = [{"id": "unit", "value": unit}] if unit else []
        if "decimals" in extra:
            properties.append({"id": "decimals", "value": extra["decimals"]})
        if extra.get("gauge"):
            properties += [{"id": "custom.cellOptions", "value": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}},
                           {"id": "min", "value": 0}, {"id": "max", "value": 1}]
        if properties and name not in hidden:
            overrides.append({"matcher": {"id": "byName", "options": name}, "properties": properties})
    for name, by_value in colours.items():
        overrides.append({"matcher": {"id": "byName", "options": name}, "properties": [
            {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            {"id": "mappings", "value": [{"type": "value", "options": {
                value: {"color": colour, "index": i} for i, (value, colour) in enumerate(by_value.items())}}]}]})
    return Panel("table", title, "none", description, tuple((column[1], "") for column in columns), 24, height, now=True,
                 defaults={"color": {"mode": "thresholds"}, "thresholds": thresholds(((0, "blue"),)),
                           "custom": {"align": "auto", "cellOptions": {"type": "auto"}}},
                 overrides=overrides, options={"showHeader": True, "cellHeight": "sm"},
                 transformations=[{"id": "merge", "options": {}}, {"id": "organize", "options": {
                     "excludeByName": {"Time": True, **{value: True for value, name in names.items() if name in hidden}},
                     "indexByName": {name: i for i, name in enumerate(order)},
                     "renameByName": {**labels, **{value: names[value] for value in shown}}}}])


def render(panel, identity, x, y):
    mode = {"instant": True, "range": False} if panel.now else {"instant": False, "range": True}
    more = {"format": "table"} if panel.kind == "table" else {}
    return {
        "id": identity, "type": panel.kind, "title": panel.title, "description": panel.description, "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.defaults}, "overrides": panel.overrides},
        "options": panel.options,
        **({"transformations": panel.transformations} if panel.transformations else {}),
        "targets": [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend, **mode, **more}
                    for i, (expression, legend) in enumerate(panel.targets)],
    }


def variable(name, label, query):
    """A dashboard variable with the values of a label; several or all of them can be chosen."""
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".+", "sort": 2,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
