#!/usr/bin/env python3
"""Rewrites a folder of TPC-H tables with other Parquet writers.

usage: write_parquet_variants.py SOURCE_DIR OUT_DIR

SOURCE_DIR holds NAME.parquet files. OUT_DIR gets two folders of the same tables:
  pyarrow/  data page V2, Zstandard, no dictionaries, decimals as FIXED_LEN_BYTE_ARRAY, 5000 rows a row group
  duckdb/   DuckDB's own defaults
Needs: pip install pyarrow duckdb
"""
import pathlib
import sys

import duckdb
import pyarrow.parquet as pq


def main(source: pathlib.Path, out: pathlib.Path) -> None:
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


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
