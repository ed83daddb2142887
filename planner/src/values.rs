//! Parameter values: text to value and back.

use dkb_kernels::SqlType;

use crate::ParamValue;

/// Reads a literal, without quotes, as a value of the type.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse(text: &str, ty: SqlType) -> Result<ParamValue, String> {
    let text = if ty == SqlType::Utf8 { text } else { text.trim() };
    let bad = |want: &str| format!("`{text}` is not {want}");
    let int = |min: i128, max: i128, want: &str| match text.parse::<i128>() {
        Ok(v) if (min..=max).contains(&v) => Ok(ParamValue::Int(v)),
        _ => Err(bad(want)),
    };
    match ty {
        SqlType::Bool => match text {
            "true" => Ok(ParamValue::Int(1)),
            "false" => Ok(ParamValue::Int(0)),
            _ => Err(bad("a bool (true or false)")),
        },
        SqlType::Int8 => int(i8::MIN.into(), i8::MAX.into(), "an int8"),
        SqlType::Int16 => int(i16::MIN.into(), i16::MAX.into(), "an int16"),
        SqlType::Int32 => int(i32::MIN.into(), i32::MAX.into(), "an int32"),
        SqlType::Int64 => int(i64::MIN.into(), i64::MAX.into(), "an int64"),
        SqlType::Float32 | SqlType::Float64 => {
            text.parse().map(ParamValue::Float).map_err(|_| bad("a floating-point number"))
        }
        SqlType::Date => {
            date(text).map(|d| ParamValue::Int(d.into())).ok_or_else(|| bad("a date (YYYY-MM-DD)"))
        }
        SqlType::Timestamp => {
            let (day, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00:00"));
            let micros = date(day).zip(time_of_day(time)).map(|(d, t)| i128::from(d) * 86_400_000_000 + t);
            micros.map(ParamValue::Int).ok_or_else(|| bad("a timestamp (YYYY-MM-DD HH:MM:SS)"))
        }
        SqlType::Decimal(p, s) => {
            decimal(text, p, s).map(ParamValue::Int).ok_or_else(|| bad(&format!("a decimal({p},{s})")))
        }
        SqlType::Utf8 => Ok(ParamValue::Text(text.to_owned())),
    }
}

/// Prints an integer value of the type as [`parse`] reads it.
pub(crate) fn print(value: &ParamValue, ty: SqlType) -> String {
    match (value, ty) {
        (ParamValue::Text(text), _) => text.clone(),
        (ParamValue::Float(f), _) => format!("{f:?}"),
        (ParamValue::Int(v), SqlType::Bool) => (*v != 0).to_string(),
        (ParamValue::Int(v), SqlType::Date) => print_date(*v),
        (ParamValue::Int(v), SqlType::Timestamp) => {
            let (day, micros) = (v.div_euclid(86_400_000_000), v.rem_euclid(86_400_000_000));
            let (secs, frac) = (micros / 1_000_000, micros % 1_000_000);
            let time = format!("{:02}:{:02}:{:02}.{frac:06}", secs / 3600, secs / 60 % 60, secs % 60);
            format!("{} {time}", print_date(day))
        }
        (ParamValue::Int(v), SqlType::Decimal(_, s)) if s > 0 => {
            let digits = format!("{:0>width$}", v.unsigned_abs(), width = s as usize + 1);
            let (whole, frac) = digits.split_at(digits.len() - s as usize);
            format!("{}{whole}.{frac}", if *v < 0 { "-" } else { "" })
        }
        (ParamValue::Int(v), _) => v.to_string(),
    }
}

fn decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, frac) = digits.split_once('.').unwrap_or((digits, ""));
    let scale = usize::try_from(scale).ok()?;
    let frac = if frac.len() > scale { frac.trim_end_matches('0') } else { frac };
    let all_digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit());
    if whole.len() + frac.len() == 0 || frac.len() > scale || !all_digits(whole) || !all_digits(frac) {
        return None;
    }
    let unscaled: i128 = format!("0{whole}{frac:0<scale$}").parse().ok()?;
    let fits = unscaled < 10i128.checked_pow(precision.into()).unwrap_or(i128::MAX);
    fits.then_some(if negative { -unscaled } else { unscaled })
}

fn time_of_day(text: &str) -> Option<i128> {
    let (clock, frac) = text.split_once('.').unwrap_or((text, ""));
    let parts: Vec<u32> = clock.split(':').map(|p| p.parse().ok()).collect::<Option<_>>()?;
    let &[h, m, s] = parts.as_slice() else { return None };
    if h > 23 || m > 59 || s > 59 || frac.len() > 6 {
        return None;
    }
    let micros: i128 = format!("0{frac:0<6}").parse().ok()?;
    Some(i128::from(h * 3600 + m * 60 + s) * 1_000_000 + micros)
}

/// Days since 1970-01-01 of `YYYY-MM-DD`.
fn date(text: &str) -> Option<i64> {
    let parts: Vec<&str> = text.split('-').collect();
    let &[y, m, d] = parts.as_slice() else { return None };
    let (y, m, d): (i64, i64, i64) = (y.parse().ok()?, m.parse().ok()?, d.parse().ok()?);
    let leap = y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
    let days = match m {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&d) {
        return None;
    }
    let (y, m) = if m <= 2 { (y - 1, m + 9) } else { (y, m - 3) };
    let (era, year_of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * m + 2) / 5 + d - 1;
    Some(era * 146_097 + day_of_era - 719_468)
}

fn print_date(days: i128) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (5 * day_of_year + 2) / 153;
    let (month, day) = (if m < 10 { m + 3 } else { m - 9 }, day_of_year - (153 * m + 2) / 5 + 1);
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + i128::from(month <= 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_trip() {
        for (text, ty) in [
            ("1998-09-02", SqlType::Date),
            ("1969-12-31", SqlType::Date),
            ("2000-02-29", SqlType::Date),
            ("-0.06", SqlType::Decimal(15, 2)),
            ("17.00", SqlType::Decimal(15, 2)),
            ("-12", SqlType::Int8),
            ("true", SqlType::Bool),
            ("2001-02-03 04:05:06.000007", SqlType::Timestamp),
        ] {
            assert_eq!(print(&parse(text, ty).unwrap(), ty), text);
        }
    }

    #[test]
    fn ill_typed_values_are_refused() {
        for (text, ty) in [
            ("1998-02-29", SqlType::Date),
            ("0.123", SqlType::Decimal(15, 2)),
            ("128", SqlType::Int8),
            ("x", SqlType::Int64),
            ("", SqlType::Decimal(15, 2)),
            ("100", SqlType::Decimal(4, 2)),
        ] {
            assert!(parse(text, ty).is_err(), "{text}");
        }
    }
}
