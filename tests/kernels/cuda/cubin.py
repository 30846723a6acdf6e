"""The kernels in the objects and programs that nvcc has made: what they need, and their machine code. Needs no CUDA tool.

A file has device code in one or more fat binaries, each with an image for every architecture: PTX, which is passed over, and ELF files
("cubins"), which nvcc does not compress. What is read of them are the symbols, .nv.info and the sections with code.
"""
import shutil
import struct
import subprocess

FAT_BINARY = struct.pack("<I", 0xBA55ED50)
ELF_IMAGE = 2
COMPRESSED = 0x2000 | 0x8000
# Attributes of a kernel in .nv.info (EIATTR_…).
MAX_THREADS, STACK, REGISTERS = 0x05, 0x11, 0x2F
ONE_SYMBOL = 0x04  # the format of an attribute that is a number of bytes, then the bytes (EIFMT_SVAL)
DRIVERS_SHARED = 1024  # bytes a thread block that sm_90 code has among its own

BRANCHES = {"(nsa::Branch)0": "cmp", "(nsa::Branch)1": "sel", "(nsa::Branch)2": "win"}
NOISE = ("void ", "nsa::cuda::", "(anonymous namespace)::", "(nsa::Activation)")


class Kernel:
    """One kernel for one architecture, e.g. 80 or 90."""

    def __init__(self, architecture, symbol, registers, stack, shared, threads, code):
        self.architecture, self.symbol = architecture, symbol
        self.registers = registers  # of a thread
        self.stack = stack  # bytes a thread: spilled registers, and arrays that are not in registers
        self.shared = shared  # bytes a thread block, without the dynamic ones and the driver's
        self.threads = threads  # most threads of a block; 0: not limited
        self.code = code  # instructions of 16 bytes
        self.name = ""  # as in the source, with template arguments; see name_all()

    def is_library(self):
        """Whether the kernel is CUB's, not ours."""
        return self.symbol.startswith("_ZN3cub")

    def opcodes(self):
        """What the instructions do, in the order of the code: their lowest twelve bits."""
        return [int.from_bytes(self.code[at : at + 2], "little") & 0xFFF for at in range(0, len(self.code), 16)]


def images(data):
    """Yields (architecture, ELF file) of the fat binaries in the bytes of a file."""
    at = 0
    while (at := data.find(FAT_BINARY, at)) >= 0:
        _, header, size = struct.unpack_from("<HHQ", data, at + 4)
        image, end = at + header, at + header + size
        while image < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, image)
            architecture, flags = struct.unpack_from("<I", data, image + 28)[0], struct.unpack_from("<Q", data, image + 40)[0]
            if kind == ELF_IMAGE:
                if flags & COMPRESSED:
                    raise ValueError("a compressed cubin (none is expected); compile without --compress-mode=size")
                yield architecture, data[image + header : image + header + size]
            image += header + size
        at = end


def text_at(data, offset):
    return data[offset : data.index(b"\0", offset)].decode()


class Elf:
    def __init__(self, data):
        self.data = data
        table, = struct.unpack_from("<Q", data, 0x28)
        size, count, names = struct.unpack_from("<HHH", data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
        self.sections = {text_at(data, headers[names][4] + header[0]): header for header in headers}

    def bytes_of(self, name):
        _, _, _, _, offset, size = self.sections[name]
        return self.data[offset : offset + size]

    def size_of(self, name):
        return self.sections[name][5] if name in self.sections else 0

    def attributes(self, name):
        """Yields (attribute, its words) of an .nv.info section."""
        if name not in self.sections:
            return
        info, at = self.bytes_of(name), 0
        while at + 4 <= len(info):
            form, attribute, size = struct.unpack_from("<BBH", info, at)
            at += 4
            if form == ONE_SYMBOL:
                yield attribute, struct.unpack_from(f"<{size // 4}I", info, at)
                at += size

    def kernels(self, architecture):
        symbols, strings = self.bytes_of(".symtab"), self.bytes_of(".strtab")
        needs = {REGISTERS: {}, STACK: {}}
        for attribute, words in self.attributes(".nv.info"):
            if attribute in needs:
                needs[attribute][text_at(strings, struct.unpack_from("<I", symbols, 24 * words[0])[0])] = words[1]
        for symbol, registers in needs[REGISTERS].items():
            if f".nv.info.{symbol}" not in self.sections:
                continue  # a function that kernels call
            threads = [words[0] * words[1] * words[2] for attribute, words in self.attributes(f".nv.info.{symbol}") if attribute == MAX_THREADS]
            shared = self.size_of(f".nv.shared.{symbol}") - (DRIVERS_SHARED if architecture >= 90 else 0)
            yield Kernel(architecture, symbol, registers, needs[STACK].get(symbol, 0), max(0, shared), threads[0] if threads else 0,
                         self.bytes_of(f".text.{symbol}"))


def name_all(kernels):
    """Sets their names; where there is no c++filt, which comes with a compiler, to the symbols."""
    names = [kernel.symbol for kernel in kernels]
    if shutil.which("c++filt"):
        names = subprocess.run(["c++filt", "--no-params"], input="\n".join(names), capture_output=True, text=True, check=True).stdout.splitlines()
    for kernel, name in zip(kernels, names):
        for long, short in [*BRANCHES.items(), *((noise, "") for noise in NOISE)]:
            name = name.replace(long, short)
        kernel.name = name


def kernels_of(path):
    """The kernels of a file; one that several objects have is there several times."""
    with open(path, "rb") as file:
        kernels = [kernel for architecture, elf in images(file.read()) for kernel in Elf(elf).kernels(architecture)]
    name_all(kernels)
    return kernels


def compiler_of(path):
    """The release of ptxas that has made the file, e.g. 13.0.88; empty without device code."""
    with open(path, "rb") as file:
        for _, elf in images(file.read()):
            note = Elf(elf).bytes_of(".note.nv.tkinfo")
            return text_at(note, note.index(b", V") + 3)
    return ""
