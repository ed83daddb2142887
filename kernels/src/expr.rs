//! Length expressions: integers, names, `rows(table)`, `dict(table.column)`, `max(table.column)`, `min` and `max` of
//! two expressions, `+ - * /`, parentheses.
//!
//! Evaluation is in u64 and saturates, so that a wild length becomes an allocation error, not a wrap.

/// A length expression that cannot be evaluated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// Not an expression.
    #[error("`{text}`: unexpected `{found}`")]
    Syntax {
        /// The whole expression.
        text: String,
        /// Where reading stopped.
        found: String,
    },
    /// A name that means nothing here.
    #[error("`{text}`: unknown name `{name}`")]
    Unknown {
        /// The whole expression.
        text: String,
        /// The name.
        name: String,
    },
    /// Division by zero.
    #[error("`{0}`: division by zero")]
    Zero(String),
}

/// Evaluates `text`. `lookup` gives the value of a plain name (`j1`, `rows`) or of a whole reference
/// (`rows(lineitem)`, `dict(part.p_type)`, `max(part.p_partkey)`).
///
/// # Errors
/// Syntax, a name that `lookup` does not know, division by zero.
pub fn eval(text: &str, lookup: &dyn Fn(&str) -> Option<u64>) -> Result<u64, ExprError> {
    let mut p = Parser { text, rest: text, lookup };
    let value = p.sum()?;
    if p.rest.trim_start().is_empty() { Ok(value) } else { Err(p.syntax()) }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    lookup: &'a dyn Fn(&str) -> Option<u64>,
}

impl Parser<'_> {
    fn syntax(&self) -> ExprError {
        let found = self.rest.trim_start().chars().next();
        let found = found.map_or("the end".to_owned(), |c| c.to_string());
        ExprError::Syntax { text: self.text.to_owned(), found }
    }

    fn take(&mut self, c: char) -> bool {
        match self.rest.trim_start().strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), ExprError> {
        if self.take(c) { Ok(()) } else { Err(self.syntax()) }
    }

    fn word(&mut self) -> &str {
        self.rest = self.rest.trim_start();
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sum(&mut self) -> Result<u64, ExprError> {
        let mut value = self.product()?;
        loop {
            if self.take('+') {
                value = value.saturating_add(self.product()?);
            } else if self.take('-') {
                value = value.saturating_sub(self.product()?);
            } else {
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Result<u64, ExprError> {
        let mut value = self.atom()?;
        loop {
            if self.take('*') {
                value = value.saturating_mul(self.atom()?);
            } else if self.take('/') {
                let by = self.atom()?;
                value = value.checked_div(by).ok_or_else(|| ExprError::Zero(self.text.to_owned()))?;
            } else {
                return Ok(value);
            }
        }
    }

    fn atom(&mut self) -> Result<u64, ExprError> {
        if self.take('(') {
            let value = self.sum()?;
            self.expect(')')?;
            return Ok(value);
        }
        let word = self.word().to_owned();
        if word.is_empty() {
            return Err(self.syntax());
        }
        if let Ok(value) = word.parse() {
            return Ok(value);
        }
        let name = match word.as_str() {
            "min" | "max" if self.take('(') => {
                if word == "max"
                    && let Some(column) = self.column()
                {
                    self.expect(')')?;
                    return self.value(format!("max({column})"));
                }
                let a = self.sum()?;
                self.expect(',')?;
                let b = self.sum()?;
                self.expect(')')?;
                return Ok(if word == "min" { a.min(b) } else { a.max(b) });
            }
            "rows" | "dict" if self.take('(') => {
                let name = format!("{word}({})", self.word());
                self.expect(')')?;
                name
            }
            _ => word,
        };
        self.value(name)
    }

    /// Takes `table.column`, if that is what follows.
    fn column(&mut self) -> Option<String> {
        let before = self.rest;
        let word = self.word().to_owned();
        if word.contains('.') {
            return Some(word);
        }
        self.rest = before;
        None
    }

    fn value(&self, name: String) -> Result<u64, ExprError> {
        (self.lookup)(&name).ok_or_else(|| ExprError::Unknown { text: self.text.to_owned(), name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval_here(text: &str) -> Result<u64, ExprError> {
        eval(text, &|name| match name {
            "rows(lineitem)" => Some(600),
            "dict(part.p_type)" => Some(150),
            "max(part.p_partkey)" => Some(2000),
            "j1" => Some(7),
            _ => None,
        })
    }

    #[test]
    fn evaluates() {
        assert_eq!(eval_here("rows(lineitem) / 4 + 2 * (j1 - 1)"), Ok(162));
        assert_eq!(eval_here("max(j1, dict(part.p_type))"), Ok(150));
        assert_eq!(eval_here("max( part.p_partkey ) + max(max(part.p_partkey), j1)"), Ok(4000));
        assert_eq!(eval_here("1 - 2"), Ok(0));
    }

    #[test]
    fn names_what_is_wrong() {
        assert!(matches!(eval_here("rows(x)"), Err(ExprError::Unknown { name, .. }) if name == "rows(x)"));
        assert!(
            matches!(eval_here("min(part.p_partkey)"), Err(ExprError::Unknown { name, .. }) if name == "part.p_partkey")
        );
        assert!(matches!(eval_here("max(part.p_partkey, 1)"), Err(ExprError::Syntax { .. })));
        assert!(matches!(eval_here("j1 +"), Err(ExprError::Syntax { .. })));
        assert!(matches!(eval_here("j1 j1"), Err(ExprError::Syntax { .. })));
        assert!(matches!(eval_here("1 / 0"), Err(ExprError::Zero(_))));
    }
}
