//! From characters to tokens.

use num_bigint::BigInt;

use super::Mistake;
use super::number::Number;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Number(Number),
    Name(String),
    Operator(&'static str),
    End,
}

/// Operators and brackets, longer ones before their beginnings.
const OPERATORS: [&str; 10] = ["**", "//", "*", "/", "+", "-", "%", "(", ")", ","];

/// The tokens of an expression, each with the character it begins at; the last one is the end.
pub(super) fn tokens(expression: &str) -> Result<Vec<(usize, Token)>, Mistake> {
    let chars: Vec<char> = expression.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&first) = chars.get(at) {
        let rest = chars.get(at..).unwrap_or_default();
        if first.is_whitespace() {
            at += 1;
            continue;
        }
        let begun_digits = matches!(rest, ['.', next, ..] if next.is_ascii_digit());
        let (token, length) = if first.is_ascii_digit() || begun_digits {
            number(rest).map_err(|mistake| mistake.at(at))?
        } else if first.is_alphabetic() || first == '_' {
            let is_part = |c: &&char| c.is_alphanumeric() || **c == '_' || **c == '.';
            let name: String = rest.iter().take_while(is_part).collect();
            let length = name.chars().count();
            (Token::Name(name), length)
        } else {
            let starts = |operator: &&&str| {
                rest.iter()
                    .take(operator.len())
                    .copied()
                    .eq(operator.chars())
            };
            match OPERATORS.iter().find(starts) {
                Some(operator) => (Token::Operator(operator), operator.len()),
                None => return Err(unknown(first).at(at)),
            }
        };
        tokens.push((at, token));
        at += length;
    }
    tokens.push((at, Token::End));
    Ok(tokens)
}

fn unknown(character: char) -> Mistake {
    let advice = match character {
        '^' => ": powers are written `**`",
        '=' | '<' | '>' | '!' => ": nothing can be compared or assigned",
        '[' | ']' | '{' | '}' => ": group with parentheses",
        '×' | '·' => ": products are written `*`",
        '÷' => ": quotients are written `/`",
        '−' | '–' => ": the minus is `-`",
        '√' => ": roots are written `sqrt(…)`",
        'π' => ": it is called `pi`",
        _ => "",
    };
    Mistake::new(format!("`{character}` is nothing known{advice}"))
}

/// A number at the beginning of these characters, and how many of them it takes.
fn number(chars: &[char]) -> Result<(Token, usize), Mistake> {
    if let ['0', letter, ..] = chars
        && let Some(radix) = radix(*letter)
    {
        let (digits, length) = digits(chars, 2, radix);
        if let Some(value) = BigInt::parse_bytes(digits.as_bytes(), radix) {
            return bounded(Number::Int(value)).map(|number| (Token::Number(number), length));
        }
    }
    let (mut text, mut length) = digits(chars, 0, 10);
    let mut is_whole = true;
    if chars.get(length) == Some(&'.') {
        is_whole = false;
        let (fraction, end) = digits(chars, length + 1, 10);
        text = format!("{text}.{fraction}");
        length = end;
    }
    if let Some('e' | 'E') = chars.get(length) {
        let sign = chars.get(length + 1).filter(|c| matches!(c, '+' | '-'));
        let start = length + 1 + usize::from(sign.is_some());
        let (exponent, end) = digits(chars, start, 10);
        if !exponent.is_empty() {
            is_whole = false;
            let sign = sign.map(char::to_string).unwrap_or_default();
            text = format!("{text}e{sign}{exponent}");
            length = end;
        }
    }
    let number = if is_whole {
        BigInt::parse_bytes(text.as_bytes(), 10).map(Number::Int)
    } else {
        text.parse().ok().map(Number::Float)
    };
    let number = number.ok_or_else(|| Mistake::new(format!("`{text}` is no number")))?;
    bounded(number).map(|number| (Token::Number(number), length))
}

fn bounded(number: Number) -> Result<Number, Mistake> {
    match number {
        Number::Float(value) => Number::float(value),
        whole @ Number::Int(_) => Ok(whole),
    }
}

fn radix(letter: char) -> Option<u32> {
    match letter {
        'x' | 'X' => Some(16),
        'o' | 'O' => Some(8),
        'b' | 'B' => Some(2),
        _ => None,
    }
}

/// The digits from `start` on, without the `_` between two of them, and where they end.
fn digits(chars: &[char], start: usize, radix: u32) -> (String, usize) {
    let mut digits = String::new();
    let mut end = start;
    while let Some(c) = chars.get(end) {
        let next_is_digit = chars.get(end + 1).is_some_and(|c| c.is_digit(radix));
        if c.is_digit(radix) {
            digits.push(*c);
        } else if !(*c == '_' && !digits.is_empty() && next_is_digit) {
            break;
        }
        end += 1;
    }
    (digits, end)
}
