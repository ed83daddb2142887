//! What compiled code holds beside code: read from its ELF symbols, before it is loaded.
//!
//! A plan may keep nothing between runs and allocate or print nothing. Sources are checked for that, but a compiler
//! sees through every disguise.

use super::DeviceError;

/// What code may take from outside, beside the compiler's own helpers: functions of memory and numbers.
const IMPORTS: [&str; 13] = [
    "memcpy", "memmove", "memset", "memcmp", "strlen", "round", "floor", "ceil", "trunc", "fabs", "fmod",
    "sqrt", "pow",
];

/// What a symbol is: data, and data of a thread.
const OBJECT: u8 = 1;
const THREAD_LOCAL: u8 = 6;

/// Flags of a section.
const WRITABLE: u64 = 1;

/// Refuses code that keeps values between runs, allocates or prints.
pub(super) fn keeps_nothing(image: &[u8], compiler: &str) -> Result<(), DeviceError> {
    match objection(image) {
        Ok(None) => Ok(()),
        Ok(Some(log)) | Err(log) => Err(DeviceError::Compile { compiler: compiler.to_owned(), log }),
    }
}

/// What compiled code holds that a plan must not have; None where there is nothing.
///
/// # Errors
/// Bytes that are no 64-bit ELF file.
fn objection(image: &[u8]) -> Result<Option<String>, String> {
    let elf = Elf::read(image).ok_or("the compiled code is no ELF file")?;
    let symbols = elf.symbols().ok_or("the compiled code's symbols cannot be read")?;
    if let Some(name) = symbols.iter().filter(|s| s.is_undefined).find_map(import) {
        return Ok(Some(format!("it calls `{name}`, which is not allowed")));
    }
    if let Some(symbol) = symbols.iter().find(|s| keeps(s)) {
        return Ok(Some(format!("`{}` keeps its value between runs", symbol.name)));
    }
    let at_load = elf.sections.iter().find(|s| elf.section_name(s) == Some(".init_array"));
    // Every library has the linker's own entry.
    if at_load.is_some_and(|s| s.bytes > size_of::<u64>()) {
        return Ok(Some("it runs code when it is loaded".to_owned()));
    }
    Ok(None)
}

/// The name of what an undefined symbol asks for, if it may not.
fn import<'i>(symbol: &Symbol<'i>) -> Option<&'i str> {
    // Symbols of a library have its version behind an `@`.
    let name = symbol.name.split('@').next().unwrap_or_default();
    // The compiler's own begin with a dot or an underscore; so do `__assertfail` and its kind, which only stop a run.
    let of_compiler = name.is_empty() || name.starts_with(['_', '.']);
    (!of_compiler && !IMPORTS.contains(&name)).then_some(name)
}

/// Whether a symbol names memory that outlives a run.
fn keeps(symbol: &Symbol<'_>) -> bool {
    let Symbol { name, kind, bytes, is_writable, .. } = *symbol;
    // Every library that a linker made has some, and every cubin with atomics an empty object of their template.
    let of_linker = ["completed", "__", "_DYNAMIC", "_GLOBAL_OFFSET"].iter().any(|p| name.starts_with(p));
    let of_atomics = bytes == 1 && name.starts_with("_ZN26__nv_atomic_triv_cp_helperI");
    match kind {
        OBJECT => is_writable && bytes > 0 && !of_linker && !of_atomics,
        THREAD_LOCAL => !name.contains("dkb_block"),
        _ => false,
    }
}

struct Elf<'i> {
    image: &'i [u8],
    sections: Vec<Section>,
}

struct Section {
    kind: u32,
    flags: u64,
    offset: usize,
    bytes: usize,
    link: usize,
    name: usize,
}

struct Symbol<'i> {
    name: &'i str,
    kind: u8,
    bytes: u64,
    is_undefined: bool,
    is_writable: bool,
}

fn number(image: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let field = image.get(at..at.checked_add(bytes)?)?;
    Some(field.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte)))
}

fn text(image: &[u8], at: usize) -> Option<&str> {
    let rest = image.get(at..)?;
    std::str::from_utf8(&rest[..rest.iter().position(|b| *b == 0)?]).ok()
}

impl<'i> Elf<'i> {
    fn read(image: &'i [u8]) -> Option<Elf<'i>> {
        // 64 bits, little endian.
        if image.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let table = number(image, 0x28, 8)? as usize;
        let (size, count) = (number(image, 0x3a, 2)? as usize, number(image, 0x3c, 2)? as usize);
        let section = |k: usize| {
            let at = table.checked_add(k * size)?;
            let field = |offset, bytes| number(image, at.checked_add(offset)?, bytes);
            Some(Section {
                name: field(0, 4)? as usize,
                kind: field(4, 4)? as u32,
                flags: field(8, 8)?,
                offset: field(0x18, 8)? as usize,
                bytes: field(0x20, 8)? as usize,
                link: field(0x28, 4)? as usize,
            })
        };
        Some(Elf { image, sections: (0..count).map(section).collect::<Option<_>>()? })
    }

    /// Symbols of the full table, and of the dynamic one where that is missing.
    fn symbols(&self) -> Option<Vec<Symbol<'i>>> {
        const SYMTAB: u32 = 2;
        const DYNSYM: u32 = 11;
        let table =
            [SYMTAB, DYNSYM].iter().find_map(|kind| self.sections.iter().find(|s| s.kind == *kind))?;
        let names = self.sections.get(table.link)?;
        (0..table.bytes / 24).map(|k| self.symbol(table.offset + k * 24, names)).collect()
    }

    fn symbol(&self, at: usize, names: &Section) -> Option<Symbol<'i>> {
        let image = self.image;
        let section = number(image, at + 6, 2)? as usize;
        let of_memory = |s: &Section| {
            let name = self.section_name(s).unwrap_or_default();
            let private =
                [".nv.shared", ".nv.local", ".data.rel.ro", ".init_array", ".fini_array", ".dynamic", ".got"];
            s.flags & WRITABLE != 0 && !private.iter().any(|p| name.starts_with(p))
        };
        Some(Symbol {
            name: text(image, names.offset.checked_add(number(image, at, 4)? as usize)?)?,
            kind: (number(image, at + 4, 1)? & 0xf) as u8,
            bytes: number(image, at + 16, 8)?,
            is_undefined: section == 0,
            is_writable: self.sections.get(section).is_some_and(of_memory),
        })
    }

    fn section_name(&self, section: &Section) -> Option<&'i str> {
        let names = self.sections.get(number(self.image, 0x3e, 2)? as usize)?;
        text(self.image, names.offset.checked_add(section.name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::nvrtc;

    const KERNEL: &str = "extern \"C\" __global__ void f(unsigned long long* p) {";

    #[test]
    fn what_device_code_must_not_hold_is_named() {
        if let Err(e) = nvrtc::version() {
            eprintln!("skipped: {e}");
            return;
        }
        for (before, body, word) in [
            ("", "*p = 1;", None),
            ("", "__shared__ int s[8]; s[threadIdx.x % 8] = 1; *p = s[0];", None),
            ("__constant__ int c[2] = {1, 2};", "*p = c[*p % 2];", None),
            ("__device__ int kept;", "*p = ++kept;", Some("kept")),
            ("", "static int within; *p = ++within;", Some("within")),
            (
                "extern \"C\" __device__ int vprintf(const char*, const char*);",
                "vprintf(\"\", 0);",
                Some("vprintf"),
            ),
            ("", "*p = (unsigned long long)malloc(8);", Some("malloc")),
        ] {
            let image = nvrtc::compile(&format!("{before}\n{KERNEL} {body} }}"), "sm_90").unwrap();
            let found = objection(&image).unwrap();
            assert_eq!(found.is_some(), word.is_some(), "{body}: {found:?}");
            assert!(found.unwrap_or_default().contains(word.unwrap_or_default()), "{body}");
        }
    }

    #[test]
    fn other_bytes_are_errors() {
        assert!(objection(b"").is_err() && objection(b"\x7fELF\x02\x01").is_err());
        assert!(objection(&[b"\x7fELF\x02\x01".as_slice(), &[0xff; 100]].concat()).is_err());
    }
}
