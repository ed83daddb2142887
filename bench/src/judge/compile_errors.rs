//! A compiler's output as the next round is told it: the first errors, with lines of the plan file, and the signatures
//! of the primitives that were perhaps meant.

use dkb_kernels::{Framework, SOURCE_NAME, TRITON_SOURCE_NAME, text};

use crate::prompt::signatures;

/// Errors that are told.
const ERRORS: usize = 5;

/// Lines that are told of what a compiler adds to an error.
const NOTES: usize = 3;

/// Lines between two sections of a source.
const SECTION_LINES: usize = 1;

/// Signatures that are told of a primitive with several.
const OVERLOADS: usize = 4;

/// The first errors of a compiler's output about a candidate.
pub(super) fn first_errors(log: &str, candidate: &str) -> String {
    let lines: Vec<&str> = candidate.lines().collect();
    let before = lines_before(candidate);
    let mut out: Vec<String> = Vec::new();
    let (mut errors, mut notes, mut shown) = (0, 0, None);
    for line in log.lines() {
        let (told, at) = in_file(line, &before);
        if is_error(line) {
            errors += 1;
            if errors > ERRORS {
                break;
            }
            notes = 0;
            shown = at.and_then(|at| Some((at, *lines.get(at.checked_sub(1)?)?)));
            out.push(told);
            out.extend(shown.map(|(at, text)| format!("{at:>6} | {}", text.trim_end())));
            if line.contains(TRITON_SOURCE_NAME) {
                continue;
            }
            let code = shown.map_or("", |(_, text)| text);
            out.extend(meant(line, code).iter().map(|s| format!("       dkb.cuh has: {s}")));
        } else if !is_excerpt(line, shown.map(|(_, text)| text)) && notes < NOTES {
            notes += 1;
            out.push(told);
        }
    }
    out.join("\n")
}

/// A message in which lines of the source are lines of the plan file.
pub(super) fn with_file_lines(message: &str, candidate: &str) -> String {
    let before = lines_before(candidate);
    message.lines().map(|line| in_file(line, &before).0).collect::<Vec<_>>().join("\n")
}

/// Gives the lines in front of the section of a plan's source in a language.
fn lines_before(candidate: &str) -> impl Fn(Framework) -> usize {
    let lines = |text: &str| text.lines().count();
    let all = lines(candidate);
    let plan = text::parse(candidate).ok();
    move |framework| {
        let Some(plan) = &plan else { return all };
        let behind = match &plan.other_source {
            None => lines(&plan.source),
            Some(second) if framework != plan.framework => lines(second),
            Some(second) => lines(&plan.source) + SECTION_LINES + lines(second),
        };
        all - behind
    }
}

fn is_error(line: &str) -> bool {
    line.contains("error:") || line.starts_with(TRITON_SOURCE_NAME)
}

/// Whether a compiler repeats the source there, or counts its errors.
fn is_excerpt(line: &str, code: Option<&str>) -> bool {
    let line = line.trim();
    let marks = line.chars().all(|c| matches!(c, '^' | '~' | ' '));
    marks || code.is_some_and(|code| code.trim() == line) || line.contains("detected in the compilation")
}

/// A line of a compiler's output with places of the source as places of the file, and the first of these.
fn in_file(line: &str, before: &impl Fn(Framework) -> usize) -> (String, Option<usize>) {
    let (mut out, mut rest, mut first) = (String::new(), line, None);
    while let Some(c) = rest.chars().next() {
        match place(rest) {
            Some((framework, number, behind)) => {
                let at = number + before(framework);
                first = first.or(Some(at));
                out += &format!("line {at}");
                rest = behind;
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    (out, first)
}

/// The line of a section of the source that a text begins with, as compilers write it, and what is behind it.
fn place(text: &str) -> Option<(Framework, usize, &str)> {
    let names = [(SOURCE_NAME, Framework::Cuda), (TRITON_SOURCE_NAME, Framework::Triton)];
    if let Some((behind, framework)) = names.iter().find_map(|(name, f)| Some((text.strip_prefix(name)?, *f)))
    {
        if let Some(behind) = behind.strip_prefix('(') {
            let (number, behind) = leading_number(behind)?;
            return Some((framework, number, behind.strip_prefix(')')?));
        }
        let (number, behind) = leading_number(behind.strip_prefix(':')?)?;
        // g++ adds the column.
        let column = behind.strip_prefix(':').and_then(leading_number);
        return Some((framework, number, column.map_or(behind, |(_, behind)| behind)));
    }
    let (number, behind) = leading_number(text.strip_prefix("line ")?)?;
    let behind = behind.strip_prefix(" of ")?;
    let of_source = ["plan.cu", "\"plan.cu\"", "the source"];
    Some((Framework::Cuda, number, of_source.iter().find_map(|of| behind.strip_prefix(of))?))
}

fn leading_number(text: &str) -> Option<(usize, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Signatures of the primitive that an error is about: the one whose name is nearest to an unknown one, or the one
/// whose arguments do not match.
fn meant(error: &str, code: &str) -> Vec<String> {
    let signatures = signatures();
    let has = |kinds: &[&str]| kinds.iter().any(|kind| error.contains(kind));
    let quoted = quoted_names(error);
    let name = if has(&["is undefined", "not declared"]) {
        let nearest = |name: &str| {
            let by_distance = signatures.iter().map(|(known, _)| (distance(name, known), known.clone()));
            by_distance.min().filter(|(distance, _)| *distance <= (name.len() / 3).max(2))
        };
        quoted.first().and_then(|name| nearest(name)).map(|(_, known)| known)
    } else if has(&["argument", "no matching", "no instance", "convert", "conversion", "incompatible"]) {
        let is_known = |name: &&str| signatures.iter().any(|(known, _)| known == name);
        let called = || called_names(code).into_iter().find(is_known);
        quoted.into_iter().find(is_known).or_else(called).map(str::to_owned)
    } else {
        None
    };
    let of_name = |(known, signature): (String, String)| (Some(known) == name).then_some(signature);
    signatures.into_iter().filter_map(of_name).take(OVERLOADS).collect()
}

/// What stands in quotes: of a signature or a call its name, of other things their last word.
fn quoted_names(message: &str) -> Vec<&str> {
    let pieces: Vec<&str> = message.split(['"', '\'', '`', '‘', '’']).collect();
    let names = pieces.iter().skip(1).step_by(2).map(|piece| {
        let head = piece.split('(').next().unwrap_or_default().trim_end();
        head.rsplit(|c: char| !is_word(c)).next().unwrap_or_default()
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// Names in front of an opening parenthesis.
fn called_names(code: &str) -> Vec<&str> {
    let heads = code.match_indices('(').map(|(at, _)| code[..at].trim_end());
    heads
        .filter_map(|head| head.rsplit(|c: char| !is_word(c)).next())
        .filter(|name| !name.is_empty())
        .collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The least number of characters to insert, delete or replace (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, c) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, d) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *d);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source begins in line 8.
    const PLAN: &str = "/*--- kernel plan 1\nsql = \"\"\nframework = \"cuda\"\nlevel = \"full\"\nphases = []\n\
                        result = { size = \"n\", columns = [] }\n---*/\n#include \"dkb.cuh\"\n  atomic_addd(a, 1);\n  \
                        atomic_or(b, b);\n  i64 x = ;\n";

    #[test]
    fn errors_of_nvrtc() {
        let log = "NVRTC 13.0 cannot compile the plan's source:\n\
            plan.cu(2): error: identifier \"atomic_addd\" is undefined\n    atomic_addd(a, 1);\n    ^\n\n\
            plan.cu(3): error: argument of type \"u32 *\" is incompatible with parameter of type \"u32\"\n    \
            atomic_or(b, b);\n                 ^\n\n\
            dkb.cuh(4): error: expression must have class type\n          detected during instantiation of \"T \
            block_sum(T) [with T=i64 *]\" at line 4 of plan.cu\n\n3 errors detected in the compilation of \"unit.cu\".";
        let told = first_errors(log, PLAN);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[1], "line 9: error: identifier \"atomic_addd\" is undefined");
        assert_eq!(lines[2], "     9 |   atomic_addd(a, 1);");
        assert_eq!(lines[3], "       dkb.cuh has: u32 atomic_add(u32* p, u32 v)");
        assert!(lines.contains(&"       dkb.cuh has: void atomic_or(u32* p, u32 v)"), "{told}");
        assert!(told.contains("at line 11\n") || told.ends_with("at line 11"), "{told}");
        assert!(!told.contains('^') && !told.contains("3 errors"), "{told}");
    }

    #[test]
    fn errors_of_other_compilers() {
        let log = "plan.cu: In function ‘void f(i64*)’:\n\
            plan.cu:2:3: error: ‘atomic_addd’ was not declared in this scope; did you mean ‘atomic_add’?\n\
            plan.cu:4:11: error: expected primary-expression before ‘;’ token";
        let told = first_errors(log, PLAN);
        assert!(told.contains("line 9: error: ‘atomic_addd’"), "{told}");
        assert!(told.contains("u64 atomic_add(u64* p, u64 v)"), "{told}");
        assert!(
            told.contains("line 11: error: expected") && told.ends_with("    11 |   i64 x = ;"),
            "{told}"
        );
        let in_triton = PLAN.replacen("cuda", "triton", 1);
        let told = first_errors("plan.py:2: `x` is not allowed here", &in_triton);
        assert_eq!(told, "line 9: `x` is not allowed here\n     9 |   atomic_addd(a, 1);");
        let both = format!("{PLAN}/*--- triton ---*/\nimport triton\nx = y\n");
        let told = first_errors("plan.py:2: `y` is not allowed here", &both);
        assert_eq!(told, "line 14: `y` is not allowed here\n    14 | x = y");
        assert!(first_errors("plan.cu(2): error: no", &both).starts_with("line 9: error: no"));
        let told = with_file_lines("line 1 of the source: `#include <a>`: no", PLAN);
        assert_eq!(told, "line 8: `#include <a>`: no");
    }

    #[test]
    fn no_more_than_the_first_five() {
        let log: String = (1..9).map(|n| format!("plan.cu({n}): error: wrong\n")).collect();
        assert_eq!(first_errors(&log, PLAN).matches("error").count(), ERRORS);
    }

    #[test]
    fn distances_are_counted_in_characters() {
        assert_eq!([distance("", "ab"), distance("ab", "ab"), distance("abc", "axcd")], [2, 0, 2]);
    }
}
