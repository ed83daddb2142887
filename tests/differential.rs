//! Random queries over random tables, against DataFusion, on one device and on three.
//!
//! Queries without kernels are counted and must be a minority. `DKB_FUZZ=N` runs N data sets instead of the
//! few of a normal run; a failure prints its data set's seed, and `DKB_FUZZ_SEED=S` starts there.

#![expect(clippy::print_stdout, reason = "tests show what they ran, and what they skipped")]

use std::fmt::Write;
use std::sync::Mutex;

use dkb_runtime::exec::Error;
use dkb_runtime::session::SessionConfig;
use dkb_tests::reference::Reference;
use dkb_tests::{answer, host_session, tables};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Queries per data set.
const QUERIES: usize = 14;
/// Data sets of a normal run.
const DATA_SETS: u64 = 24;
/// The tables; their columns begin with the table's name.
const TABLES: [&str; 3] = ["a", "b", "c"];

/// Writes random queries over the tables in scope.
struct Writer {
    r: SmallRng,
    /// Tables whose columns may be used.
    scope: Vec<&'static str>,
}

impl Writer {
    fn one(&mut self, items: &[&str]) -> String {
        items[self.r.random_range(0..items.len())].to_owned()
    }

    fn chance(&mut self, p: f64) -> bool {
        self.r.random_bool(p)
    }

    fn column(&mut self, columns: &[&str]) -> String {
        let table = self.scope[self.r.random_range(0..self.scope.len())];
        format!("{table}_{}", self.one(columns))
    }

    fn int(&mut self, depth: u32) -> String {
        match self.r.random_range(0..if depth == 0 { 5 } else { 8 }) {
            0..=3 => self.column(&["id", "k", "k", "g"]),
            4 => self.r.random_range(-3..40).to_string(),
            5 => format!("({} {} {})", self.int(depth - 1), self.one(&["+", "-"]), self.int(depth - 1)),
            6 => format!("({} * {})", self.int(depth - 1), self.r.random_range(-3..5)),
            _ => format!(
                "case when {} then {} else {} end",
                self.predicate(depth - 1),
                self.int(depth - 1),
                self.int(depth - 1)
            ),
        }
    }

    fn decimal(&mut self, depth: u32) -> String {
        match self.r.random_range(0..if depth == 0 { 4 } else { 6 }) {
            0..=3 => self.column(&["d", "d", "e"]),
            4 => {
                format!("({} {} {})", self.decimal(depth - 1), self.one(&["+", "-"]), self.decimal(depth - 1))
            }
            _ => format!("({} * (1 - {}))", self.decimal(depth - 1), self.column(&["d", "e"])),
        }
    }

    fn date(&mut self) -> String {
        let (year, month) = (self.r.random_range(1995..1998), self.r.random_range(1..13));
        format!("date '{year}-{month:02}-01'")
    }

    fn comparison(&mut self) -> String {
        self.one(&["=", "<>", "<", "<=", ">", ">="])
    }

    fn predicate(&mut self, depth: u32) -> String {
        if depth > 0 && self.chance(0.5) {
            return match self.r.random_range(0..4) {
                0 => format!("not ({})", self.predicate(depth - 1)),
                1 | 2 => format!("({} and {})", self.predicate(depth - 1), self.predicate(depth - 1)),
                _ => format!("({} or {})", self.predicate(depth - 1), self.predicate(depth - 1)),
            };
        }
        match self.r.random_range(0..13) {
            0 | 1 => format!("{} {} {}", self.int(depth.min(1)), self.comparison(), self.int(0)),
            2 => {
                let bound = f64::from(self.r.random_range(-90_000..90_000)) / 100.0;
                format!("{} {} {bound}", self.decimal(depth.min(1)), self.comparison())
            }
            3 => format!("{} {} {}", self.column(&["d"]), self.comparison(), self.column(&["e", "d"])),
            4 => format!("{} {} {}", self.column(&["dt"]), self.comparison(), self.date()),
            5 => {
                let word = tables::WORDS[self.r.random_range(0..tables::WORDS.len())];
                format!("{} {} '{word}'", self.column(&["s"]), self.comparison())
            }
            6 => {
                let pattern = self.one(&["a%", "%a", "%an%", "_pple%", "%", "B%", "% %", "%ü%", "a\\_%"]);
                format!("{} {} '{pattern}'", self.column(&["s", "t"]), self.one(&["like", "not like"]))
            }
            7 => {
                let list = self.one(&["'apple', 'zebra'", "'', 'banana', 'Banana'", "'apple', null"]);
                format!("{} {} ({list})", self.column(&["s"]), self.one(&["in", "not in"]))
            }
            8 => {
                let list = self.one(&["1, 2, 3", "-1, 4", "2, null", "0"]);
                format!("{} {} ({list})", self.column(&["k", "g"]), self.one(&["in", "not in"]))
            }
            9 => format!(
                "{} {}",
                self.column(&["k", "g", "d", "dt", "s", "f", "x"]),
                self.one(&["is null", "is not null"])
            ),
            10 => self.column(&["f"]),
            11 => {
                let low = self.r.random_range(-3..10);
                let high = low + self.r.random_range(0..20);
                format!(
                    "{} {} {low} and {high}",
                    self.column(&["k", "g"]),
                    self.one(&["between", "not between"])
                )
            }
            _ => {
                format!("{} {} {}", self.column(&["x"]), self.comparison(), self.one(&["0", "1.5", "-20.25"]))
            }
        }
    }

    fn aggregate(&mut self) -> String {
        match self.r.random_range(0..9) {
            0 => "count(*)".to_owned(),
            1 => format!("count({})", self.column(&["k", "d", "s", "dt", "f"])),
            2 => format!("sum({})", self.int(1)),
            3 => format!("sum({})", self.decimal(1)),
            4 => format!("avg({})", self.column(&["d", "e", "k"])),
            5 => format!("{}({})", self.one(&["min", "max"]), self.column(&["k", "d", "dt", "g", "id"])),
            6 => format!("sum(case when {} then {} else 0 end)", self.predicate(1), self.column(&["d", "k"])),
            7 => format!("count(distinct {})", self.column(&["k", "g", "s"])),
            _ => format!("{}({})", self.one(&["sum", "min", "max", "avg"]), self.column(&["x"])),
        }
    }

    fn key(&mut self) -> String {
        match self.r.random_range(0..6) {
            0 | 1 => self.column(&["g"]),
            2 => self.column(&["k", "id"]),
            3 => self.column(&["s"]),
            4 => self.column(&["f", "dt", "t"]),
            _ => format!("extract(year from {})", self.column(&["dt"])),
        }
    }

    /// FROM with one to three tables, which come into scope.
    fn from(&mut self) -> String {
        let first = self.r.random_range(0..TABLES.len());
        let order: Vec<&'static str> = (0..3).map(|i| TABLES[(first + i) % 3]).collect();
        let count = [1, 1, 2, 2, 2, 3][self.r.random_range(0..6)];
        let mut from = order[0].to_owned();
        self.scope = vec![order[0]];
        for table in &order[1..count] {
            let kind = self.one(&["join", "join", "join", "left join", "right join", "full join"]);
            let key = self.one(&["k", "k", "g"]);
            let left = self.column(&[&key]);
            let mut on = format!("{left} = {table}_{key}");
            let outer = std::mem::replace(&mut self.scope, vec![table]);
            if self.chance(0.3) && kind != "full join" {
                let _ = write!(on, " and {}", self.predicate(0));
            }
            self.scope = outer;
            self.scope.push(table);
            let _ = write!(from, " {kind} {table} on {on}");
        }
        from
    }

    /// A condition with a subquery over a table that is not in scope.
    fn subquery(&mut self) -> Option<String> {
        let inner = TABLES.into_iter().find(|t| !self.scope.contains(t))?;
        let key = self.column(&["k"]);
        let outer = std::mem::replace(&mut self.scope, vec![inner]);
        let filter = self.predicate(1);
        self.scope = outer;
        let not = if self.chance(0.5) { "not " } else { "" };
        Some(match self.r.random_range(0..4) {
            0 => format!("{not}exists (select 1 from {inner} where {inner}_k = {key} and {filter})"),
            1 => format!("{key} {not}in (select {inner}_k from {inner} where {filter})"),
            2 => {
                format!("{} > (select avg({inner}_d) from {inner} where {filter})", self.column(&["d", "e"]))
            }
            _ => {
                let value = self.column(&["d", "e"]);
                format!("{value} < (select max({inner}_e) from {inner} where {inner}_k = {key} and {filter})")
            }
        })
    }

    /// A query, and whether its order is complete.
    fn query(&mut self) -> (String, bool) {
        let from = self.from();
        let mut conditions = Vec::new();
        if self.chance(0.7) {
            conditions.push(self.predicate(2));
        }
        if self.chance(0.3) {
            conditions.extend(self.subquery());
        }
        let filter = if conditions.is_empty() {
            String::new()
        } else {
            format!(" where {}", conditions.join(" and "))
        };
        let mut columns: Vec<String> = Vec::new();
        let mut tail = String::new();
        match self.r.random_range(0..10) {
            0..=2 => {
                columns.extend((0..self.r.random_range(1..4)).map(|i| match i % 2 {
                    0 => self.int(1),
                    _ => self.one_of_row(),
                }));
            }
            3..=4 => columns.extend((0..self.r.random_range(1..5)).map(|_| self.aggregate())),
            _ => {
                let keys: Vec<String> = (0..self.r.random_range(1..3)).map(|_| self.key()).collect();
                columns.clone_from(&keys);
                columns.extend((0..self.r.random_range(1..4)).map(|_| self.aggregate()));
                let _ = write!(tail, " group by {}", keys.join(", "));
                if self.chance(0.25) {
                    let _ = write!(tail, " having count(*) > {}", self.r.random_range(0..4));
                }
            }
        }
        let listed: Vec<String> = columns.iter().enumerate().map(|(i, c)| format!("{c} as c{i}")).collect();
        let mut sql = format!("select {} from {from}{filter}{tail}", listed.join(", "));
        let is_float = |c: &String| c.contains("_x") || c.contains("avg");
        let ordered = self.chance(0.3) && !columns.iter().any(is_float);
        if ordered {
            let keys: Vec<String> = (0..columns.len())
                .map(|i| format!("c{i}{}", self.one(&["", " desc", " nulls first", " desc nulls last"])))
                .collect();
            let _ = write!(sql, " order by {}", keys.join(", "));
            if self.chance(0.6) {
                let _ = write!(sql, " limit {}", self.r.random_range(0..20));
            }
        }
        (sql, ordered)
    }

    fn one_of_row(&mut self) -> String {
        match self.r.random_range(0..4) {
            0 => self.column(&["s", "t"]),
            1 => self.column(&["dt", "f"]),
            2 => self.column(&["x"]),
            _ => self.decimal(1),
        }
    }
}

/// Queries run, and those without kernels.
#[derive(Default)]
struct Tally {
    run: usize,
    unsupported: Vec<String>,
    refused_by_reference: usize,
    wrong: Vec<String>,
}

fn data_set(seed: u64, tally: &Mutex<Tally>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut writer = Writer { r: SmallRng::seed_from_u64(seed), scope: Vec::new() };
    for (index, table) in TABLES.into_iter().enumerate() {
        let rows = [0, 1, 9, 250, 250, 700][writer.r.random_range(0..6)];
        tables::write(dir.path(), table, rows, seed * 31 + index as u64);
    }
    let reference = Reference::open(dir.path());
    let config = SessionConfig { poison: true, ..SessionConfig::default() };
    // Devices, and parts of divided state.
    let runs = [(1, None), (3, None), (2, Some(5))];
    let sessions = runs.map(|(devices, shards)| {
        let config = SessionConfig { shards, ..config.clone() };
        ((devices, shards), host_session(dir.path(), devices, config))
    });
    for _ in 0..QUERIES {
        let (sql, ordered) = writer.query();
        let want = reference.run(&sql);
        for (run, session) in &sessions {
            let got = session.prepare(&sql, &[]).and_then(|mut prepared| session.execute(&mut prepared, &[]));
            let mut tally = tally.lock().expect("no test has panicked");
            let failure = match (got, &want) {
                (Err(Error::Unsupported(reason)), _) => {
                    tally.unsupported.push(format!("{reason}: {sql}"));
                    break;
                }
                (_, Err(_)) => {
                    tally.refused_by_reference += 1;
                    break;
                }
                (Err(error), Ok(_)) => Some(error.to_string()),
                (Ok(got), Ok(want)) => answer::compare(&got.batch, want, ordered).err(),
            };
            tally.run += 1;
            if let Some(failure) = failure {
                tally.wrong.push(format!("seed {seed}, devices and parts {run:?}: {failure}\n  {sql}"));
                break;
            }
        }
    }
}

#[test]
fn random_queries_agree() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("DKB_FUZZ_SEED").unwrap_or(1);
    let seeds: Vec<u64> = (first..first + number("DKB_FUZZ").unwrap_or(DATA_SETS)).collect();
    let tally = Mutex::new(Tally::default());
    let next = Mutex::new(seeds.into_iter());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.lock().expect("no thread has panicked").next();
                    let Some(seed) = seed else { break };
                    data_set(seed, &tally);
                }
            });
        }
    });
    let tally = tally.into_inner().expect("no thread has panicked");
    let (unsupported, refused) = (tally.unsupported.len(), tally.refused_by_reference);
    println!("{} runs, {unsupported} queries without kernels, {refused} that DataFusion refuses", tally.run);
    for reason in &tally.unsupported {
        println!("  {reason}");
    }
    assert!(tally.wrong.is_empty(), "{} wrong\n{}", tally.wrong.len(), tally.wrong.join("\n"));
    assert!(unsupported + refused < tally.run / 4, "too many queries without an answer");
}
