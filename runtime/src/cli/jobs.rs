//! Which queries run, with which parameters: names, SQL and `--param` become [`Query`] values.
//!
//! Invariant: after [`resolve`] every placeholder has a declaration and every value fits its type.

use std::io::ErrorKind;
use std::path::Path;

use dkb_kernels::SqlType;

use super::CliError;
use super::args::{Options, ParamArg, Queries};
use super::protocol::{Decl, Query};
use crate::tpch::workload;

/// The queries that `options` ask for.
///
/// # Errors
/// [`CliError::Input`] names the query or parameter that does not exist or has a wrong value.
pub(super) fn resolve(options: &Options) -> Result<Vec<Query>, CliError> {
    let parsed = match &options.queries {
        Queries::All => workload::queries(),
        Queries::Named(names) => named(names)?,
        Queries::Sql { name, text } => {
            vec![workload::parse_query(name, text).map_err(|e| CliError::Input(e.to_string()))?]
        }
    };
    let mut queries: Vec<Query> = parsed.into_iter().map(to_query).collect();
    if let (Queries::Sql { .. }, [query]) = (&options.queries, queries.as_mut_slice()) {
        if query.sql.is_empty() {
            return Err(CliError::Input(format!("{}: there is no SQL in it", query.name)));
        }
        declare_from_values(query, &options.params);
    }
    for param in &options.params {
        apply(&mut queries, param)?;
    }
    for query in &queries {
        check_params(query)?;
    }
    if let Some(dir) = &options.kernels {
        specialise(&mut queries, dir)?;
    }
    Ok(queries)
}

fn named(names: &[String]) -> Result<Vec<workload::Query>, CliError> {
    let all = workload::queries();
    let find = |name: &String| all.iter().find(|query| query.name == *name).cloned();
    let mut found: Vec<workload::Query> = Vec::new();
    for name in names {
        let query = find(name).ok_or_else(|| {
            CliError::Input(format!("--query {name}: no such query; there are q01 to q22, and `all`"))
        })?;
        if !found.contains(&query) {
            found.push(query);
        }
    }
    Ok(found)
}

fn to_query(query: workload::Query) -> Query {
    let decls = query.decls().into_iter();
    let decls = decls.map(|d| Decl { name: d.name, ty: d.ty, default: d.default }).collect();
    Query { name: query.name, sql: query.sql, decls, params: Vec::new(), plan: None }
}

/// Gives each query that has a plan in `dir` that plan.
fn specialise(queries: &mut [Query], dir: &Path) -> Result<(), CliError> {
    for query in queries {
        let file = format!("{}.plan", query.name);
        let path = dir.join(&file);
        let bad = |what: String| Err(CliError::Input(format!("--kernels: {}: {what}", path.display())));
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return bad(e.to_string()),
        };
        match dkb_kernels::text::parse(&text) {
            Ok(plan) if plan.sql == query.sql => query.plan = Some((text, file)),
            Ok(_) => return bad(format!("its sql is not that of {}", query.name)),
            Err(e) => return bad(e.to_string()),
        }
    }
    Ok(())
}

/// Declares the placeholders of a user's SQL that have no declaration, by the literals given for them.
fn declare_from_values(query: &mut Query, params: &[ParamArg]) {
    for name in workload::placeholders(&query.sql) {
        let given = params.iter().rev().find(|p| p.name == name);
        if let (Some(given), false) = (given, query.decls.iter().any(|d| d.name == name)) {
            let ty = infer(&given.value);
            query.decls.push(Decl { name, ty, default: unquote(&given.value).to_owned() });
        }
    }
}

fn apply(queries: &mut [Query], param: &ParamArg) -> Result<(), CliError> {
    let ParamArg { query: only, name, value } = param;
    if let Some(only) = only
        && queries.iter().all(|query| query.name != *only)
    {
        return Err(CliError::Input(format!(
            "--param {only}.{name}: query `{only}` is not among those that run"
        )));
    }
    let wanted = |query: &&mut Query| only.as_ref().is_none_or(|only| query.name == *only);
    let mut known: Vec<String> = Vec::new();
    let mut found = false;
    for query in queries.iter_mut().filter(wanted) {
        match query.decls.iter().find(|decl| decl.name == *name) {
            Some(_) => {
                query.params.retain(|(other, _)| other != name);
                query.params.push((name.clone(), unquote(value).to_owned()));
                found = true;
            }
            None => known.extend(query.decls.iter().map(|decl| decl.name.clone())),
        }
    }
    if found {
        return Ok(());
    }
    known.sort();
    known.dedup();
    let known =
        if known.is_empty() { "there is none".to_owned() } else { format!("there is {}", known.join(", ")) };
    Err(CliError::Input(format!("--param {name}: no such parameter; {known}")))
}

fn check_params(query: &Query) -> Result<(), CliError> {
    for Decl { name, .. } in &query.decls {
        let checked = dkb_kernels::check_name(name);
        checked.map_err(|e| CliError::Input(format!("{}: parameter {e}", query.name)))?;
    }
    let substituted = workload::substitute(&query.sql, &query.planner_decls(), &query.params);
    substituted.map(drop).map_err(|e| CliError::Input(format!("{}: {e}", query.name)))
}

/// Gives Q11 its fraction for the scale factor, unless the user has given one.
pub(super) fn scale(queries: &mut [Query], scale_factor: f64) {
    for query in queries {
        for (param, value) in workload::scaled_params(&query.name, scale_factor) {
            if query.params.iter().all(|(other, _)| *other != param) {
                query.params.push((param, value));
            }
        }
    }
}

/// The type of a literal: integer, decimal, date, boolean, else text. Quotes make it text.
fn infer(literal: &str) -> SqlType {
    if unquote(literal) != literal {
        return SqlType::Utf8;
    }
    if matches!(literal, "true" | "false") {
        return SqlType::Bool;
    }
    let fits = |ty: SqlType| workload::literal(ty, literal).is_some();
    let digits = literal.bytes().filter(u8::is_ascii_digit).count();
    let scale = literal.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let decimal = match (u8::try_from(digits), i8::try_from(scale)) {
        (Ok(p), Ok(s)) if (1..=38).contains(&p) => SqlType::Decimal(p, s),
        _ => SqlType::Utf8,
    };
    let candidates = [SqlType::Int64, SqlType::Date, decimal];
    candidates.into_iter().find(|ty| fits(*ty)).unwrap_or(SqlType::Utf8)
}

fn unquote(literal: &str) -> &str {
    literal.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')).unwrap_or(literal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;

    fn jobs(rest: &[&str]) -> Result<Vec<Query>, String> {
        let command = ["dkb-run", "--data", "d"].iter().chain(rest).map(|s| (*s).to_owned()).collect();
        args::parse(command).and_then(|options| resolve(&options)).map_err(|e| e.to_string())
    }

    #[test]
    fn types_of_literals() {
        for (literal, ty) in [
            ("15", SqlType::Int64),
            ("-3", SqlType::Int64),
            ("0.06", SqlType::Decimal(3, 2)),
            ("-12.5", SqlType::Decimal(3, 1)),
            ("1994-01-01", SqlType::Date),
            ("true", SqlType::Bool),
            ("BUILDING", SqlType::Utf8),
            ("'15'", SqlType::Utf8),
            ("1.2.3", SqlType::Utf8),
            ("", SqlType::Utf8),
        ] {
            assert_eq!(infer(literal), ty, "{literal}");
        }
    }

    #[test]
    fn parameters_reach_the_queries_that_have_them() {
        let queries = jobs(&["--query", "q06,q14", "--param", "date=1995-01-01"]).unwrap();
        assert!(queries.iter().all(|q| q.params == [("date".to_owned(), "1995-01-01".to_owned())]));
        let queries = jobs(&["--query", "q06,q14", "--param", "q14.date=1995-01-01"]).unwrap();
        assert_eq!((queries[0].params.len(), queries[1].params.len()), (0, 1));
        let queries = jobs(&["select :n + :m", "--param", "n=1", "--param", "m=0.5"]).unwrap();
        assert_eq!(queries[0].decls.len(), 2);
    }

    #[test]
    fn q11_follows_the_scale() {
        let mut queries = jobs(&[]).unwrap();
        assert_eq!(queries.len(), 22);
        scale(&mut queries, 10.0);
        assert_eq!(queries[10].params, [("fraction".to_owned(), "0.0000100000".to_owned())]);
        let mut queries = jobs(&["--param", "fraction=0.5"]).unwrap();
        scale(&mut queries, 10.0);
        assert_eq!(queries[10].params, [("fraction".to_owned(), "0.5".to_owned())]);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        for (rest, word) in [
            (&["--query", "q99"][..], "q99"),
            (&["--query", "q06", "--param", "nothing=1"], "nothing"),
            (&["--query", "q06", "--param", "q07.date=1995-01-01"], "q07"),
            (&["--query", "q06", "--param", "date=yesterday"], "yesterday"),
            (&["select :n"], "n"),
            (&["select :class", "--param", "class=1"], "keyword of C++"),
            (&["  "], "no SQL"),
        ] {
            let message = jobs(rest).unwrap_err();
            assert!(message.contains(word), "{rest:?}: {message}");
        }
    }
}
