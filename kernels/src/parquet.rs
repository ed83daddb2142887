//! The device's Parquet decoder: what its kernels are told, and their source.
//!
//! Invariant: the structs lie in memory as those of the same names in `cuda/parquet/common.cuh`; both sides
//! assert their sizes. Addresses are of the device. Arrays of structs are 16-byte aligned.

use std::mem::offset_of;

use crate::source::Builtin;

/// The decoder's device source. Every argument of a kernel is 8 bytes, every kernel runs on any grid, and
/// `error` is one u64 cell, see [`Failure`].
///
/// | kernel | arguments | threads needed |
/// | --- | --- | --- |
/// | `dkb_gather` | count, `CopyTask*` | any, for the link is what takes time |
/// | `dkb_decompress` | count, `PageInput*`, error | 64 a page |
/// | `dkb_dictionaries` | count, `ChunkTask*`, `ColumnTask*`, error | 256 a chunk |
/// | `dkb_decode` | count, `PageTask*`, `ChunkTask*`, `ColumnTask*`, error | 256 a page |
/// | `dkb_text_lengths` | count, `PageTask*`, `ChunkTask*`, `ColumnTask*`, error | 256 a page |
/// | `dkb_scan_tiles` | rows, offsets (u32), sums (u64 a tile) | 256 a tile |
/// | `dkb_scan_sums` | tiles, sums, total (u64 cell), column, error | 256 |
/// | `dkb_scan_add` | rows, offsets, sums | 256 a tile |
/// | `dkb_text_copy` | count, `PageTask*`, `ChunkTask*`, `ColumnTask*`, error | 256 a page |
///
/// More threads do no harm. A host device takes their number for the amount of work, and spreads only what is
/// large: there, rows (or plain bytes by 16) say it better.
///
/// Fixed-width columns and codes: decompress, dictionaries, decode. Text: decompress, dictionaries, text
/// lengths, the three scans of each column's `offsets` (tiles of [`SCAN_TILE`] rows), then text copy.
pub const PARQUET: Builtin = Builtin {
    name: "common.cuh",
    source: concat!(
        include_str!("../cuda/parquet/common.cuh"),
        "#line 1 \"gather.cuh\"\n",
        include_str!("../cuda/parquet/gather.cuh"),
        "#line 1 \"decompress.cuh\"\n",
        include_str!("../cuda/parquet/decompress.cuh"),
        "#line 1 \"runs.cuh\"\n",
        include_str!("../cuda/parquet/runs.cuh"),
        "#line 1 \"decode.cuh\"\n",
        include_str!("../cuda/parquet/decode.cuh"),
        "#line 1 \"text.cuh\"\n",
        include_str!("../cuda/parquet/text.cuh"),
    ),
    kernels: &[
        "dkb_gather",
        "dkb_decompress",
        "dkb_dictionaries",
        "dkb_decode",
        "dkb_text_lengths",
        "dkb_scan_tiles",
        "dkb_scan_sums",
        "dkb_scan_add",
        "dkb_text_copy",
    ],
};

/// Rows that one tile of `dkb_scan_tiles` sums up.
pub const SCAN_TILE: u64 = 4096;

/// A struct that is uploaded for kernels to read.
pub trait DeviceStruct: Sized {
    /// Writes the struct as C lays it out; padding stays as it is.
    ///
    /// # Panics
    /// If `to` is shorter than the struct.
    fn put(&self, to: &mut [u8]);
}

/// The bytes of an array of structs.
pub fn bytes_of<T: DeviceStruct>(items: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(items)];
    for (item, to) in items.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
        item.put(to);
    }
    bytes
}

macro_rules! device_struct {
    ($(#[$doc:meta])* $name:ident, $bytes:literal bytes, $($(#[$about:meta])* $field:ident: $ty:ty,)*) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about])* pub $field: $ty,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl DeviceStruct for $name {
            fn put(&self, to: &mut [u8]) {
                $(to[offset_of!($name, $field)..][..size_of::<$ty>()]
                    .copy_from_slice(&self.$field.to_le_bytes());)*
            }
        }
    };
}

/// Both addresses of a [`CopyTask`] are as far behind a multiple of this many bytes, from which on bytes are copied.
pub const COPY_ALIGN: usize = 128;
/// Bytes behind a [`CopyTask`] that may be copied along.
pub const COPY_BEHIND: usize = 32;

/// Bytes behind a plain page that are read as part of words, but never used.
pub const PLAIN_BEHIND: usize = 8;

device_struct! {
    /// A stretch of a file, for `dkb_gather`; see [`COPY_ALIGN`].
    CopyTask, 24 bytes,
    /// In host memory that the device reads in place.
    from: u64,
    /// In device memory.
    to: u64,
    /// How much.
    bytes: u64,
}

device_struct! {
    /// A compressed page, for `dkb_decompress`. `to` is 16-byte aligned; `from` is not aligned at all, for whole
    /// chunks are copied as they lie in the file, and neither are the addresses of a [`PageTask`] whose page
    /// was not compressed. The 15 bytes before and the 64 bytes behind a page can be read.
    PageInput, 32 bytes,
    /// The compressed bytes.
    from: u64,
    /// Room for the plain bytes, and [`PLAIN_BEHIND`] behind them that become 0.
    to: u64,
    /// Compressed bytes.
    bytes: u32,
    /// Plain bytes; exactly so many must come out.
    plain_bytes: u32,
    /// One of [`codec`].
    codec: u32,
    /// The number by which [`Failure`] names the page.
    task: u32,
}

device_struct! {
    /// A data page to decode. Its rows `skip..skip + take` become rows `out..` of the column.
    PageTask, 56 bytes,
    /// The definition levels of a v2 page.
    levels: u64,
    /// The encoded values; in a v1 page of a nullable column, levels are in front.
    values: u64,
    /// Bytes at `levels`.
    level_bytes: u32,
    /// Bytes at `values`.
    value_bytes: u32,
    /// Rows of the page.
    rows: u32,
    /// Rows of the page to leave out in front; 0 for `DELTA_BYTE_ARRAY`.
    skip: u32,
    /// Rows of the page to decode; all for `DELTA_BYTE_ARRAY`.
    take: u32,
    /// Index of its [`ChunkTask`].
    chunk: u32,
    /// The column's row that the first of them becomes.
    out: u64,
    /// One of [`encoding`].
    encoding: u32,
    /// One of [`levels`].
    level_mode: u32,
}

device_struct! {
    /// What the pages of a column chunk share.
    ChunkTask, 80 bytes,
    /// The smallest value in stored units, with [`bounds::WITHIN`].
    min: i128,
    /// The largest value in stored units.
    max: i128,
    /// The plain bytes of the dictionary page, or 0.
    dict: u64,
    /// For byte arrays with a dictionary page, room for a u32 an entry: its table-wide code for
    /// [`kind::CODES`], else the place of its text in the page. `dkb_dictionaries` fills it.
    entries: u64,
    /// For byte arrays with a dictionary page but [`kind::CODES`], room for a u32 an entry: its bytes.
    lengths: u64,
    /// Bytes at `dict`.
    dict_bytes: u32,
    /// Entries of the dictionary page.
    dict_entries: u32,
    /// Index of its [`ColumnTask`].
    column: u32,
    /// One of [`bounds`].
    bounds: u32,
}

device_struct! {
    /// A column to fill.
    ColumnTask, 128 bytes,
    /// Stored integers are multiplied by this, at least 1.
    times: i128,
    /// Stored integers are multiples of this and divided by it, at least 1.
    over: i128,
    /// `rows` elements; for text, `capacity` bytes, needed by `dkb_text_copy` only.
    values: u64,
    /// A byte a row, 1 if it is not NULL; 0 if the column must not have NULLs.
    valid: u64,
    /// For text: `rows + 1` offsets, the first set to 0 by the host.
    offsets: u64,
    /// For text: a u32 a row, where its text starts in its page.
    sources: u64,
    /// For codes: the offsets of the table-wide dictionary, `dict_entries + 1`.
    dict_offsets: u64,
    /// For codes: the texts of the table-wide dictionary, sorted bytewise.
    dict_bytes: u64,
    /// Rows of the column.
    rows: u64,
    /// Bytes at `values`, for text.
    capacity: u64,
    /// Entries of the table-wide dictionary.
    dict_entries: u32,
    /// One of [`kind`].
    kind: u32,
    /// One of [`physical`].
    physical: u32,
    /// Bytes of a value of a fixed-length byte array.
    type_length: u32,
    /// Bytes of an element.
    elem_bytes: u32,
    /// A union of [`flags`].
    flags: u32,
}

/// Codecs that the device decompresses, numbered as in the Parquet format.
pub mod codec {
    /// Snappy, raw format.
    pub const SNAPPY: u32 = 1;
    /// LZ4 in Hadoop's frames, or without any.
    pub const LZ4: u32 = 5;
    /// LZ4, block format.
    pub const LZ4_RAW: u32 = 7;
}

/// Encodings of values, numbered as in the Parquet format.
pub mod encoding {
    /// One after another.
    pub const PLAIN: u32 = 0;
    /// The older name of dictionary indices.
    pub const PLAIN_DICTIONARY: u32 = 2;
    /// Runs; truth values only.
    pub const RLE: u32 = 3;
    /// Differences, bit-packed.
    pub const DELTA_BINARY_PACKED: u32 = 5;
    /// Lengths as differences, then texts.
    pub const DELTA_LENGTH_BYTE_ARRAY: u32 = 6;
    /// Common prefixes left out; text in [`kind::TEXT`](super::kind::TEXT) columns only.
    pub const DELTA_BYTE_ARRAY: u32 = 7;
    /// Dictionary indices.
    pub const RLE_DICTIONARY: u32 = 8;
    /// All first bytes, then all second bytes, and so on.
    pub const BYTE_STREAM_SPLIT: u32 = 9;
}

/// Where a page's definition levels are.
pub mod levels {
    /// There are none: the column is required.
    pub const NONE: u32 = 0;
    /// In front of the values, with a u32 length.
    pub const V1: u32 = 1;
    /// At `levels`.
    pub const V2: u32 = 2;
}

/// What a footer says about the integers of a chunk.
pub mod bounds {
    /// Nothing.
    pub const UNKNOWN: u32 = 0;
    /// There is no value that is not NULL.
    pub const EMPTY: u32 = 1;
    /// All lie between `min` and `max`.
    pub const WITHIN: u32 = 2;
}

/// What becomes of a column's values.
pub mod kind {
    /// Integers, truth values among them.
    pub const INTEGER: u32 = 0;
    /// 64-bit floating point.
    pub const FLOAT: u32 = 1;
    /// Codes of a table-wide dictionary.
    pub const CODES: u32 = 2;
    /// Text with offsets.
    pub const TEXT: u32 = 3;
}

/// Physical types, numbered as in the Parquet format.
pub mod physical {
    /// Bits.
    pub const BOOLEAN: u32 = 0;
    /// 4-byte integers.
    pub const INT32: u32 = 1;
    /// 8-byte integers.
    pub const INT64: u32 = 2;
    /// 4-byte floating point.
    pub const FLOAT: u32 = 4;
    /// 8-byte floating point.
    pub const DOUBLE: u32 = 5;
    /// Text, or decimals of any length.
    pub const BYTE_ARRAY: u32 = 6;
    /// Decimals of `type_length` bytes.
    pub const FIXED_LEN_BYTE_ARRAY: u32 = 7;
}

/// Bits of [`ColumnTask::flags`].
pub mod flags {
    /// Stored integers are unsigned.
    pub const STORED_UNSIGNED: u32 = 1;
    /// Elements are unsigned.
    pub const ELEM_UNSIGNED: u32 = 2;
}

/// Why a page was refused: what the kernels put into `error`, the first of them winning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// [`PageInput::task`] for [`Reason::Compressed`], the chunk's index for [`Reason::Dictionary`], the
    /// column argument for [`Reason::TooMuchText`], else the index of the [`PageTask`].
    pub task: u64,
    /// What is wrong.
    pub reason: Reason,
}

impl Failure {
    /// Reads the error cell; None if nothing failed.
    pub fn of(cell: u64) -> Option<Failure> {
        let reason = match cell & 0xff {
            _ if cell == 0 => return None,
            1 => Reason::Compressed,
            2 => Reason::Dictionary,
            3 => Reason::Levels,
            4 => Reason::Values,
            5 => Reason::Index,
            6 => Reason::Null,
            7 => Reason::OutsideFooter,
            8 => Reason::TooWide,
            9 => Reason::Missing,
            10 => Reason::TooMuchText,
            _ => Reason::Unsupported,
        };
        Some(Failure { task: (cell >> 8).saturating_sub(1), reason })
    }
}

/// What is wrong with a page, a chunk or a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// See the message.
    #[error("the compressed bytes are malformed")]
    Compressed,
    /// See the message.
    #[error("the dictionary page is malformed")]
    Dictionary,
    /// See the message.
    #[error("the definition levels are malformed")]
    Levels,
    /// See the message.
    #[error("the encoded values are malformed or too few")]
    Values,
    /// See the message.
    #[error("a dictionary index is past the end of the dictionary")]
    Index,
    /// See the message.
    #[error("there is a NULL, which the representation does not allow")]
    Null,
    /// See the message.
    #[error("a value lies outside the footer's minimum and maximum")]
    OutsideFooter,
    /// See the message.
    #[error("a value does not fit the representation")]
    TooWide,
    /// See the message.
    #[error("a text is missing in the table's dictionary")]
    Missing,
    /// See the message.
    #[error("the column has more than 4 GiB of text")]
    TooMuchText,
    /// See the message.
    #[error("the device does not decode this combination of encoding and type")]
    Unsupported,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_become_bytes_as_c_lays_them_out() {
        let chunk = ChunkTask { min: -1, max: 7, dict: 0x1122, bounds: bounds::WITHIN, ..Default::default() };
        let bytes = bytes_of(&[ChunkTask::default(), chunk]);
        assert_eq!(bytes.len(), 160);
        assert!(bytes[..80].iter().all(|b| *b == 0));
        assert_eq!(bytes[80..96], (-1i128).to_le_bytes());
        assert_eq!(bytes[112..120], 0x1122u64.to_le_bytes());
        assert_eq!(bytes[148..152], bounds::WITHIN.to_le_bytes());
    }

    #[test]
    fn failures_name_their_task() {
        assert_eq!(Failure::of(0), None);
        let failure = Failure { task: 4, reason: Reason::Index };
        assert_eq!(Failure::of(5 << 8 | 5), Some(failure));
    }
}
