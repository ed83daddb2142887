//! The planner's own relational algebra: expressions over column ids, and relations.
//!
//! Lowering gives every column of every scan and every computed value an id of its own, so projections,
//! aliases and renamings disappear: an id means the same value wherever it is in scope.

use std::collections::BTreeSet;

use dkb_kernels::SqlType;

/// Identifies a value in scope, an index into [`Columns`].
pub(crate) type ColId = usize;

/// Smallest and largest value that can occur (scaled decimals, days).
pub(crate) type Range = (i128, i128);

/// What is known of a column id.
#[derive(Debug, Clone)]
pub(crate) struct ColumnDef {
    /// A name for source and explain output; not unique.
    pub(crate) name: String,
    pub(crate) ty: SqlType,
    pub(crate) range: Option<Range>,
    /// Estimated distinct values.
    pub(crate) distinct: f64,
    /// Table and column indices, for columns of a scan.
    pub(crate) origin: Option<(usize, usize)>,
}

/// All column ids of a query.
pub(crate) type Columns = Vec<ColumnDef>;

/// A typed expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expr {
    pub(crate) kind: Kind,
    pub(crate) ty: SqlType,
}

/// Arithmetic operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
}

/// Comparison operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl Cmp {
    /// The C++ operator.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Cmp::Eq => "==",
            Cmp::Ne => "!=",
            Cmp::Lt => "<",
            Cmp::Le => "<=",
            Cmp::Gt => ">",
            Cmp::Ge => ">=",
        }
    }
}

/// Parts of a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DatePart {
    Year,
    Month,
    Day,
}

/// What an expression is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Col(ColId),
    /// A parameter of the plan, by name.
    Param(String),
    Null,
    Bool(bool),
    Arith(Arith, Box<Expr>, Box<Expr>),
    Cmp(Cmp, Box<Expr>, Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    IsNull(Box<Expr>),
    Case(Vec<(Expr, Expr)>, Option<Box<Expr>>),
    Cast(Box<Expr>),
    /// Text and pattern.
    Like(Box<Expr>, Box<Expr>),
    Extract(DatePart, Box<Expr>),
    /// A date moved by months, then by days.
    AddInterval(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Text, first character, characters (all that follow if none).
    Substring(Box<Expr>, Box<Expr>, Option<Box<Expr>>),
    /// A value, NULL where the count is zero: aggregates over nothing.
    NullIfZero(Box<Expr>, Box<Expr>),
}

impl Expr {
    pub(crate) fn new(kind: Kind, ty: SqlType) -> Expr {
        Expr { kind, ty }
    }

    pub(crate) fn col(id: ColId, ty: SqlType) -> Expr {
        Expr::new(Kind::Col(id), ty)
    }

    pub(crate) fn bool(kind: Kind) -> Expr {
        Expr::new(kind, SqlType::Bool)
    }

    /// `left = right`.
    pub(crate) fn eq(left: Expr, right: Expr) -> Expr {
        Expr::bool(Kind::Cmp(Cmp::Eq, Box::new(left), Box::new(right)))
    }

    /// The direct subexpressions.
    pub(crate) fn children(&self) -> Vec<&Expr> {
        match &self.kind {
            Kind::Col(_) | Kind::Param(_) | Kind::Null | Kind::Bool(_) => vec![],
            Kind::Arith(_, a, b) | Kind::Cmp(_, a, b) | Kind::Like(a, b) | Kind::NullIfZero(a, b) => {
                vec![a, b]
            }
            Kind::And(list) | Kind::Or(list) => list.iter().collect(),
            Kind::Not(a) | Kind::IsNull(a) | Kind::Cast(a) | Kind::Extract(_, a) => vec![a],
            Kind::Case(arms, other) => {
                let arms = arms.iter().flat_map(|(c, v)| [c, v]);
                arms.chain(other.as_deref()).collect()
            }
            Kind::AddInterval(a, b, c) => vec![a, b, c],
            Kind::Substring(a, b, c) => [&**a, &**b].into_iter().chain(c.as_deref()).collect(),
        }
    }

    /// The column, if the expression is nothing else.
    pub(crate) fn as_column(&self) -> Option<ColId> {
        match self.kind {
            Kind::Col(id) => Some(id),
            _ => None,
        }
    }

    /// Whether the expression is NULL where all its columns are.
    pub(crate) fn is_strict(&self) -> bool {
        match &self.kind {
            Kind::IsNull(_) | Kind::Case(..) | Kind::NullIfZero(..) | Kind::Null => false,
            // A constant may decide these whatever the columns are.
            Kind::And(list) | Kind::Or(list) => list.iter().all(|e| !e.columns().is_empty() && e.is_strict()),
            _ => self.children().into_iter().all(Expr::is_strict),
        }
    }

    /// Rebuilds the expression with every column replaced.
    pub(crate) fn substitute(&self, replace: &dyn Fn(ColId) -> Option<Expr>) -> Expr {
        let go = |e: &Expr| e.substitute(replace);
        let boxed = |e: &Expr| Box::new(e.substitute(replace));
        let kind = match &self.kind {
            Kind::Col(id) => return replace(*id).unwrap_or_else(|| self.clone()),
            Kind::Param(_) | Kind::Null | Kind::Bool(_) => self.kind.clone(),
            Kind::Arith(op, a, b) => Kind::Arith(*op, boxed(a), boxed(b)),
            Kind::Cmp(op, a, b) => Kind::Cmp(*op, boxed(a), boxed(b)),
            Kind::Like(a, b) => Kind::Like(boxed(a), boxed(b)),
            Kind::NullIfZero(a, b) => Kind::NullIfZero(boxed(a), boxed(b)),
            Kind::And(list) => Kind::And(list.iter().map(go).collect()),
            Kind::Or(list) => Kind::Or(list.iter().map(go).collect()),
            Kind::Not(a) => Kind::Not(boxed(a)),
            Kind::IsNull(a) => Kind::IsNull(boxed(a)),
            Kind::Cast(a) => Kind::Cast(boxed(a)),
            Kind::Extract(part, a) => Kind::Extract(*part, boxed(a)),
            Kind::AddInterval(a, b, c) => Kind::AddInterval(boxed(a), boxed(b), boxed(c)),
            Kind::Case(arms, other) => Kind::Case(
                arms.iter().map(|(c, v)| (go(c), go(v))).collect(),
                other.as_ref().map(|e| boxed(e)),
            ),
            Kind::Substring(a, b, c) => Kind::Substring(boxed(a), boxed(b), c.as_ref().map(|e| boxed(e))),
        };
        Expr { kind, ty: self.ty }
    }

    /// Adds the columns it refers to.
    pub(crate) fn collect(&self, into: &mut BTreeSet<ColId>) {
        if let Kind::Col(id) = self.kind {
            into.insert(id);
        }
        for child in self.children() {
            child.collect(into);
        }
    }

    /// The columns it refers to.
    pub(crate) fn columns(&self) -> BTreeSet<ColId> {
        let mut set = BTreeSet::new();
        self.collect(&mut set);
        set
    }
}

/// How rows of a join's left side meet rows of its right side. The left side is the probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinKind {
    Inner,
    /// Left rows without a match survive with NULLs.
    Left,
    /// Left and right rows without a match survive with NULLs.
    Full,
    Semi,
    Anti,
    /// Every left row, with a column that tells whether it has a match.
    Mark(ColId),
}

/// A join. `on` pairs are equalities; `filter` holds the further conditions of the join itself.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    pub(crate) left: Box<Rel>,
    pub(crate) right: Box<Rel>,
    pub(crate) on: Vec<(Expr, Expr)>,
    pub(crate) filter: Vec<Expr>,
    /// NOT IN: a NULL on the right means that nothing qualifies.
    pub(crate) null_aware: bool,
}

/// An accumulator of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccFn {
    Sum,
    /// Rows, or rows whose argument is not NULL.
    Count,
    Min,
    Max,
}

impl AccFn {
    /// The function that combines partial results of this one.
    pub(crate) fn of_partials(self) -> AccFn {
        match self {
            AccFn::Count => AccFn::Sum,
            other => other,
        }
    }
}

/// One accumulator: its result's id, function and argument.
#[derive(Debug, Clone)]
pub(crate) struct Acc {
    pub(crate) id: ColId,
    pub(crate) func: AccFn,
    pub(crate) arg: Option<Expr>,
}

/// An aggregate. Group keys keep their ids.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    pub(crate) input: Box<Rel>,
    pub(crate) keys: Vec<ColId>,
    pub(crate) accs: Vec<Acc>,
}

/// A relation.
#[derive(Debug, Clone)]
pub(crate) enum Rel {
    /// A table, by index, with the columns read: id and column index.
    Scan {
        table: usize,
        columns: Vec<(ColId, usize)>,
    },
    /// Rows for which every predicate is true.
    Filter {
        input: Box<Rel>,
        predicates: Vec<Expr>,
    },
    /// Further columns.
    Map {
        input: Box<Rel>,
        defs: Vec<(ColId, Expr)>,
    },
    Join(Join),
    Aggregate(Aggregate),
    /// One row without columns.
    Once,
}

impl Rel {
    /// Wraps in a filter, unless there is nothing to filter by.
    pub(crate) fn filtered(self, predicates: Vec<Expr>) -> Rel {
        if predicates.is_empty() { self } else { Rel::Filter { input: Box::new(self), predicates } }
    }

    /// Wraps in a map, unless it defines nothing.
    pub(crate) fn mapped(self, defs: Vec<(ColId, Expr)>) -> Rel {
        if defs.is_empty() { self } else { Rel::Map { input: Box::new(self), defs } }
    }

    /// The columns in scope above this relation.
    pub(crate) fn outputs(&self) -> BTreeSet<ColId> {
        match self {
            Rel::Scan { columns, .. } => columns.iter().map(|(id, _)| *id).collect(),
            Rel::Filter { input, .. } => input.outputs(),
            Rel::Map { input, defs } => {
                let mut set = input.outputs();
                set.extend(defs.iter().map(|(id, _)| *id));
                set
            }
            Rel::Join(join) => {
                let mut set = join.left.outputs();
                match join.kind {
                    JoinKind::Inner | JoinKind::Left | JoinKind::Full => set.extend(join.right.outputs()),
                    JoinKind::Semi | JoinKind::Anti => {}
                    JoinKind::Mark(id) => {
                        set.insert(id);
                    }
                }
                set
            }
            Rel::Aggregate(agg) => agg.keys.iter().copied().chain(agg.accs.iter().map(|a| a.id)).collect(),
            Rel::Once => BTreeSet::new(),
        }
    }
}

/// Splits nested conjunctions.
pub(crate) fn conjuncts(e: Expr, into: &mut Vec<Expr>) {
    match e.kind {
        Kind::And(list) => list.into_iter().for_each(|e| conjuncts(e, into)),
        Kind::Bool(true) => {}
        _ => into.push(e),
    }
}
