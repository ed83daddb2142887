//! The text form of a plan: `/*--- kernel plan 1`, a TOML header, `---*/`, device source.
//!
//! `parse(&print(plan)) == plan` for every plan.

use crate::plan::Plan;

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
}

/// Prints a plan as a plan file.
pub fn print(plan: &Plan) -> String {
    let header = toml::to_string(plan).expect("a plan has only string keys and values TOML can hold");
    format!("{OPEN}{header}{CLOSE}{}", plan.source)
}

/// Reads a plan file. The result is not yet checked; see [`crate::check`].
///
/// # Errors
/// A missing mark, or a header that is not a plan; the message names line and field.
pub fn parse(text: &str) -> Result<Plan, ParsePlanError> {
    let body = text.strip_prefix(OPEN).ok_or(ParsePlanError::Open)?;
    let end = match body.strip_prefix(CLOSE) {
        Some(_) => 0,
        None => body.find(&format!("\n{CLOSE}")).ok_or(ParsePlanError::Close)? + 1,
    };
    // An empty line in the place of the opening mark: errors give lines of the file.
    let mut plan: Plan = toml::from_str(&format!("\n{}", &body[..end]))?;
    plan.source = body[end + CLOSE.len()..].to_owned();
    Ok(plan)
}
