//! The 22 TPC-H queries with their substitution parameters, and the parameter declarations of query files.
//!
//! A query file is SQL with placeholders `:name`, after a header of SQL comments that declares them:
//!
//! ```text
//! -- :date date = 1994-01-01 in 1993-01-01..1997-01-01 by year
//! -- :discount decimal(15,2) = 0.06 in 0.02..0.09 by 0.01
//! -- :region utf8 = AMERICA in [AFRICA, AMERICA]
//! -- :nation utf8 = BRAZIL in [AFRICA: KENYA, MOROCCO; AMERICA: BRAZIL, CANADA] of :region
//! -- :container utf8 = MED BOX in [SM, MED] [BOX, BAG]
//! -- :other utf8 = CANADA as :nation distinct from :nation
//! ```
//!
//! `in` gives the domain from which values are drawn and may be left out. Lists side by side stand for every
//! combination, joined by a blank. A comment line indented by three or more blanks continues the declaration
//! above; all other comments are ignored.
//!
//! Invariant: a default and every drawn value are valid literals of the declared type.

use std::collections::HashSet;

use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{Date32Type, TimestampMicrosecondType};
use dkb_kernels::SqlType;
use dkb_planner::ParamDecl;

/// A query with its declared parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Short name, such as `q06`.
    pub name: String,
    /// SQL with placeholders, without the header and without a closing semicolon.
    pub sql: String,
    /// Parameters in the order of their declaration.
    pub params: Vec<Declared>,
}

impl Query {
    /// The declarations alone, as the planner takes them.
    pub fn decls(&self) -> Vec<ParamDecl> {
        self.params.iter().map(|p| p.decl.clone()).collect()
    }
}

/// A declared parameter and where its values are drawn from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    /// Name, type and default.
    pub decl: ParamDecl,
    /// What [`draw`] chooses from; without one the parameter keeps its default.
    pub domain: Option<Domain>,
}

/// The values a parameter may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// The candidates.
    pub values: Values,
    /// Earlier parameters whose values are left out.
    pub distinct_from: Vec<String>,
}

/// Candidate values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Values {
    /// Any of a list.
    List(Vec<String>),
    /// Any of the list that the value of the parameter `by` selects.
    Keyed {
        /// The earlier parameter.
        by: String,
        /// Its values and the list of each.
        lists: Vec<(String, Vec<String>)>,
    },
    /// `count` values from `first` in equal steps.
    Range {
        /// The first value: an integer, scaled decimal, or day.
        first: i128,
        /// The distance between neighbours.
        step: Step,
        /// How many values there are.
        count: u64,
    },
}

/// The distance between neighbours of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many units: integers, days, or units in the last place of a decimal.
    Units(i128),
    /// So many months, for dates.
    Months(i32),
}

/// A query file that cannot be read, or values that do not fit it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// A declaration in the header is wrong.
    #[error("{query}, line {line}: {what}")]
    Declaration {
        /// The query's name.
        query: String,
        /// Line in its file, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The SQL uses a placeholder nobody declared.
    #[error("parameter `{0}` is used but not declared: give it with `--param {0}=VALUE`")]
    Undeclared(String),
    /// A value was given for a parameter the query does not have.
    #[error("no parameter `{name}`: the query has {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A value is no literal of the parameter's type.
    #[error("parameter `{name}`: `{value}` is not a {ty}")]
    Value {
        /// The parameter.
        name: String,
        /// The value given.
        value: String,
        /// The declared type.
        ty: SqlType,
    },
}

macro_rules! tpch {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../tpch/queries/", $name, ".sql")))),*]
    };
}

/// The text of each query, by name.
const TPCH: [(&str, &str); 22] = tpch! {
    "q01" "q02" "q03" "q04" "q05" "q06" "q07" "q08" "q09" "q10" "q11"
    "q12" "q13" "q14" "q15" "q16" "q17" "q18" "q19" "q20" "q21" "q22"
};

/// The 22 queries of TPC-H in order, with the parameters of its clause 2.4.
pub fn queries() -> Vec<Query> {
    let parse = |(name, text)| parse_query(name, text).expect("the embedded queries are valid");
    TPCH.into_iter().map(parse).collect()
}

/// Reads a query file; the header may be absent.
///
/// # Errors
/// [`WorkloadError::Declaration`] names the line and what is wrong with it.
pub fn parse_query(name: &str, text: &str) -> Result<Query, WorkloadError> {
    let (header, sql) = split_header(text);
    let mut params: Vec<Declared> = Vec::new();
    for (line, declaration) in header {
        let parsed = declared(&declaration, &params).map_err(|what| WorkloadError::Declaration {
            query: name.to_owned(),
            line,
            what,
        })?;
        params.push(parsed);
    }
    let sql = sql.trim().trim_end_matches(';').trim_end().to_owned();
    Ok(Query { name: name.to_owned(), sql, params })
}

/// The scale factor of TPC-H data with so many suppliers, of which there are 10,000 at scale factor 1.
pub fn scale_factor(suppliers: u64) -> f64 {
    suppliers as f64 / 10_000.0
}

/// Parameters of a query that depend on the scale factor, and their values: the fraction of Q11, by TPC-H's clause
/// 2.4.11. None where the scale factor is not known (0).
pub fn scaled_params(query: &str, scale_factor: f64) -> Vec<(String, String)> {
    match query {
        "q11" if scale_factor > 0.0 => {
            vec![("fraction".to_owned(), format!("{:.10}", 0.0001 / scale_factor))]
        }
        _ => Vec::new(),
    }
}

/// Draws a value for every parameter that has a domain. Equal seeds draw equal values everywhere.
pub fn draw(query: &Query, seed: u64) -> Vec<(String, String)> {
    let mut random =
        Random(query.name.bytes().fold(seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)));
    let mut drawn: Vec<(String, String)> = Vec::new();
    for param in &query.params {
        let Some(domain) = &param.domain else { continue };
        let value_of = |name: &str| value_of(name, &drawn, &query.params).to_owned();
        let taken: Vec<String> = domain.distinct_from.iter().map(|name| value_of(name)).collect();
        let selected = match &domain.values {
            Values::Keyed { by, lists } => list_for(lists, &value_of(by)),
            _ => &[],
        };
        let value = loop {
            let value = match &domain.values {
                Values::List(items) => random.pick(items).to_owned(),
                Values::Keyed { .. } => random.pick(selected).to_owned(),
                Values::Range { first, step, count } => {
                    nth(param.decl.ty, *first, *step, random.below(*count))
                }
            };
            if !taken.contains(&value) {
                break value;
            }
        };
        drawn.push((param.decl.name.clone(), value));
    }
    drawn
}

/// The names of the placeholders of `sql`, in the order of their first use.
pub fn placeholders(sql: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for piece in pieces(sql) {
        if let Piece::Name(name) = piece
            && !names.iter().any(|n| n == name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// `sql` with every placeholder replaced by a typed literal: the value in `given`, else the default.
///
/// # Errors
/// A placeholder that is not declared, a given name that is not declared, or a value of the wrong type.
pub fn substitute(
    sql: &str,
    decls: &[ParamDecl],
    given: &[(String, String)],
) -> Result<String, WorkloadError> {
    if let Some((name, _)) = given.iter().find(|(name, _)| decls.iter().all(|d| d.name != *name)) {
        let known: Vec<&str> = decls.iter().map(|d| d.name.as_str()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(WorkloadError::Unknown { name: name.clone(), known });
    }
    let mut out = String::with_capacity(sql.len());
    for piece in pieces(sql) {
        match piece {
            Piece::Sql(text) => out.push_str(text),
            Piece::Name(name) => {
                let decl = decls.iter().find(|d| d.name == name);
                let decl = decl.ok_or_else(|| WorkloadError::Undeclared(name.to_owned()))?;
                let given = given.iter().rev().find(|(n, _)| n == name);
                let value = given.map_or(decl.default.as_str(), |(_, value)| value);
                out.push_str(&literal(decl.ty, value).ok_or_else(|| WorkloadError::Value {
                    name: name.to_owned(),
                    value: value.to_owned(),
                    ty: decl.ty,
                })?);
            }
        }
    }
    Ok(out)
}

/// A typed SQL literal of `value`, or None where the value is not of the type.
pub fn literal(ty: SqlType, value: &str) -> Option<String> {
    Some(match ty {
        SqlType::Utf8 => format!("'{}'", value.replace('\'', "''")),
        SqlType::Bool => match value {
            "true" | "false" => value.to_owned(),
            _ => return None,
        },
        SqlType::Float32 | SqlType::Float64 => {
            let number: f64 = value.parse().ok()?;
            let name = if ty == SqlType::Float32 { "real" } else { "double" };
            format!("cast('{number:e}' as {name})")
        }
        SqlType::Timestamp => {
            TimestampMicrosecondType::parse(value)?;
            format!("cast('{value}' as timestamp)")
        }
        SqlType::Date => format!("cast('{}' as date)", show(ty, scaled(ty, value)?)),
        SqlType::Decimal(p, s) => format!("cast({} as decimal({p},{s}))", show(ty, scaled(ty, value)?)),
        SqlType::Int8 => format!("cast({} as tinyint)", scaled(ty, value)?),
        SqlType::Int16 => format!("cast({} as smallint)", scaled(ty, value)?),
        SqlType::Int32 => format!("cast({} as int)", scaled(ty, value)?),
        SqlType::Int64 => format!("cast({} as bigint)", scaled(ty, value)?),
    })
}

/// A value as an integer: days, units in the last place, or itself. None for other types and for text that is
/// no value of the type.
fn scaled(ty: SqlType, text: &str) -> Option<i128> {
    match ty {
        SqlType::Int8 => text.parse::<i8>().ok().map(i128::from),
        SqlType::Int16 => text.parse::<i16>().ok().map(i128::from),
        SqlType::Int32 => text.parse::<i32>().ok().map(i128::from),
        SqlType::Int64 => text.parse::<i64>().ok().map(i128::from),
        SqlType::Date => {
            let day = Date32Type::parse(text)?;
            (show(ty, day.into()) == text).then_some(day.into())
        }
        SqlType::Decimal(p, s) => {
            let (negative, digits) = match text.strip_prefix('-') {
                Some(rest) => (true, rest),
                None => (false, text),
            };
            let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
            let scale = usize::try_from(s).ok()?;
            let all_digits = whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit());
            if whole.is_empty() || !all_digits || fraction.len() > scale {
                return None;
            }
            let value: i128 = format!("{whole}{fraction:0<scale$}").parse().ok()?;
            if value >= 10i128.pow(p.into()) {
                return None;
            }
            Some(if negative { -value } else { value })
        }
        _ => None,
    }
}

/// The inverse of [`scaled`].
fn show(ty: SqlType, value: i128) -> String {
    match ty {
        SqlType::Date => {
            let day = i32::try_from(value).ok().and_then(Date32Type::to_naive_date_opt);
            day.map_or_else(|| value.to_string(), |day| day.to_string())
        }
        SqlType::Decimal(_, s) if s > 0 => {
            let scale = usize::from(s.unsigned_abs());
            let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            format!("{}{whole}.{fraction}", if value < 0 { "-" } else { "" })
        }
        _ => value.to_string(),
    }
}

/// Value `index` of a range. Callers stay within its count, which parsing has checked.
fn nth(ty: SqlType, first: i128, step: Step, index: u64) -> String {
    match step {
        Step::Units(units) => show(ty, first + units * i128::from(index)),
        Step::Months(months) => show(ty, add_months(first, i64::from(months) * index as i64)),
    }
}

fn add_months(day: i128, months: i64) -> i128 {
    let day = i32::try_from(day).unwrap_or(0);
    let months = i32::try_from(months).unwrap_or(0);
    Date32Type::add_year_months_opt(day, months).unwrap_or(day).into()
}

fn list_for<'a>(lists: &'a [(String, Vec<String>)], key: &str) -> &'a [String] {
    lists.iter().find(|(k, _)| k == key).map_or(&[], |(_, list)| list)
}

fn value_of<'a>(name: &str, drawn: &'a [(String, String)], params: &'a [Declared]) -> &'a str {
    let drawn = drawn.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let default = || params.iter().find(|p| p.decl.name == name).map(|p| p.decl.default.as_str());
    drawn.or_else(default).unwrap_or_default()
}

/// The SplitMix64 generator: the same numbers on every machine and in every version.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<'a>(&mut self, items: &'a [String]) -> &'a str {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// The declarations of a file's header, each with its line, and the rest of the file.
fn split_header(text: &str) -> (Vec<(usize, String)>, &str) {
    let mut declarations: Vec<(usize, String)> = Vec::new();
    let mut rest = text;
    let mut open = false;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let trimmed = line.trim();
        if let Some(comment) = line.trim_start().strip_prefix("--") {
            let body = comment.trim();
            match declarations.last_mut() {
                Some((_, last)) if open && comment.starts_with("   ") => {
                    last.push(' ');
                    last.push_str(body);
                }
                _ => {
                    open = body.starts_with(':');
                    if open {
                        declarations.push((index + 1, body.to_owned()));
                    }
                }
            }
        } else if !trimmed.is_empty() {
            break;
        }
        rest = &rest[line.len()..];
    }
    (declarations, rest)
}

/// Parses one declaration, `:name type = default [in DOMAIN | as :other] [distinct from :a, :b]`.
fn declared(text: &str, earlier: &[Declared]) -> Result<Declared, String> {
    let mut c = Cursor(text);
    let name = c.parameter()?;
    if earlier.iter().any(|p| p.decl.name == name) {
        return Err(format!("parameter `{name}` is declared twice"));
    }
    let ty = c.value(&[" = "])?;
    let ty: SqlType = ty.parse().map_err(|_| format!("parameter `{name}`: `{ty}` is not a type"))?;
    if !c.take("=") {
        return Err(format!("parameter `{name}`: expected `= DEFAULT` after the type"));
    }
    let default = c.value(&[" in ", " as :", " distinct from "])?;
    let valid = |value: &str| match literal(ty, value) {
        Some(_) => Ok(()),
        None => Err(format!("parameter `{name}`: `{value}` is not a {ty}")),
    };
    valid(&default)?;
    let values = if c.take("in ") {
        Some(values(&mut c, &name, ty, earlier, &valid)?)
    } else if c.take("as ") {
        let like = c.parameter()?;
        let like = find(&like, earlier)?;
        let domain = like.domain.as_ref().filter(|_| like.decl.ty == ty);
        Some(domain.ok_or_else(|| format!("`{}` has no domain of type {ty}", like.decl.name))?.values.clone())
    } else {
        None
    };
    let mut distinct_from = Vec::new();
    if c.take("distinct from ") {
        loop {
            let other = c.parameter()?;
            distinct_from.push(find(&other, earlier)?.decl.name.clone());
            if !c.take(",") {
                break;
            }
        }
    }
    if !c.0.trim().is_empty() {
        return Err(format!("parameter `{name}`: unexpected `{}`", c.0.trim()));
    }
    let domain = match values {
        Some(values) => {
            let least = match &values {
                Values::List(items) => different(items),
                Values::Keyed { lists, .. } => lists.iter().map(|(_, l)| different(l)).min().unwrap_or(0),
                Values::Range { count, .. } => *count,
            };
            if least <= distinct_from.len() as u64 {
                return Err(format!("parameter `{name}`: its domain leaves no value to draw"));
            }
            Some(Domain { values, distinct_from })
        }
        None if distinct_from.is_empty() => None,
        None => return Err(format!("parameter `{name}`: `distinct from` needs a domain")),
    };
    Ok(Declared { decl: ParamDecl { name, ty, default }, domain })
}

fn different(items: &[String]) -> u64 {
    items.iter().collect::<HashSet<_>>().len() as u64
}

fn find<'a>(name: &str, earlier: &'a [Declared]) -> Result<&'a Declared, String> {
    let found = earlier.iter().find(|p| p.decl.name == name);
    found.ok_or_else(|| format!("parameter `{name}` is not declared above"))
}

/// Parses the candidates after `in`.
fn values(
    c: &mut Cursor<'_>,
    name: &str,
    ty: SqlType,
    earlier: &[Declared],
    valid: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Values, String> {
    if !c.take("[") {
        let first = c.value(&[".."])?;
        if !c.take("..") {
            return Err(format!("parameter `{name}`: expected `[a, b]` or `first..last` after `in`"));
        }
        let last = c.value(&[" by ", " distinct from "])?;
        let step = if c.take("by ") { c.value(&[" distinct from "])? } else { "1".to_owned() };
        return range(ty, &first, &last, &step)
            .ok_or_else(|| format!("parameter `{name}`: `{first}..{last} by {step}` is no range of {ty}"));
    }
    let mut groups = c.groups()?;
    if groups.iter().any(|(key, _)| key.is_some()) {
        let mut lists = Vec::new();
        for (key, list) in groups {
            list.iter().try_for_each(|item| valid(item))?;
            lists.push((key.ok_or_else(|| format!("parameter `{name}`: a list without a key"))?, list));
        }
        if !c.take("of ") {
            return Err(format!("parameter `{name}`: expected `of :other` after the keyed lists"));
        }
        let by = c.parameter()?;
        let Some(Domain { values: Values::List(keys), .. }) = &find(&by, earlier)?.domain else {
            return Err(format!("parameter `{name}`: the domain of `{by}` is not a list"));
        };
        if let Some(key) = keys.iter().find(|key| list_for(&lists, key).is_empty()) {
            return Err(format!("parameter `{name}`: no values for {key}"));
        }
        return Ok(Values::Keyed { by, lists });
    }
    let mut items = groups.pop().map(|(_, list)| list).unwrap_or_default();
    while c.take("[") {
        let right = c.groups()?.pop().map(|(_, list)| list).unwrap_or_default();
        items = items.iter().flat_map(|l| right.iter().map(move |r| format!("{l} {r}"))).collect();
    }
    items.iter().try_for_each(|item| valid(item))?;
    Ok(Values::List(items))
}

fn range(ty: SqlType, first: &str, last: &str, step: &str) -> Option<Values> {
    let (first, last) = (scaled(ty, first)?, scaled(ty, last)?);
    let step = match step {
        "month" if ty == SqlType::Date => Step::Months(1),
        "year" if ty == SqlType::Date => Step::Months(12),
        "day" | "1" if ty == SqlType::Date => Step::Units(1),
        _ if ty == SqlType::Date => return None,
        _ => Step::Units(scaled(ty, step).filter(|units| *units > 0)?),
    };
    let distance = u64::try_from(last - first).ok()?;
    let count = match step {
        Step::Units(units) => distance / u64::try_from(units).ok()? + 1,
        // Dates lie within 300,000 years, so that this ends.
        Step::Months(months) => {
            (0..).take_while(|n| add_months(first, i64::from(months) * n) <= last).count() as u64
        }
    };
    Some(Values::Range { first, step, count })
}

/// A list's key, if it has one, and its items.
type Group = (Option<String>, Vec<String>);

/// The unread rest of a declaration.
struct Cursor<'a>(&'a str);

impl Cursor<'_> {
    /// Skips blanks and then `text`, if that comes next.
    fn take(&mut self, text: &str) -> bool {
        match self.0.trim_start().strip_prefix(text) {
            Some(rest) => {
                self.0 = rest;
                true
            }
            None => false,
        }
    }

    /// `:name`
    fn parameter(&mut self) -> Result<String, String> {
        if !self.take(":") {
            return Err(format!("expected `:name` at `{}`", self.0.trim()));
        }
        let (name, rest) = self.0.split_at(name_len(self.0));
        self.0 = rest;
        if name.is_empty() { Err("a colon without a parameter name".to_owned()) } else { Ok(name.to_owned()) }
    }

    /// A value in quotes, or everything up to the first of `stops`.
    fn value(&mut self, stops: &[&str]) -> Result<String, String> {
        let rest = self.0.trim_start();
        if rest.starts_with('\'') {
            let end = quoted_len(rest);
            let inner = rest[..end].strip_suffix('\'').filter(|_| end > 1).map(|t| &t[1..]);
            let inner = inner.ok_or_else(|| format!("unclosed quote at `{rest}`"))?;
            self.0 = &rest[end..];
            return Ok(inner.replace("''", "'"));
        }
        let end = stops.iter().filter_map(|stop| rest.find(stop)).min().unwrap_or(rest.len());
        self.0 = &rest[end..];
        match rest[..end].trim() {
            "" => Err("a value is missing".to_owned()),
            value => Ok(value.to_owned()),
        }
    }

    /// The inside of a list up to its `]`: items, or `KEY: items; KEY: items`.
    fn groups(&mut self) -> Result<Vec<Group>, String> {
        let mut groups: Vec<Group> = vec![(None, Vec::new())];
        loop {
            let item = self.value(&[",", ";", ": ", "]"])?;
            let (key, items) = groups.last_mut().expect("it starts with one group");
            if self.take(":") {
                if key.is_some() || !items.is_empty() {
                    return Err(format!("unexpected key `{item}` within a list"));
                }
                *key = Some(item);
                continue;
            }
            items.push(item);
            if self.take(";") {
                groups.push((None, Vec::new()));
            } else if self.take("]") {
                return Ok(groups);
            } else if !self.take(",") {
                return Err("a list lacks its `]`".to_owned());
            }
        }
    }
}

fn name_len(text: &str) -> usize {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts { text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()) } else { 0 }
}

/// Bytes of the quoted text at the start of `text`, doubled quotes included.
fn quoted_len(text: &str) -> usize {
    let quote = text.as_bytes()[0];
    let mut at = 1;
    while let Some(found) = text.as_bytes()[at..].iter().position(|b| *b == quote) {
        at += found + 1;
        if text.as_bytes().get(at) != Some(&quote) {
            return at;
        }
        at += 1;
    }
    text.len()
}

enum Piece<'a> {
    Sql(&'a str),
    Name(&'a str),
}

/// Splits SQL at its placeholders; quoted text, comments and `::` hold none.
fn pieces(sql: &str) -> Vec<Piece<'_>> {
    let mut out = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < sql.len() {
        let rest = &sql[at..];
        at += match rest.as_bytes() {
            [b'\'' | b'"', ..] => quoted_len(rest),
            [b'-', b'-', ..] => rest.find('\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => rest.find("*/").map_or(rest.len(), |end| end + 2),
            [b':', b':', ..] => 2,
            [b':', ..] if name_len(&rest[1..]) > 0 => {
                let end = 1 + name_len(&rest[1..]);
                out.extend([Piece::Sql(&sql[start..at]), Piece::Name(&rest[1..end])]);
                start = at + end;
                end
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
    }
    out.push(Piece::Sql(&sql[start..]));
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::datasource::empty::EmptyTable;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    fn holds(query: &Query, param: &Declared, given: &[(String, String)]) -> bool {
        let value = value_of(&param.decl.name, given, &query.params);
        let Some(domain) = &param.domain else { return value == param.decl.default };
        let listed = match &domain.values {
            Values::List(items) => items.iter().any(|i| i == value),
            Values::Keyed { by, lists } => {
                list_for(lists, value_of(by, given, &query.params)).iter().any(|i| i == value)
            }
            Values::Range { first, step, count } => (0..*count).any(|i| {
                scaled(param.decl.ty, &nth(param.decl.ty, *first, *step, i)) == scaled(param.decl.ty, value)
            }),
        };
        listed && domain.distinct_from.iter().all(|other| value_of(other, given, &query.params) != value)
    }

    #[test]
    fn defaults_and_draws_lie_in_the_domains() {
        let queries = queries();
        assert_eq!(queries.len(), 22);
        for query in &queries {
            assert!(!query.params.is_empty(), "{}", query.name);
            let mut used = placeholders(&query.sql);
            used.sort();
            let mut declared: Vec<String> = query.params.iter().map(|p| p.decl.name.clone()).collect();
            declared.sort();
            assert_eq!(used, declared, "{}", query.name);
            for seed in 0..200 {
                let given = if seed == 0 { Vec::new() } else { draw(query, seed) };
                for param in &query.params {
                    assert!(holds(query, param, &given), "{} {}: {given:?}", query.name, param.decl.name);
                }
            }
            assert_eq!(draw(query, 7), draw(query, 7));
        }
        let count = |name: &str, param: &str| {
            let query = queries.iter().find(|q| q.name == name).unwrap();
            let param = query.params.iter().find(|p| p.decl.name == param).unwrap();
            match &param.domain.as_ref().unwrap().values {
                Values::List(items) => items.len() as u64,
                Values::Keyed { lists, .. } => lists.iter().map(|(_, l)| l.len() as u64).sum(),
                Values::Range { count, .. } => *count,
            }
        };
        assert_eq!(count("q01", "date"), 61);
        assert_eq!(count("q04", "date"), 58);
        assert_eq!(count("q05", "date"), 5);
        assert_eq!(count("q06", "discount"), 8);
        assert_eq!(count("q08", "nation"), 25);
        assert_eq!(count("q08", "type"), 150);
        assert_eq!(count("q09", "color"), 92);
        assert_eq!(count("q17", "container"), 40);
    }

    fn tpch_context() -> SessionContext {
        let mut config = SessionConfig::new();
        config.options_mut().sql_parser.parse_float_as_decimal = true;
        let context = SessionContext::new_with_config(config);
        let tables = [
            ("region", "r_regionkey r_name r_comment"),
            ("nation", "n_nationkey n_name n_regionkey n_comment"),
            ("supplier", "s_suppkey s_name s_address s_nationkey s_phone s_acctbal s_comment"),
            ("customer", "c_custkey c_name c_address c_nationkey c_phone c_acctbal c_mktsegment c_comment"),
            ("part", "p_partkey p_name p_mfgr p_brand p_type p_size p_container p_retailprice p_comment"),
            ("partsupp", "ps_partkey ps_suppkey ps_availqty ps_supplycost ps_comment"),
            (
                "orders",
                "o_orderkey o_custkey o_orderstatus o_totalprice o_orderdate o_orderpriority o_clerk \
                 o_shippriority o_comment",
            ),
            (
                "lineitem",
                "l_orderkey l_partkey l_suppkey l_linenumber l_quantity l_extendedprice l_discount l_tax \
                 l_returnflag l_linestatus l_shipdate l_commitdate l_receiptdate l_shipinstruct l_shipmode \
                 l_comment",
            ),
        ];
        for (name, columns) in tables {
            let fields: Vec<Field> = columns
                .split_whitespace()
                .map(|column| {
                    let ty = match &column[column.find('_').unwrap() + 1..] {
                        c if c.ends_with("key") => DataType::Int64,
                        c if c.ends_with("date") => DataType::Date32,
                        "size" | "availqty" | "linenumber" | "shippriority" => DataType::Int32,
                        "acctbal" | "retailprice" | "supplycost" | "totalprice" | "quantity"
                        | "extendedprice" | "discount" | "tax" => DataType::Decimal128(15, 2),
                        _ => DataType::Utf8View,
                    };
                    Field::new(column, ty, false)
                })
                .collect();
            let table = EmptyTable::new(Arc::new(Schema::new(fields)));
            context.register_table(name, Arc::new(table)).unwrap();
        }
        context
    }

    #[test]
    fn datafusion_plans_every_query() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let context = tpch_context();
            for query in queries() {
                for given in [Vec::new(), draw(&query, 3)] {
                    let sql = substitute(&query.sql, &query.decls(), &given).unwrap();
                    let plan = context.sql(&sql).await.and_then(|frame| frame.into_optimized_plan());
                    plan.unwrap_or_else(|e| panic!("{}: {e}\n{sql}", query.name));
                }
            }
        });
    }

    #[test]
    fn substitutes_outside_quotes_only() {
        let query = parse_query(
            "f",
            "-- :n int64 = 3\n-- :t utf8 = 'it''s in'\nselect ':n', x::int, \":n\", :n /* :n */ from t -- :t\nwhere y = :t;\n",
        )
        .unwrap();
        let sql = substitute(&query.sql, &query.decls(), &[("n".to_owned(), "-4".to_owned())]).unwrap();
        assert_eq!(
            sql,
            "select ':n', x::int, \":n\", cast(-4 as bigint) /* :n */ from t -- :t\nwhere y = 'it''s in'"
        );
        let message = |given: &[(&str, &str)]| {
            let given: Vec<_> = given.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            substitute(&query.sql, &query.decls(), &given).unwrap_err().to_string()
        };
        assert_eq!(message(&[("m", "1")]), "no parameter `m`: the query has n, t");
        assert_eq!(message(&[("n", "one")]), "parameter `n`: `one` is not a int64");
        assert!(substitute("select :z", &[], &[]).unwrap_err().to_string().contains("`z`"));
    }

    #[test]
    fn wrong_declarations_name_the_line() {
        for (header, expected) in [
            ("-- :a date", "expected `= DEFAULT`"),
            ("-- :a int99 = 3", "`int99` is not a type"),
            ("-- :a date = 1994-02-30", "not a date"),
            ("-- :a decimal(4,2) = 123.45", "not a decimal(4,2)"),
            ("-- :a int32 = 3 in 5..1", "no range"),
            ("-- :a utf8 = x in [x, y", "`]`"),
            ("-- :a utf8 = x in [x]\n-- :b utf8 = y as :a distinct from :a", "leaves no value"),
            ("-- :a utf8 = x in [x]\n-- :b utf8 = y in [z: y] of :a", "no values for x"),
            ("-- :a utf8 = x distinct from :b", "not declared above"),
            ("-- :a int32 = 1\n-- :a int32 = 2", "declared twice"),
        ] {
            let error = parse_query("file.sql", &format!("{header}\nselect 1")).unwrap_err().to_string();
            let line = header.lines().count();
            assert!(error.starts_with(&format!("file.sql, line {line}: ")), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn decimals_and_dates_round_trip() {
        for (ty, text) in [
            (SqlType::Decimal(15, 2), "-0.06"),
            (SqlType::Decimal(20, 10), "0.0001000000"),
            (SqlType::Decimal(5, 0), "42"),
            (SqlType::Date, "1992-02-29"),
            (SqlType::Int8, "-128"),
        ] {
            assert_eq!(show(ty, scaled(ty, text).unwrap()), text);
        }
        assert_eq!(scaled(SqlType::Decimal(15, 2), "24"), Some(2400));
        for text in ["", ".", "1.234", "1e3", "--1", "1.2.3", "+1"] {
            assert_eq!(scaled(SqlType::Decimal(15, 2), text), None, "{text}");
        }
    }
}
