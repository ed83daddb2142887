//! Fenced code blocks, as CommonMark defines them with backticks: the one of a reply, and those of a prompt.

use std::fmt;

/// Why a reply holds no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    /// No block begins.
    None,
    /// So many blocks.
    Several(usize),
    /// The last block does not end.
    Open,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::None => write!(f, "the reply holds no fenced code block"),
            Problem::Several(count) => write!(f, "the reply holds {count} fenced code blocks"),
            Problem::Open => write!(f, "the reply's fenced code block is not closed"),
        }
    }
}

/// The text of the only fenced block, each line ended; what stands around the block does not matter.
pub(crate) fn fenced_block(reply: &str) -> Result<String, Problem> {
    let mut block = None;
    let mut count = 0;
    let mut lines = reply.lines();
    while let Some(line) = lines.next() {
        let Some((ticks, _)) = fence(line) else { continue };
        let mut text = String::new();
        loop {
            let line = lines.next().ok_or(Problem::Open)?;
            if fence(line).is_some_and(|(closing, tag)| closing >= ticks && tag.is_empty()) {
                break;
            }
            text.push_str(line);
            text.push('\n');
        }
        count += 1;
        block = Some(text);
    }
    match (block, count) {
        (Some(text), 1) => Ok(text),
        (None, _) => Err(Problem::None),
        (_, count) => Err(Problem::Several(count)),
    }
}

/// A text as a fenced block, whatever fences it holds itself.
pub(crate) fn fenced(text: &str) -> String {
    let longest = text.lines().filter_map(fence).map(|(ticks, _)| ticks).max().unwrap_or(0);
    let ticks = "`".repeat(longest.max(2) + 1);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{ticks}\n{text}{end}{ticks}\n")
}

/// How many backticks a fence has, and its language tag; None for other lines.
fn fence(line: &str) -> Option<(usize, &str)> {
    let start = line.trim_start_matches(' ');
    let tag = start.trim_start_matches('`');
    let ticks = start.len() - tag.len();
    (line.len() - start.len() <= 3 && ticks >= 3 && !tag.contains('`')).then(|| (ticks, tag.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_only_block() {
        let plan = "/*--- kernel plan 1\n---*/\n";
        for reply in [
            format!("```\n{plan}```"),
            format!("Here it is:\n\n```cuda\n{plan}```\nIt fuses `a` and ```b```.\n"),
            format!("  ````c++ title=\"x\"\n{plan}````  \n"),
            format!("```\n{plan}```\n").replace('\n', "\r\n"),
        ] {
            assert_eq!(fenced_block(&reply).as_deref(), Ok(plan), "{reply}");
        }
        assert_eq!(fenced_block("````\n```\na\n```\n````\n").as_deref(), Ok("```\na\n```\n"));
        assert_eq!(fenced_block("```\n```").as_deref(), Ok(""));
    }

    #[test]
    fn says_why_there_is_none() {
        assert_eq!(fenced_block(""), Err(Problem::None));
        assert_eq!(fenced_block("no plan, only ```inline``` code"), Err(Problem::None));
        assert_eq!(fenced_block("```\na\n```\n```\nb\n```\n"), Err(Problem::Several(2)));
        assert_eq!(fenced_block("```cuda\na\n"), Err(Problem::Open));
        assert_eq!(fenced_block("```\na\n```\n```"), Err(Problem::Open));
    }

    #[test]
    fn a_fenced_text_is_found_again() {
        for text in ["", "a\n", "```\na\n```\n", "`````\n"] {
            assert_eq!(fenced_block(&fenced(text)).as_deref(), Ok(text));
        }
    }
}
