//! Pruning predicates: what the row groups of a table must be able to fulfil, or a phase skips them.
//!
//! Comparisons of a column with a parameter, joined by `and` and `or`, as in
//! `l_shipdate >= :date and (l_size = :a or l_size = :b)`. Words are separated by blanks or parentheses, since names
//! of columns may hold anything else. `FromStr` and `Display` are inverses.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::repr::{SqlType, serde_as_text};

/// A predicate that statistics can judge. A row for which it is not true has no effect in its phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Predicate {
    /// A comparison of a column, on the left, with a parameter; not true for NULL.
    Compare(String, Comparison, String),
    /// All of them hold.
    And(Vec<Predicate>),
    /// At least one of them holds.
    Or(Vec<Predicate>),
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Eq,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Comparison {
    const ALL: [(Comparison, &'static str); 5] = [
        (Comparison::Eq, "="),
        (Comparison::Lt, "<"),
        (Comparison::Le, "<="),
        (Comparison::Gt, ">"),
        (Comparison::Ge, ">="),
    ];

    /// The operator for exchanged operands.
    pub fn mirrored(self) -> Comparison {
        match self {
            Comparison::Eq => Comparison::Eq,
            Comparison::Lt => Comparison::Gt,
            Comparison::Le => Comparison::Ge,
            Comparison::Gt => Comparison::Lt,
            Comparison::Ge => Comparison::Le,
        }
    }
}

impl Predicate {
    /// How deeply `and` and `or`, and parentheses in the text, may be nested.
    pub const MAX_DEPTH: usize = 16;

    /// The conjunction of the predicates; None of none.
    pub fn all(list: impl IntoIterator<Item = Predicate>) -> Option<Predicate> {
        let flat = list.into_iter().flat_map(|p| match p {
            Predicate::And(inner) => inner,
            other => vec![other],
        });
        single(flat.collect(), Predicate::And)
    }

    /// The disjunction of the predicates; None of none.
    pub fn any(list: impl IntoIterator<Item = Predicate>) -> Option<Predicate> {
        let flat = list.into_iter().flat_map(|p| match p {
            Predicate::Or(inner) => inner,
            other => vec![other],
        });
        single(flat.collect(), Predicate::Or)
    }

    /// Its comparisons, from left to right.
    pub fn comparisons(&self) -> Vec<(&str, Comparison, &str)> {
        match self {
            Predicate::Compare(column, op, param) => vec![(column, *op, param)],
            Predicate::And(list) | Predicate::Or(list) => {
                list.iter().flat_map(Predicate::comparisons).collect()
            }
        }
    }
}

fn single(mut list: Vec<Predicate>, join: fn(Vec<Predicate>) -> Predicate) -> Option<Predicate> {
    if list.len() > 1 { Some(join(list)) } else { list.pop() }
}

/// Whether bounds of a column of type `a` can be compared with a parameter of type `b`: by the numbers that they
/// stand for, or as days, or as microseconds.
pub fn comparable(a: SqlType, b: SqlType) -> bool {
    let number = |ty| {
        use SqlType::*;
        matches!(ty, Int8 | Int16 | Int32 | Int64 | Decimal(..))
    };
    (number(a) && number(b)) || (a == b && matches!(a, SqlType::Date | SqlType::Timestamp))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Comparison::ALL.iter().find(|(op, _)| op == self);
        f.write_str(found.expect("every comparison is listed").1)
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (list, word) = match self {
            Predicate::Compare(column, op, param) => return write!(f, "{column} {op} :{param}"),
            Predicate::And(list) => (list, " and "),
            Predicate::Or(list) => (list, " or "),
        };
        for (k, p) in list.iter().enumerate() {
            let before = if k == 0 { "" } else { word };
            match (self, p) {
                (Predicate::And(_), Predicate::Or(_)) => write!(f, "{before}({p})")?,
                _ => write!(f, "{before}{p}")?,
            }
        }
        Ok(())
    }
}

/// A text that is no pruning predicate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a pruning predicate: {message}")]
pub struct ParsePredicateError {
    text: String,
    message: String,
}

impl FromStr for Predicate {
    type Err = ParsePredicateError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parser = Parser { rest: text };
        let parsed = parser.any(Predicate::MAX_DEPTH).and_then(|predicate| match parser.peek() {
            None => Ok(predicate),
            Some(word) => Err(format!("unexpected `{word}`")),
        });
        parsed.map_err(|message| ParsePredicateError { text: text.to_owned(), message })
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    /// The next word or parenthesis.
    fn peek(&mut self) -> Option<&'a str> {
        self.rest = self.rest.trim_start();
        let end = match self.rest.find(|c: char| c.is_whitespace() || c == '(' || c == ')') {
            Some(0) => 1,
            Some(end) => end,
            None => self.rest.len(),
        };
        (end > 0).then(|| &self.rest[..end])
    }

    fn next(&mut self, wanted: &str) -> Result<&'a str, String> {
        let word = self.peek().ok_or_else(|| format!("{wanted} is missing at the end"))?;
        self.rest = &self.rest[word.len()..];
        Ok(word)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        if found {
            self.rest = &self.rest[word.len()..];
        }
        found
    }

    fn any(&mut self, depth: usize) -> Result<Predicate, String> {
        let mut list = vec![self.all(depth)?];
        while self.take("or") {
            list.push(self.all(depth)?);
        }
        Ok(Predicate::any(list).expect("there is a first one"))
    }

    fn all(&mut self, depth: usize) -> Result<Predicate, String> {
        let mut list = vec![self.atom(depth)?];
        while self.take("and") {
            list.push(self.atom(depth)?);
        }
        Ok(Predicate::all(list).expect("there is a first one"))
    }

    fn atom(&mut self, depth: usize) -> Result<Predicate, String> {
        if self.take("(") {
            let inside = depth.checked_sub(1).ok_or("its parentheses are nested too deeply")?;
            let predicate = self.any(inside)?;
            return if self.take(")") { Ok(predicate) } else { Err("a `)` is missing".to_owned()) };
        }
        let column = self.next("a column")?;
        let op = self.next("a comparison")?;
        let found = Comparison::ALL.iter().find(|(_, text)| *text == op);
        let (op, _) = found.ok_or_else(|| format!("`{op}` is none of = < <= > >="))?;
        let param = self.next("a parameter")?;
        let name = param.strip_prefix(':').filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("`{param}` is not a parameter, such as `:date`"))?;
        Ok(Predicate::Compare(column.to_owned(), *op, name.to_owned()))
    }
}

serde_as_text!(Predicate);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Predicate, String> {
        text.parse::<Predicate>().map_err(|e| e.message)
    }

    #[test]
    fn texts_round_trip() {
        for text in [
            "a = :x",
            "l_shipdate >= :date and l_shipdate < :d1",
            "a < :x or b > :y and c <= :z or d = :w",
            "a < :x and (b > :y or c <= :z) and d = :w",
            "a = :x and (b = :y or c = :y and (d = :z or e = :z))",
            "größe/m² >= :x",
            "and = :x and or = :y",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(parse("((a = :x) and(b = :y))or ( c = :z )"), parse("a = :x and b = :y or c = :z"));
        let columns: Vec<String> = parse("a = :x or (b < :y or c > :z)")
            .unwrap()
            .comparisons()
            .into_iter()
            .map(|(column, ..)| column.to_owned())
            .collect();
        assert_eq!(columns, ["a", "b", "c"]);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, message) in [
            ("", "a column is missing at the end"),
            ("a", "a comparison is missing at the end"),
            ("a >=", "a parameter is missing at the end"),
            ("a <> :x", "`<>` is none of = < <= > >="),
            ("a = 1", "`1` is not a parameter, such as `:date`"),
            ("a = :", "`:` is not a parameter, such as `:date`"),
            ("a>=:x", "a comparison is missing at the end"),
            ("a = :x b = :y", "unexpected `b`"),
            ("a = :x)", "unexpected `)`"),
            ("(a = :x", "a `)` is missing"),
            ("a = :x and", "a column is missing at the end"),
        ] {
            assert_eq!(parse(text), Err(message.to_owned()), "{text}");
        }
        let deep = format!("{}a = :x{}", "(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(parse(&deep), Err("its parentheses are nested too deeply".to_owned()));
    }

    #[test]
    fn only_like_is_compared_with_like() {
        let ty = |text: &str| text.parse::<SqlType>().unwrap();
        assert!(comparable(ty("int32"), ty("decimal(15,2)")));
        assert!(comparable(ty("date"), ty("date")));
        for (a, b) in [("date", "timestamp"), ("date", "int32"), ("utf8", "utf8"), ("float64", "int64")] {
            assert!(!comparable(ty(a), ty(b)), "{a} {b}");
        }
    }
}
