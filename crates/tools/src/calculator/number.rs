//! Numbers as Python has them: whole ones of any size, and floats.

use std::cmp::Ordering;
use std::fmt;

use num_bigint::BigInt;
use num_integer::Integer as _;
use num_traits::{One as _, Signed as _, ToPrimitive as _, Zero as _};

use super::Mistake;

/// Bits of a whole number: some 30,000 digits.
const MAX_BITS: u64 = 100_000;
/// Products of machine words that one expression may take, in all: about a second's work.
const MAX_WORK: u64 = 100_000_000;
/// Digits that are shown whole, and that are shown of either end of a longer number.
const SHOWN_DIGITS: usize = 2_000;
const SHOWN_ENDS: usize = 50;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Number {
    Int(BigInt),
    /// Always finite.
    Float(f64),
}

/// What has been worked so far.
#[derive(Debug, Default)]
pub(super) struct Work(u64);

impl Work {
    /// Counts an operation on numbers of so many bits.
    pub(super) fn spend(&mut self, one: &BigInt, other: &BigInt) -> Result<(), Mistake> {
        let words = |number: &BigInt| number.bits() / 64 + 1;
        self.spend_words(words(one).saturating_mul(words(other)))
    }

    pub(super) fn spend_words(&mut self, words: u64) -> Result<(), Mistake> {
        self.0 = self.0.saturating_add(words);
        if self.0 > MAX_WORK {
            return Err(Mistake::new("that would take too long"));
        }
        Ok(())
    }
}

impl Number {
    /// A float, if there is one that large.
    pub(super) fn float(value: f64) -> Result<Self, Mistake> {
        if value.is_finite() {
            return Ok(Self::Float(value));
        }
        Err(Mistake::new("the result is too large for a float"))
    }

    pub(super) fn int(value: BigInt) -> Result<Self, Mistake> {
        within_bits(value.bits())?;
        Ok(Self::Int(value))
    }

    /// The nearest float.
    pub(super) fn to_float(&self) -> Result<f64, Mistake> {
        match self {
            Self::Float(value) => Ok(*value),
            Self::Int(value) => match value.to_f64().filter(|value| value.is_finite()) {
                Some(value) => Ok(value),
                None => Err(Mistake::new(
                    "a whole number is too large to become a float",
                )),
            },
        }
    }

    fn is_zero(&self) -> bool {
        match self {
            Self::Int(value) => value.is_zero(),
            Self::Float(value) => *value == 0.0,
        }
    }

    fn is_negative(&self) -> bool {
        match self {
            Self::Int(value) => value.is_negative(),
            Self::Float(value) => *value < 0.0,
        }
    }

    pub(super) fn negate(self) -> Self {
        match self {
            Self::Int(value) => Self::Int(-value),
            Self::Float(value) => Self::Float(-value),
        }
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Float(a), Self::Float(b)) => a.total_cmp(b),
            (Self::Int(a), Self::Float(b)) => compare_mixed(a, *b),
            (Self::Float(a), Self::Int(b)) => compare_mixed(b, *a).reverse(),
        }
    }

    pub(super) fn add(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => {
                work.spend(a, &BigInt::one())?;
                Self::int(a + b)
            }
            _ => Self::float(self.to_float()? + other.to_float()?),
        }
    }

    pub(super) fn subtract(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        self.add(&other.clone().negate(), work)
    }

    pub(super) fn multiply(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => {
                within_bits(a.bits() + b.bits().saturating_sub(1))?;
                work.spend(a, b)?;
                Self::int(a * b)
            }
            _ => Self::float(self.to_float()? * other.to_float()?),
        }
    }

    pub(super) fn divide(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => {
                work.spend(a, b)?;
                Self::float(quotient(a, b))
            }
            _ => Self::float(self.to_float()? / other.to_float()?),
        }
    }

    pub(super) fn divide_floor(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => {
                work.spend(a, b)?;
                Ok(Self::Int(a.div_floor(b)))
            }
            _ => Self::float(divide_floats(self.to_float()?, other.to_float()?).0),
        }
    }

    pub(super) fn modulo(&self, other: &Self, work: &mut Work) -> Result<Self, Mistake> {
        if other.is_zero() {
            return Err(division_by_zero());
        }
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => {
                work.spend(a, b)?;
                Ok(Self::Int(a.mod_floor(b)))
            }
            _ => Self::float(divide_floats(self.to_float()?, other.to_float()?).1),
        }
    }

    pub(super) fn power(&self, exponent: &Self, work: &mut Work) -> Result<Self, Mistake> {
        if let (Self::Int(base), Self::Int(exponent)) = (self, exponent)
            && !exponent.is_negative()
        {
            return whole_power(base, exponent, work);
        }
        if self.is_zero() && exponent.is_negative() {
            return Err(Mistake::new(
                "zero to a negative power is a division by zero",
            ));
        }
        let (base, exponent) = (self.to_float()?, exponent.to_float()?);
        if base < 0.0 && exponent.fract() != 0.0 {
            let message = "a negative number to a fractional power is no real number";
            return Err(Mistake::new(message));
        }
        Self::float(base.powf(exponent))
    }
}

fn division_by_zero() -> Mistake {
    Mistake::new("division by zero")
}

fn within_bits(bits: u64) -> Result<(), Mistake> {
    if bits <= MAX_BITS {
        return Ok(());
    }
    let digits = MAX_BITS * 3 / 10;
    let message = format!("a whole number would have more than {digits} digits, the most there is");
    Err(Mistake::new(message))
}

fn compare_mixed(whole: &BigInt, float: f64) -> Ordering {
    match whole.to_f64().filter(|whole| whole.is_finite()) {
        Some(whole) => whole.total_cmp(&float),
        // Larger than every float, or smaller.
        None if whole.is_negative() => Ordering::Less,
        None => Ordering::Greater,
    }
}

fn whole_power(base: &BigInt, exponent: &BigInt, work: &mut Work) -> Result<Number, Mistake> {
    if base.magnitude().is_one() || base.is_zero() {
        let is_kept = exponent.is_odd() || base.is_one();
        let power = match (exponent.is_zero(), is_kept) {
            (false, true) => base.clone(),
            (false, false) => base * base,
            (true, _) => BigInt::one(),
        };
        return Ok(Number::Int(power));
    }
    // At least so many bits, and at most as many more as the exponent.
    let least = (base.bits() - 1).saturating_mul(exponent.to_u64().unwrap_or(u64::MAX));
    within_bits(least)?;
    let exponent = exponent.to_u32().unwrap_or(u32::MAX);
    let words = least.saturating_add(u64::from(exponent)) / 64 + 1;
    work.spend_words(words.saturating_mul(words))?;
    Number::int(base.pow(exponent))
}

/// The float nearest to a quotient of whole numbers, which may be too large for floats themselves.
fn quotient(a: &BigInt, b: &BigInt) -> f64 {
    // So many bits that all of a float's are right, and the rest says how to round.
    const BITS: i64 = 128;
    let length = |number: &BigInt| i64::try_from(number.bits()).unwrap_or(i64::MAX);
    let shift = BITS - (length(a) - length(b));
    let (a, b) = if shift >= 0 {
        (a << shift.unsigned_abs(), b.clone())
    } else {
        (a.clone(), b << shift.unsigned_abs())
    };
    let (mut quotient, rest) = a.div_rem(&b);
    if !rest.is_zero() {
        quotient = (quotient << 1_u8)
            + if a.is_negative() == b.is_negative() {
                1
            } else {
                -1
            };
    } else {
        quotient <<= 1_u8;
    }
    let mut value = quotient.to_f64().unwrap_or(f64::INFINITY);
    // In steps, since the whole factor may be no float.
    let mut left = -(shift + 1);
    while left != 0 {
        let step = left.clamp(-1_000, 1_000);
        value *= 2_f64.powi(i32::try_from(step).unwrap_or(0));
        left -= step;
    }
    value
}

/// Quotient and remainder as Python has them: the remainder has the divisor's sign.
fn divide_floats(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    let floor = quotient.floor();
    // The quotient is whole but for what rounding did to it.
    let quotient = if quotient - floor > 0.5 {
        floor + 1.0
    } else {
        floor
    };
    (quotient, rest)
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            // As Python: the shortest text that is this number, and never without a point.
            Self::Float(value) => return write!(f, "{value:?}"),
            Self::Int(value) => value.to_string(),
        };
        let digits = text.trim_start_matches('-');
        if digits.len() <= SHOWN_DIGITS {
            return f.write_str(&text);
        }
        let head = text.get(..SHOWN_ENDS).unwrap_or_default();
        let tail = text.get(text.len() - SHOWN_ENDS..).unwrap_or_default();
        write!(f, "{head}…{tail} ({} digits)", digits.len())
    }
}
