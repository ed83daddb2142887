//! Keys: the values that they can have, and the lengths of arrays that are indexed by them.
//!
//! A length is an expression over the largest value of the key's column, where one column has all values. The
//! smallest is a number, for kernels subtract it.

use dkb_kernels::Elem;

use crate::divide::PART_KEYS;
use crate::emit::Emitter;
use crate::ir::{Expr, Range};
use crate::pipe::{Form, Value};

/// The integers that a key can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KeyRange {
    pub(crate) range: Range,
    /// Table and column whose smallest and largest value these are, if the key is a column.
    pub(crate) column: Option<(usize, usize)>,
}

/// The values of a key part: `min..min + span`, where NULL, if possible, takes the first place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Domain {
    pub(crate) min: i128,
    pub(crate) span: u128,
    pub(crate) nullable: bool,
    /// Table and column whose values end where the domain does.
    pub(crate) column: Option<(usize, usize)>,
}

impl Emitter<'_> {
    /// The integers that a key can be, if they are bounded.
    pub(crate) fn key_range(&self, e: &Expr) -> Option<KeyRange> {
        let range = self.range(e)?;
        let ends = |(t, c): &(usize, usize)| {
            let stats = &self.tables[*t].columns[*c];
            stats.min.zip(stats.max) == Some(range)
        };
        let column = e.as_column().and_then(|id| self.columns[id].origin).filter(ends);
        Some(KeyRange { range, column })
    }

    /// The number of values of a domain as a length: by the largest value of its column, if it has one.
    pub(crate) fn span_len(&self, domain: Domain) -> String {
        let of_column = || {
            let (t, c) = domain.column?;
            let table = &self.tables[t];
            // In lengths a negative value is 0, and none has more than 64 bits.
            let max = u64::try_from(table.columns[c].max?).ok()?;
            let max_len = format!("max({}.{})", table.name, table.schema.field(c).name());
            Some(match (domain.span.checked_sub(max.into()), u128::from(max).checked_sub(domain.span)) {
                (Some(0), _) => max_len,
                (Some(more), _) => format!("{max_len} + {more}"),
                (None, less) => format!("{max_len} - {}", less?),
            })
        };
        of_column().unwrap_or_else(|| domain.span.to_string())
    }

    /// The length of the arrays of a state that are indexed by a key of these parts.
    pub(crate) fn keys_len(&self, state: &str, domains: &[Domain]) -> String {
        match domains {
            _ if self.part_domain(state).is_some() => PART_KEYS.to_owned(),
            [domain] => self.span_len(*domain),
            _ => domains.iter().map(|d| d.span).product::<u128>().to_string(),
        }
    }

    /// The domain of a key value, if it is bounded.
    pub(crate) fn domain(&self, e: &Expr, v: &Value) -> Option<Domain> {
        let mut column = None;
        let (min, span) = match v.form {
            Form::Int(_) => {
                let keys = self.key_range(e)?;
                column = keys.column;
                let (min, max) = keys.range;
                (min, u128::try_from(max.checked_sub(min)?.checked_add(1)?).ok()?)
            }
            Form::Bool => (0, 2),
            Form::Dict(t, c) => {
                let entries = self.tables[t].columns[c].dict_entries.unwrap_or(self.tables[t].rows);
                (0, u128::from(entries.max(1)))
            }
            Form::Fetch(t, _) => (0, u128::from(self.tables[t].rows.max(1))),
            Form::Float | Form::Text | Form::Packed => return None,
        };
        let nullable = v.null.is_some();
        Some(Domain { min, span: span + u128::from(nullable), nullable, column })
    }

    /// The place of a value in its domain, as u64; the value is known to lie in it.
    pub(crate) fn place(v: &Value, d: Domain) -> String {
        let code = match v.form {
            Form::Dict(..) | Form::Fetch(..) | Form::Bool => format!("u64({})", v.code),
            _ if d.min == 0 => format!("u64({})", v.code),
            Form::Int(Elem::I128) => format!("u64({} - {})", v.code, d.min),
            _ => format!("u64({} - {})", crate::codegen::as_i64(v), d.min),
        };
        match &v.null {
            Some(null) if d.nullable => format!("({null} ? 0 : {code} + 1)"),
            _ => code,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, Schema};
    use dkb_kernels::{check, expr};

    use crate::catalog::{ColumnInfo, TableInfo};
    use crate::{PlanOptions, plan};

    type Column = (&'static str, i128, i128, bool);

    fn table(name: &str, rows: u64, columns: &[Column]) -> TableInfo {
        let field = |(name, .., nullable): &Column| Field::new(*name, DataType::Int64, *nullable);
        let info = |&(_, min, max, nullable): &Column| {
            let (min, max) = (Some(min), Some(max));
            ColumnInfo { min, max, nullable, ..ColumnInfo::default() }
        };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        TableInfo { name: name.to_owned(), schema, rows, columns: columns.iter().map(info).collect() }
    }

    /// A range of one column is a length over its largest value; what is none stays a number.
    #[test]
    fn lengths_by_key() {
        let tables = [
            table(
                "t",
                1_000,
                &[
                    ("k", 5, 104, false),
                    ("j", 5, 50_004, false),
                    ("i", 1, 60_000, false),
                    ("one", 1, 100, false),
                    ("maybe", 1, 100, true),
                    ("below", -3, 96, false),
                    ("negative", -100, -1, false),
                ],
            ),
            table("d", 100, &[("id", 5, 104, false), ("w", 0, 1 << 40, false)]),
            table("e", 100, &[("id", 1, 100, false), ("w", 0, 1 << 40, false)]),
            table("far", 100, &[("id", 5, 50_004, false), ("w", 0, 1 << 40, false)]),
            table("farther", 100, &[("id", 1, 60_000, false), ("w", 0, 1 << 40, false)]),
        ];
        let group = |key: &str| format!("select {key} as g, sum(one) from t group by {key}");
        let joined = |right: &str| format!("select sum(w) from t join {right} on k = id");
        let both = |first: &str, second: &str| {
            format!("select sum(a.w), sum(b.w) from t join {first} join {second}")
        };
        let (near, far, farther) = ("d as a on k = a.id", "far as a on j = a.id", "farther as b on i = b.id");
        let any = PlanOptions::default;
        let small = || PlanOptions { memory_bytes: Some(1 << 10), ..PlanOptions::default() };
        for (sql, options, name, length, rows) in [
            (group("one, k"), any(), "a1", "10000", 10_000),
            (group("one"), any(), "part_keys", "(max(t.one) + parts - 1) / parts", 100),
            (group("k"), any(), "part_keys", "(max(t.k) - 4 + parts - 1) / parts", 100),
            (group("below"), any(), "part_keys", "(max(t.below) + 4 + parts - 1) / parts", 100),
            (group("negative"), any(), "part_keys", "(100 + parts - 1) / parts", 100),
            (
                group("case one when 7 then one else k end"),
                any(),
                "part_keys",
                "(104 + parts - 1) / parts",
                104,
            ),
            (group("maybe"), any(), "a1", "max(t.maybe) + 1", 101),
            (joined("d"), any(), "part_keys", "(max(d.id) - 4 + parts - 1) / parts", 100),
            (joined("e"), any(), "part_keys", "(104 + parts - 1) / parts", 104),
            (both(near, farther), any(), "b2_keys", "max(d.id) - 4", 100),
            (both(far, farther), small(), "b2_words", "(max(far.id) - 4) / 32 + 1", 1563),
        ] {
            let plan = plan(&sql, &[], &tables, &options).unwrap_or_else(|e| panic!("{sql}: {e}")).plan;
            check(&plan).unwrap_or_else(|e| panic!("{sql}: {e}"));
            let size = plan.sizes.get(name).unwrap_or_else(|| panic!("{sql}: {:?}", plan.sizes));
            assert_eq!(size.value, length, "{sql}: {:?}", plan.sizes);
            let fact = |text: &str| match text {
                "parts" => Some(1),
                "max(t.k)" | "max(d.id)" => Some(104),
                "max(t.one)" | "max(t.maybe)" => Some(100),
                "max(t.below)" => Some(96),
                "max(far.id)" => Some(50_004),
                _ => None,
            };
            assert_eq!(expr::eval(&size.value, &fact), Ok(rows), "{sql}");
        }
    }
}
