#!/usr/bin/env python3
"""Checks in the machine code of programs that every kernel waits for the kernel in front of it before it touches global memory.

kernels/cuda/begin.cuh says why it must. A compiler may move a load of constant data in front of the wait, which no test of results
would show every time.

  wait_first.py FILE…       objects, libraries or programs with kernels for sm_90 or newer; kernels for older GPUs do not wait
  wait_first.py --self-test proves on made-up machine code that it finds faults

Exit: 0 all do, 1 one does not.
"""
import sys

import cubin

WAIT = 0x82E  # ACQBULK, which griddepcontrol.wait becomes
# Loads, stores, copies and atomic operations on global memory; prefetches change nothing that the kernel reads.
GLOBAL = {0x980: "LD", 0x981: "LDG", 0x985: "ST", 0x986: "STG", 0xFAE: "LDGSTS", 0x98A: "ATOM", 0x38B: "ATOM.CAS", 0x9A8: "ATOMG", 0x3A9: "ATOMG.CAS",
          0x98E: "RED", 0x9A6: "REDG", 0x3BA: "UBLKCP", 0x3BB: "UBLKRED", 0x5B4: "UTMALDG", 0x3B5: "UTMASTG", 0x3B6: "UTMAREDG"}
WITHOUT = "EmptyKernel"  # never launched (kernels/cuda/architecture.cu)


def complaint(opcodes):
    """What is wrong with a kernel; empty when nothing is."""
    for opcode in opcodes:
        if opcode == WAIT:
            return ""
        if opcode in GLOBAL:
            return f"{GLOBAL[opcode]} in front of the wait"
    return "no wait"


def faults(kernels):
    """The complaints about the kernels that must wait, and how many there are."""
    waiting = [kernel for kernel in kernels if kernel.architecture >= 90 and not kernel.is_library() and WITHOUT not in kernel.name]
    return [f"{kernel.name}: {problem}" for kernel in waiting if (problem := complaint(kernel.opcodes()))], len(waiting)


def self_test():
    def faults_of(architecture, *opcodes):
        kernel = cubin.Kernel(architecture, "", 0, 0, 0, 0, b"".join((0xF000 | opcode).to_bytes(16, "little") for opcode in opcodes))
        kernel.name = "kernel"
        return faults([kernel])

    tid, lds = 0x919, 0x984
    assert faults_of(90, tid, lds, WAIT, 0x981) == ([], 1)
    assert faults_of(90, 0x981, WAIT)[0] == ["kernel: LDG in front of the wait"]
    assert faults_of(90, tid, 0xFAE, WAIT)[0] == ["kernel: LDGSTS in front of the wait"]
    assert faults_of(90, tid, lds)[0] == ["kernel: no wait"]
    assert faults_of(80, 0x981) == ([], 0)
    return 0


def main(files):
    if files == ["--self-test"]:
        return self_test()
    found, seen = faults([kernel for file in files for kernel in cubin.kernels_of(file)])
    for problem in found:
        print(f"{problem}; see kernels/cuda/begin.cuh")
    print(f"{seen} kernels for sm_90 or newer, {len(found)} of them wrong")
    return 1 if found or not seen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
