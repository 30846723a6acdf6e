#!/usr/bin/env python3
"""Draws the loss curve of a run as an SVG picture. Needs only Python's standard library.

    deploy/plot/curve.py OUT_DIR [-o curve.svg] [--title TEXT] [--x step|tokens|minutes]
                         [--line 2.53 "order-1 statistics"] [--dark]

Reads OUT_DIR/training.csv (thin line and a running mean) and OUT_DIR/val.csv (dots). Minutes are training time: gaps between
the end of a run and its continuation do not count.
"""
import argparse
import csv
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 44, 56
LIGHT = {"back": "#ffffff", "ink": "#1f2328", "soft": "#59636e", "grid": "#d8dee4",
         "raw": "#b6d4fe", "mean": "#0969da", "val": "#bc4c00", "line": "#59636e"}
DARK = {"back": "#0d1117", "ink": "#e6edf3", "soft": "#9198a1", "grid": "#2b3139",
        "raw": "#1f4b80", "mean": "#4493f8", "val": "#f0883e", "line": "#9198a1"}
LONGEST_STEP_SECONDS = 3600.0


def read_csv(path):
    """Rows of a CSV file as dicts of floats (text stays text); [] when there is no file."""
    if not path.exists():
        return []
    rows = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            parsed = {}
            for key, value in row.items():
                try:
                    parsed[key] = float(value)
                except (TypeError, ValueError):
                    parsed[key] = value
            rows.append(parsed)
    return rows


def elapsed_minutes(rows):
    """Training minutes at each row: the time between rows, without gaps that are longer than any step."""
    minutes, total = [], 0.0
    for previous, row in zip([None] + rows, rows):
        if previous is None:
            total += row.get("step_seconds", 0.0)
        else:
            steps = row["step"] - previous["step"]
            gap = row["unix_seconds"] - previous["unix_seconds"]
            slowest = 3 * max(row.get("step_seconds", 0.0), previous.get("step_seconds", 0.0)) * steps + 60
            total += min(gap, slowest, LONGEST_STEP_SECONDS * steps) if gap > 0 else 0.0
        minutes.append(total / 60)
    return minutes


def interpolate(xs, ys, x):
    """y at x on the line through the points; beyond the ends, the value of the nearest end."""
    for i in range(1, len(xs)):
        if x <= xs[i]:
            share = (x - xs[i - 1]) / (xs[i] - xs[i - 1]) if xs[i] > xs[i - 1] else 1.0
            return ys[i - 1] + max(0.0, share) * (ys[i] - ys[i - 1])
    return ys[-1]


def running_mean(values, width):
    means = []
    for i in range(len(values)):
        part = values[max(0, i - width + 1):i + 1]
        means.append(sum(part) / len(part))
    return means


def ticks(low, high, count):
    """About `count` round numbers within [low, high]."""
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / count))
    for factor in (1, 2, 5, 10):
        if span / (step * factor) <= count:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def label(value):
    if value >= 1e9:
        return f"{value / 1e9:g}G"
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    if value >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


class Picture:
    """An SVG picture of one pair of axes."""

    def __init__(self, x_range, y_range, colours):
        self.x_range, self.y_range, self.colours = x_range, y_range, colours
        self.parts = []

    def x(self, value):
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        low, high = self.y_range
        clipped = min(max(value, low), high)
        return HEIGHT - BOTTOM - (clipped - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def text(self, x, y, text, colour, anchor="start", size=13, extra=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" fill="{self.colours[colour]}" font-size="{size}" '
                          f'text-anchor="{anchor}" {extra}>{escape(text)}</text>')

    def line(self, points, colour, width, dash=""):
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{self.colours[colour]}" '
                          f'stroke-width="{width}" stroke-linejoin="round" stroke-dasharray="{dash}"/>')

    def dots(self, points, colour):
        for x, y in points:
            self.parts.append(f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="3.5" '
                              f'fill="{self.colours[colour]}"/>')

    def axes(self, x_title, y_title):
        for value in ticks(*self.y_range, 7):
            self.line([(self.x_range[0], value), (self.x_range[1], value)], "grid", 1)
            self.text(LEFT - 8, self.y(value) + 4, label(value), "soft", "end", 12)
        for value in ticks(*self.x_range, 8):
            self.text(self.x(value), HEIGHT - BOTTOM + 20, label(value), "soft", "middle", 12)
        self.line([(self.x_range[0], self.y_range[0]), (self.x_range[1], self.y_range[0])], "soft", 1)
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_title, "ink", "middle")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.text(18, middle, y_title, "ink", "middle", 13, f'transform="rotate(-90 18 {middle:.0f})"')

    def svg(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
                f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif">\n'
                f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{self.colours["back"]}"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def draw(training, validation, arguments):
    """The picture of a run's rows."""
    training = [row for row in training if isinstance(row["loss"], float) and math.isfinite(row["loss"])]
    if not training:
        sys.exit("curve.py: training.csv has no row with a finite loss")
    steps = [row["step"] for row in training]
    along = {"step": steps, "tokens": [row["total_tokens"] for row in training],
             "minutes": elapsed_minutes(training)}[arguments.x]
    losses = [row["loss"] for row in training]
    val = [(interpolate(steps, along, row["step"]), row["val_loss"]) for row in validation]
    lines = [float(value) for value, _ in arguments.line]
    # The high first losses would flatten the rest of the curve, so the picture begins after 3 % of the run.
    shown = losses[len(losses) * 3 // 100:] + [y for _, y in val] + lines
    low, high = min(shown), max(shown)
    margin = 0.06 * (high - low) + 1e-6
    colours = DARK if arguments.dark else LIGHT
    picture = Picture((0.0, max(along) or 1.0), (low - margin, high + margin), colours)
    names = {"step": "optimizer steps", "tokens": "training tokens", "minutes": "minutes of training"}
    picture.axes(names[arguments.x], "loss, nats a token")
    picture.line(list(zip(along, losses)), "raw", 1)
    picture.line(list(zip(along, running_mean(losses, max(1, len(losses) // 40)))), "mean", 2)
    for value, text in arguments.line:
        picture.line([(0.0, float(value)), (max(along), float(value))], "line", 1.2, "5 4")
        picture.text(WIDTH - RIGHT, picture.y(float(value)) - 5, f"{text} {value}", "line", "end", 12)
    picture.line(val, "val", 1.2)
    picture.dots(val, "val")
    picture.text(LEFT, 26, arguments.title, "ink", size=16)
    legend = "training, its running mean"
    picture.text(WIDTH - RIGHT - (190 if val else 0), 26, legend, "mean", "end", 12)
    if val:
        picture.text(WIDTH - RIGHT, 26, f"validation, last {val[-1][1]:.3f}", "val", "end", 12)
    return picture.svg()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("curve.svg"))
    parser.add_argument("--title", default="")
    parser.add_argument("--x", choices=["step", "tokens", "minutes"], default="step")
    parser.add_argument("--line", nargs=2, action="append", default=[], metavar=("LOSS", "TEXT"))
    parser.add_argument("--dark", action="store_true")
    arguments = parser.parse_args()
    training = read_csv(arguments.out_dir / "training.csv")
    if not training:
        sys.exit(f"curve.py: {arguments.out_dir}/training.csv: no rows; is it an out_dir?")
    arguments.output.write_text(draw(training, read_csv(arguments.out_dir / "val.csv"), arguments))
    print(f"{arguments.output}: {len(training)} rows")


if __name__ == "__main__":
    main()
