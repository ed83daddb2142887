//! Pruning: what statistics of row groups can judge of the filters above a scan.
//!
//! Invariant: a row that fails a pruning predicate fails the filter, and has had no effect before it is filtered.

use dkb_kernels::{Comparison, Predicate, comparable};

use crate::codegen::scale;
use crate::emit::Emitter;
use crate::ir::{Cmp, ColId, Expr, JoinKind, Kind, Rel};

/// The scan that the relation's one pipeline streams over, if it does nothing but read up to here: table and
/// columns.
fn streamed(rel: &Rel) -> Option<(usize, &[(ColId, usize)])> {
    match rel {
        Rel::Scan { table, columns } => Some((*table, columns)),
        Rel::Filter { input, .. } | Rel::Map { input, .. } => streamed(input),
        // The probe of a full join marks what it meets.
        Rel::Join(join) if join.kind != JoinKind::Full => streamed(&join.left),
        Rel::Join(_) | Rel::Aggregate(_) | Rel::Once => None,
    }
}

impl Emitter<'_> {
    /// What of the predicates on the rows of `rel` statistics of the table streamed over can judge.
    pub(crate) fn pruning(&self, rel: &Rel, predicates: &[Expr]) -> Vec<Predicate> {
        let Some((table, columns)) = streamed(rel) else { return Vec::new() };
        let judge = Judge { emitter: self, table, columns };
        predicates.iter().filter_map(|e| judge.predicate(e, Predicate::MAX_DEPTH)).collect()
    }
}

struct Judge<'a> {
    emitter: &'a Emitter<'a>,
    table: usize,
    columns: &'a [(ColId, usize)],
}

impl Judge<'_> {
    /// What follows from the expression: all of it, or a part.
    fn predicate(&self, e: &Expr, depth: usize) -> Option<Predicate> {
        let depth = depth.checked_sub(1)?;
        match &e.kind {
            Kind::And(list) => Predicate::all(list.iter().filter_map(|e| self.predicate(e, depth))),
            Kind::Or(list) => {
                let all: Option<Vec<Predicate>> = list.iter().map(|e| self.predicate(e, depth)).collect();
                Predicate::any(all?)
            }
            Kind::Cmp(op, a, b) => {
                let op = match op {
                    Cmp::Eq => Comparison::Eq,
                    Cmp::Lt => Comparison::Lt,
                    Cmp::Le => Comparison::Le,
                    Cmp::Gt => Comparison::Gt,
                    Cmp::Ge => Comparison::Ge,
                    Cmp::Ne => return None,
                };
                self.comparison(a, op, b).or_else(|| self.comparison(b, op.mirrored(), a))
            }
            _ => None,
        }
    }

    fn comparison(&self, column: &Expr, op: Comparison, param: &Expr) -> Option<Predicate> {
        let Kind::Param(name) = &param.kind else { return None };
        let column = uncast(column);
        let id = column.as_column()?;
        let (_, index) = self.columns.iter().find(|(c, _)| *c == id)?;
        let field = self.emitter.tables[self.table].schema.field(*index);
        comparable(column.ty, param.ty).then(|| Predicate::Compare(field.name().clone(), op, name.clone()))
    }
}

/// The expression without casts that keep every number as it is.
fn uncast(e: &Expr) -> &Expr {
    match &e.kind {
        Kind::Cast(a) if comparable(a.ty, e.ty) && scale(e.ty) >= scale(a.ty) => uncast(a),
        _ => e,
    }
}
