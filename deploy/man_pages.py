#!/usr/bin/env python3
"""Writes manual pages of the programs from their --help, so that there is no second text to keep.

    deploy/man_pages.py PROGRAM… FOLDER

nsactl gets a page for itself and one for each of its commands (nsactl-stop.1); the daemons are in section 8.
"""
import gzip
import pathlib
import re
import subprocess
import sys

HEADING = re.compile(r"^([A-Z][A-Za-z ]*):$")
# A line of `nsactl --help` that names a command.
COMMAND = re.compile(r"^  ([a-z][a-z-]*) {2,}\S")


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin", "NO_COLOR": "1"}).stdout


def escaped(line):
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return f"\\&{line}" if line.startswith((".", "'")) else line


def page(name, section, text, version):
    """The help as a page: its first line, its usage, its description, and each part under its heading, laid out as it is."""
    lines = text.strip().split("\n")
    usage = next((line for line in lines if line.startswith("Usage: ")), f"Usage: {name}")
    what = next(line for line in lines if line and not line.startswith("Usage: "))
    parts = {"DESCRIPTION": []}
    heading = "DESCRIPTION"
    for line in lines:
        if match := HEADING.match(line):
            heading = match[1].upper()
        elif line in (usage, what):
            continue
        elif line and not line.startswith(" "):
            parts["DESCRIPTION"].append(line)
        elif line:
            parts.setdefault(heading, []).append(line)
    out = [f'.TH "{name.upper()}" "{section}" "" "nsa {version}" "NSA training service"', ".SH NAME", f"{escaped(name)} \\- {escaped(what.split(': ', 1)[-1])}",
           ".SH SYNOPSIS", ".nf", escaped(usage.removeprefix("Usage: ")), ".fi"]
    for heading, part in parts.items():
        if part:
            out += [f".SH {heading}", ".nf", *map(escaped, part), ".fi"]
    return "\n".join([*out, ""])


def commands_of(program, words=()):
    """Every command, also below others: ("admin",), ("admin", "backup")."""
    for line in help_of(program, *words).split("\n"):
        if match := COMMAND.match(line):
            yield (*words, match[1])
            if len(words) < 1:
                yield from commands_of(program, (*words, match[1]))


def main():
    *programs, folder = sys.argv[1:]
    for program in map(pathlib.Path, programs):
        name = program.name
        section = 1 if name == "nsactl" else 8
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        texts = {name: help_of(program)}
        if name == "nsactl":
            texts |= {"-".join([name, *words]): help_of(program, *words) for words in commands_of(program)}
        where = pathlib.Path(folder) / f"man{section}"
        where.mkdir(parents=True, exist_ok=True)
        for title, text in texts.items():
            # No time in it: the same programs give the same bytes.
            (where / f"{title}.{section}.gz").write_bytes(gzip.compress(page(title, section, text, version).encode(), mtime=0))


if __name__ == "__main__":
    main()
