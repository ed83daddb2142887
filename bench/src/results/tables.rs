//! The tables: each a value, printed as Markdown or JSON here and as HTML in the page.
//!
//! Invariant: every table says where it was measured and which trajectories it leaves out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::results::{
    Configuration, Ended, Ground, Peers, QUERIES, Results, Summary, framework, mean, spearman,
};
use crate::verdict::{MOST_ROUNDS, Outcome};

/// Weight of a speed-up against tokens in the preference (the paper's lambda).
const LAMBDA: f64 = 10.0;

/// Models in the group at either end.
const GROUP: usize = 5;

const FRAMEWORKS: [&str; 2] = ["cuda", "triton"];

/// A table.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Formulas, what is left out, and where it was measured.
    pub notes: Vec<String>,
    /// The columns.
    pub columns: Vec<Column>,
    /// As many cells as columns in each.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its heading, with the unit.
    pub name: String,
    /// Digits after the point of a number; None for text.
    pub digits: Option<usize>,
}

/// A cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number in the column's unit.
    Number(f64),
    /// Nothing is known.
    None,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Cell {
        Cell::Number(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Cell {
        Cell::Number(number as f64)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Cell {
        cell.map_or(Cell::None, Into::into)
    }
}

/// Cells of what converts to them.
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$(Cell::from($cell)),*] };
}

impl Table {
    fn new(results: &Results, title: &str, notes: &[&str], columns: &[(&str, Option<usize>)]) -> Table {
        let unfinished: Vec<String> = results
            .configurations
            .iter()
            .filter(|each| !each.unfinished.is_empty())
            .map(|each| format!("{} {}", each.folder, each.unfinished.join(" ")))
            .collect();
        let mut notes: Vec<String> = notes.iter().map(|&note| note.to_owned()).collect();
        if !unfinished.is_empty() {
            notes.push(format!("Unfinished and not counted: {}.", unfinished.join("; ")));
        }
        notes.push(format!("Measured with {}.", results.environment()));
        let columns =
            columns.iter().map(|&(name, digits)| Column { name: name.to_owned(), digits }).collect();
        Table { title: title.to_owned(), notes, columns, rows: Vec::new() }
    }

    /// The text of a cell in a column.
    pub(super) fn text(&self, column: usize, cell: &Cell) -> String {
        match cell {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => format!("{number:.*}", self.columns[column].digits.unwrap_or(0)),
            Cell::None => "-".to_owned(),
        }
    }

    fn markdown(&self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let plain = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let mut all = format!("## {}\n\n", self.title);
        all += &line(self.columns.iter().map(|column| plain(&column.name)).collect());
        let rule = |column: &Column| if column.digits.is_some() { "---:" } else { "---" };
        all += &line(self.columns.iter().map(|column| rule(column).to_owned()).collect());
        for row in &self.rows {
            all += &line(row.iter().enumerate().map(|(at, cell)| plain(&self.text(at, cell))).collect());
        }
        if self.rows.is_empty() {
            all += "\nNothing to show.\n";
        }
        all + "\n" + &self.notes.join("\n") + "\n"
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| {
            let cells = self.columns.iter().zip(row).map(|(column, cell)| {
                let value = match cell {
                    Cell::Text(text) => json!(text),
                    Cell::Number(number) => json!(number),
                    Cell::None => Value::Null,
                };
                (column.name.clone(), value)
            });
            Value::Object(cells.collect::<Map<String, Value>>())
        };
        json!({ "title": self.title, "notes": self.notes, "rows": self.rows.iter().map(row).collect::<Vec<_>>() })
    }
}

/// Tables as Markdown.
pub fn markdown(tables: &[Table]) -> String {
    tables.iter().map(Table::markdown).collect::<Vec<_>>().join("\n")
}

/// Tables as a JSON array of objects `title`, `notes` and `rows`; numbers are not rounded.
pub fn json(tables: &[Table]) -> String {
    format!("{:#}", Value::Array(tables.iter().map(Table::json).collect()))
}

/// Table 1: the best configuration of each model, and totals of baselines and peers.
pub fn leaderboard(results: &Results, peers: &Peers) -> Vec<Table> {
    let mut models = Table::new(
        results,
        "Best configuration of each model",
        &[
            "n: queries whose trajectory has ended; percentages are of n. Pass: any right candidate. Overall: sum of \
             T_base over sum of C, where C is T_cand of the first accepted round, else T_base. Runs to save 1 h: \
             3600 s / (sum of T_base - sum of C), rounded up. Tokens and cost: summed over rounds, mean over n.",
        ],
        &[
            ("model", None),
            ("configuration", None),
            ("baseline", None),
            ("n", Some(0)),
            ("pass %", Some(1)),
            ("overall", Some(2)),
            (">= 1.05 %", Some(1)),
            (">= 1.2 %", Some(1)),
            (">= 2 %", Some(1)),
            ("total s", Some(3)),
            ("runs to save 1 h", Some(0)),
            ("rounds, accepted", Some(1)),
            ("rounds, all", Some(1)),
            ("k tokens in", Some(1)),
            ("k tokens out", Some(1)),
            ("USD", Some(2)),
        ],
    );
    for (each, summary) in results.best() {
        let [some, more, double] = summary.share_percent;
        models.rows.push(row![
            each.run.model.as_str(),
            each.label(),
            results.name_of(&Ground::of(&each.run)),
            summary.n,
            summary.pass_percent,
            summary.overall(),
            some,
            more,
            double,
            summary.credited_ms / 1000.0,
            summary.runs_to_save_an_hour().map(|runs| runs as f64),
            summary.accepted_rounds,
            summary.rounds,
            summary.tokens_in / 1000.0,
            summary.tokens_out / 1000.0,
            summary.cost_usd,
        ]);
    }
    if results.best().iter().any(|(_, summary)| summary.n < QUERIES) {
        models.notes.insert(1, format!("Rows over fewer than {QUERIES} queries do not compare with others."));
    }
    let mut totals = Table::new(
        results,
        "Totals of baselines and other engines",
        &["n: queries with a time. A baseline's time: median over all rounds of all configurations."],
        &[("system", None), ("n", Some(0)), ("total s", Some(3))],
    );
    let baselines = results.baselines.iter().map(|(ground, times)| (results.name_of(ground), times));
    for (system, times) in baselines.chain(peers.iter().map(|(engine, times)| (engine.clone(), times))) {
        let total = (!times.is_empty()).then(|| times.values().sum::<f64>() / 1000.0);
        totals.rows.push(row![system, times.len(), total]);
    }
    vec![models, totals]
}

/// Table 2: the gain of level `full` over `core`.
pub fn scope(results: &Results) -> Vec<Table> {
    let models = results.models();
    let gains: Vec<[Option<f64>; 2]> = models.iter().map(|model| gains(results, model)).collect();
    let of_framework = |gains: &[[Option<f64>; 2]], at: usize| {
        mean(&gains.iter().filter_map(|gains| gains[at]).collect::<Vec<_>>())
    };
    let note = "Gain: overall speed-up of full less that of core, over the queries that have ended in both, mean \
                over baselines. Models are ordered by their best overall speed-up.";
    let columns = |first| [(first, None), ("CUDA", Some(2)), ("Triton", Some(2)), ("both", Some(2))];
    let mut table = Table::new(results, "Gain of full over core per model", &[note], &columns("model"));
    for (model, of) in models.iter().zip(&gains) {
        let both = mean(&of.iter().flatten().copied().collect::<Vec<_>>());
        table.rows.push(row![*model, of[0], of[1], both]);
    }
    let mut groups = Table::new(results, "Mean gain of full over core", &[note], &columns("models"));
    let top = models.len().min(GROUP);
    let bottom = (models.len() - top).min(GROUP);
    for (name, members) in
        [("all", &gains[..]), ("top", &gains[..top]), ("bottom", &gains[gains.len() - bottom..])]
    {
        if members.is_empty() {
            continue;
        }
        let both = mean(&members.iter().flatten().flatten().copied().collect::<Vec<_>>());
        let name = format!("{name} {}", members.len());
        groups.rows.push(row![name, of_framework(members, 0), of_framework(members, 1), both]);
    }
    vec![groups, table]
}

/// A model's gain of full over core in each framework.
fn gains(results: &Results, model: &str) -> [Option<f64>; 2] {
    FRAMEWORKS.map(|framework| {
        let gains = results
            .complete()
            .filter(|each| {
                (each.run.model.as_str(), each.run.framework.as_str(), each.run.level.as_str())
                    == (model, framework, "full")
            })
            .filter_map(|full| {
                let (full, core) = full.beside(results.sibling(full, framework, "core")?)?;
                Some(full.overall() - core.overall())
            });
        mean(&gains.collect::<Vec<_>>())
    })
}

/// Table 3: configurations without a prompt block against the same with all blocks.
pub fn ablation(results: &Results) -> Vec<Table> {
    let mut table = Table::new(
        results,
        "Prompt blocks left out",
        &["Overall speed-ups over the n queries that have ended in both."],
        &[
            ("model", None),
            ("configuration", None),
            ("baseline", None),
            ("without", None),
            ("n", Some(0)),
            ("overall", Some(2)),
            ("all blocks", Some(2)),
            ("difference", Some(2)),
        ],
    );
    for each in results.configurations.iter().filter(|each| !each.run.without.is_empty()) {
        let whole = results.sibling(each, &each.run.framework, &each.run.level);
        let pair = whole.and_then(|whole| each.beside(whole));
        let alone = each.summary().map(|summary| (summary.n, summary.overall()));
        let (n, overall) = match &pair {
            Some((each, _)) => (Some(each.n), Some(each.overall())),
            None => alone.unzip(),
        };
        table.rows.push(row![
            each.run.model.as_str(),
            each.label(),
            results.name_of(&Ground::of(&each.run)),
            each.run.without.join(", "),
            n,
            overall,
            pair.as_ref().map(|(_, whole)| whole.overall()),
            pair.as_ref().map(|(each, whole)| each.overall() - whole.overall()),
        ]);
    }
    vec![table]
}

/// Table 4: totals of each generator's baseline plans, and of the optimised plans on each.
pub fn baselines(results: &Results) -> Vec<Table> {
    let mut columns = vec![("plans".to_owned(), None)];
    for ground in results.baselines.keys() {
        let name = results.name_of(ground);
        columns.extend([(format!("{name}, total s"), Some(3)), (format!("{name}, n"), Some(0))]);
    }
    let columns: Vec<(&str, Option<usize>)> =
        columns.iter().map(|(name, digits)| (name.as_str(), *digits)).collect();
    let mut table = Table::new(
        results,
        "Totals per baseline",
        &["Seconds over the n queries with a time. Baseline: median over all rounds; others: sum of C."],
        &columns,
    );
    let mut first = row!["baseline"];
    for times in results.baselines.values() {
        first.extend(row![times.values().sum::<f64>() / 1000.0, times.len()]);
    }
    table.rows.push(first);
    let plans: BTreeSet<(&str, String)> =
        results.complete().map(|each| (each.run.model.as_str(), each.label())).collect();
    for (model, label) in plans {
        let mut row = row![format!("{model} {label}")];
        for ground in results.baselines.keys() {
            let summary = results
                .complete()
                .find(|each| {
                    each.run.model == model && each.label() == label && Ground::of(&each.run) == *ground
                })
                .and_then(Configuration::summary);
            let total = summary.as_ref().map(|summary| summary.credited_ms / 1000.0);
            row.extend(row![total, summary.map(|summary| summary.n)]);
        }
        table.rows.push(row);
    }
    vec![table]
}

/// A model's preference between the frameworks at level full.
pub(super) struct Preference<'a> {
    pub(super) cuda: &'a Configuration,
    on_cuda: Summary,
    on_triton: Summary,
}

impl Preference<'_> {
    /// P = lambda * 100 * (S_cuda - S_triton) - (K_cuda - K_triton), where S is the overall speed-up and K thousand
    /// tokens of prompts and replies a query.
    pub(super) fn p(&self) -> f64 {
        let Preference { on_cuda, on_triton, .. } = self;
        LAMBDA * 100.0 * (on_cuda.overall() - on_triton.overall())
            - (on_cuda.kilotokens() - on_triton.kilotokens())
    }
}

pub(super) fn preferences(results: &Results) -> Vec<Preference<'_>> {
    let mut all: Vec<Preference<'_>> = results
        .complete()
        .filter(|each| (each.run.framework.as_str(), each.run.level.as_str()) == ("cuda", "full"))
        .filter_map(|cuda| {
            let (on_cuda, on_triton) = cuda.beside(results.sibling(cuda, "triton", "full")?)?;
            Some(Preference { cuda, on_cuda, on_triton })
        })
        .collect();
    all.sort_by(|a, b| b.p().total_cmp(&a.p()));
    all
}

/// Figure 4: which framework is worth its tokens.
pub fn preference(results: &Results) -> Vec<Table> {
    let mut table = Table::new(
        results,
        "Preference between CUDA and Triton at level full",
        &[
            "P = lambda * 100 * (S of CUDA - S of Triton) - (K of CUDA - K of Triton), lambda 10; S: overall speed-up, \
             K: thousand tokens in and out a query, both over the n queries that have ended in both. P above 0 \
             prefers CUDA.",
        ],
        &[
            ("model", None),
            ("baseline", None),
            ("n", Some(0)),
            ("S CUDA", Some(2)),
            ("S Triton", Some(2)),
            ("K CUDA", Some(1)),
            ("K Triton", Some(1)),
            ("P", Some(1)),
        ],
    );
    for each in preferences(results) {
        table.rows.push(row![
            each.cuda.run.model.as_str(),
            results.name_of(&Ground::of(&each.cuda.run)),
            each.on_cuda.n,
            each.on_cuda.overall(),
            each.on_triton.overall(),
            each.on_cuda.kilotokens(),
            each.on_triton.kilotokens(),
            each.p(),
        ]);
    }
    vec![table]
}

/// Which queries exercise which choke points.
#[derive(Debug, Deserialize)]
struct ChokePoints {
    source: String,
    note: String,
    choke_points: Vec<ChokePoint>,
}

#[derive(Debug, Deserialize)]
struct ChokePoint {
    category: String,
    queries: Vec<String>,
}

impl ChokePoints {
    fn read() -> ChokePoints {
        serde_json::from_str(include_str!("chokepoints.json")).expect("a file of ours that a test reads")
    }

    /// Distinct categories of choke points that a query is named for.
    fn coverage(&self, query: &str) -> f64 {
        let named = self.choke_points.iter().filter(|point| point.queries.iter().any(|name| name == query));
        named.map(|point| point.category.as_str()).collect::<BTreeSet<_>>().len() as f64
    }
}

/// A system's rank correlation of coverage with speed-up.
pub(super) struct Correlation {
    pub(super) system: String,
    n: usize,
    pub(super) rho: Option<f64>,
}

impl Correlation {
    fn of(system: &str, pairs: &[(f64, f64)]) -> Correlation {
        Correlation { system: system.to_owned(), n: pairs.len(), rho: spearman(pairs) }
    }
}

pub(super) fn correlations(results: &Results, peers: &Peers) -> Vec<Correlation> {
    let points = ChokePoints::read();
    let mut all = Vec::new();
    let mut pooled = Vec::new();
    for model in results.models() {
        let mut speedups: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for each in results.complete().filter(|each| each.run.model == model) {
            for (query, ended) in &each.ended {
                speedups.entry(query).or_default().push(ended.speedup());
            }
        }
        let pairs: Vec<(f64, f64)> = speedups
            .iter()
            .filter_map(|(query, speedups)| Some((points.coverage(query), mean(speedups)?)))
            .collect();
        all.push(Correlation::of(model, &pairs));
        pooled.extend(pairs);
    }
    all.push(Correlation::of("all models, pooled", &pooled));
    for (engine, times) in peers {
        for (ground, base) in &results.baselines {
            let pairs: Vec<(f64, f64)> = times
                .iter()
                .filter_map(|(query, ms)| Some((points.coverage(query), base.get(query)? / ms)))
                .collect();
            all.push(Correlation::of(&format!("{engine} over {}", results.name_of(ground)), &pairs));
        }
    }
    all
}

/// Figure 8: whether queries with more choke points gain more.
pub fn choke_points(results: &Results, peers: &Peers) -> Vec<Table> {
    let points = ChokePoints::read();
    let mut table = Table::new(
        results,
        "Choke points and speed-up",
        &[
            "Spearman's rank correlation (equal values share the mean of their ranks) of the number of choke-point \
             categories of a query with its speed-up: of a model, the mean over its configurations with all prompt \
             blocks; of another engine, the baseline's time over its own.",
            &format!("Choke points: {}. {}", points.source, points.note),
        ],
        &[("system", None), ("n", Some(0)), ("Spearman", Some(3))],
    );
    for each in correlations(results, peers) {
        table.rows.push(row![each.system, each.n, each.rho]);
    }
    let mut coverage = Table::new(
        results,
        "Choke-point categories per query",
        &[&format!("Choke points: {}.", points.source)],
        &[("query", None), ("categories", Some(0))],
    );
    for query in (1..=QUERIES).map(|number| format!("q{number:02}")) {
        let count = points.coverage(&query);
        coverage.rows.push(row![query, count]);
    }
    vec![table, coverage]
}

/// The class of a failure: what the candidate did not get past.
fn class(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Refused | Outcome::Compile => Some("compile or import"),
        Outcome::Fault | Outcome::TimeOut => Some("execution"),
        Outcome::Wrong => Some("output"),
        Outcome::Accepted | Outcome::NotFaster | Outcome::Slow | Outcome::Noisy | Outcome::Held => None,
    }
}

fn end(ended: &Ended) -> &'static str {
    match ended {
        Ended { accepted: Some(_), .. } => "accepted",
        Ended { correct: true, .. } => "right, not faster",
        Ended { held: true, .. } => "held for a person",
        _ => "never right",
    }
}

/// Appendix F: how rounds add up, how trajectories end, how first rounds fail, and which queries are hard.
pub fn repair(results: &Results) -> Vec<Table> {
    let all: Vec<(&str, &str, &Ended)> = results
        .complete()
        .flat_map(|each| {
            let framework = framework(&each.run.framework);
            each.ended.iter().map(move |(query, ended)| (framework, query.as_str(), ended))
        })
        .collect();
    let percent = |count: usize, of: usize| (of > 0).then(|| 100.0 * count as f64 / of as f64);
    let count = |holds: &dyn Fn(&Ended) -> bool| all.iter().filter(|(_, _, ended)| holds(ended)).count();
    let share = [("trajectories", Some(0)), ("%", Some(1))];
    let with = |first| [(first, None), share[0], share[1]];
    let of_all = format!("Of {} trajectories of configurations with all prompt blocks.", all.len());

    let mut rounds = Table::new(results, "Accepted by round", &[&of_all], &with("after round"));
    let last = all.iter().filter_map(|(_, _, ended)| ended.accepted).fold(MOST_ROUNDS, u32::max);
    for round in 1..=last {
        let accepted = count(&|ended| ended.accepted.is_some_and(|at| at <= round));
        rounds.rows.push(row![round.to_string(), accepted, percent(accepted, all.len())]);
    }

    let mut ends = Table::new(results, "How trajectories end", &[&of_all], &with("end"));
    for name in ["accepted", "right, not faster", "held for a person", "never right"] {
        let count = count(&|ended| end(ended) == name);
        ends.rows.push(row![name, count, percent(count, all.len())]);
    }

    let mut failures = Table::new(
        results,
        "Failures of first rounds",
        &[
            "Compile or import: no plan, a rule broken, or it does not compile; execution: a crash, a device's fault or \
             a time-out; output: a wrong answer. Percent: of the failures in that column.",
        ],
        &[
            ("class", None),
            ("all", Some(0)),
            ("all %", Some(1)),
            ("CUDA", Some(0)),
            ("CUDA %", Some(1)),
            ("Triton", Some(0)),
            ("Triton %", Some(1)),
        ],
    );
    for name in ["compile or import", "execution", "output"] {
        let mut row = row![name];
        for only in [None, Some("CUDA"), Some("Triton")] {
            let classes = all
                .iter()
                .filter(|(framework, _, _)| only.is_none_or(|only| only == *framework))
                .filter_map(|(_, _, ended)| class(ended.first));
            let classes: Vec<&str> = classes.collect();
            let count = classes.iter().filter(|class| **class == name).count();
            row.extend(row![count, percent(count, classes.len())]);
        }
        failures.rows.push(row);
    }

    let mut queries = Table::new(
        results,
        "Accepted by query",
        &["Hardest first.", &of_all],
        &[("query", None), ("accepted", Some(0)), ("of", Some(0)), ("%", Some(1))],
    );
    let mut by_query: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (_, query, ended) in &all {
        let (accepted, of) = by_query.entry(query).or_default();
        *accepted += usize::from(ended.accepted.is_some());
        *of += 1;
    }
    let mut by_query: Vec<_> = by_query.into_iter().collect();
    by_query.sort_by(|(_, (a, of_a)), (_, (b, of_b))| (a * of_b).cmp(&(b * of_a)));
    for (query, (accepted, of)) in by_query {
        queries.rows.push(row![query, accepted, of, percent(accepted, of)]);
    }
    vec![rounds, ends, failures, queries]
}
