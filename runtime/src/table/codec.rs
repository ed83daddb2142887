//! The host's share of decoding pages: codecs that devices lack, and checksums.

use std::io::{Error, ErrorKind, Read};

use parquet::basic::Compression;

/// Decompresses what a ZSTD, GZIP or BROTLI page holds, to exactly `plain_bytes` bytes.
///
/// # Errors
/// Another codec, malformed input, or input that holds fewer or more bytes; it is never given more memory.
pub(crate) fn decompress(codec: Compression, from: &[u8], plain_bytes: usize) -> Result<Vec<u8>, Error> {
    let mut plain = vec![0; plain_bytes];
    match codec {
        Compression::ZSTD(_) => {
            let written = zstd::bulk::decompress_to_buffer(from, plain.as_mut_slice())?;
            if written < plain_bytes {
                return Err(Error::new(ErrorKind::UnexpectedEof, format!("only {written} bytes")));
            }
        }
        Compression::GZIP(_) => fill(&mut plain, flate2::read::MultiGzDecoder::new(from))?,
        Compression::BROTLI(_) => fill(&mut plain, brotli::Decompressor::new(from, 4096))?,
        other => return Err(Error::new(ErrorKind::Unsupported, format!("codec {other}"))),
    }
    Ok(plain)
}

/// Fills `plain` with all that a reader has.
fn fill(plain: &mut [u8], mut reader: impl Read) -> Result<(), Error> {
    reader.read_exact(plain)?;
    match reader.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(Error::new(ErrorKind::InvalidData, format!("more than {} bytes", plain.len()))),
    }
}

/// The CRC-32 of zlib and gzip, which Parquet uses for pages.
pub(crate) fn crc32(bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut crc = !0;
    for word in words {
        let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        crc = TABLES[7][a as usize]
            ^ TABLES[6][b as usize]
            ^ TABLES[5][c as usize]
            ^ TABLES[4][d as usize]
            ^ TABLES[3][e as usize]
            ^ TABLES[2][f as usize]
            ^ TABLES[1][g as usize]
            ^ TABLES[0][h as usize];
    }
    !rest.iter().fold(crc, |crc, byte| (crc >> 8) ^ TABLES[0][(crc as u8 ^ byte) as usize])
}

/// `TABLES[n][b]` is what a byte `b` contributes once `n` more bytes have followed it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ ((crc & 1) * 0xedb8_8320);
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut further = 1;
    while further < 8 {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[further - 1][byte];
            tables[further][byte] = (crc >> 8) ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        further += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn checksums() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
    }

    #[test]
    fn exactly_the_stated_bytes_come_out() {
        let text = b"to be or not to be, that is the question".repeat(100);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let mut brotli = Vec::new();
        brotli::CompressorWriter::new(&mut brotli, 4096, 3, 20).write_all(&text).unwrap();
        let pages = [
            (Compression::ZSTD(Default::default()), zstd::bulk::compress(&text, 1).unwrap()),
            (Compression::GZIP(Default::default()), gzip.finish().unwrap()),
            (Compression::BROTLI(Default::default()), brotli),
        ];
        for (codec, page) in pages {
            assert_eq!(decompress(codec, &page, text.len()).unwrap(), text, "{codec}");
            for wrong in [text.len() - 1, text.len() + 1, 0] {
                assert!(decompress(codec, &page, wrong).is_err(), "{codec}, {wrong} bytes");
            }
            assert!(decompress(codec, &page[..page.len() / 2], text.len()).is_err(), "{codec}");
            assert!(decompress(codec, &[0xff; 40], text.len()).is_err(), "{codec}");
        }
        assert!(decompress(Compression::SNAPPY, &[], 0).is_err());
    }
}
