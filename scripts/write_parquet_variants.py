#!/usr/bin/env python3
"""Rewrites tables with other Parquet writers.

usage: write_parquet_variants.py SOURCE_DIR OUT_DIR
       write_parquet_variants.py --every FILE OUT_DIR

SOURCE_DIR holds NAME.parquet files. OUT_DIR gets two folders of the same tables:
  pyarrow/  data page V2, Zstandard, no dictionaries, decimals as FIXED_LEN_BYTE_ARRAY, 5000 rows a row group
  duckdb/   DuckDB's own defaults
With --every, OUT_DIR gets FILE as WRITER_SETTINGS.parquet under many settings of both writers.
Needs: pip install pyarrow duckdb
"""
import pathlib
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def tables(source: pathlib.Path, out: pathlib.Path) -> None:
    for writer in ("pyarrow", "duckdb"):
        (out / writer).mkdir(parents=True, exist_ok=True)
    con = duckdb.connect()
    for path in sorted(source.glob("*.parquet")):
        pq.write_table(
            pq.read_table(path),
            out / "pyarrow" / path.name,
            compression="zstd",
            data_page_version="2.0",
            row_group_size=5000,
            store_decimal_as_integer=False,
            use_dictionary=False,
        )
        con.execute(f"copy (from read_parquet('{path}')) to '{out / 'duckdb' / path.name}' (format parquet)")


def delta(type: pa.DataType) -> str:
    """The delta encoding of a type, where there is one."""
    if pa.types.is_string(type):
        return "DELTA_BYTE_ARRAY"
    if pa.types.is_boolean(type):
        return "RLE"
    if pa.types.is_floating(type):
        return "BYTE_STREAM_SPLIT"
    if pa.types.is_decimal(type):
        return "DELTA_BYTE_ARRAY" if type.precision > 18 else "DELTA_BINARY_PACKED"
    return "DELTA_BINARY_PACKED"


def split(type: pa.DataType) -> str:
    """The other special encoding of a type, where there is one."""
    if pa.types.is_string(type):
        return "DELTA_LENGTH_BYTE_ARRAY"
    return "PLAIN" if pa.types.is_boolean(type) else "BYTE_STREAM_SPLIT"


def every_pyarrow(table: pa.Table, out: pathlib.Path) -> None:
    fields = list(table.schema)
    encodings = {
        "dictionary": {},
        "fallback": {"dictionary_pagesize_limit": 300, "write_batch_size": 50},
        "plain": {"use_dictionary": False},
        "delta": {"use_dictionary": False, "column_encoding": {f.name: delta(f.type) for f in fields}},
        "split": {"use_dictionary": False, "column_encoding": {f.name: split(f.type) for f in fields}},
    }
    shapes = {
        "one": {},
        "pages": {"row_group_size": 1300, "data_page_size": 256, "write_batch_size": 40},
        "groups": {"row_group_size": 611},
    }
    for c, codec in enumerate(("none", "snappy", "gzip", "brotli", "lz4", "zstd")):
        for e, (encoding, options) in enumerate(encodings.items()):
            version = "12"[(c + e) % 2]
            shape = list(shapes)[(c + e) % 3]
            pq.write_table(
                table,
                out / f"pyarrow_{codec}_v{version}_{encoding}_{shape}.parquet",
                compression=codec,
                data_page_version=f"{version}.0",
                store_decimal_as_integer=encoding != "dictionary" and encoding != "plain",
                write_page_checksum=True,
                **(options | shapes[shape]),
            )
    pq.write_table(table.slice(0, 7), out / "pyarrow_lines.parquet", row_group_size=1)
    stamps = [f.name for f in fields if pa.types.is_timestamp(f.type)]
    pq.write_table(table.select(stamps), out / "pyarrow_int96.parquet", use_deprecated_int96_timestamps=True)


def every_duckdb(source: pathlib.Path, out: pathlib.Path) -> None:
    con = duckdb.connect()
    # Readers in 32 bits do not take the 33-bit deltas that version 2 gives these columns.
    columns = {"v1": "*", "v2": "columns(lambda name: name[:4] not in ('i32_', 'u32_'))"}
    for codec in ("uncompressed", "snappy", "gzip", "zstd", "brotli", "lz4_raw"):
        for version in ("v1", "v2"):
            for encoding, limit in (("dictionary", ""), ("fallback", ", dictionary_size_limit 20"))[codec == "gzip" :]:
                path = out / f"duckdb_{codec}_{version}_{encoding}.parquet"
                con.execute(
                    f"copy (select {columns[version]} from read_parquet('{source}')) to '{path}' "
                    f"(format parquet, codec '{codec}', parquet_version {version}, row_group_size 2048{limit})"
                )


def main(arguments: list[str]) -> None:
    if len(arguments) == 3 and arguments[0] == "--every":
        source, out = map(pathlib.Path, arguments[1:])
        out.mkdir(parents=True, exist_ok=True)
        every_pyarrow(pq.read_table(source), out)
        every_duckdb(source, out)
    elif len(arguments) == 2:
        tables(*map(pathlib.Path, arguments))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
