//! Constants and functions.

use std::f64::consts::{E, PI, TAU};

use num_bigint::BigInt;
use num_integer::Integer as _;
use num_traits::{FromPrimitive as _, One as _, Signed as _, ToPrimitive as _, Zero as _};

use super::Mistake;
use super::number::{Number, Work};

const NAMES: &str = "sqrt, abs, round, floor, ceil, min, max, pow, sin, cos, tan, asin, acos, atan, \
                     atan2, exp, log, log2, log10, factorial, gcd, pi, e, tau";

pub(super) fn constant(name: &str) -> Option<Number> {
    match name {
        "pi" => Some(Number::Float(PI)),
        "e" => Some(Number::Float(E)),
        "tau" => Some(Number::Float(TAU)),
        _ => None,
    }
}

/// That there is no such name, or that it is not one to be used like that.
pub(super) fn unknown(name: &str) -> Mistake {
    if constant(name).is_some() {
        return Mistake::new(format!("`{name}` is a number, no function"));
    }
    if NAMES.split(", ").any(|known| known == name) {
        return Mistake::new(format!("`{name}` needs its arguments in parentheses"));
    }
    Mistake::new(format!("`{name}` is nothing known; there is {NAMES}"))
}

/// Calls a function.
pub(super) fn call(name: &str, arguments: &[Number], work: &mut Work) -> Result<Number, Mistake> {
    if let Some(function) = of_a_float(name) {
        let [x] = arguments else {
            return Err(count(name, "1 argument", arguments));
        };
        return function(x.to_float()?);
    }
    match (name, arguments) {
        ("abs", [Number::Int(x)]) => Ok(Number::Int(x.abs())),
        ("abs", [Number::Float(x)]) => Ok(Number::Float(x.abs())),
        ("floor", [x]) => whole(x, f64::floor),
        ("ceil", [x]) => whole(x, f64::ceil),
        ("round", [x]) => whole(x, f64::round_ties_even),
        ("round", [x, Number::Int(digits)]) => round(x, digits, work),
        ("round", [_, Number::Float(_)]) => Err(not_whole("the digits of `round`")),
        ("min", [first, rest @ ..]) => Ok(extreme(first, rest, |a, b| b.compare(a).is_lt())),
        ("max", [first, rest @ ..]) => Ok(extreme(first, rest, |a, b| b.compare(a).is_gt())),
        ("pow", [base, exponent]) => base.power(exponent, work),
        ("atan2", [y, x]) => Number::float(y.to_float()?.atan2(x.to_float()?)),
        ("log", [x]) => Number::float(logarithm(x, f64::ln)?),
        ("log", [x, base]) => {
            let base = logarithm(base, f64::ln)?;
            if base == 0.0 {
                return Err(Mistake::new(
                    "a logarithm to the base 1 is a division by zero",
                ));
            }
            Number::float(logarithm(x, f64::ln)? / base)
        }
        ("log2", [x]) => Number::float(logarithm(x, f64::log2)?),
        ("log10", [x]) => Number::float(logarithm(x, f64::log10)?),
        ("factorial", [x]) => factorial(x, work),
        ("gcd", all) => gcd(all, work),
        ("abs" | "floor" | "ceil" | "log2" | "log10" | "factorial", _) => {
            Err(count(name, "1 argument", arguments))
        }
        ("round" | "log", _) => Err(count(name, "1 or 2 arguments", arguments)),
        ("pow" | "atan2", _) => Err(count(name, "2 arguments", arguments)),
        ("min" | "max", _) => Err(count(name, "at least 1 argument", arguments)),
        _ => Err(unknown(name)),
    }
}

type OfAFloat = fn(f64) -> Result<Number, Mistake>;

/// The functions that know floats only.
fn of_a_float(name: &str) -> Option<OfAFloat> {
    Some(match name {
        "sqrt" => |x| {
            if x < 0.0 {
                return Err(Mistake::new(
                    "the square root of a negative number is not real",
                ));
            }
            Number::float(x.sqrt())
        },
        "sin" => |x| Number::float(x.sin()),
        "cos" => |x| Number::float(x.cos()),
        "tan" => |x| Number::float(x.tan()),
        "asin" => |x| Number::float(within_one("asin", x)?.asin()),
        "acos" => |x| Number::float(within_one("acos", x)?.acos()),
        "atan" => |x| Number::float(x.atan()),
        "exp" => |x| Number::float(x.exp()),
        _ => return None,
    })
}

fn within_one(name: &str, x: f64) -> Result<f64, Mistake> {
    if (-1.0..=1.0).contains(&x) {
        return Ok(x);
    }
    Err(Mistake::new(format!(
        "`{name}` needs a number from -1 to 1"
    )))
}

fn count(name: &str, expected: &str, arguments: &[Number]) -> Mistake {
    let given = arguments.len();
    Mistake::new(format!("`{name}` takes {expected}, not {given}"))
}

fn not_whole(what: &str) -> Mistake {
    Mistake::new(format!("{what} must be whole numbers"))
}

fn whole(x: &Number, round: fn(f64) -> f64) -> Result<Number, Mistake> {
    let x = match x {
        Number::Int(_) => return Ok(x.clone()),
        Number::Float(x) => round(*x),
    };
    // Floats are finite, so each that is whole is a whole number.
    Number::int(BigInt::from_f64(x).unwrap_or_default())
}

/// To so many digits behind the point, or before it where there are fewer than none; what lies
/// halfway goes to the even digit.
fn round(x: &Number, digits: &BigInt, work: &mut Work) -> Result<Number, Mistake> {
    // A float has no more digits than these.
    const MOST: i64 = 400;
    let digits = digits.to_i64().unwrap_or(MOST).clamp(-MOST, MOST);
    let places = usize::try_from(digits);
    match (x, places) {
        (Number::Int(_), Ok(_)) => Ok(x.clone()),
        (Number::Float(x), Ok(places)) => {
            Number::float(format!("{x:.places$}").parse().unwrap_or(*x))
        }
        (Number::Int(x), Err(_)) => {
            let unit = BigInt::from(10).pow(u32::try_from(-digits).unwrap_or(0));
            work.spend(x, &unit)?;
            let (quotient, rest) = x.div_mod_floor(&unit);
            let up = match (rest * 2_u8).cmp(&unit) {
                std::cmp::Ordering::Less => false,
                std::cmp::Ordering::Equal => quotient.is_odd(),
                std::cmp::Ordering::Greater => true,
            };
            Number::int((quotient + u8::from(up)) * unit)
        }
        (Number::Float(x), Err(_)) => {
            let unit = 10_f64.powi(i32::try_from(-digits).unwrap_or(0));
            let rounded = (x / unit).round_ties_even() * unit;
            Number::float(if rounded.is_nan() { 0.0 } else { rounded })
        }
    }
}

fn extreme(first: &Number, rest: &[Number], is_better: fn(&Number, &Number) -> bool) -> Number {
    let better = |best, next| if is_better(best, next) { next } else { best };
    rest.iter().fold(first, better).clone()
}

/// A logarithm by its function on floats, also of a whole number that no float holds.
fn logarithm(x: &Number, of_a_float: fn(f64) -> f64) -> Result<f64, Mistake> {
    match x {
        Number::Int(whole) if whole.is_positive() => {
            let excess = whole.bits().saturating_sub(1_000);
            let head = (whole >> excess).to_f64().unwrap_or(f64::MAX);
            Ok(of_a_float(head) + excess as f64 * of_a_float(2.0))
        }
        Number::Float(x) if *x > 0.0 => Ok(of_a_float(*x)),
        _ => Err(Mistake::new("a logarithm needs a number above zero")),
    }
}

fn factorial(x: &Number, work: &mut Work) -> Result<Number, Mistake> {
    let Number::Int(n) = x else {
        return Err(not_whole("what `factorial` is of"));
    };
    if n.is_negative() {
        return Err(Mistake::new("there is no factorial of a negative number"));
    }
    let n = n.to_u64().unwrap_or(u64::MAX);
    let mut product = Number::Int(BigInt::one());
    let mut factor = 2_u64;
    // Ends at the latest where a whole number may be no larger.
    while factor <= n {
        product = product.multiply(&Number::Int(factor.into()), work)?;
        factor += 1;
    }
    Ok(product)
}

fn gcd(all: &[Number], work: &mut Work) -> Result<Number, Mistake> {
    let mut divisor = BigInt::zero();
    for number in all {
        let Number::Int(number) = number else {
            return Err(not_whole("what `gcd` is of"));
        };
        // It goes bit by bit.
        let bits = divisor.bits() + number.bits();
        work.spend_words((bits / 64 + 1).saturating_mul(bits))?;
        divisor = divisor.gcd(number);
    }
    Ok(Number::Int(divisor))
}
