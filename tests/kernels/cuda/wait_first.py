#!/usr/bin/env python3
"""Checks in the machine code of programs that every kernel waits for the kernel in front of it before it touches global memory.

kernels/cuda/begin.cuh says why it must. A compiler may move a load of constant data in front of the wait, which no test of results
would show every time.

  wait_first.py PROGRAM…    programs with kernels for sm_90 or newer; kernels for older GPUs do not wait
  wait_first.py --self-test proves on made-up machine code that it finds faults

Exit: 0 all do, 1 one does not, 77 without cuobjdump (it is part of the CUDA toolkit).
"""
import re
import shutil
import subprocess
import sys

WAIT = "ACQBULK"  # griddepcontrol.wait
# Loads, stores, copies and atomic operations on global memory; LDS, STS, LDL and the like are on other memory.
GLOBAL = re.compile(r"^(LD|LDG|LDGSTS|ST|STG|ATOM|ATOMG|RED|REDG|UBLK\w+|UTMA\w+)(\.|$)")
WITHOUT = "EmptyKernel"  # never launched (kernels/cuda/architecture.cu)


def kernels(text):
    """Yields (architecture, name, opcodes) of the kernels in cuobjdump's output."""
    architecture, name, opcodes = 0, None, []
    for line in text.splitlines():
        if found := re.search(r"code for sm_(\d+)", line):
            if name:
                yield architecture, name, opcodes
            architecture, name = int(found[1]), None
        elif found := re.search(r"Function : (\S+)", line):
            if name:
                yield architecture, name, opcodes
            name, opcodes = found[1], []
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)", line):
            opcodes.append(found[1])
    if name:
        yield architecture, name, opcodes


def complaint(opcodes):
    """What is wrong with a kernel; empty when nothing is."""
    for opcode in opcodes:
        if opcode.startswith(WAIT):
            return ""
        if GLOBAL.match(opcode):
            return f"{opcode} in front of the wait"
    return "no wait"


def faults(text):
    """The complaints about the kernels that must wait, and how many there are."""
    waiting = [(name, opcodes) for architecture, name, opcodes in kernels(text) if architecture >= 90 and WITHOUT not in name]
    return [f"{name}: {problem}" for name, opcodes in waiting if (problem := complaint(opcodes))], len(waiting)


def self_test():
    def text(architecture, *lines):
        return f"code for sm_{architecture}\n\t\tFunction : kernel\n" + "".join(f"        /*00{i:x}0*/  {line} ;\n" for i, line in enumerate(lines))

    good = ["S2R R0, SR_TID.X", "STS [R1], R2", "ACQBULK", "@!P0 LDG.E R2, [R4]"]
    assert faults(text("90a", *good)) == ([], 1)
    assert faults(text("90a", "@!P0 LDG.E R2, [R4]", "ACQBULK"))[0] == ["kernel: LDG.E in front of the wait"]
    assert faults(text("90a", "LDGSTS.E [R1], [R2]", "ACQBULK"))[0] == ["kernel: LDGSTS.E in front of the wait"]
    assert faults(text("90a", "S2R R0, SR_TID.X", "EXIT"))[0] == ["kernel: no wait"]
    assert faults(text("80", "LDG.E R2, [R4]")) == ([], 0)
    return 0


def main(programs):
    if programs == ["--self-test"]:
        return self_test()
    if not shutil.which("cuobjdump"):
        print("no cuobjdump here")
        return 77
    problems, seen = [], 0
    for program in programs:
        found, count = faults(subprocess.run(["cuobjdump", "-sass", program], capture_output=True, text=True, check=True).stdout)
        problems, seen = problems + found, seen + count
    for problem in problems:
        print(f"{problem}; see kernels/cuda/begin.cuh")
    print(f"{seen} kernels for sm_90 or newer, {len(problems)} of them wrong")
    return 1 if problems or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
