//! A kernel under construction: one pipeline, from its source through filters, maps and probes to its sink.
//!
//! The pipeline owns the text of the kernel and knows, per column id, how its value is written in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use dkb_kernels::{Arg, Elem, Over, Predicate};
use indexmap::IndexSet;

use crate::derive::Derived;
use crate::divide::Touch;
use crate::ir::ColId;

/// What the C++ expression of a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// An integer of at most 64 bits, of the element type in which it is stored; scaled decimals, days, too.
    Int(Elem),
    /// `bool`, false where the value is NULL.
    Bool,
    /// `f64`
    Float,
    /// `Str`
    Text,
    /// A code into the dictionary of table and column.
    Dict(usize, usize),
    /// `i128` of `pack_text`.
    Packed,
    /// A row number of the table, which stands for the text of the column.
    Fetch(usize, usize),
}

/// A value in scope: its C++ expression, and the expression that tells whether it is NULL.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    pub(crate) code: String,
    pub(crate) null: Option<String>,
    pub(crate) form: Form,
}

impl Value {
    pub(crate) fn new(code: impl Into<String>, form: Form) -> Value {
        Value { code: code.into(), null: None, form }
    }

    pub(crate) fn or_null(mut self, null: Option<String>) -> Value {
        self.null = any_null([self.null.take(), null]);
        self
    }
}

/// The disjunction of NULL conditions.
pub(crate) fn any_null(nulls: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let mut distinct: Vec<String> = Vec::new();
    for null in nulls.into_iter().flatten() {
        if !distinct.contains(&null) {
            distinct.push(null);
        }
    }
    match distinct.len() {
        0 => None,
        1 => distinct.pop(),
        _ => Some(format!("({})", distinct.join(" || "))),
    }
}

/// A functional dependency: rows equal in the first set are equal in the second.
pub(crate) type Dependency = (BTreeSet<ColId>, BTreeSet<ColId>);

/// A kernel under construction.
#[derive(Debug, Clone)]
pub(crate) struct Pipe {
    /// What it streams over.
    pub(crate) over: Over,
    /// The C++ name of the row number.
    pub(crate) row: &'static str,
    pub(crate) args: IndexSet<Arg>,
    /// Statements before the row loop.
    pub(crate) head: String,
    body: String,
    /// Statements after the row loop.
    pub(crate) tail: String,
    depth: usize,
    pub(crate) env: BTreeMap<ColId, Value>,
    /// The arguments that reading a column takes.
    pub(crate) needs: BTreeMap<ColId, Vec<Arg>>,
    /// No more rows than this reach the sink, over all partitions.
    pub(crate) max_rows: Option<u128>,
    /// Estimated rows at the sink.
    pub(crate) rows: f64,
    pub(crate) dependencies: Vec<Dependency>,
    /// Columns that a build side holds for the value of another column in scope.
    pub(crate) derived: BTreeMap<ColId, Derived>,
    /// The states that it fills or reads, each by a key.
    pub(crate) touches: Vec<Touch>,
    /// Keys of which rows of other parts have been skipped.
    pub(crate) in_part: BTreeSet<String>,
    /// Buffers beside the sink's that are complete when the pipeline's phase ends.
    pub(crate) writes: Vec<String>,
    /// What holds for every row of its table that has an effect.
    pub(crate) prune: Vec<Predicate>,
    /// Steps, for `--explain`.
    pub(crate) steps: Vec<String>,
}

impl Pipe {
    pub(crate) fn new(over: Over, row: &'static str, max_rows: Option<u128>, rows: f64) -> Pipe {
        Pipe {
            over,
            row,
            args: IndexSet::new(),
            head: String::new(),
            body: String::new(),
            tail: String::new(),
            depth: 2,
            env: BTreeMap::new(),
            needs: BTreeMap::new(),
            max_rows,
            rows,
            dependencies: Vec::new(),
            derived: BTreeMap::new(),
            touches: Vec::new(),
            in_part: BTreeSet::new(),
            writes: Vec::new(),
            prune: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Registers an argument and returns its name in the kernel.
    pub(crate) fn arg(&mut self, arg: Arg) -> String {
        let name = arg_name(&arg);
        self.args.insert(arg);
        name
    }

    /// The name of a buffer argument.
    pub(crate) fn buffer(&mut self, name: &str) -> String {
        self.arg(Arg::Buffer(name.to_owned()))
    }

    /// Adds a line to the row loop.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) {
        let indent = "  ".repeat(self.depth);
        writeln!(self.body, "{indent}{}", text.as_ref()).expect("writing to a String");
    }

    /// Adds a line that opens a block, which stays open to the end of the row loop.
    pub(crate) fn open(&mut self, text: impl AsRef<str>) {
        self.line(text);
        self.depth += 1;
    }

    /// The row loop's text, all blocks closed.
    pub(crate) fn closed_body(&self) -> String {
        let mut body = self.body.clone();
        for depth in (2..self.depth).rev() {
            writeln!(body, "{}}}", "  ".repeat(depth)).expect("writing to a String");
        }
        body
    }

    /// Skips rows for which `condition` is not true.
    pub(crate) fn keep_if(&mut self, condition: &str) {
        self.line(format!("if (!({condition})) continue;"));
    }
}

/// The C++ parameter name of an argument.
pub(crate) fn arg_name(arg: &Arg) -> String {
    match arg {
        Arg::Params => "p".to_owned(),
        Arg::Column(_, c) => column_name(c),
        Arg::Valid(_, c) => format!("{}_valid", column_name(c)),
        Arg::Offsets(_, c) => format!("{}_offsets", column_name(c)),
        Arg::Bytes(_, c) => format!("{}_bytes", column_name(c)),
        Arg::DictOffsets(t, c) => format!("dict_{t}_{}_offsets", column_name(c)),
        Arg::DictBytes(t, c) => format!("dict_{t}_{}_bytes", column_name(c)),
        Arg::Len(s) => format!("{s}_len"),
        Arg::Peer(b) => format!("peer_{b}"),
        other => other.to_string(),
    }
}

/// A column's name, made safe: generated names have no underscore before their first digit, reserved words none.
fn column_name(name: &str) -> String {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let starts = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let generated = name
        .strip_prefix(['a', 'b', 'r', 'm', 'k', 'v', 'p', 'd'])
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if plain && starts && name.contains('_') && !generated && !RESERVED.contains(&name) {
        return name.to_owned();
    }
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("col_{safe}")
}

/// Names with an underscore that the primitives or C++ use.
const RESERVED: [&str; 4] = ["first_row", "static_assert", "const_cast", "static_cast"];
