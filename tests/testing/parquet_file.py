"""Writes Parquet files of columns of texts: PLAIN, not compressed, several pages a row group."""
import struct


class Thrift:
    """Thrift's compact protocol: a struct, field after field."""

    def __init__(self):
        self.bytes, self.last = b"", 0

    @staticmethod
    def varint(value):
        out = b""
        while value >= 0x80:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    def field(self, number, kind):
        self.bytes += bytes([(number - self.last) << 4 | kind])
        self.last = number
        return self

    def integer(self, number, value, kind=5):
        self.field(number, kind).bytes += self.varint(value << 1 ^ value >> 63)
        return self

    def long(self, number, value):
        return self.integer(number, value, 6)

    def text(self, number, value):
        self.field(number, 8).bytes += self.varint(len(value)) + value.encode()
        return self

    def struct(self, number, value):
        self.field(number, 12).bytes += value.end()
        return self

    def list(self, number, kind, items):
        self.field(number, 9).bytes += (bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + self.varint(len(items))) + b"".join(items)
        return self

    def end(self):
        return self.bytes + b"\0"


def page(texts):
    body = b"".join(struct.pack("<I", len(text)) + text for text in (one.encode() for one in texts))
    header = Thrift().integer(1, 0).integer(2, len(body)).integer(3, len(body)).struct(
        5, Thrift().integer(1, len(texts)).integer(2, 0).integer(3, 3).integer(4, 3))
    return header.end() + body


def write(path, columns, rows_of_group=100, rows_of_page=30):
    """`columns`: names and their texts, equally many each."""
    out, groups, rows = b"PAR1", [], len(next(iter(columns.values())))
    for first in range(0, rows, rows_of_group):
        chunks, last = [], min(rows, first + rows_of_group)
        for name, texts in columns.items():
            begin = len(out)
            out += b"".join(page(texts[row:min(last, row + rows_of_page)]) for row in range(first, last, rows_of_page))
            size = len(out) - begin
            chunks.append(Thrift().long(2, begin).struct(3, Thrift().integer(1, 6).list(2, 5, [b"\0"]).list(
                3, 8, [Thrift.varint(len(name)) + name.encode()]).integer(4, 0).long(5, last - first).long(6, size).long(7, size).long(9, begin)).end())
        groups.append(Thrift().list(1, 12, chunks).long(2, 0).long(3, last - first).end())
    schema = [Thrift().text(4, "schema").integer(5, len(columns)).end()]
    schema += [Thrift().integer(1, 6).integer(3, 0).text(4, name).integer(6, 0).end() for name in columns]
    footer = Thrift().integer(1, 1).list(2, 12, schema).long(3, rows).list(4, 12, groups).end()
    path.write_bytes(out + footer + struct.pack("<I", len(footer)) + b"PAR1")
