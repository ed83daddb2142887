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

/// A statement of the row loop.
#[derive(Debug, Clone)]
struct Line {
    depth: usize,
    text: String,
    does: Does,
}

/// What a statement does, as far as it matters for running a part of the loop by itself.
#[derive(Debug, Clone)]
enum Does {
    /// Goes on to the next row if `text` is true.
    Skip,
    /// Gives this name a value that follows from the row alone.
    Bind(String),
    /// Anything else.
    Act,
}

/// Rows are first tested and then collected, warp by warp, where this share of them passes: of more, few lanes of a
/// warp would idle; of less, most warps have no row to go on with.
const COLLECTED_SHARE: std::ops::Range<f64> = 1.0 / 32.0..0.25;

/// Rows are tested some at a time where at most this share of them passes what one column says: so many loads of that
/// column, which wait for nothing else, are in flight together.
const TESTED_AHEAD_SHARE: f64 = 0.5;

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
    body: Vec<Line>,
    /// Statements at the beginning of the body that ask of one column whether rows pass.
    ahead: usize,
    /// The statements up to here decide which rows the others see.
    tested: usize,
    /// Statements after the row loop.
    pub(crate) tail: String,
    depth: usize,
    pub(crate) env: BTreeMap<ColId, Value>,
    /// The arguments that reading a column takes.
    pub(crate) needs: BTreeMap<ColId, Vec<Arg>>,
    /// No more rows than this reach the sink, over all partitions.
    pub(crate) max_rows: Option<u128>,
    /// Estimated rows at the source.
    source_rows: f64,
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
            body: Vec::new(),
            ahead: 0,
            tested: 0,
            tail: String::new(),
            depth: 2,
            env: BTreeMap::new(),
            needs: BTreeMap::new(),
            max_rows,
            source_rows: rows,
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

    fn push(&mut self, text: impl Into<String>, does: Does) {
        self.body.push(Line { depth: self.depth, text: text.into(), does });
    }

    /// Adds a statement to the row loop.
    pub(crate) fn line(&mut self, text: impl Into<String>) {
        self.push(text, Does::Act);
    }

    /// Adds a statement that gives `name` a value which follows from the row alone.
    pub(crate) fn bind(&mut self, name: &str, text: impl Into<String>) {
        self.push(text, Does::Bind(name.to_owned()));
    }

    /// Adds a line that opens a block, which stays open to the end of the row loop.
    pub(crate) fn open(&mut self, text: impl Into<String>) {
        self.line(text);
        self.depth += 1;
    }

    /// Skips rows for which `condition` is true.
    pub(crate) fn skip_if(&mut self, condition: impl Into<String>) {
        self.push(condition, Does::Skip);
    }

    /// Skips rows for which `condition` is not true.
    pub(crate) fn keep_if(&mut self, condition: &str) {
        self.skip_if(format!("!({condition})"));
    }

    /// Says that this share of the rows passes what was asked of one column, and that nothing else was asked yet. Text is
    /// read byte by byte, one after the other, and not tested ahead.
    pub(crate) fn test_ahead(&mut self, share: f64) {
        let text = self.args.iter().any(|arg| matches!(arg, Arg::Offsets(..)));
        if share <= TESTED_AHEAD_SHARE && !text && !self.body.iter().any(|l| matches!(l.does, Does::Act)) {
            self.ahead = self.body.len();
        }
    }

    /// Whether nothing was asked of a table's rows yet.
    pub(crate) fn is_bare(&self) -> bool {
        self.body.is_empty() && matches!(self.over, Over::Table(_))
    }

    /// Says that what follows is costly for a row: if few rows get here, they are collected before it.
    pub(crate) fn collect_rows(&mut self) {
        let few = COLLECTED_SHARE.contains(&(self.rows / self.source_rows));
        if few && self.tested == 0 && self.body.iter().all(|line| !matches!(line.does, Does::Act)) {
            self.tested = self.body.len();
        }
    }

    /// The loop over the rows.
    pub(crate) fn row_loop(&self) -> String {
        let mut text = String::new();
        let mut add = |depth: usize, line: &str| {
            writeln!(text, "{}{line}", "  ".repeat(depth)).expect("writing to a String");
        };
        let slot = (self.row == "slot").then_some("const u64 slot = first_row + i;");
        let (tests, rows) = match self.tested {
            0 => (self.ahead, "DKB_ROWS_AHEAD"),
            tested => (tested, "DKB_ROWS_THAT"),
        };
        let (tests, rest) = self.body.split_at(tests);
        if tests.is_empty() {
            add(1, "DKB_ROWS(i, rows) {");
            slot.iter().for_each(|s| add(2, s));
        } else {
            add(1, "const auto passes = [&](u64 i) {");
            slot.iter().for_each(|s| add(2, s));
            for line in tests {
                match line.does {
                    Does::Skip => add(2, &format!("if ({}) return false;", line.text)),
                    Does::Bind(_) | Does::Act => add(2, &line.text),
                }
            }
            add(2, "return true;");
            add(1, "};");
            add(1, &format!("{rows}(i, rows, passes) {{"));
            slot.iter().for_each(|s| add(2, s));
            needed(tests, rest).iter().for_each(|line| add(2, &line.text));
        }
        for Line { depth, text, does } in rest {
            match does {
                Does::Skip => add(*depth, &format!("if ({text}) continue;")),
                Does::Bind(_) | Does::Act => add(*depth, text),
            }
        }
        (1..self.depth).rev().for_each(|depth| add(depth, "}"));
        text
    }
}

/// The statements of `tests` that name values which `rest` uses, directly or through others.
fn needed<'l>(tests: &'l [Line], rest: &[Line]) -> Vec<&'l Line> {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
    }
    let mut used: BTreeSet<&str> = rest.iter().flat_map(|line| words(&line.text)).collect();
    let mut list: Vec<&Line> = Vec::new();
    for line in tests.iter().rev() {
        if matches!(&line.does, Does::Bind(name) if used.contains(name.as_str())) {
            used.extend(words(&line.text));
            list.push(line);
        }
    }
    list.reverse();
    list
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
