"""Draws a dashboard evaluated by board.py in Grafana's layout and colours, with matplotlib. Lengths are in pixels, from the top left."""
import datetime
import io
import math
import pathlib
import re

import matplotlib
matplotlib.use("Agg")
from matplotlib import font_manager, patches, pyplot, ticker  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from PIL import Image  # noqa: E402

from board import field_config, threshold_colour  # noqa: E402
from grafana_units import BINARY, format_value  # noqa: E402

CELL, GAP, HEADER = 30, 8, 28
HEAD = 46  # header of the whole picture
THEMES = {
    "dark": {"page": "#111217", "panel": "#181b1f", "edge": "#25282d", "text": "#ccccdc", "soft": "#8e8e9b", "grid": "#2a2d33",
             "unfilled": "#2a2d33"},
    "light": {"page": "#f4f5f5", "panel": "#ffffff", "edge": "#e4e5e6", "text": "#24292e", "soft": "#6e7079", "grid": "#e9eaec",
              "unfilled": "#e9eaec"}}
PALETTE = ["#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0", "#37872D", "#FADE2A", "#447EBC",
           "#C4162A", "#890F02", "#0A437C", "#6D1F62", "#584477"]
COLOURS = {"green": "#73BF69", "yellow": "#FADE2A", "red": "#F2495C", "blue": "#5794F2", "orange": "#FF9830", "purple": "#B877D9"}
TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]


def choose_font():
    """Grafana's Inter where it is installed (Debian's fonts-inter), else matplotlib's default font."""
    for path in pathlib.Path("/usr/share/fonts/opentype/inter").glob("Inter-*.otf"):
        if path.stem in ("Inter-Regular", "Inter-Medium"):
            font_manager.fontManager.addfont(str(path))
    pyplot.rcParams["font.family"] = ["Inter", "DejaVu Sans"] if any(
        font.name == "Inter" for font in font_manager.fontManager.ttflist) else ["DejaVu Sans"]


def tick_labels(values, unit):
    """Labels with as few decimals as show the ticks exactly, the same number for all ticks of one scale."""
    if unit == "sci":
        return ["0" if value == 0 else f"{value:.2e}".replace(".00e", "e").replace("0e", "e") for value in values]
    exact = [re.match(r"([-\d.,]*)(.*)", format_value(value, unit, 6)) for value in values]
    needed = {}
    for match in exact:
        needed[match[2]] = max(needed.get(match[2], 0), len(match[1].rstrip("0").partition(".")[2]))
    return [format_value(value, unit, needed[match[2]] if value else 0) for value, match in zip(values, exact)]


def value_ticks(low, high, unit):
    """About five round numbers; for bytes, numbers that are round in their unit."""
    factor = 1024.0 ** min(int(math.log(max(abs(high), 1.0), 1024)), len(BINARY) - 1) if unit == "bytes" else 1.0
    places = ticker.MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(low / factor, high / factor) * factor
    slack = (high - low) * 1e-6
    return [place for place in places if low - slack <= place <= high + slack]


def time_ticks(start, end, width):
    step = next((step for step in TIME_STEPS if (end - start) / step * 75 <= width), TIME_STEPS[-1])
    first = math.ceil(start / step) * step
    places = [first + i * step for i in range(int((end - first) // step) + 1)]

    def text(moment):
        hours, rest = divmod(int(moment) % 86400, 3600)
        minutes = f"{hours:02}:{rest // 60:02}"
        return minutes if step >= 60 else f"{minutes}:{rest % 60:02}"
    return places, [text(moment) for moment in places]


class Picture:
    """A page that panels are drawn on."""

    def __init__(self, board, theme, scale):
        self.board, self.theme, self.scale = board, THEMES[theme], scale
        self.width, self.height = board.page_width, 0
        self.figure = None
        choose_font()

    def draw(self, rows):
        """rows: [(title or None, [PanelData])], from top to bottom."""
        places, y = [], HEAD
        for title, panels in rows:
            if title is not None:
                places.append((title, y))
                y += CELL
            top = min((data.panel["gridPos"]["y"] for data in panels), default=0)
            for data in panels:
                places.append((data, y - top * (CELL + GAP)))
            y += max((data.panel["gridPos"]["y"] + data.panel["gridPos"]["h"] - top for data in panels), default=0) * (CELL + GAP)
        self.height = y + GAP
        self.figure = pyplot.figure(figsize=(self.width / 100, self.height / 100), dpi=100 * self.scale, facecolor=self.theme["page"])
        self._head()
        for what, at in places:
            if isinstance(what, str):
                self.text(GAP + 4, at + CELL / 2, f"▾  {what}", 15, weight="medium")
            else:
                self._panel(what, at)

    def save(self, path):
        """Saves with 256 colours, which suffice and make the file a third of the size."""
        whole = io.BytesIO()
        self.figure.savefig(whole, dpi=100 * self.scale, facecolor=self.theme["page"], format="png")
        pyplot.close(self.figure)
        Image.open(whole).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, format="png", optimize=True)

    # Basic elements.

    def text(self, x, y, text, size, colour=None, align="left", weight="normal", vertical="center_baseline"):
        return self.figure.text(x / self.width, 1 - y / self.height, text, fontsize=size * 0.72, color=colour or self.theme["text"],
                                ha=align, va=vertical, weight=weight, parse_math=False)

    def text_width(self, text, size):
        renderer = self.figure.canvas.get_renderer()
        font = font_manager.FontProperties(size=size * 0.72)
        return renderer.get_text_width_height_descent(text, font, False)[0] / self.scale

    def fitted(self, text, size, width, smallest=9):
        """The largest font size up to `size` at which the text fits the width."""
        return max(smallest, min(size, size * width / max(self.text_width(text, size), 1)))

    def clipped(self, text, size, width):
        if self.text_width(text, size) <= width:
            return text
        while len(text) > 1 and self.text_width(text + "…", size) > width:
            text = text[:-1]
        return text + "…"

    def box(self, x, y, width, height, colour, edge=None, radius=2):
        self.figure.add_artist(patches.FancyBboxPatch(
            (x / self.width, 1 - (y + height) / self.height), width / self.width, height / self.height, mutation_aspect=self.width / self.height,
            boxstyle=f"round,pad=0,rounding_size={radius / self.width}", facecolor=colour, edgecolor=edge or colour, linewidth=0.7))

    def axes(self, x, y, width, height):
        axes = self.figure.add_axes((x / self.width, 1 - (y + height) / self.height, width / self.width, height / self.height))
        axes.set_facecolor("none")
        axes.set_zorder(2)  # above the panels' boxes
        for side in axes.spines.values():
            side.set_visible(False)
        return axes

    def colour(self, name):
        return self.theme["text"] if name == "text" else COLOURS.get(name, name)

    def value_colour(self, config, value):
        choice = config.get("color", {})
        return self.colour(choice["fixedColor"] if choice.get("mode") == "fixed" else threshold_colour(config, value))

    def _head(self):
        board = self.board
        self.text(GAP + 4, HEAD / 2, board.board["title"], 19, weight="medium")
        ticks = [format_moment(moment) for moment in (board.start, board.end)]
        self.text(self.width - GAP - 4, HEAD / 2, f"{ticks[0]} to {ticks[1][11:] if ticks[0][:10] == ticks[1][:10] else ticks[1]} UTC", 13,
                  self.theme["soft"], "right")
        shown = "     ".join(f"{label}: {text}" for label, text in board.shown)
        self.text(GAP + 40 + self.text_width(board.board["title"], 19), HEAD / 2, shown, 13, self.theme["soft"])

    def _panel(self, data, offset):
        grid = data.panel["gridPos"]
        unit = (self.width - 2 * GAP + GAP) / 24
        x, y = GAP + grid["x"] * unit, offset + grid["y"] * (CELL + GAP)
        width, height = grid["w"] * unit - GAP, grid["h"] * (CELL + GAP) - GAP
        self.box(x, y, width, height, self.theme["panel"], self.theme["edge"])
        self.text(x + 10, y + 15, self.clipped(data.panel["title"], 13.5, width - 20), 13.5, weight="medium")
        inner = (x + 10, y + HEADER, width - 20, height - HEADER - 8)
        if not data.series and data.problems:
            failed = any(" failed (" in problem or "not known" in problem for problem in data.problems)
            self.text(x + width / 2, y + height / 2 + 6, "query failed" if failed else data.panel["fieldConfig"]["defaults"].get(
                "noValue", "No data"), 14, COLOURS["red"] if failed else self.theme["soft"], "center")
            return
        getattr(self, f"_{data.panel['type']}")(data, *inner)

    # One method per kind of panel.

    def _timeseries(self, data, x, y, width, height):
        config = data.panel["fieldConfig"]["defaults"]
        custom, unit = config.get("custom", {}), config.get("unit", "none")
        lines = self._legend_lines([series.name for series in data.series], width)
        plot_height = height - 22 - 17 * len(lines) - 4
        low, high, log = self._value_range(data, config)
        ticks = [10.0 ** n for n in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)] if log else []
        ticks = ticks if len(ticks) > 1 else value_ticks(low, high, unit)
        labels = tick_labels(ticks, unit)
        left = max((self.text_width(label, 11.5) for label in labels), default=0) + 8
        axes = self.axes(x + left, y + 6, width - left - 4, plot_height - 6)
        axes.set_xlim(self.board.start, self.board.end)
        axes.set_ylim(low, high)
        if log:
            axes.set_yscale("log")
        axes.set_yticks(ticks, labels)
        axes.set_xticks(*time_ticks(self.board.start, self.board.end, width - left))
        axes.minorticks_off()
        axes.tick_params(length=0, labelsize=11.5 * 0.72, labelcolor=self.theme["soft"], pad=4)
        axes.grid(color=self.theme["grid"], linewidth=0.7)
        axes.set_axisbelow(True)
        self._draw_series(axes, data, custom)
        for i, line in enumerate(lines):
            self._legend_line(line, x + 4, y + plot_height + 30 + 17 * i)

    @staticmethod
    def stacked(data):
        return data.panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"

    def _value_range(self, data, config):
        """(low, high, whether the axis is logarithmic)."""
        if self.stacked(data):
            sums = {}
            for series in data.series:
                for moment, value in series.points:
                    sums[moment] = sums.get(moment, 0) + value
            values = [0.0, *sums.values()]
        else:
            values = [value for series in data.series for _, value in series.points]
        low, high = config.get("min", min(values)), config.get("max", max(values))
        log = config.get("custom", {}).get("scaleDistribution", {}).get("type") == "log" and min(values) > 0
        if log:
            low, high = min(values) / 1.15, max(values) * 1.15
            # A range within one decade is easier to read on a linear axis.
            return (low, high, True) if high / low > 10 else (min(values) * 0.9, max(values) * 1.1, False)
        if high <= low:
            middle = low
            low, high = ((0.0, 1.0) if middle == 0 else (middle - abs(middle) * 0.1, middle + abs(middle) * 0.1))
            low = max(low, config.get("min", low))
        margin = 0.05 * (high - low)
        return low if "min" in config else low - margin, high if "max" in config else high + margin, False

    def _draw_series(self, axes, data, custom):
        below = {}
        for i, series in enumerate(data.series):
            colour = PALETTE[i % len(PALETTE)]
            for part in runs(series.points, data.step):
                times = [moment for moment, _ in part]
                floor = [below.get(moment, 0.0) for moment in times] if self.stacked(data) else [0.0] * len(part)
                values = [base + value for base, (_, value) in zip(floor, part)]
                axes.plot(times, values, color=colour, linewidth=0.9, marker="." if len(part) == 1 else None, markersize=3,
                          solid_joinstyle="round", zorder=3)
                if custom.get("fillOpacity"):
                    axes.fill_between(times, floor, values, color=colour, alpha=custom["fillOpacity"] / 100, linewidth=0, zorder=2)
            if self.stacked(data):
                for moment, value in series.points:
                    below[moment] = below.get(moment, 0.0) + value

    def _legend_lines(self, names, width, most=3):
        """Names of the series, broken into lines; those that do not fit are only counted."""
        lines, used = [[]], 0.0
        for i, name in enumerate(names):
            size = 26 + self.text_width(name, 11.5)
            if used and used + size > width - (70 if len(lines) == most else 0):
                if len(lines) == most:
                    lines[-1].append((None, f"+ {len(names) - i} more", size))
                    break
                lines.append([])
                used = 0.0
            lines[-1].append((i, name, size))
            used += size
        return lines

    def _legend_line(self, line, x, y):
        for i, name, size in line:
            if i is not None:
                self.box(x, y - 1.5, 12, 3, PALETTE[i % len(PALETTE)], radius=1)
            self.text(x + 17, y, name, 11.5, self.theme["text"])
            x += size

    def _stat(self, data, x, y, width, height):
        options, count = data.panel["options"], len(data.series)
        for i, series in enumerate(data.series):
            config = field_config(data.panel, series.name)
            colour = self.value_colour(config, series.last)
            top, part = y + height * i / count, height / count
            value = series.name if options["textMode"] == "name" else format_value(series.last, config["unit"], config.get("decimals"))
            if options.get("graphMode") == "area" and len(series.points) > 1:
                self._spark(series, colour, x - 9, top + part * 0.55, width + 18, part * 0.45 + 7)
            named = options["textMode"] == "auto" and count > 1
            size = self.fitted(value, min(34, part * 0.62), width * (0.55 if named else 1))
            if named:
                self.text(x, top + part * 0.45, self.clipped(series.name, 12, width * 0.42), 12)
            self.text(x + width if named else x + width / 2, top + part * 0.42, value, size, colour, "right" if named else "center", "medium")

    def _spark(self, series, colour, x, y, width, height):
        axes = self.axes(x, y, width, height)
        times, values = zip(*series.points)
        low, high = min(values), max(values)
        margin = (high - low) * 0.1 or 1.0
        axes.set_xlim(self.board.start, self.board.end)
        axes.set_ylim(low - margin, high + margin)
        axes.plot(times, values, color=colour, linewidth=0.8)
        axes.fill_between(times, values, low - margin, color=colour, alpha=0.15, linewidth=0)
        axes.set_xticks([])
        axes.set_yticks([])

    def _gauge(self, data, x, y, width, height):
        count = len(data.series)
        for i, series in enumerate(data.series):
            config = field_config(data.panel, series.name)
            low, high = config.get("min", 0), config.get("max", 100)
            share = min(1.0, max(0.0, (series.last - low) / (high - low)))
            part = width / count
            radius = min(part / 2, height * 0.78)
            axes = self.axes(x + part * (i + 0.5) - radius, y + height * 0.88 - radius, 2 * radius, radius)
            axes.set_xlim(-1, 1)
            axes.set_ylim(0, 1)
            axes.axis("off")
            colour = self.value_colour(config, series.last)
            axes.add_patch(patches.Wedge((0, 0), 1, 0, 180, width=0.24, color=self.theme["unfilled"], linewidth=0))
            axes.add_patch(patches.Wedge((0, 0), 1, 180 - 180 * share, 180, width=0.24, color=colour, linewidth=0))
            value = format_value(series.last, config["unit"], config.get("decimals"))
            self.text(x + part * (i + 0.5), y + height * 0.72, value, self.fitted(value, 26, radius * 1.3), colour, "center", "medium")
            if count > 1:
                self.text(x + part * (i + 0.5), y + height, self.clipped(series.name, 11, part), 11, align="center")

    def _bargauge(self, data, x, y, width, height):
        count = len(data.series)
        part = height / count
        size = min(13, max(8, part * 0.7))
        left = max(self.text_width(series.name, size) for series in data.series) + 10
        values = [format_value(series.last, field_config(data.panel, series.name)["unit"],
                               field_config(data.panel, series.name).get("decimals")) for series in data.series]
        right = max(self.text_width(value, size) for value in values) + 10
        for i, (series, value) in enumerate(zip(data.series, values)):
            config = field_config(data.panel, series.name)
            low, high = config.get("min", 0), config.get("max", 100)
            share = min(1.0, max(0.0, (series.last - low) / (high - low)))
            colour = self.value_colour(config, series.last)
            top, length = y + part * i, width - left - right
            self.text(x + left - 8, top + part / 2, series.name, size, align="right")
            self.box(x + left, top + part * 0.14, length, part * 0.72, self.theme["unfilled"], radius=1)
            if share > 0:
                self.box(x + left, top + part * 0.14, max(1.0, length * share), part * 0.72, colour, radius=1)
            self.text(x + width, top + part / 2, value, size, colour, "right")

    def _table(self, data, x, y, width, height):
        table = data.table
        line = 28
        cells = [[self._cell(data.panel, heading, value) for heading, value in zip(table.headings, row)] for row in table.rows]
        needs = [max(self.text_width(text, 12.5) for text in [heading, *(row[i][0] for row in cells)]) + 24 + (
            90 if any(row[i][2] is not None for row in cells) else 0) for i, heading in enumerate(table.headings)]
        spare = (width - sum(needs)) / len(needs)
        places = [x + sum(needs[:i]) + spare * i for i in range(len(needs))]
        shown = int((height - line) // line)
        for i, heading in enumerate(table.headings):
            numeric = any(isinstance(row[i], float) for row in table.rows)
            edge = places[i] + needs[i] + spare - 18
            self.text(edge if numeric else places[i] + 4, y + line / 2, heading, 12.5, COLOURS["blue"], "right" if numeric else "left", "medium")
            for j, row in enumerate(cells[:shown]):
                text, colour, share = row[i]
                top = y + line * (j + 1)
                if share is not None:
                    length = needs[i] + spare - 26 - self.text_width(text, 12.5) - 8
                    self.box(places[i] + 4, top + 5, max(1.0, length), line - 10, self.theme["unfilled"], radius=1)
                    self.box(places[i] + 4, top + 5, max(1.0, length * share), line - 10, colour, radius=1)
                self.text(edge if numeric else places[i] + 4, top + line / 2, text, 12.5, None if share is not None else colour,
                          "right" if numeric else "left")
        for j in range(min(shown, len(cells)) + 1):
            self.figure.add_artist(Line2D([x / self.width, (x + width) / self.width], [1 - (y + line * (j + 1)) / self.height] * 2,
                                          color=self.theme["edge"], linewidth=0.7))
        if len(cells) > shown:
            self.text(x + width, y - HEADER + 15, f"{shown} of {len(cells)} rows", 12, self.theme["soft"], "right")

    def _cell(self, panel, heading, value):
        """(text, colour, filled share of a gauge or None)."""
        config = field_config(panel, heading)
        if value is None:
            return "", self.theme["text"], None
        if isinstance(value, str):
            mapped = next((entry["options"][value] for entry in config.get("mappings", []) if value in entry["options"]), {})
            return mapped.get("text", value), self.colour(mapped.get("color", "text")), None
        text = format_value(value, config.get("unit", "none"), config.get("decimals"))
        if config.get("custom.cellOptions", {}).get("type") == "gauge":
            share = (value - config.get("min", 0)) / (config.get("max", 100) - config.get("min", 0))
            return text, self.value_colour(config, value), min(1.0, max(0.0, share))
        return text, self.theme["text"], None


def runs(points, step):
    """Splits a line at gaps of more than one and a half steps."""
    parts = []
    for point in points:
        if parts and point[0] - parts[-1][-1][0] <= 1.5 * step:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def format_moment(moment):
    return datetime.datetime.fromtimestamp(moment, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
