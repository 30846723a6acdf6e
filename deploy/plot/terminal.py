#!/usr/bin/env python3
"""Records what a program shows on a terminal, and draws a terminal's screen as a picture. Needs only Python's standard library.

    deploy/plot/terminal.py record -o watch.cast [--columns 100] [--lines 24] [--for SECONDS] -- nsactl watch demo
    deploy/plot/terminal.py draw watch.cast -o watch.svg [--at SECONDS] [--title TEXT] [--light]
    tmux capture-pane -e -p >screen.txt; deploy/plot/terminal.py draw screen.txt -o screen.svg

`record` runs the program on its own pseudo-terminal and writes an asciicast (version 2, which asciinema can play). It ends with the program;
after --for seconds, or on SIGTERM, it interrupts the program. The exit code is the program's. `draw` takes such a recording, or text with
ANSI escapes as tmux captures it, and shows the screen at second --at (negative: before the end; default: the end).
"""
import argparse
import fcntl
import json
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from xml.sax.saxutils import escape

from terminal_screen import Screen

GRACE_SECONDS = 10
CELL_WIDTH, CELL_HEIGHT, FONT, EDGE, TITLE = 8.4, 18, 14, 14, 30
DARK = {"back": "#0d1117", "bar": "#21262d", "text": "#e6edf3", "soft": "#9198a1",
        "colours": ["#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4",
                    "#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#ffffff"]}
LIGHT = {"back": "#ffffff", "bar": "#eaeef2", "text": "#1f2328", "soft": "#59636e",
         "colours": ["#24292f", "#cf222e", "#116329", "#9a6700", "#0969da", "#8250df", "#1b7c83", "#6e7781",
                     "#57606a", "#a40e26", "#1a7f37", "#bf8700", "#218bff", "#a475f9", "#3192aa", "#8c959f"]}
# Block elements are drawn as boxes: (left, top, width, height, opacity) in parts of a cell.
BLOCKS = {"█": (0, 0, 1, 1, 1), "▀": (0, 0, 1, .5, 1), "▄": (0, .5, 1, .5, 1), "▐": (.5, 0, .5, 1, 1),
          "░": (0, 0, 1, 1, .25), "▒": (0, 0, 1, 1, .5), "▓": (0, 0, 1, 1, .75)}
BLOCKS.update({letter: (0, 0, 1 - i / 8, 1, 1) for i, letter in enumerate("▉▊▋▌▍▎▏", start=1)})


def record(arguments):
    """Runs the command on a pseudo-terminal and writes its output to the file, with times."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", arguments.lines, arguments.columns, 0, 0))
    environment = {"LC_ALL": "C.UTF-8", **os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    asked = []  # times of signals; the handlers are set before the program starts, so that it does not inherit an ignored SIGINT
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.append(time.monotonic()))
    process = subprocess.Popen(arguments.command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True)
    os.close(slave)
    begin, interrupted = time.monotonic(), None
    with open(arguments.output, "w", encoding="utf-8") as file:
        header = {"version": 2, "width": arguments.columns, "height": arguments.lines, "timestamp": int(time.time()),
                  "command": " ".join(arguments.command)}
        file.write(json.dumps(header) + "\n")
        while True:
            # When the last program on a terminal has ended, read() fails on Linux.
            try:
                data = os.read(master, 65536) if select.select([master], [], [], 0.2)[0] else None
            except OSError:
                break
            now = time.monotonic()
            if data:
                file.write(json.dumps([round(now - begin, 3), "o", data.decode(errors="replace")]) + "\n")
                file.flush()
            if interrupted is None and (asked or now - begin > arguments.seconds):
                interrupted = now
                os.killpg(process.pid, signal.SIGINT)
            if interrupted is not None and now - interrupted > GRACE_SECONDS:
                os.killpg(process.pid, signal.SIGKILL)
    os.close(master)
    code = process.wait()
    return code if code >= 0 else 128 - code


def load(path, at):
    """The screen of a recording or a captured text at a given time."""
    text = path.read_bytes().decode(errors="replace")
    first, _, rest = text.partition("\n")
    if not first.startswith('{"version"'):
        lines = text.rstrip("\n").split("\n")
        width = max((len(re.sub(r"\x1b\[[0-9;:]*m", "", line)) for line in lines), default=1)
        screen = Screen(max(width, 1), len(lines))
        screen.feed("\r\n".join(lines))
        return screen
    header = json.loads(first)
    events = []
    for line in rest.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # its recorder was killed while it wrote this line
    if at is not None and at < 0 and events:
        at += events[-1][0]
    screen = Screen(header["width"], header["height"])
    for moment, kind, data in events:
        if at is not None and moment > at:
            break
        if kind == "o":
            screen.feed(data)
    return screen


def colour(theme, value, default):
    """A cell's colour as #rrggbb: None, a number of the 256, or (r, g, b)."""
    if value is None:
        return default
    if isinstance(value, tuple):
        return "#%02x%02x%02x" % value
    if value < 16:
        return theme["colours"][value]
    if value < 232:
        steps = (0, 95, 135, 175, 215, 255)
        value -= 16
        return "#%02x%02x%02x" % (steps[value // 36], steps[value // 6 % 6], steps[value % 6])
    return "#%02x%02x%02x" % ((8 + 10 * (value - 232),) * 3)


def runs(line):
    """[(column, style, text)]: neighbouring characters of one style; equal block elements form their own run."""
    parts = []
    for column, (letter, style) in enumerate(line):
        kind = letter if letter in BLOCKS else None
        if parts and parts[-1][1] == style and parts[-1][3] == kind:
            parts[-1][2] += letter
        else:
            parts.append([column, style, letter, kind])
    return parts


def rectangle(x, y, width, height, fill, more=""):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'


def draw(screen, title, theme):
    """The screen as SVG. Empty lines at the bottom are left out."""
    lines = screen.lines()
    while len(lines) > 1 and all(letter == " " and style.back is None for letter, style in lines[-1]):
        lines.pop()
    width, top = screen.columns * CELL_WIDTH + 2 * EDGE, EDGE + TITLE
    height = top + len(lines) * CELL_HEIGHT + EDGE
    out = [rectangle(0, 0, width, height, theme["back"], ' rx="8"'),
           f'<path d="M0 {TITLE}V8a8 8 0 0 1 8-8H{width - 8:.1f}a8 8 0 0 1 8 8V{TITLE}Z" fill="{theme["bar"]}"/>',
           f'<text x="{width / 2:.1f}" y="{TITLE - 10}" text-anchor="middle" font-size="12" fill="{theme["soft"]}">{escape(title)}</text>']
    for row, line in enumerate(lines):
        y = top + row * CELL_HEIGHT
        for column, style, text, block in runs(line):
            out += draw_run(EDGE + column * CELL_WIDTH, y, style, text, block, theme)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}" '
            f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,\'DejaVu Sans Mono\',monospace" font-size="{FONT}">\n'
            + "\n".join(out) + "\n</svg>\n")


def draw_run(x, y, style, text, block, theme):
    front, back = colour(theme, style.front, theme["text"]), colour(theme, style.back, theme["back"])
    if style.reverse:
        front, back = back, front
    width = len(text) * CELL_WIDTH
    out = [] if back == theme["back"] else [rectangle(x, y, width, CELL_HEIGHT, back)]
    if block:
        left, top, across, down, opacity = BLOCKS[block]
        # Full-cell blocks are joined into one bar; others are drawn cell by cell.
        cells = [(x, width)] if across == 1 else [(x + i * CELL_WIDTH, CELL_WIDTH) for i in range(len(text))]
        return out + [rectangle(at + left * size, y + top * CELL_HEIGHT + 2, across * size, down * CELL_HEIGHT - 4, front,
                                f' fill-opacity="{opacity}"' if opacity < 1 else "") for at, size in cells]
    if not text.strip():
        return out
    more = (' font-weight="bold"' if style.bold else "") + (' opacity="0.65"' if style.dim else "") + (
        ' font-style="italic"' if style.italic else "") + (' text-decoration="underline"' if style.underline else "")
    return out + [f'<text x="{x:.1f}" y="{y + 13.5:.1f}" textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" xml:space="preserve" '
                  f'fill="{front}"{more}>{escape(text)}</text>']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("-o", "--output", type=pathlib.Path, required=True)
    recorder.add_argument("--columns", type=int, default=100)
    recorder.add_argument("--lines", type=int, default=24)
    recorder.add_argument("--for", dest="seconds", type=float, default=600.0, metavar="SECONDS")
    recorder.add_argument("command", nargs="+")
    drawer = verbs.add_parser("draw")
    drawer.add_argument("input", type=pathlib.Path)
    drawer.add_argument("-o", "--output", type=pathlib.Path, required=True)
    drawer.add_argument("--at", type=float, metavar="SECONDS")
    drawer.add_argument("--title", default="")
    drawer.add_argument("--light", action="store_true")
    arguments = parser.parse_args()
    if arguments.verb == "record":
        return record(arguments)
    screen = load(arguments.input, arguments.at)
    arguments.output.write_text(draw(screen, arguments.title, LIGHT if arguments.light else DARK), encoding="utf-8")
    print(f"{arguments.output}: {screen.columns} columns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
