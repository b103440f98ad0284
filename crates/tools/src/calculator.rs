//! The tool `calculator`: a recursive-descent evaluator of Python's arithmetic.
//!
//! Integers are exact within 128 bits and overflow is an error; everything else is a finite `f64`.
//! The length and the nesting of an expression are bounded.

use std::cmp::Ordering;
use std::f64::consts::{E, PI, TAU};
use std::num::IntErrorKind;

use cantle_core::metadata::Metadata;
use cantle_core::tool::{DynTool, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;

use self::Number::{Float, Int};

const MAX_CHARS: usize = 10_000;
const MAX_DEPTH: usize = 100;

/// Functions by their parameters; `n` is an integer.
const SIGNATURES: &str = "sqrt(x), abs(x), round(x), round(x, n), floor(x), ceil(x), min(x, …), \
    max(x, …), pow(x, y), sin(x), cos(x), tan(x), asin(x), acos(x), atan(x), atan2(y, x), exp(x), \
    log(x), log(x, base), log2(x), log10(x), factorial(n), gcd(n, …)";

const OVERFLOW: &str = "an integer does not fit in 128 bits; make one operand a float, for example \
    `2.0`, for an approximate result";
const DIVISION_BY_ZERO: &str = "division by zero";

/// Lets the model calculate: `calculator {expression}`.
///
/// Integers are exact up to 128 bits (38 digits); an expression that exceeds them fails.
pub fn calculator() -> DynTool {
    let description = format!(
        "Evaluates an arithmetic expression in Python's syntax: + - * / // % ** and parentheses; \
         {SIGNATURES}; pi, e, tau. Integers are exact up to 128 bits, angles are in radians, log(x) \
         is the natural logarithm. There are no variables and no comparisons."
    );
    DynTool::blocking("calculator", description, |params: Params, _| {
        let output = match evaluate(&params.expression) {
            Ok(result) => ToolOutput::text(result),
            Err(message) => ToolOutput::failure(format!("Not calculated: {message}.")),
        };
        Ok(output.with_metadata(Metadata::uses(1)))
    })
    .with_concurrency_safe(true)
}

#[derive(Deserialize, JsonSchema)]
struct Params {
    /// The expression, e.g. `(3 + 4) * 2**10 / sqrt(2)`.
    expression: String,
}

/// Returns the value of an expression as Python prints it, or the reason that there is none.
fn evaluate(expression: &str) -> Result<String, String> {
    if expression.chars().nth(MAX_CHARS).is_some() {
        return Err(format!(
            "the expression is longer than {MAX_CHARS} characters"
        ));
    }
    let mut parser = Parser {
        text: expression,
        rest: expression,
        depth: 0,
    };
    let value = parser.sum()?;
    match (parser.peek(), value) {
        (None, Int(value)) => Ok(value.to_string()),
        (None, Float(value)) => Ok(format!("{value:?}")),
        (Some(_), _) => Err(parser.unexpected("an operator (`*` for products)")),
    }
}

#[derive(Clone, Copy)]
enum Number {
    Int(i128),
    /// Always finite.
    Float(f64),
}

/// Evaluates each part of an expression as soon as it has been read.
///
/// Errors are the text for the model, with the position.
struct Parser<'e> {
    text: &'e str,
    rest: &'e str,
    depth: usize,
}

impl Parser<'_> {
    fn sum(&mut self) -> Result<Number, String> {
        self.joined(&["+", "-"], Self::product)
    }

    fn product(&mut self) -> Result<Number, String> {
        self.joined(&["*", "//", "/", "%"], Self::signed)
    }

    /// Operands with any number of operators of one precedence, from left to right.
    fn joined(
        &mut self,
        operators: &[&'static str],
        operand: fn(&mut Self) -> Result<Number, String>,
    ) -> Result<Number, String> {
        let mut value = operand(self)?;
        while let Some((position, operator)) = self.operator(operators) {
            let right = operand(self)?;
            value = self.located(position, binary(operator, value, right))?;
        }
        Ok(value)
    }

    /// A power with any number of signs before it, which bind less tightly.
    fn signed(&mut self) -> Result<Number, String> {
        let mut is_negative = false;
        while let Some((_, sign)) = self.operator(&["+", "-"]) {
            is_negative ^= sign == "-";
        }
        Ok(match self.power()? {
            // Cannot overflow: `i128::MIN` has no literal and no function returns it.
            Int(value) if is_negative => Int(value.wrapping_neg()),
            Float(value) if is_negative => Float(-value),
            value => value,
        })
    }

    fn power(&mut self) -> Result<Number, String> {
        let base = self.atom()?;
        match self.operator(&["**"]) {
            Some((position, operator)) => {
                let exponent = self.nested(Self::signed)?;
                self.located(position, binary(operator, base, exponent))
            }
            None => Ok(base),
        }
    }

    /// A number, a constant, a function call or an expression in parentheses.
    fn atom(&mut self) -> Result<Number, String> {
        let first = self.peek();
        let position = self.position();
        if self.operator(&["("]).is_some() {
            let value = self.nested(Self::sum)?;
            return self.close().map(|()| value);
        }
        let digit_follows = self.rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit());
        match first {
            Some(c) if c.is_ascii_digit() || (c == '.' && digit_follows) => {
                let literal = self.word();
                self.located(position, number(&literal))
            }
            Some(c) if c.is_alphabetic() || c == '_' => {
                let word = self.word();
                let name = word.strip_prefix("math.").unwrap_or(&word);
                let value = match self.operator(&["("]) {
                    Some(_) => call(name, &self.arguments()?),
                    None => constant(name),
                };
                self.located(position, value)
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    fn arguments(&mut self) -> Result<Vec<Number>, String> {
        let mut arguments = Vec::new();
        if self.operator(&[")"]).is_some() {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.nested(Self::sum)?);
            if self.operator(&[","]).is_none() {
                return self.close().map(|()| arguments);
            }
        }
    }

    fn close(&mut self) -> Result<(), String> {
        match self.operator(&[")"]) {
            Some(_) => Ok(()),
            None => Err(self.unexpected("`)`")),
        }
    }

    fn nested(&mut self, part: fn(&mut Self) -> Result<Number, String>) -> Result<Number, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!(
                "the expression is nested more than {MAX_DEPTH} times"
            ));
        }
        let value = part(self);
        self.depth -= 1;
        value
    }

    /// Skips white space and returns the next character.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    /// Consumes the first of `operators` that follows, and returns its position too.
    fn operator(&mut self, operators: &[&'static str]) -> Option<(usize, &'static str)> {
        self.peek();
        let position = self.position();
        let (operator, rest) = operators
            .iter()
            .find_map(|operator| Some((*operator, self.rest.strip_prefix(operator)?)))?;
        self.rest = rest;
        Some((position, operator))
    }

    /// Consumes a name or a number literal; underscores within a literal are left out.
    fn word(&mut self) -> String {
        let is_hex = self.rest.starts_with("0x") || self.rest.starts_with("0X");
        let is_number = !self
            .rest
            .starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut previous = ' ';
        let end = self.rest.find(|c: char| {
            let is_exponent_sign =
                is_number && !is_hex && matches!((previous, c), ('e' | 'E', '+' | '-'));
            previous = c;
            !(c.is_alphanumeric() || c == '_' || c == '.' || is_exponent_sign)
        });
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if is_number {
            word.replace('_', "")
        } else {
            word.to_owned()
        }
    }

    fn position(&self) -> usize {
        self.text.len() - self.rest.len()
    }

    fn located<T>(&self, position: usize, result: Result<T, String>) -> Result<T, String> {
        let before = self.text.get(..position).unwrap_or_default();
        result.map_err(|message| format!("{message} (at character {})", before.chars().count() + 1))
    }

    fn unexpected(&mut self, expected: &str) -> String {
        let (found, advice) = match self.peek() {
            None => ("the end".to_owned(), ""),
            Some(c) => {
                let advice = match c {
                    '^' => "; powers are written `**`",
                    '=' | '<' | '>' | '!' => "; there are no comparisons and no assignments",
                    '×' | '·' => "; products are written `*`",
                    '÷' => "; quotients are written `/`",
                    '−' | '–' => "; the minus sign is `-`",
                    ',' => "; numbers are written without separators",
                    _ => "",
                };
                (format!("`{c}`"), advice)
            }
        };
        let message = format!("expected {expected}, found {found}{advice}");
        let result: Result<(), _> = self.located(self.position(), Err(message));
        result.err().unwrap_or_default()
    }
}

/// Parses a number literal without underscores.
fn number(literal: &str) -> Result<Number, String> {
    let invalid = || format!("`{literal}` is not a number; products are written `*`");
    let lower = literal.to_ascii_lowercase();
    let (digits, radix) = match lower.get(..2) {
        Some("0x") => (lower.get(2..).unwrap_or_default(), 16),
        Some("0o") => (lower.get(2..).unwrap_or_default(), 8),
        Some("0b") => (lower.get(2..).unwrap_or_default(), 2),
        _ if lower.contains(['.', 'e']) => return float(lower.parse().map_err(|_| invalid())?),
        _ => (lower.as_str(), 10),
    };
    i128::from_str_radix(digits, radix)
        .map(Int)
        .map_err(|error| match error.kind() {
            IntErrorKind::PosOverflow => OVERFLOW.to_owned(),
            _ => invalid(),
        })
}

fn constant(name: &str) -> Result<Number, String> {
    match name {
        "pi" => Ok(Float(PI)),
        "e" => Ok(Float(E)),
        "tau" => Ok(Float(TAU)),
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    format!("`{name}` is neither a constant nor a valid call; there are {SIGNATURES}, pi, e, tau")
}

fn float(value: f64) -> Result<Number, String> {
    if value.is_nan() {
        return Err("the result is not a real number".to_owned());
    }
    if value.is_infinite() {
        return Err("the result is too large for a float".to_owned());
    }
    Ok(Float(value))
}

fn int(value: Option<i128>) -> Result<Number, String> {
    // Without the minimum, negation and absolute values cannot overflow.
    let value = value.filter(|value| *value != i128::MIN);
    value.map(Int).ok_or_else(|| OVERFLOW.to_owned())
}

/// Rounds by `round`, to an integer.
fn rounded(x: Number, round: fn(f64) -> f64) -> Result<Number, String> {
    match x {
        Int(_) => Ok(x),
        Float(x) => int(Some(round(x) as i128).filter(|_| x.abs() < 2_f64.powi(127))),
    }
}

fn to_float(x: Number) -> f64 {
    match x {
        Int(x) => x as f64,
        Float(x) => x,
    }
}

fn binary(operator: &str, a: Number, b: Number) -> Result<Number, String> {
    let is_division = matches!(operator, "/" | "//" | "%");
    if is_division && to_float(b) == 0.0 {
        return Err(DIVISION_BY_ZERO.to_owned());
    }
    if let (Int(a), Int(b)) = (a, b) {
        // `//` and `%` round down; Rust's operators round towards zero.
        let is_rounded_up = is_division && a % b != 0 && (a < 0) != (b < 0);
        match operator {
            "+" => return int(a.checked_add(b)),
            "-" => return int(a.checked_sub(b)),
            "*" => return int(a.checked_mul(b)),
            "//" => return int(Some(a / b - i128::from(is_rounded_up))),
            "%" => return int(Some(a % b + if is_rounded_up { b } else { 0 })),
            // Of -1, 0 and 1, only the exponent's parity matters.
            "**" if b > 0 && a.abs() <= 1 => return int(Some(if b % 2 == 0 { a * a } else { a })),
            "**" if b >= 0 => return int(u32::try_from(b).ok().and_then(|b| a.checked_pow(b))),
            _ => {}
        }
    }
    let (a, b) = (to_float(a), to_float(b));
    if operator == "**" && a == 0.0 && b < 0.0 {
        return Err(DIVISION_BY_ZERO.to_owned());
    }
    let remainder = match a % b {
        0.0 => 0_f64.copysign(b),
        rest if (rest < 0.0) != (b < 0.0) => rest + b,
        rest => rest,
    };
    float(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => ((a - remainder) / b).round(),
        "%" => remainder,
        _ => a.powf(b),
    })
}

fn call(name: &str, arguments: &[Number]) -> Result<Number, String> {
    match (name, arguments) {
        ("abs", [Int(x)]) => Ok(Int(x.abs())),
        ("abs", [Float(x)]) => Ok(Float(x.abs())),
        ("floor", [x]) => rounded(*x, f64::floor),
        ("ceil", [x]) => rounded(*x, f64::ceil),
        ("round", [x]) => rounded(*x, f64::round_ties_even),
        ("round", [x, Int(digits)]) => round_to(*x, (*digits).clamp(-400, 400) as i32),
        ("min", [first, rest @ ..]) => Ok(extreme(*first, rest, Ordering::Less)),
        ("max", [first, rest @ ..]) => Ok(extreme(*first, rest, Ordering::Greater)),
        ("pow", [base, exponent]) => binary("**", *base, *exponent),
        ("log" | "log2" | "log10", [x, ..]) if to_float(*x) <= 0.0 => {
            Err("a logarithm needs a number above zero".to_owned())
        }
        ("log", [x, base]) => binary("/", call("log", &[*x])?, call("log", &[*base])?),
        ("atan2", [y, x]) => float(to_float(*y).atan2(to_float(*x))),
        // Ends at 34!, the first that overflows.
        ("factorial", [Int(n)]) if *n >= 0 => {
            int((2..=*n).try_fold(1_i128, |product, k| product.checked_mul(k)))
        }
        ("gcd", _) => arguments
            .iter()
            .try_fold(Int(0), |divisor, n| match (divisor, n) {
                (Int(a), Int(b)) => Ok(Int(gcd(a.abs(), b.abs()))),
                _ => Err(unknown(name)),
            }),
        (_, [x]) => {
            let function = match name {
                "sqrt" => f64::sqrt,
                "sin" => f64::sin,
                "cos" => f64::cos,
                "tan" => f64::tan,
                "asin" => f64::asin,
                "acos" => f64::acos,
                "atan" => f64::atan,
                "exp" => f64::exp,
                "log" => f64::ln,
                "log2" => f64::log2,
                "log10" => f64::log10,
                _ => return Err(unknown(name)),
            };
            float(function(to_float(*x)))
        }
        _ => Err(unknown(name)),
    }
}

/// Returns the first number to which no other compares as `order`.
fn extreme(first: Number, rest: &[Number], order: Ordering) -> Number {
    rest.iter().fold(first, |found, x| {
        if compare(*x, found) == order {
            *x
        } else {
            found
        }
    })
}

/// Compares exactly: as a float, a large integer would be rounded.
fn compare(a: Number, b: Number) -> Ordering {
    match (a, b) {
        (Int(a), Int(b)) => a.cmp(&b),
        (Float(a), Float(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (Float(_), Int(_)) => compare(b, a).reverse(),
        (Int(a), Float(b)) if b.abs() < 2_f64.powi(127) => {
            let floor = b.floor();
            a.cmp(&(floor as i128)).then(floor.total_cmp(&b))
        }
        // Beyond all integers.
        (Int(_), Float(b)) => 0_f64.total_cmp(&b),
    }
}

fn gcd(a: i128, b: i128) -> i128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Rounds to `digits` after the decimal point, or before it if negative; ties go to the even digit.
fn round_to(x: Number, digits: i32) -> Result<Number, String> {
    let places = digits.unsigned_abs();
    match x {
        Int(_) if digits >= 0 => Ok(x),
        Float(x) if digits >= 0 => Ok(Float(
            format!("{x:.*}", places as usize).parse().unwrap_or(x),
        )),
        Float(_) if places > 308 => Ok(Float(0.0)),
        Float(x) => {
            let unit = 10_f64.powi(digits.abs());
            float((x / unit).round_ties_even() * unit)
        }
        Int(x) => {
            let Some(unit) = 10_i128.checked_pow(places) else {
                return Ok(Int(0));
            };
            let (quotient, rest) = (x.div_euclid(unit), x.rem_euclid(unit));
            let is_up = rest > unit - rest || (rest == unit - rest && quotient % 2 != 0);
            int((quotient + i128::from(is_up)).checked_mul(unit))
        }
    }
}

#[cfg(test)]
mod tests;
