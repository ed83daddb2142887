//! The plan checker: what must hold before a plan is compiled or run.
//!
//! Invariant: a checked plan names only what it declares, and its source opens no file but `dkb.cuh`.
//! The source check is a first line of defence; an unaccepted plan still compiles and runs in a sandbox.

use std::collections::HashSet;
use std::fmt::Display;

use crate::expr::{self, ExprError};
use crate::plan::{
    Arg, Buffer, Framework, Launch, On, Over, Param, Phase, Plan, Reduce, Start, TritonLaunch, launches,
};
use crate::prune::{Predicate, comparable};
use crate::repr::{Elem, Physical, SqlType};
use crate::source::has_word;
use crate::triton::{has_kernel, triton_kernel, triton_type};

/// The largest source a plan may have, in bytes.
const MAX_SOURCE_BYTES: usize = 128 << 10;

/// Names that kernel arguments and length expressions give a meaning of their own.
const RESERVED: [&str; 6] = ["rows", "first_row", "params", "flags", "part", "parts"];

/// Words that C++ gives a meaning.
const KEYWORDS: &str = "alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t \
    char32_t class compl concept const const_cast consteval constexpr constinit continue co_await \
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern \
    false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr \
    operator or or_eq private protected public register reinterpret_cast requires return short signed \
    sizeof static static_assert static_cast struct switch template this thread_local throw true try \
    typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq";

/// Names that `dkb.cuh` declares for the types of fields, and macros of the headers behind it.
const DECLARED: &str = "i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f64 Str Params NULL";

/// What is wrong with a plan, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct CheckError {
    /// The field, such as `phases[2].launches[0].args[3]`.
    pub field: String,
    /// What is wrong with it.
    pub message: String,
}

fn fail<T>(field: impl Display, message: impl Display) -> Result<T, CheckError> {
    Err(CheckError { field: field.to_string(), message: message.to_string() })
}

/// Checks a plan.
///
/// # Errors
/// The first violation, naming the field.
pub fn check(plan: &Plan) -> Result<(), CheckError> {
    let checker = Checker { plan };
    checker.params()?;
    checker.inputs()?;
    checker.sizes()?;
    checker.buffers()?;
    checker.phases()?;
    checker.shard()?;
    checker.result()?;
    sections(plan)
}

impl Plan {
    /// The buffer of that name.
    pub fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|b| b.name == name)
    }

    /// The one size with a counter that a buffer's length names: the rows of a concat-reduced buffer.
    pub fn concat_size(&self, buffer: &Buffer) -> Option<&str> {
        let words = buffer.len.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let mut found =
            words.filter_map(|w| self.sizes.get_key_value(w)).filter(|(_, s)| s.counter.is_some());
        let (name, _) = found.next()?;
        found.all(|(other, _)| other == name).then_some(name)
    }
}

struct Checker<'a> {
    plan: &'a Plan,
}

impl Checker<'_> {
    fn params(&self) -> Result<(), CheckError> {
        for (name, param) in &self.plan.params {
            let field = format!("params.{name}");
            check_name(name).or_else(|e| fail(&field, e))?;
            if param.default.is_some() == param.value.is_some() {
                return fail(field, "needs exactly one of `default` and `value`");
            }
        }
        Ok(())
    }

    fn inputs(&self) -> Result<(), CheckError> {
        for (table, columns) in &self.plan.inputs {
            plain_name(&format!("inputs.{table}"), table)?;
            for column in columns.keys() {
                plain_name(&format!("inputs.{table}.{column}"), column)?;
            }
        }
        Ok(())
    }

    fn sizes(&self) -> Result<(), CheckError> {
        for (i, (name, size)) in self.plan.sizes.iter().enumerate() {
            let field = format!("sizes.{name}");
            identifier(&field, name)?;
            self.expression(&format!("{field}.value"), &size.value, i, false)?;
            let Some(counter) = &size.counter else { continue };
            let field = format!("{field}.counter");
            let buffer = self.buffer(&field, counter)?;
            if buffer.ty != Elem::U64 || buffer.len.trim() != "1" || buffer.start != Start::Zero {
                return fail(
                    field,
                    format!("`{counter}` must be a u64 buffer with len \"1\" and start \"zero\""),
                );
            }
        }
        Ok(())
    }

    fn buffers(&self) -> Result<(), CheckError> {
        let mut names = HashSet::new();
        for (i, buffer) in self.plan.buffers.iter().enumerate() {
            let field = format!("buffers[{i}]");
            identifier(&format!("{field}.name"), &buffer.name)?;
            if !names.insert(&buffer.name) {
                return fail(format!("{field}.name"), format!("`{}` is declared twice", buffer.name));
            }
            self.expression(&format!("{field}.len"), &buffer.len, self.plan.sizes.len(), false)?;
            let in_writes = self.plan.phases.iter().find(|p| p.writes.contains(&buffer.name));
            if buffer.reduce != Reduce::None && in_writes.is_none() {
                return fail(
                    format!("{field}.reduce"),
                    "no phase lists the buffer in `writes`, so it is never reduced",
                );
            }
            if buffer.reduce == Reduce::Concat {
                let Some(size) = self.plan.concat_size(buffer) else {
                    return fail(
                        format!("{field}.len"),
                        "a concat-reduced buffer's length must name one size with a counter",
                    );
                };
                let counter = self.plan.sizes[size].counter.as_ref();
                if let (Some(phase), Some(counter)) = (in_writes, counter)
                    && !phase.writes.contains(counter)
                {
                    let message = format!(
                        "`{counter}`, the counter of `{size}`, must be in `writes` of phase `{}` too",
                        phase.name
                    );
                    return fail(format!("{field}.reduce"), message);
                }
            }
        }
        Ok(())
    }

    fn phases(&self) -> Result<(), CheckError> {
        if self.plan.phases.is_empty() {
            return fail("phases", "a plan needs at least one phase");
        }
        let mut names = HashSet::new();
        let mut written = HashSet::new();
        for (i, phase) in self.plan.phases.iter().enumerate() {
            let field = format!("phases[{i}]");
            if !names.insert(&phase.name) {
                return fail(
                    format!("{field}.name"),
                    format!("`{}` is the name of an earlier phase", phase.name),
                );
            }
            self.over(&format!("{field}.over"), &phase.over)?;
            let fits = match phase.over {
                Over::Table(_) => phase.on == On::Partitions,
                Over::Size(_) => true,
                Over::Nothing | Over::Dict(..) => phase.on != On::Partitions,
            };
            if !fits {
                return fail(
                    format!("{field}.on"),
                    "tables are divided into `partitions`, sizes may be, and nothing else is",
                );
            }
            if let Some(prune) = &phase.prune {
                self.prune(&format!("{field}.prune"), prune, &phase.over)?;
            }
            let mut merged = false;
            for (w, name) in phase.writes.iter().enumerate() {
                let field = format!("{field}.writes[{w}]");
                let buffer = self.buffer(&field, name)?;
                merged |= buffer.reduce == Reduce::Merge;
                if !written.insert(name) {
                    return fail(field, format!("`{name}` is already in the `writes` of a phase"));
                }
            }
            if merged != phase.merge.is_some() {
                return fail(
                    format!("{field}.merge"),
                    "a phase has a merge launch if and only if it writes a buffer with reduce \"merge\"",
                );
            }
            for (l, launch) in phase.launches.iter().enumerate() {
                self.launch(&format!("{field}.launches[{l}]"), launch, phase, false)?;
            }
            if let Some(merge) = &phase.merge {
                self.launch(&format!("{field}.merge"), merge, phase, true)?;
            }
        }
        Ok(())
    }

    fn over(&self, field: &str, over: &Over) -> Result<(), CheckError> {
        match over {
            Over::Table(table) if !self.plan.inputs.contains_key(table) => {
                fail(field, format!("no table `{table}` in `inputs`"))
            }
            Over::Size(size) if !self.plan.sizes.contains_key(size) => {
                fail(field, format!("no size `{size}`"))
            }
            Over::Dict(table, column) => self.dictionary(field, table, column),
            Over::Nothing | Over::Table(_) | Over::Size(_) => Ok(()),
        }
    }

    fn prune(&self, field: &str, prune: &Predicate, over: &Over) -> Result<(), CheckError> {
        let Over::Table(table) = over else {
            return fail(field, "only phases over a table have row groups to skip");
        };
        for (column, _, param) in prune.comparisons() {
            let Some(repr) = self.plan.inputs.get(table).and_then(|t| t.get(column)) else {
                return fail(field, format!("no column `{table}.{column}` in `inputs`"));
            };
            let Some(Param { ty, .. }) = self.plan.params.get(param) else {
                return fail(field, format!("no parameter `{param}`"));
            };
            if !comparable(repr.sql, *ty) {
                let message = format!(
                    "`{column}` is {} and `:{param}` is {ty}: only numbers, dates and timestamps have statistics, \
                     to be compared with their like",
                    repr.sql
                );
                return fail(field, message);
            }
        }
        Ok(())
    }

    fn launch(&self, field: &str, launch: &Launch, phase: &Phase, merge: bool) -> Result<(), CheckError> {
        identifier(&format!("{field}.kernel"), &launch.kernel)?;
        self.kernel(field, launch)?;
        let has_rows = match phase.over {
            Over::Nothing => false,
            Over::Table(_) => !merge,
            Over::Size(_) | Over::Dict(..) => true,
        };
        let grid = match launch.framework() {
            Framework::Cuda => "threads",
            Framework::Triton if !launch.threads.is_empty() => {
                return fail(
                    format!("{field}.threads"),
                    "a launch of a kernel in Triton has `triton.programs` instead of `threads`",
                );
            }
            Framework::Triton => "triton.programs",
        };
        self.expression(&format!("{field}.{grid}"), launch.grid(), self.plan.sizes.len(), has_rows)?;
        for (a, arg) in launch.args.iter().enumerate() {
            self.arg(&format!("{field}.args[{a}]"), arg, phase, merge, has_rows)?;
        }
        match &launch.triton {
            Some(table) => self.triton(field, launch, table),
            None => Ok(()),
        }
    }

    /// Checks that the kernel is in the section of its language.
    fn kernel(&self, field: &str, launch: &Launch) -> Result<(), CheckError> {
        let (name, triton) = (&launch.kernel, self.plan.section(Framework::Triton));
        match (launch.framework(), self.plan.section(launch.framework())) {
            (Framework::Cuda, Some(source)) if has_word(source, name) => Ok(()),
            (Framework::Triton, Some(source)) if has_kernel(source, name) => Ok(()),
            (Framework::Cuda, Some(_)) if !triton.is_some_and(|source| has_kernel(source, name)) => {
                fail(format!("{field}.kernel"), format!("the source has no kernel `{name}`"))
            }
            (Framework::Cuda, _) => fail(
                format!("{field}.triton"),
                "a launch of a kernel in Triton needs a table `triton` with `programs`",
            ),
            (Framework::Triton, Some(_)) => {
                let message = format!("the source has no kernel `def {name}(` under `@triton.jit`");
                fail(format!("{field}.kernel"), message)
            }
            (Framework::Triton, None) => fail(
                format!("{field}.triton"),
                "only launches of kernels in Triton have such a table, and the source has no section in Triton",
            ),
        }
    }

    /// Checks what is special to a launch of a kernel in Triton, whose arguments are checked.
    fn triton(&self, field: &str, launch: &Launch, table: &TritonLaunch) -> Result<(), CheckError> {
        for (a, arg) in launch.args.iter().enumerate() {
            if triton_type(self.plan, arg).is_none() {
                let message = format!("`{arg}` has elements of 128 bits, which Triton does not know");
                return fail(format!("{field}.args[{a}]"), message);
            }
        }
        let field = format!("{field}.triton");
        for name in table.constexprs.keys() {
            check_name(name).or_else(|e| fail(format!("{field}.constexprs"), e))?;
        }
        if !table.num_warps.is_power_of_two() || table.num_warps > 32 {
            return fail(format!("{field}.num_warps"), "must be a power of two from 1 to 32");
        }
        if !(1..=8).contains(&table.num_stages) {
            return fail(format!("{field}.num_stages"), "must be from 1 to 8");
        }
        if let Some(at) = table.divisible.iter().find(|at| **at >= launch.args.len()) {
            let message = format!("there is no argument {at}: positions in `args` count from 0");
            return fail(format!("{field}.divisible"), message);
        }
        let kernel = triton_kernel(self.plan, launch);
        let same = |other: &&Launch| other.kernel == launch.kernel;
        if launches(self.plan).filter(same).any(|other| triton_kernel(self.plan, other) != kernel) {
            let message = format!(
                "another launch of `{}` has arguments of other types, or another table: launch another kernel",
                launch.kernel
            );
            return fail(field, message);
        }
        Ok(())
    }

    fn arg(
        &self,
        field: &str,
        arg: &Arg,
        phase: &Phase,
        merge: bool,
        has_rows: bool,
    ) -> Result<(), CheckError> {
        match arg {
            Arg::Params | Arg::Flags | Arg::Part | Arg::Parts => Ok(()),
            Arg::Rows if !has_rows => {
                fail(field, "`rows` has no meaning here: the launch streams over nothing")
            }
            Arg::Rows => Ok(()),
            Arg::FirstRow if merge || phase.on != On::Partitions => {
                fail(field, "`first_row` has a meaning only where a phase is divided into partitions")
            }
            Arg::FirstRow => Ok(()),
            Arg::Column(t, c) | Arg::Valid(t, c) | Arg::Offsets(t, c) | Arg::Bytes(t, c) => {
                self.column(field, arg, (t, c), phase, merge)
            }
            Arg::DictOffsets(t, c) | Arg::DictBytes(t, c) => self.dictionary(field, t, c),
            Arg::Len(size) if self.plan.sizes.contains_key(size) => Ok(()),
            Arg::Len(size) => fail(field, format!("no size `{size}`")),
            Arg::Buffer(name) => self.buffer(field, name).map(drop),
            Arg::Peer(name) => {
                let buffer = self.buffer(field, name)?;
                if !merge {
                    return fail(field, "`peer` arguments are for merge launches only");
                }
                if buffer.reduce != Reduce::Merge || !phase.writes.contains(name) {
                    return fail(
                        field,
                        format!("`{name}` must have reduce \"merge\" and be in the phase's `writes`"),
                    );
                }
                Ok(())
            }
        }
    }

    fn column(
        &self,
        field: &str,
        arg: &Arg,
        (table, column): (&str, &str),
        phase: &Phase,
        merge: bool,
    ) -> Result<(), CheckError> {
        let Some(repr) = self.plan.inputs.get(table).and_then(|t| t.get(column)) else {
            return fail(field, format!("no column `{table}.{column}` in `inputs`"));
        };
        if merge || phase.over != Over::Table(table.to_owned()) {
            return fail(field, format!("columns of `{table}` can only be read by launches over `{table}`"));
        }
        let utf8 = repr.physical == Physical::Utf8;
        match arg {
            Arg::Column(..) if utf8 => {
                fail(field, format!("`{table}.{column}` is utf8: use `.offsets` and `.bytes`"))
            }
            Arg::Offsets(..) | Arg::Bytes(..) if !utf8 => {
                fail(field, format!("`{table}.{column}` is `{repr}` and has neither offsets nor bytes"))
            }
            Arg::Valid(..) if !repr.nullable => fail(
                field,
                format!("`{table}.{column}` is `{repr}`, which is never NULL and has no validity"),
            ),
            _ => Ok(()),
        }
    }

    fn dictionary(&self, field: &str, table: &str, column: &str) -> Result<(), CheckError> {
        match self.plan.inputs.get(table).and_then(|t| t.get(column)).map(|r| r.physical) {
            Some(Physical::Dict(_)) => Ok(()),
            _ => fail(field, format!("no dictionary column `{table}.{column}` in `inputs`")),
        }
    }

    fn buffer(&self, field: &str, name: &str) -> Result<&Buffer, CheckError> {
        match self.plan.buffer(name) {
            Some(buffer) => Ok(buffer),
            None => fail(field, format!("no buffer `{name}`")),
        }
    }

    /// Checks an expression over the first `sizes` sizes, and `rows` if there are such.
    fn expression(&self, field: &str, text: &str, sizes: usize, rows: bool) -> Result<(), CheckError> {
        let known = |name: &str| {
            if let Some(table) = inner(name, "rows(") {
                return self.plan.inputs.contains_key(table);
            }
            if let Some(column) = inner(name, "dict(") {
                return column.split_once('.').is_some_and(|(t, c)| self.dictionary("", t, c).is_ok());
            }
            if let Some(column) = inner(name, "max(") {
                let repr = column.split_once('.').and_then(|(t, c)| self.plan.inputs.get(t)?.get(c));
                return repr.is_some_and(|repr| matches!(repr.physical, Physical::Fixed(_)));
            }
            name == "parts"
                || (rows && name == "rows")
                || self.plan.sizes.get_index_of(name).is_some_and(|at| at < sizes)
        };
        match expr::eval(text, &|name| known(name).then_some(1)) {
            // The values are stand-ins, so only a run can tell whether a divisor is zero.
            Ok(_) | Err(ExprError::Zero(_)) => Ok(()),
            Err(e) => fail(field, e),
        }
    }

    fn shard(&self) -> Result<(), CheckError> {
        let Some(shard) = &self.plan.shard else { return Ok(()) };
        let find = |field: &str, name: &str| match self.plan.phases.iter().position(|p| p.name == name) {
            Some(at) => Ok(at),
            None => fail(field, format!("no phase `{name}`")),
        };
        if find("shard.first", &shard.first)? > find("shard.last", &shard.last)? {
            return fail("shard.last", format!("phase `{}` comes before `{}`", shard.last, shard.first));
        }
        for (i, name) in shard.buffers.iter().enumerate() {
            self.buffer(&format!("shard.buffers[{i}]"), name)?;
        }
        Ok(())
    }

    fn result(&self) -> Result<(), CheckError> {
        let result = &self.plan.result;
        if !self.plan.sizes.contains_key(&result.size) {
            return fail("result.size", format!("no size `{}`", result.size));
        }
        if result.columns.is_empty() {
            return fail("result.columns", "a result has at least one column");
        }
        for (i, column) in result.columns.iter().enumerate() {
            let field = format!("result.columns[{i}]");
            let from = self.buffer(&format!("{field}.from"), &column.from)?;
            if let Some(valid) = &column.valid {
                let field = format!("{field}.valid");
                if self.buffer(&field, valid)?.ty != Elem::U8 {
                    return fail(field, format!("`{valid}` must be a u8 buffer"));
                }
            }
            let text = column.dict.is_some() as u8 + column.fetch.is_some() as u8;
            let packed = column.ty == SqlType::Utf8 && from.ty == Elem::I128;
            if text != (column.ty == SqlType::Utf8 && !packed) as u8 {
                let message =
                    "utf8 columns need one of `dict` and `fetch`, unless packed in i128; others neither";
                return fail(field, message);
            }
            let floats = matches!(column.ty, SqlType::Float32 | SqlType::Float64);
            if from.ty == Elem::F64 && !floats {
                return fail(
                    format!("{field}.from"),
                    format!("an f64 buffer cannot hold {} values", column.ty),
                );
            }
            if let Some(dict) = &column.dict {
                let (table, name) = pair(&format!("{field}.dict"), dict)?;
                self.dictionary(&format!("{field}.dict"), table, name)?;
            }
            if let Some(fetch) = &column.fetch {
                pair(&format!("{field}.fetch"), fetch)?;
            }
        }
        let columns = result.columns.len();
        for (i, key) in self.plan.finish.order_by.iter().enumerate() {
            if key.column >= columns {
                return fail(
                    format!("finish.order_by[{i}].column"),
                    format!("the result has {columns} columns"),
                );
            }
        }
        match self.plan.finish.keep {
            Some(keep) if keep == 0 || keep > columns as u64 => {
                fail("finish.keep", format!("must be between 1 and {columns}, the number of result columns"))
            }
            _ => Ok(()),
        }
    }
}

fn inner<'a>(name: &'a str, open: &str) -> Option<&'a str> {
    name.strip_prefix(open)?.strip_suffix(')')
}

fn pair<'a>(field: &str, text: &'a str) -> Result<(&'a str, &'a str), CheckError> {
    match text.split_once('.') {
        Some(pair) => Ok(pair),
        None => fail(field, format!("`{text}` is not of the form table.column")),
    }
}

fn identifier(field: &str, name: &str) -> Result<(), CheckError> {
    check_name(name).or_else(|e| fail(field, e))?;
    if RESERVED.contains(&name) { fail(field, format!("`{name}` is a reserved name")) } else { Ok(()) }
}

/// Whether device source can use `name` for a parameter, size, buffer or kernel.
///
/// # Errors
/// What keeps it from that.
pub fn check_name(name: &str) -> Result<(), String> {
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let names = |list: &str| list.split(' ').any(|word| word == name);
    let compilers = name.starts_with("__")
        || name.strip_prefix('_').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    if !valid {
        Err(format!("`{name}` is not an identifier (letters, digits and _)"))
    } else if names(KEYWORDS) {
        Err(format!("`{name}` is a keyword of C++: choose another name"))
    } else if names(DECLARED) || compilers || name.starts_with("DKB_") {
        Err(format!("`{name}` is taken in device source: choose another name"))
    } else {
        Ok(())
    }
}

/// Table and column names come from files: anything that the textual forms can carry.
fn plain_name(field: &str, name: &str) -> Result<(), CheckError> {
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || ".()\"'`\\".contains(c)) {
        return fail(field, format!("`{name}` cannot be used as a table or column name in a plan"));
    }
    Ok(())
}

fn words(source: &str) -> impl Iterator<Item = &str> {
    source.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|w| !w.is_empty())
}

/// Refuses a source that is too long, and checks each section by the rules of its language.
fn sections(plan: &Plan) -> Result<(), CheckError> {
    let sections = Framework::ALL.into_iter().filter_map(|f| Some((f, plan.section(f)?)));
    let bytes: usize = sections.clone().map(|(_, text)| text.len()).sum();
    if bytes > MAX_SOURCE_BYTES {
        return fail("source", format!("{bytes} bytes; at most {MAX_SOURCE_BYTES} are allowed"));
    }
    for (framework, text) in sections {
        plain_text(text)?;
        if framework == Framework::Cuda {
            source(text)?;
        }
        if plan.other_source.is_some() && !launches(plan).any(|launch| launch.framework() == framework) {
            return fail("source", format!("no launch has a kernel of the section `{framework}`"));
        }
    }
    Ok(())
}

/// Refuses a text that hides something from its readers.
fn plain_text(text: &str) -> Result<(), CheckError> {
    match text.chars().find(|c| c.is_control() && !"\t\n\r\x0c".contains(*c)) {
        Some(c) => fail("source", format!("the control character U+{:04X} is not allowed", c as u32)),
        None => Ok(()),
    }
}

/// Refuses a source of CUDA C++ that could make a compiler read a file other than `dkb.cuh`.
///
/// The search ignores where comments and strings begin, so it can refuse too much but never too little.
fn source(text: &str) -> Result<(), CheckError> {
    let refuse = |what: &str| fail("source", format!("{what} is not allowed"));
    let text = splice(text);
    const WORDS: [&str; 9] = [
        "asm",
        "__asm",
        "__asm__",
        "_Pragma",
        "__pragma",
        "__attribute",
        "__attribute__",
        "__has_include",
        "__has_embed",
    ];
    if let Some(word) = words(&text).find(|w| WORDS.contains(w)) {
        return refuse(&format!("`{word}`"));
    }
    for what in [".incbin", "##", "%:%:", "gnu::"] {
        if text.contains(what) {
            return refuse(&format!("`{what}`"));
        }
    }
    for (at, mark) in text.match_indices('#').chain(text.match_indices("%:")) {
        directive(skip_blanks(&text[at + mark.len()..]))?;
    }
    Ok(())
}

/// Checks what follows a `#`.
fn directive(rest: &str) -> Result<(), CheckError> {
    let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    let (word, rest) = rest.split_at(end);
    let rest = skip_blanks(rest);
    let refused = match word {
        "include" => !rest.starts_with("\"dkb.cuh\""),
        "pragma" => !rest.starts_with("unroll"),
        "include_next" | "include_alias" | "import" | "embed" | "line" | "ident" | "sccs" | "using" => true,
        _ => word.starts_with(|c: char| c.is_ascii_digit()) && rest.starts_with('"'),
    };
    if refused {
        let line = rest.lines().next().unwrap_or_default();
        let shown: String = format!("#{word} {line}").chars().take(80).collect();
        return fail(
            "source",
            format!("`{}` is not allowed: the only include is \"dkb.cuh\"", shown.trim_end()),
        );
    }
    Ok(())
}

/// Joins lines that end in a backslash (or its trigraph) and spells `#` plainly, as a compiler would.
fn splice(text: &str) -> String {
    let text = text.replace("??/", "\\").replace("??=", "#").replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        out.push_str(before);
        match after.trim_start_matches([' ', '\t', '\x0c']).strip_prefix('\n') {
            Some(next) => rest = next,
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn skip_blanks(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match text.strip_prefix("/*") {
            Some(comment) => text = comment.find("*/").map_or("", |end| &comment[end + 2..]),
            None => return text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const PLAN: &str = r#"/*--- kernel plan 1
sql = "select 1"
framework = "cuda"
level = "full"
[params]
date = { type = "date", default = "1994-01-01" }
least = { type = "decimal(15,2)", default = "0" }
[inputs.t]
a = "int32 as i32"
n = "int32 as i8 null"
d = "dict<u8>"
s = "utf8"
[sizes]
one = { value = "1" }
kept = { value = "rows(t) / 2 + dict(t.d)", counter = "kept_n" }
slots = { value = "2 * kept", counter = "slots_n", pow2 = true }
[[buffers]]
name = "kept_n"
type = "u64"
len = "1"
start = "zero"
reduce = "sum"
[[buffers]]
name = "kept_a"
type = "i32"
len = "kept"
start = "poison"
reduce = "concat"
[[buffers]]
name = "slots_n"
type = "u64"
len = "1"
start = "zero"
reduce = "merge"
[[buffers]]
name = "hash"
type = "u64"
len = "slots"
start = "max"
reduce = "merge"
[[buffers]]
name = "code"
type = "u8"
len = "kept"
start = "poison"
[[phases]]
name = "scan"
over = "t"
on = "partitions"
prune = "a >= :least or n < :least"
writes = ["kept_n", "kept_a"]
launches = [{ kernel = "scan", threads = "rows", args = ["rows", "first_row", "t.a", "t.n.valid", "t.s.offsets", "t.s.bytes", "params", "kept_n", "kept_a", "len(kept)"] }]
[[phases]]
name = "group"
over = "t"
on = "partitions"
writes = ["slots_n", "hash"]
launches = [{ kernel = "group", threads = "rows", args = ["rows", "t.a", "hash", "part", "parts", "flags"] }]
merge = { kernel = "fold", threads = "slots", args = ["peer.hash", "hash", "slots_n"] }
[[phases]]
name = "out"
over = "rows(kept)"
on = "root"
launches = [{ kernel = "out", threads = "rows", args = ["rows", "dict(t.d).offsets", "dict(t.d).bytes", "code"] }]
[shard]
first = "scan"
last = "group"
buffers = ["hash", "slots_n"]
[result]
size = "kept"
columns = [
  { name = "a", type = "int32", from = "kept_a" },
  { name = "d", type = "utf8", from = "code", dict = "t.d" },
]
[finish]
order_by = [{ column = 1 }]
keep = 1
---*/
#include "dkb.cuh"
KERNEL scan() {} KERNEL group() {} KERNEL fold() {} KERNEL out() {}
"#;

    fn plan() -> Plan {
        text::parse(PLAN).unwrap()
    }

    /// The error after replacing `from` by `to` in the plan's text.
    fn error(from: &str, to: &str) -> String {
        assert!(PLAN.contains(from), "{from}");
        check(&text::parse(&PLAN.replacen(from, to, 1)).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn accepts_a_plan() {
        check(&plan()).unwrap();
    }

    #[test]
    fn names_the_wrong_field() {
        for (from, to, expected) in [
            ("default = \"1994-01-01\"", "", "params.date: needs exactly one"),
            ("date = {", "\"da te\" = {", "params.da te: `da te` is not an identifier"),
            ("date = {", "class = {", "params.class: `class` is a keyword of C++"),
            ("date = {", "u64 = {", "params.u64: `u64` is taken"),
            ("name = \"kept_a\"", "name = \"rows\"", "buffers[1].name: `rows` is a reserved name"),
            (
                "\"rows(t) / 2",
                "\"slots / 2",
                "sizes.kept.value: `slots / 2 + dict(t.d)`: unknown name `slots`",
            ),
            ("dict(t.d)\"", "dict(t.a)\"", "sizes.kept.value:"),
            ("dict(t.d)\"", "max(t.d)\"", "sizes.kept.value:"),
            ("counter = \"kept_n\"", "counter = \"none\"", "sizes.kept.counter: no buffer `none`"),
            ("counter = \"kept_n\"", "counter = \"kept_a\"", "sizes.kept.counter: `kept_a` must be a u64"),
            ("name = \"kept_a\"", "name = \"kept_n\"", "buffers[1].name: `kept_n` is declared twice"),
            ("len = \"kept\"", "len = \"one\"", "buffers[1].len: a concat-reduced"),
            ("len = \"kept\"", "len = \"rows\"", "buffers[1].len: `rows`: unknown name"),
            ("[\"kept_n\", \"kept_a\"]", "[\"kept_a\"]", "buffers[0].reduce: no phase"),
            (
                "[\"slots_n\", \"hash\"]",
                "[\"slots_n\", \"hash\", \"kept_a\"]",
                "phases[1].writes[2]: `kept_a` is already",
            ),
            ("name = \"group\"", "name = \"scan\"", "phases[1].name"),
            ("over = \"t\"", "over = \"u\"", "phases[0].over: no table `u`"),
            ("on = \"partitions\"", "on = \"each\"", "phases[0].on:"),
            ("over = \"rows(kept)\"", "over = \"rows(x)\"", "phases[2].over: no size `x`"),
            ("merge = {", "hot = true\n#", "phases[1].merge:"),
            ("prune = \"a", "prune = \"b", "phases[0].prune: no column `t.b`"),
            ("< :least", "< :most", "phases[0].prune: no parameter `most`"),
            ("< :least", "< :date", "phases[0].prune: `n` is int32 and `:date` is date"),
            ("or n", "or s", "phases[0].prune: `s` is utf8 and"),
            (
                "over = \"rows(kept)\"",
                "over = \"rows(kept)\"\nprune = \"a = :least\"",
                "phases[2].prune: only phases over a table",
            ),
            (
                "kernel = \"scan\"",
                "kernel = \"gone\"",
                "phases[0].launches[0].kernel: the source has no kernel `gone`",
            ),
            ("threads = \"slots\"", "threads = \"rows\"", "phases[1].merge.threads:"),
            ("\"kept_a\", \"len(kept)\"", "\"x\"", "phases[0].launches[0].args[8]: no buffer `x`"),
            ("\"len(kept)\"", "\"len(x)\"", "phases[0].launches[0].args[9]: no size `x`"),
            ("\"t.a\", \"t.n.valid\"", "\"t.b\"", "phases[0].launches[0].args[2]: no column `t.b`"),
            ("\"t.n.valid\"", "\"t.a.valid\"", "phases[0].launches[0].args[3]: `t.a` is"),
            ("\"t.s.bytes\"", "\"t.s\"", "phases[0].launches[0].args[5]: `t.s` is utf8"),
            ("\"t.s.bytes\"", "\"t.a.bytes\"", "phases[0].launches[0].args[5]: `t.a` is"),
            ("[\"rows\", \"dict", "[\"t.a\", \"dict", "phases[2].launches[0].args[0]: columns of `t`"),
            ("[\"rows\", \"dict", "[\"first_row\", \"dict", "phases[2].launches[0].args[0]: `first_row`"),
            ("dict(t.d).bytes", "dict(t.a).bytes", "phases[2].launches[0].args[2]: no dictionary column"),
            ("\"t.a\", \"hash\"", "\"peer.hash\"", "phases[1].launches[0].args[1]: `peer`"),
            ("\"peer.hash\"", "\"peer.kept_a\"", "phases[1].merge.args[0]: `kept_a` must"),
            ("last = \"group\"", "last = \"x\"", "shard.last: no phase `x`"),
            (
                "first = \"scan\"\nlast = \"group\"",
                "first = \"group\"\nlast = \"scan\"",
                "shard.last: phase `scan`",
            ),
            ("buffers = [\"hash\"", "buffers = [\"x\"", "shard.buffers[0]: no buffer `x`"),
            ("size = \"kept\"", "size = \"x\"", "result.size: no size `x`"),
            ("from = \"kept_a\"", "from = \"x\"", "result.columns[0].from: no buffer `x`"),
            ("from = \"kept_a\"", "from = \"kept_a\", valid = \"kept_a\"", "result.columns[0].valid:"),
            (", dict = \"t.d\"", "", "result.columns[1]: utf8 columns"),
            ("dict = \"t.d\"", "dict = \"t.a\"", "result.columns[1].dict: no dictionary"),
            ("dict = \"t.d\"", "fetch = \"ta\"", "result.columns[1].fetch: `ta` is not"),
            ("column = 1", "column = 2", "finish.order_by[0].column: the result has 2 columns"),
            ("keep = 1", "keep = 3", "finish.keep:"),
        ] {
            let message = error(from, to);
            assert!(message.starts_with(expected), "{from} -> {to}: {message}");
        }
    }

    #[test]
    fn a_concat_size_needs_its_counter_reduced_with_it() {
        let mut plan = plan();
        plan.phases[0].writes = vec!["kept_a".into()];
        plan.phases[2].writes = vec!["kept_n".into()];
        assert!(check(&plan).unwrap_err().to_string().starts_with("buffers[1].reduce: `kept_n`"));
    }

    #[test]
    fn source_opens_no_file() {
        for bad in [
            "#include <stdio.h>",
            "#include \"other.cuh\"",
            "# /* x */ include <a>",
            "%:include <a>",
            "??=include <a>",
            "#incl\\\nude <a>",
            "#incl\\ \nude <a>",
            "#incl??/\nude <a>",
            "#include_next \"dkb.cuh\"",
            "#include DKB",
            "#embed \"/etc/passwd\"",
            "#import \"dkb.cuh\"",
            "#line 1 \"/etc/passwd\"",
            "# 1 \"/etc/passwd\"",
            "#pragma GCC dependency \"x\"",
            "_Pragma(\"x\")",
            "const char* s = \"/*\";\n#include <a>\n\"*/\"",
            "asm(\"\");",
            "__asm__ volatile(\"\");",
            "x(\".incbin\")",
            "#define J(a, b) a##b",
            "__attribute__((section(\"x\")))",
            "#if __has_include(<a>)",
        ] {
            assert!(source(bad).is_err(), "{bad:?}");
        }
        assert!(plain_text("\u{0}").is_err());
        for good in [
            "#include \"dkb.cuh\"\n#define S(x) #x\n#pragma unroll\n",
            "// Q#1\n#if 1\n#endif\n",
            "a \\ b",
            "// é",
        ] {
            source(good).unwrap();
        }
        let long = Plan { source: " ".repeat(MAX_SOURCE_BYTES + 1), ..plan() };
        assert!(sections(&long).unwrap_err().to_string().contains("at most 131072"));
    }
}
