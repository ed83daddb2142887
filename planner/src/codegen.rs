//! Expressions to C++: three-valued logic, exact decimals, the narrowest arithmetic that cannot overflow.
//!
//! Every generated expression is free of statements, so that conditions evaluate lazily. A Bool value is false
//! where it is NULL; other values are unspecified there.

use std::collections::BTreeMap;

use dkb_kernels::{Arg, Elem, SqlType};

use crate::PlanError;
use crate::emit::{Emitter, Fault};
use crate::ir::{Arith, Cmp, ColId, DatePart, Expr, Kind, Range};
use crate::lower::type_range;
use crate::pipe::{Form, Pipe, Value, any_null};

fn unsupported<T>(what: impl std::fmt::Display) -> Result<T, Fault> {
    Err(Fault::Plan(PlanError::Unsupported(what.to_string())))
}

pub(crate) fn scale(ty: SqlType) -> u32 {
    match ty {
        SqlType::Decimal(_, s) => s.max(0) as u32,
        _ => 0,
    }
}

pub(crate) fn is_float(ty: SqlType) -> bool {
    matches!(ty, SqlType::Float32 | SqlType::Float64)
}

/// 10^n as a C++ constant.
fn power10(n: u32) -> String {
    if n <= 18 { format!("{}ll", 10i64.pow(n)) } else { format!("power10({n})") }
}

fn fits_i64(r: Option<Range>) -> bool {
    r.is_some_and(|(lo, hi)| lo >= i64::MIN.into() && hi <= i64::MAX.into())
}

/// A cast that C++ cannot take for the declaration of an array parameter, as it may `i64(x[n])`.
fn cast_to(elem: Elem, code: &str) -> String {
    let element = code.strip_suffix(']').and_then(|c| c.split_once('['));
    let word = |t: &str| t.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match element {
        Some((array, index)) if word(array) && !index.contains(['[', ']']) => format!("({elem}){code}"),
        _ => format!("{elem}({code})"),
    }
}

/// The value as `i64`.
pub(crate) fn as_i64(v: &Value) -> String {
    match v.form {
        Form::Int(Elem::I64) => v.code.clone(),
        _ => cast_to(Elem::I64, &v.code),
    }
}

fn as_i128(v: &Value) -> String {
    match v.form {
        Form::Int(Elem::I128) | Form::Packed => v.code.clone(),
        _ => cast_to(Elem::I128, &v.code),
    }
}

fn combine(range: Option<(Range, Range)>, f: impl Fn(i128, i128) -> Option<i128>) -> Option<Range> {
    let ((a, b), (c, d)) = range?;
    let all = [f(a, c)?, f(a, d)?, f(b, c)?, f(b, d)?];
    Some((*all.iter().min()?, *all.iter().max()?))
}

fn scaled(r: Option<Range>, by: u32) -> Option<Range> {
    let (lo, hi) = r?;
    let factor = 10i128.checked_pow(by)?;
    Some((lo.checked_mul(factor)?, hi.checked_mul(factor)?))
}

impl Emitter<'_> {
    /// The values that an integer-like expression can take, if bounded by less than 128 bits.
    pub(crate) fn range(&self, e: &Expr) -> Option<Range> {
        match &e.kind {
            Kind::Col(id) => self.columns[*id].range,
            Kind::Param(name) => {
                let by_type = type_range(e.ty);
                let limit = self.params[name].digits.and_then(|d| 10i128.checked_pow(d.into()));
                match (limit, by_type) {
                    (Some(n), Some((lo, hi))) => Some((lo.max(1 - n), hi.min(n - 1))),
                    (_, by_type) => by_type,
                }
            }
            Kind::Null => Some((0, 0)),
            Kind::Arith(op, a, b) => {
                let (ra, rb) = (self.range(a), self.range(b));
                let result = scale(e.ty);
                match op {
                    Arith::Add | Arith::Sub => {
                        let pair = scaled(ra, result.saturating_sub(scale(a.ty)))
                            .zip(scaled(rb, result.saturating_sub(scale(b.ty))));
                        combine(
                            pair,
                            |x, y| {
                                if *op == Arith::Add { x.checked_add(y) } else { x.checked_sub(y) }
                            },
                        )
                    }
                    Arith::Mul => combine(ra.zip(rb), i128::checked_mul),
                    Arith::Div => {
                        let up = (result + scale(b.ty)).checked_sub(scale(a.ty))?;
                        let (lo, hi) = scaled(ra, up)?;
                        let widest = lo.unsigned_abs().max(hi.unsigned_abs());
                        let widest = i128::try_from(widest).ok()?;
                        Some((-widest, widest))
                    }
                    Arith::Mod => {
                        let (lo, hi) = scaled(rb, result.saturating_sub(scale(b.ty)))?;
                        let widest = i128::try_from(lo.unsigned_abs().max(hi.unsigned_abs())).ok()?;
                        Some((-widest, widest))
                    }
                }
            }
            Kind::Case(arms, other) => {
                let values = arms.iter().map(|(_, v)| v).chain(other.as_deref());
                let mut all: Option<Range> = None;
                for v in values {
                    let (lo, hi) = self.range(v)?;
                    all = Some(all.map_or((lo, hi), |(a, b)| (a.min(lo), b.max(hi))));
                }
                all
            }
            Kind::Cast(a) => match (a.ty, e.ty) {
                (from, _) if is_float(from) || from == SqlType::Utf8 => type_range(e.ty),
                (from, to) => {
                    let r = self.range(a)?;
                    if scale(to) >= scale(from) {
                        scaled(Some(r), scale(to) - scale(from))
                    } else {
                        let by = 10i128.checked_pow(scale(from) - scale(to))?;
                        Some((r.0 / by - 1, r.1 / by + 1))
                    }
                }
            },
            Kind::Extract(part, a) => match part {
                DatePart::Year => {
                    let (lo, hi) = self.range(a)?;
                    // Days per year, rounded outwards on both sides.
                    let year = |days: i128| 1970 + days.div_euclid(366).min(days.div_euclid(365));
                    let up = |days: i128| 1970 + days.div_euclid(366).max(days.div_euclid(365));
                    Some((year(lo), up(hi)))
                }
                DatePart::Month => Some((1, 12)),
                DatePart::Day => Some((1, 31)),
            },
            Kind::NullIfZero(a, _) => self.range(a),
            Kind::AddInterval(a, months, days) => {
                let ((lo, hi), (_, m), (_, d)) = (self.range(a)?, self.range(months)?, self.range(days)?);
                let reach = m * 31 + d;
                Some((lo - reach, hi + reach))
            }
            _ if e.ty == SqlType::Bool => Some((0, 1)),
            _ => None,
        }
    }

    /// C++ for an expression over the columns in scope of `pipe`.
    pub(crate) fn value(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Value, Fault> {
        if e.ty == SqlType::Bool
            && let Some(v) = self.by_dictionary(pipe, e)?
        {
            return Ok(v);
        }
        match &e.kind {
            Kind::Col(id) => {
                let value = pipe.env.get(id).cloned();
                let mut v = value.unwrap_or_else(|| panic!("column {} is in scope", self.columns[*id].name));
                self.register(pipe, *id);
                if v.form == Form::Bool
                    && let Some(null) = &v.null
                {
                    v.code = format!("(!{null} && {})", v.code);
                }
                Ok(v)
            }
            Kind::Param(name) => Ok(self.param(pipe, name, e.ty)),
            Kind::Null => {
                let form = self.form_of(e.ty, Some((0, 0)));
                let code = if form == Form::Text { "Str{nullptr, 0}" } else { "0" };
                Ok(Value { code: code.to_owned(), null: Some("true".to_owned()), form })
            }
            Kind::Bool(b) => Ok(Value::new(b.to_string(), Form::Bool)),
            Kind::Arith(op, a, b) => self.arith(pipe, e, *op, a, b),
            Kind::Cmp(op, a, b) => self.compare(pipe, *op, a, b),
            Kind::And(list) => {
                let values = self.values(pipe, list)?;
                let code = joined(&values, " && ");
                // NULL unless some operand is false for sure.
                let null = any_null(values.iter().map(|v| v.null.clone())).map(|any| {
                    let open = values.iter().map(|v| match &v.null {
                        Some(null) => format!("({null} || {})", v.code),
                        None => v.code.clone(),
                    });
                    format!("({any} && {})", open.collect::<Vec<_>>().join(" && "))
                });
                Ok(Value { code, null, form: Form::Bool })
            }
            Kind::Or(list) => {
                let values = self.values(pipe, list)?;
                let code = joined(&values, " || ");
                let null = any_null(values.iter().map(|v| v.null.clone()));
                let null = null.map(|any| format!("({any} && !{code})"));
                Ok(Value { code, null, form: Form::Bool })
            }
            Kind::Not(a) => {
                let v = self.value(pipe, a)?;
                let code = match &v.null {
                    Some(null) => format!("(!{null} && !{})", v.code),
                    None => format!("!{}", v.code),
                };
                Ok(Value { code, null: v.null, form: Form::Bool })
            }
            Kind::IsNull(a) => {
                let null = match &a.kind {
                    // Text that is only fetched at the end still tells whether it is NULL.
                    Kind::Col(id) => {
                        let v = pipe.env.get(id).cloned().expect("a column in scope");
                        self.register(pipe, *id);
                        v.null
                    }
                    _ => self.value(pipe, a)?.null,
                };
                Ok(Value::new(null.unwrap_or_else(|| "false".to_owned()), Form::Bool))
            }
            Kind::Case(arms, other) => self.case(pipe, e, arms, other.as_deref()),
            Kind::Cast(a) => self.cast(pipe, a, e.ty),
            Kind::Like(text, pattern) => {
                let (text, pattern) = (self.text(pipe, text)?, self.text(pipe, pattern)?);
                let null = any_null([text.null, pattern.null]);
                Ok(strict_bool(format!("like({}, {})", text.code, pattern.code), null))
            }
            Kind::Extract(part, a) => {
                let v = self.value(pipe, a)?;
                let function = match part {
                    DatePart::Year => "year_of",
                    DatePart::Month => "month_of",
                    DatePart::Day => "day_of",
                };
                let code = format!("{function}({})", v.code);
                Ok(Value { code, null: v.null, form: Form::Int(Elem::I64) })
            }
            Kind::AddInterval(a, months, days) => {
                let (a, months, days) =
                    (self.value(pipe, a)?, self.value(pipe, months)?, self.value(pipe, days)?);
                let code = format!("(add_months({}, {}) + {})", a.code, months.code, days.code);
                Ok(Value { code, null: a.null, form: Form::Int(Elem::I64) })
            }
            Kind::Substring(text, from, count) => {
                let text = self.text(pipe, text)?;
                let from = self.value(pipe, from)?;
                let (count, count_null) = match count {
                    Some(c) => {
                        let v = self.value(pipe, c)?;
                        (as_i64(&v), v.null)
                    }
                    None => ("i64(1) << 41".to_owned(), None),
                };
                let null = any_null([text.null, from.null.clone(), count_null]);
                let code = format!("substring({}, {}, {count})", text.code, as_i64(&from));
                Ok(Value { code, null, form: Form::Text })
            }
            Kind::NullIfZero(value, count) => {
                let count = self.value(pipe, count)?;
                let zero = format!("({} == 0)", count.code);
                let mut v = self.value(pipe, value)?;
                // A quotient must not be formed where there is nothing to divide by.
                if matches!(value.kind, Kind::Arith(Arith::Div | Arith::Mod, ..)) {
                    v.code = format!("({zero} ? 0 : {})", v.code);
                }
                Ok(v.or_null(Some(zero)))
            }
        }
    }

    fn values(&mut self, pipe: &mut Pipe, list: &[Expr]) -> Result<Vec<Value>, Fault> {
        list.iter().map(|e| self.value(pipe, e)).collect()
    }

    /// The condition "is true" of a predicate.
    pub(crate) fn truth(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<String, Fault> {
        Ok(self.value(pipe, e)?.code)
    }

    fn param(&mut self, pipe: &mut Pipe, name: &str, ty: SqlType) -> Value {
        let p = pipe.arg(Arg::Params);
        let code = format!("{p}->{name}");
        match ty {
            SqlType::Utf8 => Value::new(code, Form::Text),
            SqlType::Float32 | SqlType::Float64 => Value::new(code, Form::Float),
            SqlType::Bool => Value::new(format!("({code} != 0)"), Form::Bool),
            SqlType::Decimal(p, _) if p > 18 => {
                let narrow = self.params[name].digits.is_some_and(|d| d <= 18);
                if narrow {
                    Value::new(format!("i64({code})"), Form::Int(Elem::I64))
                } else {
                    Value::new(code, Form::Int(Elem::I128))
                }
            }
            _ => Value::new(code, Form::Int(Elem::I64)),
        }
    }

    /// The form in which a computed value of the type is held.
    pub(crate) fn form_of(&self, ty: SqlType, range: Option<Range>) -> Form {
        match ty {
            SqlType::Bool => Form::Bool,
            SqlType::Float32 | SqlType::Float64 => Form::Float,
            SqlType::Utf8 => Form::Text,
            _ if fits_i64(range) => Form::Int(Elem::I64),
            _ => Form::Int(Elem::I128),
        }
    }

    fn arith(&mut self, pipe: &mut Pipe, e: &Expr, op: Arith, a: &Expr, b: &Expr) -> Result<Value, Fault> {
        let (va, vb) = (self.value(pipe, a)?, self.value(pipe, b)?);
        let null = any_null([va.null.clone(), vb.null.clone()]);
        if is_float(e.ty) {
            let symbol = match op {
                Arith::Add => "+",
                Arith::Sub => "-",
                Arith::Mul => "*",
                Arith::Div => "/",
                Arith::Mod => return unsupported("% of floating-point numbers"),
            };
            let float = |v: &Value, from: &Expr| self.to_float(v, from.ty);
            let code = format!("({} {symbol} {})", float(&va, a), float(&vb, b));
            return Ok(Value { code, null, form: Form::Float });
        }
        if !matches!(va.form, Form::Int(_)) || !matches!(vb.form, Form::Int(_)) {
            return unsupported(format!("arithmetic on {} and {}", a.ty, b.ty));
        }
        let range = self.range(e);
        let result = scale(e.ty);
        let (sa, sb) = (scale(a.ty), scale(b.ty));
        let (up_a, up_b) = match op {
            Arith::Add | Arith::Sub | Arith::Mod => (result.saturating_sub(sa), result.saturating_sub(sb)),
            Arith::Mul => (0, 0),
            Arith::Div => ((result + sb).saturating_sub(sa), 0),
        };
        let operands = [scaled(self.range(a), up_a), scaled(self.range(b), up_b)];
        let narrow = fits_i64(range) && operands.iter().all(|r| fits_i64(*r));
        let operand = |v: &Value, up: u32| {
            let code = if narrow { as_i64(v) } else { as_i128(v) };
            if up == 0 { code } else { format!("{code} * {}", power10(up)) }
        };
        let mut flags = || pipe.arg(Arg::Flags);
        let code = match op {
            Arith::Add => format!("({} + {})", operand(&va, up_a), operand(&vb, up_b)),
            Arith::Sub => format!("({} - {})", operand(&va, up_a), operand(&vb, up_b)),
            Arith::Mul if narrow || range.is_some() => format!("({} * {})", operand(&va, 0), operand(&vb, 0)),
            Arith::Mul => format!("checked_mul({}, {}, {})", as_i128(&va), as_i128(&vb), flags()),
            Arith::Mod => format!("int_mod({}, {}, {})", operand(&va, up_a), operand(&vb, up_b), flags()),
            Arith::Div if narrow => {
                format!("int_div({}, {}, {})", operand(&va, up_a), operand(&vb, 0), flags())
            }
            Arith::Div => {
                let by = power10(up_a);
                format!("decimal_div({}, {}, {by}, {})", as_i128(&va), as_i128(&vb), flags())
            }
        };
        let failing = matches!(op, Arith::Div | Arith::Mod) || code.starts_with("checked_mul");
        let mut code = match &null {
            Some(null) if failing => format!("({null} ? 0 : {code})"),
            _ => code,
        };
        let mut form = Form::Int(if narrow { Elem::I64 } else { Elem::I128 });
        // Integer results must fit their SQL type.
        if let (SqlType::Int64 | SqlType::Int32 | SqlType::Int16 | SqlType::Int8, Some((lo, hi))) =
            (e.ty, type_range(e.ty))
            && !range.is_some_and(|r| r.0 >= lo && r.1 <= hi)
        {
            let checked = format!("within({code}, i128({hi}ll) + 1, {})", pipe.arg(Arg::Flags));
            code = match &null {
                Some(null) => format!("i64({null} ? 0 : {checked})"),
                None => format!("i64({checked})"),
            };
            form = Form::Int(Elem::I64);
        }
        Ok(Value { code, null, form })
    }

    fn to_float(&self, v: &Value, from: SqlType) -> String {
        match (v.form, scale(from)) {
            (Form::Float, _) => v.code.clone(),
            (_, 0) => format!("f64({})", v.code),
            (_, s) => format!("(f64({}) / 1e{s})", v.code),
        }
    }

    fn compare(&mut self, pipe: &mut Pipe, op: Cmp, a: &Expr, b: &Expr) -> Result<Value, Fault> {
        let symbol = op.symbol();
        if a.ty == SqlType::Utf8 || b.ty == SqlType::Utf8 {
            return self.compare_text(pipe, op, a, b);
        }
        let (va, vb) = (self.value(pipe, a)?, self.value(pipe, b)?);
        let null = any_null([va.null.clone(), vb.null.clone()]);
        let code = if is_float(a.ty) || is_float(b.ty) {
            format!("{} {symbol} {}", self.to_float(&va, a.ty), self.to_float(&vb, b.ty))
        } else {
            let to = scale(a.ty).max(scale(b.ty));
            let (up_a, up_b) = (to - scale(a.ty), to - scale(b.ty));
            let side = |this: &Self, v: &Value, e: &Expr, up: u32| match up {
                0 => v.code.clone(),
                _ if fits_i64(scaled(this.range(e), up)) => format!("{} * {}", as_i64(v), power10(up)),
                _ => format!("{} * {}", as_i128(v), power10(up)),
            };
            format!("{} {symbol} {}", side(self, &va, a, up_a), side(self, &vb, b, up_b))
        };
        Ok(strict_bool(code, null))
    }

    fn compare_text(&mut self, pipe: &mut Pipe, op: Cmp, a: &Expr, b: &Expr) -> Result<Value, Fault> {
        let symbol = op.symbol();
        let (va, vb) = (self.value(pipe, a)?, self.value(pipe, b)?);
        let null = any_null([va.null.clone(), vb.null.clone()]);
        let code = match (va.form, vb.form) {
            (Form::Dict(..), Form::Dict(..)) if va.form == vb.form => {
                format!("{} {symbol} {}", va.code, vb.code)
            }
            (Form::Packed, _) | (_, Form::Packed) => {
                let (pa, pb) = (self.packed(pipe, a)?, self.packed(pipe, b)?);
                format!("{} {symbol} {}", pa.code, pb.code)
            }
            _ => {
                let (ta, tb) = (self.text(pipe, a)?, self.text(pipe, b)?);
                match op {
                    Cmp::Eq => format!("equal({}, {})", ta.code, tb.code),
                    Cmp::Ne => format!("!equal({}, {})", ta.code, tb.code),
                    _ => format!("compare({}, {}) {symbol} 0", ta.code, tb.code),
                }
            }
        };
        Ok(strict_bool(code, null))
    }

    /// A text expression as `Str`.
    fn text(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Value, Fault> {
        let v = self.value(pipe, e)?;
        match v.form {
            Form::Text => Ok(v),
            Form::Dict(t, c) => {
                let (offsets, bytes) = self.dict_args(pipe, t, c);
                let code = format!("text_at({offsets}, {bytes}, {})", v.code);
                Ok(Value { code, null: v.null, form: Form::Text })
            }
            Form::Fetch(t, c) => Err(Fault::NeedDict(t, c)),
            _ => unsupported(format!("text operations on {}", e.ty)),
        }
    }

    /// A text expression as the integer of `pack_text`.
    pub(crate) fn packed(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Value, Fault> {
        let v = self.value(pipe, e)?;
        if v.form == Form::Packed {
            return Ok(v);
        }
        let v = self.text(pipe, e)?;
        let k = self.assume("text of at most 15 bytes".to_owned())?;
        let packed = format!("pack_text({}, {}, {k})", v.code, pipe.arg(Arg::Flags));
        let code = match &v.null {
            Some(null) => format!("({null} ? i128(0) : {packed})"),
            None => packed,
        };
        Ok(Value { code, null: v.null, form: Form::Packed })
    }

    fn case(
        &mut self,
        pipe: &mut Pipe,
        e: &Expr,
        arms: &[(Expr, Expr)],
        other: Option<&Expr>,
    ) -> Result<Value, Fault> {
        let mut form = self.form_of(e.ty, self.range(e));
        // Codes of one dictionary stay codes.
        let mut codes = None;
        for v in arms.iter().map(|(_, v)| v).chain(other).filter(|v| v.kind != Kind::Null) {
            if e.ty == SqlType::Utf8 {
                let now = self.value(pipe, v)?.form;
                codes = match codes {
                    None => Some(now),
                    Some(before) if before == now => Some(now),
                    _ => Some(Form::Text),
                };
            }
        }
        if let Some(Form::Dict(t, c)) = codes {
            form = Form::Dict(t, c);
        }
        let branch =
            |this: &mut Self, pipe: &mut Pipe, v: &Expr| -> Result<(String, Option<String>), Fault> {
                if v.kind == Kind::Null {
                    let zero = if form == Form::Text { "Str{nullptr, 0}" } else { "0" };
                    return Ok((zero.to_owned(), Some("true".to_owned())));
                }
                let value = if form == Form::Text { this.text(pipe, v)? } else { this.value(pipe, v)? };
                let code = match form {
                    Form::Int(Elem::I128) => as_i128(&value),
                    Form::Int(_) => as_i64(&value),
                    Form::Float => this.to_float(&value, v.ty),
                    Form::Dict(..) => format!("u32({})", value.code),
                    _ => value.code,
                };
                Ok((code, value.null))
            };
        let (mut code, mut null) = (String::new(), String::new());
        let mut nullable = other.is_none();
        for (when, then) in arms {
            let condition = self.truth(pipe, when)?;
            let (v, n) = branch(self, pipe, then)?;
            nullable |= n.is_some();
            code += &format!("{condition} ? {v} : ");
            null += &format!("{condition} ? {} : ", n.as_deref().unwrap_or("false"));
        }
        let (v, n) = match other {
            Some(o) => branch(self, pipe, o)?,
            None => branch(self, pipe, &Expr::new(Kind::Null, e.ty))?,
        };
        nullable |= n.is_some();
        let null = nullable.then(|| format!("({null}{})", n.as_deref().unwrap_or("false")));
        Ok(Value { code: format!("({code}{v})"), null, form })
    }

    fn cast(&mut self, pipe: &mut Pipe, a: &Expr, to: SqlType) -> Result<Value, Fault> {
        let v = self.value(pipe, a)?;
        let from = a.ty;
        if from == to {
            return Ok(v);
        }
        let whole =
            |ty: SqlType| matches!(ty, SqlType::Int8 | SqlType::Int16 | SqlType::Int32 | SqlType::Int64);
        let decimal = |ty: SqlType| matches!(ty, SqlType::Decimal(..));
        if is_float(to) && (whole(from) || decimal(from) || is_float(from)) {
            if to == SqlType::Float32 {
                return unsupported("casts to float32");
            }
            return Ok(Value { code: self.to_float(&v, from), null: v.null, form: Form::Float });
        }
        if from == SqlType::Date && to == SqlType::Timestamp {
            let code = format!("{} * 86400000000ll", as_i64(&v));
            return Ok(Value { code: format!("({code})"), null: v.null, form: Form::Int(Elem::I64) });
        }
        if is_float(from) && decimal(to) {
            let (limit, flags) = (power10(precision(to)), pipe.arg(Arg::Flags));
            let decimal = format!("decimal_of({}, 1e{}, {limit}, {flags})", v.code, scale(to));
            let code = match &v.null {
                Some(null) => format!("({null} ? i128(0) : {decimal})"),
                None => decimal,
            };
            return Ok(Value { code, null: v.null, form: Form::Int(Elem::I128) });
        }
        let numeric = (whole(from) || decimal(from)) && (whole(to) || decimal(to));
        if !numeric || (decimal(from) && whole(to)) {
            return unsupported(format!("cast from {from} to {to}"));
        }
        let range = self.range(&Expr::new(Kind::Cast(Box::new(a.clone())), to));
        let narrow = fits_i64(range) && fits_i64(self.range(a));
        let code = if narrow { as_i64(&v) } else { as_i128(&v) };
        let (sf, st) = (scale(from), scale(to));
        let mut code = match st.cmp(&sf) {
            std::cmp::Ordering::Equal => code,
            std::cmp::Ordering::Greater => format!("({code} * {})", power10(st - sf)),
            std::cmp::Ordering::Less => format!("round_scale({code}, {})", power10(sf - st)),
        };
        let mut form = Form::Int(if narrow && st >= sf { Elem::I64 } else { Elem::I128 });
        let limit = type_range(to).expect("integers and decimals have ranges");
        if !range.is_some_and(|(lo, hi)| lo >= limit.0 && hi <= limit.1) {
            let checked = format!("within({code}, i128({}ll) + 1, {})", limit.1, pipe.arg(Arg::Flags));
            let checked = if limit.1 > i64::MAX.into() {
                format!("within({code}, {}, {})", power10(precision(to)), pipe.arg(Arg::Flags))
            } else {
                checked
            };
            code = match &v.null {
                Some(null) => format!("({null} ? i128(0) : {checked})"),
                None => checked,
            };
            form = Form::Int(Elem::I128);
        }
        Ok(Value { code, null: v.null, form })
    }

    /// A predicate over one dictionary column and parameters is evaluated once per dictionary entry.
    fn by_dictionary(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<Option<Value>, Fault> {
        if matches!(e.kind, Kind::Col(_)) || !e.is_strict() {
            return Ok(None);
        }
        let columns = e.columns();
        let (Some(&id), 1) = (columns.first(), columns.len()) else { return Ok(None) };
        let Some(v) = pipe.env.get(&id).cloned() else { return Ok(None) };
        let Form::Dict(t, c) = v.form else { return Ok(None) };
        self.register(pipe, id);
        let table = self.dictionary_predicate(t, c, id, e)?;
        let code = format!("{}[{}] != 0", pipe.buffer(&table), v.code);
        Ok(Some(strict_bool(code, v.null)))
    }

    /// Scope of a kernel over the entries of a dictionary.
    pub(crate) fn dictionary_scope(&mut self, pipe: &mut Pipe, t: usize, c: usize, id: ColId) {
        let (offsets, bytes) = self.dict_args(pipe, t, c);
        let code = format!("text_at({offsets}, {bytes}, i)");
        pipe.env = BTreeMap::from([(id, Value::new(code, Form::Text))]);
    }
}

fn precision(ty: SqlType) -> u32 {
    match ty {
        SqlType::Decimal(p, _) => p.into(),
        _ => 38,
    }
}

/// A condition that is NULL, hence false, where an operand is.
fn strict_bool(code: String, null: Option<String>) -> Value {
    let code = match &null {
        Some(null) => format!("(!{null} && {code})"),
        None => format!("({code})"),
    };
    Value { code, null, form: Form::Bool }
}

fn joined(values: &[Value], by: &str) -> String {
    let codes: Vec<&str> = values.iter().map(|v| v.code.as_str()).collect();
    format!("({})", codes.join(by))
}
