//! Measured times and floors as a bar chart, in SVG.
//!
//! Invariant: the text stands alone: no fonts, styles or scripts from elsewhere.

use crate::floor::{Floors, Row};

/// Pixels; the chart is wider where there are many queries or long names.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 56.0;
/// The least that a pair of bars and its name take.
const PAIR: f64 = 36.0;
/// The widest bar.
const BAR: f64 = 26.0;
/// About the width of a letter.
const LETTER: f64 = 7.0;
const MEASURED: &str = "#1f6f8b";
const FLOOR: &str = "#e08a1e";

impl Floors<'_> {
    /// The chart: a pair of bars for each query, measured and floor, and how often the floor goes into the time.
    pub fn svg(&self) -> String {
        let longest = self.rows.iter().map(|row| row.query.query.chars().count()).max().unwrap_or(0);
        let least = PAIR.max(LETTER * (longest + 1) as f64);
        let width = WIDTH.max(LEFT + RIGHT + least * self.rows.len() as f64).ceil();
        let pair = (width - LEFT - RIGHT) / self.rows.len().max(1) as f64;
        let times = self.rows.iter().filter_map(|row| row.times.ok());
        let most_ms = times.map(|times| times.exec_ms.max(times.floor_ms)).fold(0.0, f64::max);
        let step_ms = step(most_ms);
        let ticks = (most_ms / step_ms).ceil().max(1.0);
        let base = HEIGHT - BOTTOM;
        let y = |ms: f64| base - ms / (ticks * step_ms) * (base - TOP);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{HEIGHT}\" \
             viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n"
        );
        let mut add = |line: String| svg.extend([line.as_str(), "\n"]);
        add(text(
            LEFT,
            22.0,
            "start",
            "font-size=\"16\" font-weight=\"bold\"",
            "Time of each query and its floor",
        ));
        add(text(LEFT, 40.0, "start", "", &self.report.conditions()));
        add(format!("<rect x=\"{LEFT}\" y=\"51\" width=\"11\" height=\"11\" fill=\"{MEASURED}\"/>"));
        add(text(LEFT + 16.0, 61.0, "start", "", "measured (number: times the floor)"));
        add(format!("<rect x=\"{}\" y=\"51\" width=\"11\" height=\"11\" fill=\"{FLOOR}\"/>", LEFT + 256.0));
        add(text(LEFT + 272.0, 61.0, "start", "", &format!("floor: {}", self.kinds().join("; or "))));
        for tick in 0..=ticks as u32 {
            let ms = f64::from(tick) * step_ms;
            let (y, end) = (y(ms), width - RIGHT);
            add(format!(
                "<line x1=\"{LEFT}\" x2=\"{end}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{}\"/>",
                if tick == 0 { "#222" } else { "#ddd" }
            ));
            let digits = (-step_ms.log10().floor()).max(0.0) as usize;
            add(text(LEFT - 6.0, y + 4.0, "end", "", &format!("{ms:.digits$}")));
        }
        let middle = (TOP + base) / 2.0;
        add(text(16.0, middle, "middle", &format!("transform=\"rotate(-90 16 {middle})\""), "time (ms)"));
        add(text((LEFT + width - RIGHT) / 2.0, HEIGHT - 12.0, "middle", "", "query"));
        for (at, Row { query, times }) in self.rows.iter().enumerate() {
            let center = LEFT + pair * (at as f64 + 0.5);
            add(text(center, base + 18.0, "middle", "", &query.query));
            let times = match times {
                Ok(times) => times,
                Err(word) => {
                    add(text(center, base - 6.0, "middle", "font-size=\"10\" fill=\"#777\"", word));
                    continue;
                }
            };
            let bar = BAR.min(pair * 0.38);
            for (ms, x, fill) in [(times.exec_ms, center - bar, MEASURED), (times.floor_ms, center, FLOOR)] {
                let (top, height) = (y(ms), base - y(ms));
                add(format!(
                    "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{bar:.1}\" height=\"{height:.1}\" fill=\"{fill}\">\
                     <title>{}: {ms:.3} ms</title></rect>",
                    escaped(&query.query)
                ));
            }
            let above = y(times.exec_ms.max(times.floor_ms)) - 4.0;
            add(text(center, above, "middle", "font-size=\"10\"", &times.ratio()));
        }
        svg + "</svg>\n"
    }
}

/// Between ticks: 1, 2 or 5 times a power of ten, so that there are four to ten.
pub(crate) fn step(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(most.log10().floor());
    match most / power {
        most if most < 2.0 => power / 5.0,
        most if most < 5.0 => power / 2.0,
        _ => power,
    }
}

/// Text in SVG at a place in pixels, `start`, `middle` or `end` there, with more attributes.
pub(crate) fn text(x: f64, y: f64, anchor: &str, more: &str, content: &str) -> String {
    let more = if more.is_empty() { String::new() } else { format!(" {more}") };
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{}</text>", escaped(content))
}

/// Text of an element in SVG or HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::tests::{RESIDENT, report};

    #[test]
    fn each_query_with_a_time_has_two_bars() {
        let report = report(RESIDENT);
        let svg = Floors::new(&report, 55.0).unwrap().svg();
        let count = |what: &str| svg.matches(what).count();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("width=\"900\" height=\"440\" viewBox=\"0 0 900 440\""), "{svg}");
        // One more of each in the legend.
        assert_eq!((count(MEASURED), count(FLOOR), count("<title>")), (5, 5, 8));
        assert_eq!(count("<text "), count("</text>"));
        // The axis goes to the next tick: 3 ms fill it, and 1.2 ms are two fifths of that.
        let height = HEIGHT - BOTTOM - TOP;
        for ms in [3.0, 1.2] {
            assert!(
                svg.contains(&format!("height=\"{:.1}\" fill=\"{MEASURED}\"", height * ms / 3.0)),
                "{svg}"
            );
        }
        for text in
            [">time (ms)<", ">query<", ">2.5<", ">q03<", ">error<", ">300.0<", "a&lt;b (scale factor 10)"]
        {
            assert!(svg.contains(text), "no {text} in {svg}");
        }
    }

    #[test]
    fn many_queries_make_it_wider() {
        let mut report = report(RESIDENT);
        report.queries = vec![report.queries[0].clone(); 100];
        report.queries[0].query = "a long name".to_owned();
        let svg = Floors::new(&report, 55.0).unwrap().svg();
        assert!(svg.contains("width=\"8480\""), "{}", &svg[..200]);
    }

    #[test]
    fn ticks_are_round() {
        for (most, expected) in [(0.0, 1.0), (1.0, 0.2), (1.9, 0.2), (3.0, 0.5), (49.0, 5.0), (70.0, 10.0)] {
            assert!((step(most) - expected).abs() < 1e-12, "{most}");
        }
    }
}
