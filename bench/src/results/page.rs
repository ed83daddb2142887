//! All tables and charts in one HTML page.
//!
//! Invariant: the page stands alone: no scripts, and no styles, fonts or images from elsewhere.

use crate::chart::{escaped, step, text};
use crate::results::tables::{self, Table};
use crate::results::{Ground, Peers, QUERIES, Results};

/// Pixels.
const WIDTH: f64 = 900.0;
const LETTER: f64 = 7.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 24.0;
const RIGHT: f64 = 64.0;
/// Of the chart of queries.
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 56.0;
const LEGEND: f64 = 28.0;
/// Colours that the style sheet names.
const SERIES: usize = 6;
/// The time axis is cut at so many times the time that nine tenths of the bars stay below.
const CUT: f64 = 2.0;

const STYLE: &str = "\
:root { color-scheme: light dark; --back: #fff; --fore: #222; --faint: #666; --line: #ddd;
  --s0: #1f6f8b; --s1: #e08a1e; --s2: #5a8f3c; --s3: #a8456f; --s4: #6a5acd; --s5: #8a6d3b; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16191d; --fore: #e4e6e8; --faint: #9aa1a8; --line: #363c43;
    --s0: #4fb3d4; --s1: #f0a94b; --s2: #8cc56a; --s3: #de7fa7; --s4: #a599f2; --s5: #c9a86a; } }
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; background: var(--back); color: var(--fore);
  font: 15px/1.5 sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
.number { text-align: right; }
p.note { color: var(--faint); font-size: .85rem; }
svg { max-width: 100%; height: auto; font: 12px sans-serif; fill: var(--fore); }
svg .axis { stroke: var(--fore); } svg .grid { stroke: var(--line); }
.s0 { fill: var(--s0); } .s1 { fill: var(--s1); } .s2 { fill: var(--s2); }
.s3 { fill: var(--s3); } .s4 { fill: var(--s4); } .s5 { fill: var(--s5); }
";

/// The page: the charts of figures 1, 3, 4 and 8 among the tables.
pub fn page(results: &Results, peers: &Peers) -> String {
    let best = results.best();
    let named = |ground: &Ground, model: &str| {
        if results.baselines.len() > 1 {
            format!("{model} over {}", results.name_of(ground))
        } else {
            model.to_owned()
        }
    };
    let of_best = |value: &dyn Fn(&crate::results::Summary) -> f64| {
        let bars = best.iter().map(|(each, summary)| Bar {
            name: named(&Ground::of(&each.run), &format!("{} {}", each.run.model, each.label())),
            value: value(summary),
        });
        bars.collect::<Vec<_>>()
    };
    let preferences: Vec<Bar> = tables::preferences(results)
        .iter()
        .map(|each| Bar { name: named(&Ground::of(&each.cuda.run), &each.cuda.run.model), value: each.p() })
        .collect();
    let correlations: Vec<Bar> = tables::correlations(results, peers)
        .into_iter()
        .filter_map(|each| Some(Bar { name: each.system, value: each.rho? }))
        .collect();
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>Results of dkb-bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>Results of dkb-bench</h1>\n<p>Measured with {}.</p>\n",
        escaped(&results.environment())
    );
    let mut add = |parts: &[(&str, String)], tables: Vec<Table>| {
        for (title, chart) in parts {
            html.push_str(&format!("<h2>{}</h2>\n{chart}", escaped(title)));
        }
        html.extend(tables.iter().map(table));
    };
    add(
        &[
            ("Pass rate of the best configuration (%)", bars(&of_best(&|summary| summary.pass_percent), 1)),
            ("Overall speed-up of the best configuration", bars(&of_best(&|summary| summary.overall()), 2)),
            ("Time of each query (ms; bars beyond the axis carry their value)", queries(results, peers)),
        ],
        tables::leaderboard(results, peers),
    );
    add(&[], tables::scope(results));
    add(&[], tables::ablation(results));
    add(&[], tables::baselines(results));
    add(
        &[("Preference P: above 0 prefers CUDA, below Triton", bars(&preferences, 1))],
        tables::preference(results),
    );
    add(
        &[("Spearman's correlation of choke points with speed-up", bars(&correlations, 3))],
        tables::choke_points(results, peers),
    );
    add(&[], tables::repair(results));
    html + "</body>\n</html>\n"
}

fn table(table: &Table) -> String {
    let class = |at: usize| if table.columns[at].digits.is_some() { " class=\"number\"" } else { "" };
    let line = |tag: &str, cells: Vec<String>| {
        let cells = cells.iter().enumerate();
        let cells: Vec<String> =
            cells.map(|(at, cell)| format!("<{tag}{}>{}</{tag}>", class(at), escaped(cell))).collect();
        format!("<tr>{}</tr>\n", cells.concat())
    };
    let head = line("th", table.columns.iter().map(|column| column.name.clone()).collect());
    let row = |row: &Vec<tables::Cell>| {
        line("td", row.iter().enumerate().map(|(at, cell)| table.text(at, cell)).collect())
    };
    let rows: String = table.rows.iter().map(row).collect();
    let rows = if rows.is_empty() { "<tr><td>Nothing to show.</td></tr>\n".to_owned() } else { rows };
    let notes = table.notes.iter().map(|note| format!("<p class=\"note\">{}</p>\n", escaped(note)));
    format!(
        "<h2>{}</h2>\n<div class=\"scroll\"><table>\n<thead>{head}</thead>\n<tbody>{rows}</tbody>\n</table></div>\n{}",
        escaped(&table.title),
        notes.collect::<String>()
    )
}

struct Bar {
    name: String,
    value: f64,
}

fn rect(series: usize, x: f64, y: f64, width: f64, height: f64, title: &str) -> String {
    format!(
        "<rect class=\"s{}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
         <title>{}</title></rect>\n",
        series % SERIES,
        escaped(title)
    )
}

fn line(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> String {
    format!("<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n")
}

fn svg(width: f64, height: f64, content: &str) -> String {
    format!(
        "<div class=\"scroll\"><svg width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n{content}</svg></div>\n"
    )
}

fn nothing() -> String {
    "<p class=\"note\">Nothing to show.</p>\n".to_owned()
}

fn tick(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}")
}

/// A line each with a horizontal bar from 0, to the left where the value is below 0.
fn bars(bars: &[Bar], digits: usize) -> String {
    if bars.is_empty() {
        return nothing();
    }
    let most = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    let least = bars.iter().map(|bar| bar.value).fold(0.0, f64::min);
    let step = step(most.max(-least));
    let (from, to) = ((least / step).floor(), (most / step).ceil().max((least / step).floor() + 1.0));
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    let left = LETTER * (longest + 2) as f64 + if least < 0.0 { RIGHT } else { 0.0 };
    let width = WIDTH.max(left * 2.0);
    let x = |value: f64| left + (value / step - from) / (to - from) * (width - left - RIGHT);
    let base = TOP + LINE * bars.len() as f64;
    let mut content = String::new();
    for at in from as i64..=to as i64 {
        let value = at as f64 * step;
        content += &line(if at == 0 { "axis" } else { "grid" }, x(value), TOP, x(value), base);
        content += &text(x(value), base + 16.0, "middle", "", &tick(value, step));
    }
    for (at, Bar { name, value }) in bars.iter().enumerate() {
        let y = TOP + LINE * at as f64;
        let (start, end) = (x(value.min(0.0)), x(value.max(0.0)));
        let shown = format!("{value:.digits$}");
        let series = usize::from(*value < 0.0);
        content +=
            &rect(series, start, y + (LINE - BAR) / 2.0, end - start, BAR, &format!("{name}: {shown}"));
        content += &text(LETTER * (longest + 1) as f64, y + 16.0, "end", "", name);
        let (beside, anchor) = if *value < 0.0 { (start - 4.0, "end") } else { (end + 4.0, "start") };
        content += &text(beside, y + 16.0, anchor, "", &shown);
    }
    svg(width, base + BOTTOM, &content)
}

/// Milliseconds of each query: the best configuration, its baseline and other engines. The axis is cut where a few
/// bars would flatten the others; these carry their value.
fn queries(results: &Results, peers: &Peers) -> String {
    let Some((best, _)) = results.best().into_iter().next() else { return nothing() };
    let ground = Ground::of(&best.run);
    let credited = best.ended.iter().map(|(query, ended)| (query.clone(), ended.credited_ms)).collect();
    let mut series = vec![
        (format!("{} {}", best.run.model, best.label()), &credited),
        (format!("baseline {}", results.name_of(&ground)), &results.baselines[&ground]),
    ];
    series.extend(peers.iter().map(|(engine, times)| (engine.clone(), times)));
    let mut times: Vec<f64> = series.iter().flat_map(|(_, times)| times.values().copied()).collect();
    times.sort_by(f64::total_cmp);
    let most = times.last().copied().unwrap_or(0.0).min(CUT * times[(times.len() - 1) * 9 / 10]);
    let step = step(most);
    let ticks = (most / step).ceil().max(1.0);
    let end_ms = ticks * step;
    let (top, base) = (LEGEND + 24.0, HEIGHT - BOTTOM);
    let y = |ms: f64| base - ms.min(end_ms) / end_ms * (base - top);
    let mut content = String::new();
    let mut x = LEFT;
    for (at, (name, _)) in series.iter().enumerate() {
        content += &rect(at, x, 8.0, 11.0, 11.0, name);
        content += &text(x + 16.0, 18.0, "start", "", name);
        x += LETTER * (name.chars().count() + 5) as f64;
    }
    let width = WIDTH.max(x);
    for at in 0..=ticks as u32 {
        let ms = f64::from(at) * step;
        content += &line(if at == 0 { "axis" } else { "grid" }, LEFT, y(ms), width - 8.0, y(ms));
        content += &text(LEFT - 6.0, y(ms) + 4.0, "end", "", &tick(ms, step));
    }
    let group = (width - LEFT - 8.0) / QUERIES as f64;
    let bar = group * 0.8 / series.len() as f64;
    for number in 1..=QUERIES {
        let query = format!("q{number:02}");
        let start = LEFT + group * (number as f64 - 0.9);
        content += &text(start + group * 0.4, base + 16.0, "middle", "", &query);
        for (at, (name, times)) in series.iter().enumerate() {
            let Some(&ms) = times.get(&query) else { continue };
            let x = start + bar * at as f64;
            content += &rect(at, x, y(ms), bar, base - y(ms), &format!("{query}, {name}: {ms:.3} ms"));
            if ms > end_ms {
                // Beside each other, values of a group would overlap.
                let (x, y) = (x + bar, top - 4.0);
                let turned = format!("font-size=\"10\" transform=\"rotate(-45 {x:.1} {y:.1})\"");
                content += &text(x, y, "start", &turned, &format!("{ms:.0}"));
            }
        }
    }
    svg(width, HEIGHT, &content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{peers, results};

    /// The names of elements in a page; each is closed in order.
    fn elements(html: &str) -> Vec<&str> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for part in html.split('<').skip(1) {
            let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("<{part} has no end"));
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{part}");
            } else if !tag.starts_with('!') {
                all.push(name);
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
        }
        assert!(open.is_empty(), "{open:?} are not closed");
        all
    }

    #[test]
    fn a_page_is_whole_and_stands_alone() {
        let html = page(&results(), &peers());
        let count = |name: &str| elements(&html).iter().filter(|element| **element == name).count();
        assert_eq!((count("svg"), count("table"), count("html")), (5, 13, 1));
        for absent in ["http", "src=", "href", "url(", "@import", "<script", "NaN", "inf"] {
            assert!(!html.contains(absent), "{absent}");
        }
        for present in
            ["prefers-color-scheme: dark", "peer &lt;1&gt;", "q20, peer &lt;1&gt;: 10.000 ms", "Unfinished"]
        {
            assert!(html.contains(present), "{present}");
        }
        assert!(html.contains(">215.0<") && html.contains(">-75.0<"), "preferences");
    }

    #[test]
    fn bars_go_to_both_sides_and_long_ones_are_cut() {
        let chart = bars(
            &[Bar { name: "up".to_owned(), value: 4.0 }, Bar { name: "down".to_owned(), value: -2.0 }],
            1,
        );
        assert!(chart.contains("<title>down: -2.0</title>") && chart.contains("class=\"s1\""), "{chart}");
        assert!(bars(&[], 1).contains("Nothing"));
        let mut peers = peers();
        peers.insert("slow".to_owned(), [("q02".to_owned(), 9000.0)].into());
        let chart = queries(&results(), &peers);
        assert!(chart.contains(">9000</text>") && !chart.contains(">8000</text>"), "{chart}");
    }

    #[test]
    fn nothing_is_a_page_too() {
        let results = Results { configurations: Vec::new(), baselines: Default::default() };
        elements(&page(&results, &Peers::new()));
    }
}
