#!/usr/bin/python3
"""Draws a Grafana dashboard as a picture, without Grafana, and says which of its panels are empty.

    deploy/plot/dashboard.py --recording metrics.om -o dashboard.png       a recording of record_metrics.py; starts a Prometheus over it
    deploy/plot/dashboard.py --blocks DATA_DIR -o dashboard.png            the data folder of a Prometheus, which is not changed
    deploy/plot/dashboard.py --prometheus 127.0.0.1:9090 -o dashboard.png  a running Prometheus; the last hour, or --last SECONDS
    deploy/plot/dashboard.py --recording metrics.om --strict               draws nothing: a test of dashboard and metrics

    [--dashboard FILE] [--row TITLE]... [--var job_id=ID[,ID]]... [--theme dark|light] [--width 1200] [--scale 1.5]
    [--from TIME] [--to TIME] [--interval SECONDS] [--strict] [--empty-ok TITLE]...

TIME is in Unix seconds; a negative one counts from the end of the data. Variables, steps and $__rate_interval are resolved as Grafana
resolves them for a data source with the scrape interval --interval (default: that of the recording, else 15 s). Every query that fails
or returns nothing is reported; with --strict the exit code is then 1, unless --empty-ok names its panel. Needs
the packages of `deploy/packages.sh plot`.
"""
import argparse
import contextlib
import json
import pathlib
import sys
import time

from board import Board
from prometheus_api import Prometheus, PrometheusError, prometheus_over

HERE = pathlib.Path(__file__).resolve().parent


@contextlib.contextmanager
def source_of(arguments):
    """(Prometheus, start, end, scrape interval)."""
    if arguments.prometheus:
        now = time.time()
        yield Prometheus(arguments.prometheus), now - arguments.last, now, None
    else:
        with prometheus_over(arguments.recording or arguments.blocks) as source:
            yield source


def chosen_rows(board, titles):
    rows = board.rows()
    for title in titles:
        if title not in [row[0] for row in rows]:
            raise ValueError(f"row '{title}': the dashboard has none of this name ({', '.join(str(row[0]) for row in rows)})")
    return [row for row in rows if not titles or row[0] in titles]


def report(rows, empty_ok):
    """Prints the problems; returns the number of panels that have one."""
    count = faults = 0
    for _, panels in rows:
        for data in panels:
            count += 1
            title = data.panel["title"]
            for problem in data.problems:
                print(f"panel '{title}': {problem}" + (" (allowed)" if title in empty_ok else ""), file=sys.stderr)
            faults += bool(data.problems) and title not in empty_ok
    print(f"{count - faults} of {count} panels are filled" + (f", {faults} are not" if faults else ""))
    return faults


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--recording", type=pathlib.Path)
    source.add_argument("--blocks", type=pathlib.Path)
    source.add_argument("--prometheus", metavar="ADDRESS")
    parser.add_argument("--dashboard", type=pathlib.Path, default=HERE.parent / "grafana" / "dashboards" / "nsa.json")
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--row", action="append", default=[], help="only this row; may be repeated")
    parser.add_argument("--var", action="append", default=[], metavar="NAME=VALUE[,VALUE]")
    parser.add_argument("--theme", choices=["dark", "light"], default="dark")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--scale", type=float, default=1.5, help="dots a pixel")
    parser.add_argument("--from", dest="start", type=float)
    parser.add_argument("--to", dest="end", type=float)
    parser.add_argument("--last", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--interval", type=float, metavar="SECONDS")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--empty-ok", action="append", default=[], metavar="TITLE")
    arguments = parser.parse_args()
    for path in (arguments.recording, arguments.blocks, arguments.dashboard):
        if path and not path.exists():
            parser.error(f"{path}: does not exist")
    if not arguments.output and not arguments.strict:
        parser.error("-o FILE.png, or --strict, or both")
    return arguments


def run(arguments):
    chosen = {name: values.split(",") for name, _, values in (entry.partition("=") for entry in arguments.var)}
    with source_of(arguments) as (prometheus, first, last, interval):
        start, end = (default if given is None else given + last if given < 0 else given
                      for given, default in ((arguments.start, first), (arguments.end, last)))
        if not start < end:
            raise ValueError(f"--from {start:.0f} is not before --to {end:.0f}; the data goes from {first:.0f} to {last:.0f}")
        board = Board(json.loads(arguments.dashboard.read_text()), prometheus, start, end, arguments.interval or interval or 15.0, chosen, arguments.width)
        rows = [(title, [board.evaluate(panel) for panel in panels]) for title, panels in chosen_rows(board, arguments.row)]
    faults = report(rows, arguments.empty_ok)
    if arguments.output:
        draw(board, rows, arguments)
    return 1 if faults and arguments.strict else 0


def draw(board, rows, arguments):
    try:
        from board_picture import Picture
    except ImportError as error:
        raise PrometheusError(f"{error}; install it with deploy/packages.sh plot (a Debian package: it is there for /usr/bin/python3)") from error
    picture = Picture(board, arguments.theme, arguments.scale)
    picture.draw(rows)
    picture.save(arguments.output)
    print(f"{arguments.output}: {picture.width} x {picture.height}, {arguments.output.stat().st_size} bytes")


def main():
    arguments = parse()
    try:
        return run(arguments)
    except (PrometheusError, ValueError) as error:
        print(f"dashboard.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
