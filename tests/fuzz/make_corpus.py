#!/usr/bin/env python3
"""Writes the corpus of the page decoder's fuzzer: a small page of every encoding, codec and page version, with a
digest of what must come out. Needs pyarrow. Run it from this folder; the files are checked in."""

import pathlib
import random
import struct

import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent / "corpus"
PHYSICAL = {"BOOLEAN": 0, "INT32": 1, "INT64": 2, "FLOAT": 4, "DOUBLE": 5, "BYTE_ARRAY": 6, "FIXED_LEN_BYTE_ARRAY": 7}
CODEC = {"UNCOMPRESSED": 0, "SNAPPY": 1, "LZ4": 7}
INTEGER, FLOAT, CODES, TEXT = range(4)
WORDS = ["", "AIR", "RAIL", "SHIP", "TRUCK", "a", "b"]
rng = random.Random(1)


def thrift(data, at):
    """A struct of the compact protocol, as a dict by field number, and where it ends."""

    def varint(at):
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value, at

    def item(kind, at):
        if kind in (1, 2):
            return kind == 1, at
        if kind in (3, 4, 5, 6):
            value, at = varint(at)
            return (value >> 1) ^ -(value & 1), at
        if kind == 8:
            size, at = varint(at)
            return data[at : at + size], at + size
        if kind == 12:
            return thrift(data, at)
        raise ValueError(kind)

    fields, field = {}, 0
    while data[at] != 0:
        head = data[at]
        field += head >> 4
        fields[field], at = item(head & 15, at + 1)
    return fields, at + 1


def first_pages(path):
    """The dictionary page, if any, and the first data page: (header, body)."""
    chunk = pq.read_metadata(path).row_group(0).column(0)
    start = chunk.data_page_offset
    if chunk.has_dictionary_page:
        start = chunk.dictionary_page_offset
    data = path.read_bytes()[start : start + chunk.total_compressed_size]
    at, dictionary = 0, None
    while True:
        header, at = thrift(data, at)
        body = data[at : at + header[3]]
        at += header[3]
        if header[1] != 2:
            return dictionary, (header, body), chunk.compression
        dictionary = (header, body)


def fnv(*parts):
    h = 0xCBF29CE484222325
    for byte in b"".join(parts):
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return h


def write(name, kind, elem, values, arrow_type, flags=0, required=False, frames=False, **options):
    path = OUT / "page.parquet"
    options.setdefault("use_dictionary", False)
    field = pa.field("c", arrow_type, nullable=not required)
    pq.write_table(pa.table({"c": pa.array(values, arrow_type)}, schema=pa.schema([field])), path, **options)
    column = pq.read_metadata(path).schema.column(0)
    dictionary, (header, body), codec = first_pages(path)
    path.unlink()
    page = header.get(5) or header[8]
    rows, v2 = page[1], 8 in header
    numbers = dict(kind=kind, elem_bytes=elem, flags=flags, physical=PHYSICAL[column.physical_type], rows=rows, take=rows)
    numbers["type_length"] = max(column.length, 0)
    numbers["codec"] = CODEC[codec]
    numbers["encoding"] = page[4 if v2 else 2]
    numbers["level_mode"] = 0 if required else 2 if v2 else 1
    numbers["nullable"] = int(not required)
    levels, plain = b"", header[2]
    if v2:
        assert numbers["codec"] == 0 or page.get(7, True), f"{name}: the page is too small to be compressed"
        levels, body, plain = body[: page[5]], body[page[5] :], header[2] - page[5]
    numbers["plain_bytes"] = plain
    dict_body = b""
    if dictionary:
        dict_body = dictionary[1]
        numbers["dict_entries"], numbers["dict_plain_bytes"] = dictionary[0][7][1], dictionary[0][2]
    if frames:
        numbers["codec"] = 5
        body = struct.pack(">II", plain, len(body)) + body

    values = values[:rows]
    if kind == TEXT:
        texts = [(v or "").encode() for v in values]
        ends = [sum(map(len, texts[:k])) for k in range(rows + 1)]
        expected = struct.pack(f"<{rows + 1}I", *ends) + b"".join(texts)
    elif kind == FLOAT:
        expected = struct.pack(f"<{rows}d", *(v or 0 for v in values))
    elif kind == CODES:
        expected = struct.pack(f"<{rows}I", *(0 if v is None else WORDS.index(v) for v in values))
    else:
        stored = pa.array(values, arrow_type).to_pylist()
        if pa.types.is_decimal(arrow_type):
            stored = [None if v is None else int(v.scaleb(arrow_type.scale)) for v in stored]
        expected = b"".join(int(v or 0).to_bytes(elem, "little", signed=not flags & 2) for v in stored)
    valid = b"" if required else bytes(v is not None for v in values)
    digest = fnv(expected, valid)
    numbers["expect"] = digest - 2**64 if digest >= 2**63 else digest
    numbers.update(levels=len(levels), values=len(body), dict=len(dict_body))
    head = "".join(f"{key} {value}\n" for key, value in numbers.items())
    (OUT / f"{name}.page").write_bytes(head.encode() + b"--\n" + levels + body + dict_body)


def holes(values):
    return [None if rng.random() < 0.3 else v for v in values]


def main():
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.page"):
        old.unlink()
    integers = [rng.randint(-1000, 1000) for _ in range(150)]
    prices = [rng.randint(90000, 10000000) for _ in range(300)]
    words = [rng.choice(WORDS) for _ in range(200)]
    texts = [f"Customer#{k:05}" + "xy" * rng.randint(0, 5) for k in range(80)]
    prose = " ".join(rng.choice(["carefully", "final", "deposits", "sleep", "among", "the"]) for _ in range(700))
    flags = [rng.random() < 0.5 for _ in range(200)] + [True] * 300
    i32, i64 = pa.int32(), pa.int64()
    v1, v2 = {"data_page_version": "1.0"}, {"data_page_version": "2.0"}
    plain, snappy, lz4 = {"compression": "NONE"}, {"compression": "SNAPPY"}, {"compression": "LZ4"}
    coded = lambda encoding: {"column_encoding": {"c": encoding}}

    write("int64-plain-v1", INTEGER, 8, holes(integers), i64, **v1, **plain)
    write("int64-plain-snappy", INTEGER, 4, prices, i64, required=True, **v1, **snappy)
    write("int64-plain-lz4-v2", INTEGER, 8, holes(prices), i64, **v2, **lz4)
    write("int64-plain-lz4-frames", INTEGER, 8, prices, i64, frames=True, required=True, **v1, **lz4)
    write("int64-zeros-lz4", INTEGER, 1, [0] * 3000, i64, required=True, **v1, **lz4)
    write("int64-zeros-snappy", INTEGER, 1, [0] * 1500, i64, required=True, **v2, **snappy)
    write("int64-dictionary-v1", INTEGER, 8, holes(integers), i64, use_dictionary=True, **v1, **snappy)
    write("int32-dictionary-v2", INTEGER, 2, holes(integers), i32, use_dictionary=True, **v2, **plain)
    write("int32-one-value", INTEGER, 4, [7] * 100 + [None] * 100, i32, use_dictionary=True, **v1, **plain)
    write("int32-nulls-only", INTEGER, 4, [None] * 100, i32, **v1, **plain)
    write("uint32-plain", INTEGER, 4, [v * 4000000 + 5 for v in range(100)], pa.uint32(), flags=3, **v1, **plain)
    write("uint64-dictionary", INTEGER, 8, [2**64 - 1, 5] * 40, pa.uint64(), flags=3, use_dictionary=True, **v2, **plain)
    write("int32-delta", INTEGER, 4, holes(integers), i32, **coded("DELTA_BINARY_PACKED"), **v1, **plain)
    write("int64-delta-v2", INTEGER, 8, [v * v * 1000003 for v in integers], i64, **coded("DELTA_BINARY_PACKED"), **v2, **plain)
    write("int32-split", INTEGER, 4, holes(integers), i32, **coded("BYTE_STREAM_SPLIT"), **v1, **plain)
    write("bool-plain", INTEGER, 1, holes(flags), pa.bool_(), flags=2, **v1, **plain)
    write("bool-runs", INTEGER, 1, flags, pa.bool_(), flags=2, **coded("RLE"), **v2, **plain)
    write("float-split", FLOAT, 8, [v / 8 for v in integers], pa.float32(), **coded("BYTE_STREAM_SPLIT"), **v2, **plain)
    write("double-dictionary", FLOAT, 8, holes([v / 8 for v in integers]), pa.float64(), use_dictionary=True, **v1, **plain)
    decimals = holes([f"{v / 100:.2f}" for v in prices])
    decimals = [None if v is None else __import__("decimal").Decimal(v) for v in decimals]
    write("decimal-fixed", INTEGER, 4, decimals, pa.decimal128(15, 2), **v1, **plain)
    write("decimal-fixed-dictionary", INTEGER, 16, decimals, pa.decimal128(38, 2), use_dictionary=True, **v1, **snappy)
    write("decimal-fixed-split", INTEGER, 8, decimals, pa.decimal128(20, 2), **coded("BYTE_STREAM_SPLIT"), **v2, **plain)
    write("codes-plain", CODES, 4, holes(words), pa.string(), flags=2, **v1, **plain)
    write("codes-dictionary", CODES, 4, holes(words), pa.string(), flags=2, use_dictionary=True, **v2, **plain)
    write("codes-lengths", CODES, 4, words, pa.string(), flags=2, **coded("DELTA_LENGTH_BYTE_ARRAY"), **v1, **plain)
    write("text-plain", TEXT, 0, holes(texts), pa.string(), **v1, **snappy)
    write("text-dictionary", TEXT, 0, holes(words), pa.string(), use_dictionary=True, **v1, **lz4)
    write("text-lengths", TEXT, 0, holes(texts), pa.string(), **coded("DELTA_LENGTH_BYTE_ARRAY"), **v2, **plain)
    write("text-prefixes", TEXT, 0, holes(texts), pa.string(), **coded("DELTA_BYTE_ARRAY"), **v1, **plain)
    write("text-prose-snappy", TEXT, 0, [prose[k : k + 90] for k in range(0, len(prose), 90)], pa.string(), **v1, **snappy)
    write("text-prose-lz4", TEXT, 0, [prose[k : k + 90] for k in range(0, len(prose), 90)], pa.string(), **v1, **lz4)
    noise = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(2000))
    write("text-long-literal", TEXT, 0, [noise, noise[:700]], pa.string(), required=True, **v1, **snappy)
    print(f"{len(list(OUT.glob('*.page')))} files, {sum(f.stat().st_size for f in OUT.glob('*.page'))} bytes")


if __name__ == "__main__":
    main()
