#!/usr/bin/env python3
"""No kernel takes more registers, stack or shared memory than resources.golden has for it, in the code for sm_80 and in that for sm_90a.

Stack is where a register is spilled to, and a spill in an inner loop costs more than any test of results shows. One register more can cost
a thread block on each multiprocessor.

  resources_test.py FILE        an object, a library or a program that nvcc has made; NSA_WRITE_GOLDEN=1 writes resources.golden again
  resources_test.py --self-test proves on made-up numbers that it finds faults

Exit: 0 all do, 1 one does not, 77 with another release of the compiler than that of resources.golden, which may take others.
"""
import collections
import os
import pathlib
import sys

import cubin

GOLDEN = pathlib.Path(__file__).with_name("resources.golden")
ARCHITECTURES = (80, 90)
NUMBERS = ("registers", "stack", "shared")
HEADER = """Registers of a thread, bytes of its stack, and bytes of shared memory of a thread block that are not dynamic; for sm_80, then for sm_90a.
Written by resources_test.py with ptxas """


def needs_of(kernels):
    """{name: [registers, stack, shared for sm_80, the same for sm_90a]}; of kernels of the same name the most."""
    needs = collections.defaultdict(lambda: [0] * len(ARCHITECTURES) * len(NUMBERS))
    for kernel in kernels:
        if kernel.is_library():
            continue
        row, first = needs[kernel.name], ARCHITECTURES.index(kernel.architecture) * len(NUMBERS)
        for i, number in enumerate((kernel.registers, kernel.stack, kernel.shared)):
            row[first + i] = max(row[first + i], number)
    return dict(needs)


def format_rows(needs):
    return "".join(f"{name:40}" + "".join(f"{number:8}" for number in needs[name]) + "\n" for name in sorted(needs))


def parse_rows(text):
    count = len(ARCHITECTURES) * len(NUMBERS)
    rows = (line.rsplit(maxsplit=count) for line in text.splitlines() if line)
    return {row[0].rstrip(): [int(number) for number in row[1:]] for row in rows}


def faults(needs, limits):
    for name in sorted(needs.keys() | limits.keys()):
        if name not in limits:
            yield f"{name}: has no row"
        elif name not in needs:
            yield f"{name}: is no kernel"
        else:
            for i, (number, limit) in enumerate(zip(needs[name], limits[name])):
                if number > limit:
                    architecture, what = ARCHITECTURES[i // len(NUMBERS)], NUMBERS[i % len(NUMBERS)]
                    yield f"{name}: sm_{architecture}: {what}: {number} (at most {limit})"


def self_test():
    limits = parse_rows("Two<1, 2>   40 0 0   41 8 16\nOne  1 2 3 4 5 6\n")
    assert limits == {"Two<1, 2>": [40, 0, 0, 41, 8, 16], "One": [1, 2, 3, 4, 5, 6]}
    assert parse_rows(format_rows(limits)) == limits
    assert not list(faults({"Two<1, 2>": [39, 0, 0, 41, 8, 16], "One": [1, 2, 3, 4, 5, 6]}, limits))
    assert list(faults({"Two<1, 2>": [40, 4, 0, 41, 8, 17], "Three": [0] * 6}, limits)) == [
        "One: is no kernel", "Three: has no row", "Two<1, 2>: sm_80: stack: 4 (at most 0)", "Two<1, 2>: sm_90: shared: 17 (at most 16)"]
    kernels = [cubin.Kernel(90, "", 10, 0, 0, 0, b""), cubin.Kernel(90, "", 8, 16, 0, 0, b""), cubin.Kernel(80, "", 9, 0, 4, 0, b"")]
    assert needs_of(kernels) == {"": [9, 0, 4, 10, 16, 0]}


def main(argument):
    if argument == "--self-test":
        return self_test()
    needs, compiler = needs_of(cubin.kernels_of(argument)), cubin.compiler_of(argument)
    if os.environ.get("NSA_WRITE_GOLDEN"):
        GOLDEN.write_text(f"{HEADER}{compiler}\n\n{format_rows(needs)}")
    header, rows = GOLDEN.read_text().split("\n\n", 1)
    if (of_golden := header.split()[-1]) != compiler:
        print(f"compiled by ptxas {compiler}, and resources.golden is of {of_golden}")
        return 77
    found = list(faults(needs, parse_rows(rows)))
    for fault in found:
        print(f"{fault}; if that is meant, run this with NSA_WRITE_GOLDEN=1")
    print(f"{len(needs)} kernels, {len(found)} faults")
    return 1 if found or not needs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
