//! Page headers as they lie in the file: structs in Thrift's compact protocol.

/// Why bytes are no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// They end too early.
    Truncated,
    /// No header starts like this.
    Malformed,
}

/// The parts of a page header that matter, unchecked. What a kind of page lacks is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// 0 for data pages, 1 for index pages, 2 for dictionaries, 3 for data pages of version 2.
    pub(crate) kind: i64,
    /// Bytes of the body, decompressed.
    pub(crate) plain_bytes: i64,
    /// Bytes of the body.
    pub(crate) body_bytes: i64,
    /// Checksum of the body.
    pub(crate) crc: Option<i64>,
    /// Entries of a dictionary, or values of a data page, with NULLs.
    pub(crate) values: i64,
    /// Encoding of the values, as a number.
    pub(crate) encoding: i64,
    /// Encoding of a data page's definition levels, as a number.
    pub(crate) level_encoding: i64,
    /// Version 2: bytes of definition levels.
    pub(crate) level_bytes: i64,
    /// Version 2: bytes of repetition levels, before those.
    pub(crate) repetition_bytes: i64,
    /// Version 2: whether the values are compressed.
    pub(crate) compressed: bool,
}

impl Header {
    /// Reads the header that `bytes` start with; with it comes its length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Header, usize), Bad> {
        let mut reader = Reader { rest: bytes };
        let (mut data, mut dictionary, mut data_v2) = <(Fields, Fields, Fields)>::default();
        let outer = reader.fields(|reader, id| {
            let fields = reader.fields(|reader, _| reader.skip(STRUCT, MAX_DEPTH))?;
            match id {
                5 => data = fields,
                7 => dictionary = fields,
                8 => data_v2 = fields,
                _ => {}
            }
            Ok(())
        })?;
        let [_, Some(kind), Some(plain_bytes), Some(body_bytes), crc, ..] = outer else {
            return Err(Bad::Malformed);
        };
        let mut header = Header { kind, plain_bytes, body_bytes, crc, compressed: true, ..Header::default() };
        let inner = match kind {
            0 => &data,
            2 => &dictionary,
            3 => &data_v2,
            _ => return Ok((header, bytes.len() - reader.rest.len())),
        };
        let required = |id: usize| inner[id].ok_or(Bad::Malformed);
        header.values = required(1)?;
        header.encoding = required(if kind == 3 { 4 } else { 2 })?;
        match kind {
            0 => header.level_encoding = required(3)?,
            3 => {
                header.level_bytes = required(5)?;
                header.repetition_bytes = required(6)?;
                header.compressed = inner[7] != Some(0);
            }
            _ => {}
        }
        Ok((header, bytes.len() - reader.rest.len()))
    }
}

/// Integer and truth fields of a struct, by id.
type Fields = [Option<i64>; 9];

/// Depth of nested structs and lists; page headers need 2.
const MAX_DEPTH: u32 = 8;

const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    /// Reads a struct; fields that are structs themselves are left to `nested`.
    fn fields(&mut self, mut nested: impl FnMut(&mut Self, usize) -> Result<(), Bad>) -> Result<Fields, Bad> {
        let mut fields = Fields::default();
        let mut id = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(fields);
            }
            id = match head >> 4 {
                0 => self.integer()?,
                step => id + i64::from(step),
            };
            let index = usize::try_from(id).map_err(|_| Bad::Malformed)?;
            let value = match head & 15 {
                TRUE => Some(1),
                FALSE => Some(0),
                I16 | I32 | I64 => Some(self.integer()?),
                STRUCT => {
                    nested(self, index)?;
                    None
                }
                ty => {
                    self.skip(ty, MAX_DEPTH)?;
                    None
                }
            };
            if let Some(field) = fields.get_mut(index) {
                *field = value;
            }
        }
    }

    /// Passes over a value. Truth values are taken for those of a list, where they have a byte each.
    fn skip(&mut self, ty: u8, depth: u32) -> Result<(), Bad> {
        let depth = depth.checked_sub(1).ok_or(Bad::Malformed)?;
        match ty {
            TRUE | FALSE | BYTE => self.take(1),
            I16 | I32 | I64 => self.integer().map(drop),
            DOUBLE => self.take(8),
            UUID => self.take(16),
            BINARY => {
                let length = self.varint()?;
                self.take(length)
            }
            LIST | SET => {
                let head = self.byte()?;
                let length = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                (0..length).try_for_each(|_| self.skip(head & 15, depth))
            }
            MAP => {
                let length = self.varint()?;
                let types = if length == 0 { 0 } else { self.byte()? };
                (0..length).try_for_each(|_| {
                    self.skip(types >> 4, depth)?;
                    self.skip(types & 15, depth)
                })
            }
            STRUCT => self.fields(|reader, _| reader.skip(STRUCT, depth)).map(drop),
            _ => Err(Bad::Malformed),
        }
    }

    fn take(&mut self, length: u64) -> Result<(), Bad> {
        let length = usize::try_from(length).map_err(|_| Bad::Malformed)?;
        self.rest = self.rest.get(length..).ok_or(Bad::Truncated)?;
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, Bad> {
        let (byte, rest) = self.rest.split_first().ok_or(Bad::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Bad::Malformed)
    }

    /// A signed integer: 0, -1, 1, -2 and so on.
    fn integer(&mut self) -> Result<i64, Bad> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 3 values in 8 of 9 bytes, with a checksum and statistics.
    const PAGE: &[u8] = &[
        0x15, 0, 0x15, 18, 0x15, 16, 0x15, 0x0d, 0x1c, 0x15, 6, 0x15, 16, 0x15, 6, 0x15, 6, 0x1c, 0x18, 1,
        b'a', 0x18, 2, b'b', b'c', 0x16, 2, 0x11, 0, 0, 0,
    ];

    #[test]
    fn a_data_page() {
        let (header, length) = Header::parse(&[PAGE, b"body"].concat()).unwrap();
        let expected = Header {
            kind: 0,
            plain_bytes: 9,
            body_bytes: 8,
            crc: Some(-7),
            values: 3,
            encoding: 8,
            level_encoding: 3,
            compressed: true,
            ..Header::default()
        };
        assert_eq!((header, length), (expected, PAGE.len()));
    }

    #[test]
    fn a_data_page_of_version_2() {
        let page = [
            0x15, 6, 0x15, 18, 0x15, 16, 0x5c, 0x15, 6, 0x15, 2, 0x15, 6, 0x15, 0, 0x15, 4, 0x15, 0, 0x12, 0,
            0,
        ];
        let (header, length) = Header::parse(&page).unwrap();
        assert_eq!(length, page.len());
        assert_eq!((header.kind, header.values, header.level_bytes, header.compressed), (3, 3, 2, false));
    }

    #[test]
    fn every_prefix_is_truncated() {
        for length in 0..PAGE.len() {
            assert_eq!(Header::parse(&PAGE[..length]), Err(Bad::Truncated), "{length} bytes");
        }
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        // Field 20: a list of a map of truth values to lists of structs; then the end of the struct.
        let extra = [0x09, 40, 0x1b, 1, 0x19, 1, 0x2c, 0x11, 0, 0, 0];
        let page = [&PAGE[..PAGE.len() - 1], &extra].concat();
        assert_eq!(Header::parse(&page).unwrap().1, page.len());
        // Lists within lists, without an end.
        assert_eq!(Header::parse(&[0x19; 100]), Err(Bad::Malformed));
        assert_eq!(Header::parse(&[0xff; 100]), Err(Bad::Malformed));
        assert_eq!(Header::parse(&[0]), Err(Bad::Malformed));
    }
}
