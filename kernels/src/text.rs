//! The text form of a plan: `/*--- kernel plan 1`, a TOML header, `---*/`, device source. Where there are kernels in
//! both languages, a line `/*--- triton ---*/` or `/*--- cuda ---*/` begins the second section of the source; the
//! first one is in the `framework` of the header.
//!
//! `parse(&print(plan)) == plan` for every plan whose source holds no such line.

use crate::plan::{Framework, Plan};

const OPEN: &str = "/*--- kernel plan 1\n";
const CLOSE: &str = "---*/\n";

/// A plan file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ParsePlanError {
    /// The first line is not the opening mark.
    #[error("line 1: expected `/*--- kernel plan 1`")]
    Open,
    /// The header does not end.
    #[error("the header has no closing line `---*/`")]
    Close,
    /// The header is no valid TOML or misses a field.
    #[error("header: {0}")]
    Header(#[from] toml::de::Error),
    /// A line that should begin a second section of the source does not.
    #[error("line {line}: {problem}")]
    Section {
        /// The line of the file.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Prints a plan as a plan file.
pub fn print(plan: &Plan) -> String {
    let header = toml::to_string(plan).expect("a plan has only string keys and values TOML can hold");
    let mut text = format!("{OPEN}{header}{CLOSE}{}", plan.source);
    if let Some(source) = &plan.other_source {
        text += &mark(plan.framework.other());
        text += source;
    }
    text
}

/// Reads a plan file. The result is not yet checked; see [`crate::check`].
///
/// # Errors
/// A missing or a wrong mark, or a header that is not a plan; the message names line and field.
pub fn parse(text: &str) -> Result<Plan, ParsePlanError> {
    let body = text.strip_prefix(OPEN).ok_or(ParsePlanError::Open)?;
    let end = match body.strip_prefix(CLOSE) {
        Some(_) => 0,
        None => body.find(&format!("\n{CLOSE}")).ok_or(ParsePlanError::Close)? + 1,
    };
    // An empty line in the place of the opening mark: errors give lines of the file.
    let mut plan: Plan = toml::from_str(&format!("\n{}", &body[..end]))?;
    let source = &body[end + CLOSE.len()..];
    let header_lines = text[..text.len() - source.len()].lines().count();
    let (first, second) = sections(source, plan.framework)
        .map_err(|(line, problem)| ParsePlanError::Section { line: header_lines + line, problem })?;
    plan.source = first.to_owned();
    plan.other_source = second.map(str::to_owned);
    Ok(plan)
}

/// The line that begins a second section of the source.
fn mark(framework: Framework) -> String {
    format!("/*--- {framework} ---*/\n")
}

/// The language that a line names as [`mark`] does, if perhaps with other letters, dashes and blanks.
fn marked(line: &str) -> Option<Framework> {
    let name = line.trim().strip_prefix("/*-")?.strip_suffix("-*/")?.trim_matches(['-', ' ']);
    Framework::ALL.into_iter().find(|framework| framework.to_string().eq_ignore_ascii_case(name))
}

/// A source's sections, of which the first is in `framework`; or a line, from 1, and what is wrong with it.
fn sections(source: &str, framework: Framework) -> Result<(&str, Option<&str>), (usize, String)> {
    let mut found = (source, None);
    let mut start = 0;
    for (at, line) in source.split_inclusive('\n').enumerate() {
        let end = start + line.len();
        if let Some(marked) = marked(line) {
            let expected = mark(marked);
            let expected = expected.trim_end();
            let problem = if marked == framework || found.1.is_some() {
                Some(format!("a second section `{marked}`: a source has at most one in each language"))
            } else if line.trim_end_matches('\n') != expected {
                Some(format!("a section begins with the line `{expected}`, with nothing else in it"))
            } else if source[..start].trim().is_empty() {
                Some(format!("the section `{framework}` in front of the line is empty"))
            } else if source[end..].trim().is_empty() {
                Some(format!("the section `{marked}` behind the line is empty"))
            } else {
                None
            };
            if let Some(problem) = problem {
                return Err((at + 1, problem));
            }
            found = (&source[..start], Some(&source[end..]));
        }
        start = end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven lines.
    const HEADER: &str = "/*--- kernel plan 1\nsql = \"\"\nframework = \"cuda\"\nlevel = \"core\"\nphases = []\n\
                          result = { size = \"n\", columns = [] }\n---*/\n";

    #[test]
    fn sections_round_trip() {
        let in_triton = HEADER.replacen("cuda", "triton", 1);
        for (header, first, other) in [
            (HEADER, "", None),
            (HEADER, "/*--- first ---*/\nint a;", None),
            (HEADER, "int a;\n", Some(("triton", "import triton\n"))),
            (HEADER, "int a;\n\n", Some(("triton", "\nimport triton"))),
            (&in_triton, "import triton\n", None),
            (&in_triton, "import triton\n", Some(("cuda", "int a;\n/*----*/\n"))),
        ] {
            let second =
                other.map(|(name, source)| format!("/*--- {name} ---*/\n{source}")).unwrap_or_default();
            let plan = parse(&format!("{header}{first}{second}")).unwrap();
            assert_eq!(
                (&plan.source[..], plan.other_source.as_deref()),
                (first, other.map(|(_, source)| source))
            );
            let printed = print(&plan);
            assert!(printed.ends_with(&format!("---*/\n{first}{second}")), "{printed}");
            assert_eq!(parse(&printed).unwrap(), plan);
            assert_eq!(print(&parse(&printed).unwrap()), printed);
        }
    }

    #[test]
    fn wrong_sections_are_refused_by_line() {
        for (source, expected) in [
            ("int a;\n/*--- cuda ---*/\nint b;\n", "line 9: a second section `cuda`"),
            (
                "int a;\n/*--- triton ---*/\nx = 1\n/*--- triton ---*/\ny = 1\n",
                "line 11: a second section `triton`",
            ),
            (
                "int a;\n/*--- triton ---*/\nx = 1\n/*--- cuda ---*/\nint b;\n",
                "line 11: a second section `cuda`",
            ),
            (
                "int a;\n/*--- Triton ---*/\nx = 1\n",
                "line 9: a section begins with the line `/*--- triton ---*/`",
            ),
            ("int a;\n /*--- triton ---*/\nx = 1\n", "line 9: a section begins with"),
            ("int a;\n/*---triton---*/\nx = 1\n", "line 9: a section begins with"),
            ("\n/*--- triton ---*/\nx = 1\n", "line 9: the section `cuda` in front of the line is empty"),
            ("int a;\n/*--- triton ---*/\n \n", "line 9: the section `triton` behind the line is empty"),
            ("int a;\n/*--- triton ---*/", "line 9: the section `triton` behind the line is empty"),
        ] {
            let error = parse(&format!("{HEADER}{source}")).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{source}: {error}");
        }
    }
}
