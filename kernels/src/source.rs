//! Device source text: what a compiler gets for a plan, and the layout of its parameters.
//!
//! Invariant: a plan's source reads no file. Its only include, `dkb.cuh`, is replaced by the text itself.

use std::collections::BTreeSet;

use crate::plan::{Framework, Plan, launches};
use crate::repr::SqlType;

/// The primitives that plan sources are written with.
pub const DKB_CUH: &str = include_str!("../cuda/dkb.cuh");

/// What lets `dkb.cuh` and plan sources compile as host C++.
pub const HOST_SHIM: &str = include_str!("../cuda/host_shim.h");

/// The name that compilers give to a plan's source in their messages.
pub const SOURCE_NAME: &str = "plan.cu";

/// A source or parameter list that no compiler should see.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// An include other than `dkb.cuh`, or another way to read a file.
    #[error("line {line} of the source: `{text}`: the only include a plan may name is \"dkb.cuh\"")]
    Include {
        /// Line of the source, from 1.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A kernel or parameter whose name cannot stand in C++.
    #[error("`{0}` is not a name that C++ source can use; take letters, digits and `_`")]
    Name(String),
}

/// How a parameter lies in `Params`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// `i64`: bool, integers, dates, timestamps, decimals of up to 18 digits.
    I64,
    /// `i128`: larger decimals.
    I128,
    /// `f64`: floats.
    F64,
    /// `Str`: text, a pointer and a u32 length.
    Str,
}

impl ParamKind {
    /// The kind of a parameter of type `ty`.
    pub fn of(ty: SqlType) -> Self {
        match ty {
            SqlType::Bool
            | SqlType::Int8
            | SqlType::Int16
            | SqlType::Int32
            | SqlType::Int64
            | SqlType::Date
            | SqlType::Timestamp => ParamKind::I64,
            SqlType::Decimal(p, _) if p <= 18 => ParamKind::I64,
            SqlType::Decimal(..) => ParamKind::I128,
            SqlType::Float32 | SqlType::Float64 => ParamKind::F64,
            SqlType::Utf8 => ParamKind::Str,
        }
    }

    fn c_type(self) -> &'static str {
        match self {
            ParamKind::I64 => "i64",
            ParamKind::I128 => "i128",
            ParamKind::F64 => "f64",
            ParamKind::Str => "Str",
        }
    }

    /// Bytes and alignment in C.
    fn size_align(self) -> (usize, usize) {
        match self {
            ParamKind::I64 | ParamKind::F64 => (8, 8),
            ParamKind::I128 => (16, 16),
            ParamKind::Str => (16, 8),
        }
    }
}

/// One field of `Params`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamField {
    /// The parameter's name.
    pub name: String,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// What lies there.
    pub kind: ParamKind,
}

/// The C layout of a plan's `Params`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamsLayout {
    /// Bytes of the struct.
    pub size: usize,
    /// Its fields in order.
    pub fields: Vec<ParamField>,
}

/// A parameter value as it is packed into `Params`.
#[derive(Debug, Clone, PartialEq)]
pub enum ParamWord {
    /// For [`ParamKind::I64`] and [`ParamKind::I128`].
    Int(i128),
    /// For [`ParamKind::F64`].
    Float(f64),
    /// For [`ParamKind::Str`].
    Text(Vec<u8>),
}

/// Values that do not fit a plan's parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// Not one value per parameter.
    #[error("{expected} parameters, but {actual} values")]
    Count {
        /// Parameters of the plan.
        expected: usize,
        /// Values given.
        actual: usize,
    },
    /// A value of another kind, or out of range.
    #[error("parameter `{name}`: {value} does not fit {kind}")]
    Value {
        /// The parameter.
        name: String,
        /// The value.
        value: String,
        /// The C type of its field.
        kind: &'static str,
    },
}

/// The layout of the struct that [`params_struct`] declares.
pub fn params_layout(plan: &Plan) -> ParamsLayout {
    let (mut end, mut max_align) = (0usize, 8usize);
    let mut fields = Vec::with_capacity(plan.params.len());
    for (name, param) in &plan.params {
        let kind = ParamKind::of(param.ty);
        let (size, align) = kind.size_align();
        let offset = end.next_multiple_of(align);
        fields.push(ParamField { name: name.clone(), offset, kind });
        end = offset + size;
        max_align = max_align.max(align);
    }
    ParamsLayout { size: end.max(8).next_multiple_of(max_align), fields }
}

impl ParamsLayout {
    /// Bytes that [`ParamsLayout::pack`] gives for `values`: the struct, and behind it the texts.
    pub fn packed_bytes(&self, values: &[ParamWord]) -> usize {
        values.iter().fold(self.size, |end, value| match value {
            ParamWord::Text(text) => end.next_multiple_of(16) + text.len(),
            _ => end,
        })
    }

    /// The bytes of `Params`, and of its texts, for a device allocation that starts at `address`.
    ///
    /// # Errors
    /// [`PackError`], if the values are not those of the plan's parameters, in order.
    pub fn pack(&self, values: &[ParamWord], address: u64) -> Result<Vec<u8>, PackError> {
        if values.len() != self.fields.len() {
            return Err(PackError::Count { expected: self.fields.len(), actual: values.len() });
        }
        let mut bytes = vec![0u8; self.packed_bytes(values)];
        let mut text_end = self.size;
        for (field, value) in self.fields.iter().zip(values) {
            let misfit = || PackError::Value {
                name: field.name.clone(),
                value: format!("{value:?}"),
                kind: field.kind.c_type(),
            };
            let mut put = |at: usize, from: &[u8]| bytes[at..at + from.len()].copy_from_slice(from);
            match (field.kind, value) {
                (ParamKind::I64, ParamWord::Int(v)) => {
                    put(field.offset, &i64::try_from(*v).map_err(|_| misfit())?.to_le_bytes());
                }
                (ParamKind::I128, ParamWord::Int(v)) => put(field.offset, &v.to_le_bytes()),
                (ParamKind::F64, ParamWord::Float(v)) => put(field.offset, &v.to_le_bytes()),
                (ParamKind::Str, ParamWord::Text(text)) => {
                    let len = u32::try_from(text.len()).map_err(|_| misfit())?;
                    let at = text_end.next_multiple_of(16);
                    put(field.offset, &(address + at as u64).to_le_bytes());
                    put(field.offset + 8, &len.to_le_bytes());
                    put(at, text);
                    text_end = at + text.len();
                }
                _ => return Err(misfit()),
            }
        }
        Ok(bytes)
    }
}

/// The declaration of `struct Params`: one field per parameter, in the plan's order.
pub fn params_struct(plan: &Plan) -> String {
    if plan.params.is_empty() {
        return "struct Params { i64 none; };\n".to_owned();
    }
    let mut text = "struct Params {\n".to_owned();
    for (name, param) in &plan.params {
        text += &format!("  {} {name};\n", ParamKind::of(param.ty).c_type());
    }
    text + "};\n"
}

/// What NVRTC compiles: the primitives, `Params` and the plan's source in CUDA C++. Messages of the compiler give
/// lines of that source as lines of [`SOURCE_NAME`].
///
/// # Errors
/// [`SourceError`].
pub fn cuda_translation_unit(plan: &Plan) -> Result<String, SourceError> {
    unit("", plan)
}

/// What the host's C++ compiler compiles: [`cuda_translation_unit`] behind the shim, and for each kernel
/// `k` of the plan's launches
///
/// * `extern "C" void dkb_run_k(u64 block, u64 blocks, const u64* args)`, which runs one block of it,
/// * `extern "C" const u64 dkb_args_k`, the number of its arguments.
///
/// A kernel that the source does not mention is left out.
///
/// # Errors
/// [`SourceError`].
pub fn host_translation_unit(plan: &Plan) -> Result<String, SourceError> {
    let mut text = unit(&host_head(), plan)?;
    text += "\n#line 1 \"launches\"\n";
    for kernel in kernels(plan) {
        if !is_name(kernel) {
            return Err(SourceError::Name(kernel.to_owned()));
        }
        if has_word(plan.source_in(Framework::Cuda), kernel) {
            text += &format!("DKB_EXPORT({kernel})\n");
        }
    }
    Ok(text)
}

/// The names of the kernels in CUDA C++ that the plan launches, each once.
pub fn kernels(plan: &Plan) -> BTreeSet<&str> {
    let launches = launches(plan).filter(|launch| launch.framework() == Framework::Cuda);
    launches.map(|launch| launch.kernel.as_str()).collect()
}

/// Device source of the runtime's own, as opposed to a plan's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Builtin {
    /// The name that compilers give to the source in their messages.
    pub name: &'static str,
    /// The source, without includes; it may use what `dkb.cuh` declares.
    pub source: &'static str,
    /// Its kernels.
    pub kernels: &'static [&'static str],
}

/// What NVRTC compiles for a [`Builtin`].
pub fn cuda_builtin_unit(builtin: &Builtin) -> String {
    builtin_unit("", builtin)
}

/// What the host's C++ compiler compiles for a [`Builtin`]; exports are those of [`host_translation_unit`].
pub fn host_builtin_unit(builtin: &Builtin) -> String {
    let mut text = builtin_unit(&host_head(), builtin);
    text += "\n#line 1 \"launches\"\n";
    for kernel in builtin.kernels {
        text += &format!("DKB_EXPORT({kernel})\n");
    }
    text
}

fn builtin_unit(head: &str, builtin: &Builtin) -> String {
    let Builtin { name, source, .. } = builtin;
    format!("{head}#line 1 \"dkb.cuh\"\n{DKB_CUH}\n#line 1 \"{name}\"\n{source}\n")
}

fn host_head() -> String {
    format!("#define DKB_HOST 1\n#line 1 \"host_shim.h\"\n{HOST_SHIM}\n")
}

fn unit(head: &str, plan: &Plan) -> Result<String, SourceError> {
    if let Some(name) = plan.params.keys().find(|name| !is_name(name)) {
        return Err(SourceError::Name(name.clone()));
    }
    let source = without_include(plan.source_in(Framework::Cuda))?;
    let params = params_struct(plan);
    Ok(format!(
        "{head}#line 1 \"dkb.cuh\"\n{DKB_CUH}\n\
         #line 1 \"params\"\n{params}\
         #line 1 \"{SOURCE_NAME}\"\n{source}\n"
    ))
}

/// Whether `text` is a C identifier.
fn is_name(text: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(word) && text.starts_with(|c: char| !c.is_ascii_digit())
}

/// Whether a name, and not only a longer one that has it within, is in a text.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let longer = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let at = |(at, _): (usize, &str)| {
        !text[..at].ends_with(longer) && !text[at + word.len()..].starts_with(longer)
    };
    text.match_indices(word).any(at)
}

/// The source with `#include "dkb.cuh"` made an empty line.
fn without_include(source: &str) -> Result<String, SourceError> {
    let is_ours = |line: &str| {
        let rest = line.trim().strip_prefix('#').map(str::trim_start);
        let name = rest.and_then(|r| r.strip_prefix("include")).map(str::trim_start);
        name == Some("\"dkb.cuh\"")
    };
    let lines: Vec<&str> = source.lines().map(|line| if is_ours(line) { "" } else { line }).collect();
    let text = lines.join("\n");
    refuse_file_access(&text)?;
    Ok(text)
}

/// Refuses every directive that reads a file, however it is spelled: behind comments, over spliced lines,
/// with digraphs; and the assembler's own.
fn refuse_file_access(text: &str) -> Result<(), SourceError> {
    let bytes = text.as_bytes();
    for at in 0..bytes.len() {
        let rest = &bytes[at..];
        let after = match rest {
            [b'#', ..] => at + 1,
            [b'%', b':', ..] => at + 2,
            [b'?', b'?', b'=', ..] => at + 3,
            _ if is_word_start(bytes, at) && spliced_word(bytes, at) == b"incbin" => at,
            _ => continue,
        };
        let word = spliced_word(bytes, skip_blank(bytes, after));
        let reads = [&b"include"[..], b"import", b"embed", b"incbin"];
        if reads.iter().any(|name| word.starts_with(name)) {
            let line = bytes[..at].iter().filter(|b| **b == b'\n').count();
            let shown = text.lines().nth(line).unwrap_or_default().trim().to_owned();
            return Err(SourceError::Include { line: line + 1, text: shown });
        }
    }
    Ok(())
}

fn is_word_start(bytes: &[u8], at: usize) -> bool {
    bytes[at].is_ascii_alphabetic() && (at == 0 || !bytes[at - 1].is_ascii_alphanumeric())
}

/// The first position from `at` that is neither blank, line end, line splice nor comment.
fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    loop {
        match &bytes[at..] {
            [b'/', b'*', rest @ ..] => match rest.windows(2).position(|w| w == b"*/") {
                Some(len) => at += len + 4,
                None => return bytes.len(),
            },
            [b'\\', ..] => at += 1,
            [b, ..] if b.is_ascii_whitespace() => at += 1,
            _ => return at,
        }
    }
}

/// The letters from `at`, read through line splices.
fn spliced_word(bytes: &[u8], mut at: usize) -> Vec<u8> {
    let mut word = Vec::new();
    while at < bytes.len() && word.len() < 16 {
        match bytes[at] {
            b if b.is_ascii_alphabetic() => word.push(b),
            b'\\' => {
                while at + 1 < bytes.len() && bytes[at + 1].is_ascii_whitespace() {
                    at += 1;
                }
            }
            _ => break,
        }
        at += 1;
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn plan(params: &str, source: &str) -> Plan {
        let header = format!(
            "/*--- kernel plan 1\nsql = \"\"\nframework = \"cuda\"\nlevel = \"full\"\nphases = []\n\
             result = {{ size = \"n\", columns = [] }}\n{params}---*/\n{source}"
        );
        text::parse(&header).unwrap()
    }

    #[test]
    fn params_follow_c_layout() {
        let plan = plan(
            "[params]\na = { type = \"date\", default = \"1994-01-01\" }\n\
             b = { type = \"decimal(38,4)\", default = \"1\" }\n\
             c = { type = \"utf8\", default = \"x\" }\nd = { type = \"float32\", default = \"1\" }\n",
            "",
        );
        let layout = params_layout(&plan);
        let offsets: Vec<usize> = layout.fields.iter().map(|f| f.offset).collect();
        assert_eq!((offsets, layout.size), (vec![0, 16, 32, 48], 64));
        assert_eq!(params_struct(&plan), "struct Params {\n  i64 a;\n  i128 b;\n  Str c;\n  f64 d;\n};\n");

        let text = ParamWord::Text(b"BUILDING".to_vec());
        let values = [ParamWord::Int(-1), ParamWord::Int(i128::MIN), text, ParamWord::Float(0.5)];
        let bytes = layout.pack(&values, 0x1000).unwrap();
        assert_eq!(bytes.len(), layout.packed_bytes(&values));
        assert_eq!(bytes[..8], (-1i64).to_le_bytes());
        assert_eq!(bytes[16..32], i128::MIN.to_le_bytes());
        assert_eq!(bytes[32..40], 0x1040u64.to_le_bytes());
        assert_eq!(bytes[40..44], 8u32.to_le_bytes());
        assert_eq!(bytes[48..56], 0.5f64.to_le_bytes());
        assert_eq!(&bytes[64..], b"BUILDING");
    }

    #[test]
    fn pack_names_the_parameter_that_does_not_fit() {
        let plan = plan("[params]\na = { type = \"int64\", default = \"1\" }\n", "");
        let layout = params_layout(&plan);
        let wide = layout.pack(&[ParamWord::Int(1 << 70)], 0);
        assert!(matches!(wide, Err(PackError::Value { name, .. }) if name == "a"));
        assert!(matches!(layout.pack(&[ParamWord::Float(1.0)], 0), Err(PackError::Value { .. })));
        assert_eq!(layout.pack(&[], 0), Err(PackError::Count { expected: 1, actual: 0 }));
    }

    #[test]
    fn no_parameters_still_give_a_struct() {
        let plan = plan("", "");
        assert_eq!(params_struct(&plan), "struct Params { i64 none; };\n");
        assert_eq!(params_layout(&plan).pack(&[], 0), Ok(vec![0; 8]));
    }

    #[test]
    fn our_include_becomes_an_empty_line() {
        let plan = plan("", "// head\n#include \"dkb.cuh\"\nint here;\n");
        let unit = cuda_translation_unit(&plan).unwrap();
        assert!(unit.ends_with("#line 1 \"plan.cu\"\n// head\n\nint here;\n"), "{unit}");
    }

    #[test]
    fn other_includes_are_refused() {
        for source in [
            "#include <stdio.h>",
            "\n# include \"dkb.cuh\" \"x\"",
            "#include \"dkb.cuh\"\n#include \"/etc/passwd\"",
            "/* a */ # /* b\n */ include <x>",
            "#inc\\\nlude <x>",
            "#\\\n  include <x>",
            "%:include <x>",
            "#include_next <x>",
            "#import <x>",
            "asm(\".incbin \\\"x\\\"\");",
            "const char* s = \"/*\";\n#include <x>\nconst char* t = \"*/\";",
        ] {
            let unit = cuda_translation_unit(&plan("", source));
            assert!(matches!(unit, Err(SourceError::Include { .. })), "{source}");
        }
        for source in ["#define A(x) #x\n#if 1\n#endif", "int include = 1;", "#pragma unroll\nint a;"] {
            assert!(cuda_translation_unit(&plan("", source)).is_ok(), "{source}");
        }
    }
}
