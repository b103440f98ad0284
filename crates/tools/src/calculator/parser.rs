//! From tokens to a value: each part is calculated as soon as it has been read.

use super::Mistake;
use super::function::{self, constant};
use super::lexer::{Token, tokens};
use super::number::{Number, Work};

/// How deep an expression may be nested.
const MAX_DEPTH: usize = 100;

/// The value of an expression.
pub(super) fn evaluate(expression: &str) -> Result<Number, Mistake> {
    let mut parser = Parser {
        tokens: tokens(expression)?,
        next: 0,
        depth: 0,
        work: Work::default(),
    };
    if *parser.peek() == Token::End {
        return Err(Mistake::new("the expression is empty"));
    }
    let value = parser.sum()?;
    match parser.peek() {
        Token::End => Ok(value),
        Token::Operator(",") => Err(parser.mistake(
            "a comma stands only between a function's arguments; numbers are written without",
        )),
        _ => Err(parser.unexpected("an operator")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    work: Work,
}

impl Parser {
    /// Terms added and subtracted.
    fn sum(&mut self) -> Result<Number, Mistake> {
        let mut value = self.product()?;
        while let Some((operator, at)) = self.take_one_of(&["+", "-"]) {
            let right = self.product()?;
            let result = match operator {
                "+" => value.add(&right, &mut self.work),
                _ => value.subtract(&right, &mut self.work),
            };
            value = result.map_err(|mistake| mistake.at(at))?;
        }
        Ok(value)
    }

    /// Factors multiplied and divided.
    fn product(&mut self) -> Result<Number, Mistake> {
        let mut value = self.signed()?;
        while let Some((operator, at)) = self.take_one_of(&["*", "/", "//", "%"]) {
            let right = self.signed()?;
            let result = match operator {
                "*" => value.multiply(&right, &mut self.work),
                "/" => value.divide(&right, &mut self.work),
                "//" => value.divide_floor(&right, &mut self.work),
                _ => value.modulo(&right, &mut self.work),
            };
            value = result.map_err(|mistake| mistake.at(at))?;
        }
        Ok(value)
    }

    /// A power, with signs before it.
    fn signed(&mut self) -> Result<Number, Mistake> {
        let mut is_negative = false;
        while let Some((sign, _)) = self.take_one_of(&["+", "-"]) {
            is_negative ^= sign == "-";
        }
        let value = self.power()?;
        Ok(if is_negative { value.negate() } else { value })
    }

    /// An atom, perhaps to the power of something that may have a sign: `2**-3**2`.
    fn power(&mut self) -> Result<Number, Mistake> {
        let base = self.atom()?;
        let Some((_, at)) = self.take_one_of(&["**"]) else {
            return Ok(base);
        };
        let exponent = self.deeper(Self::signed)?;
        let power = base.power(&exponent, &mut self.work);
        power.map_err(|mistake| mistake.at(at))
    }

    /// A number, a constant, a function's value, or an expression in parentheses.
    fn atom(&mut self) -> Result<Number, Mistake> {
        let (at, token) = self.current();
        match token {
            Token::Number(number) => {
                self.next += 1;
                match self.peek() {
                    Token::Number(_) | Token::Name(_) | Token::Operator("(") => {
                        Err(self.unexpected("an operator (`*` for products)"))
                    }
                    _ => Ok(number),
                }
            }
            Token::Operator("(") => {
                self.next += 1;
                let value = self.deeper(Self::sum)?;
                self.expect_close()?;
                Ok(value)
            }
            Token::Name(name) => {
                self.next += 1;
                let name = name.strip_prefix("math.").unwrap_or(&name);
                if self.take_one_of(&["("]).is_none() {
                    let value = constant(name).ok_or_else(|| function::unknown(name));
                    return value.map_err(|mistake| mistake.at(at));
                }
                let arguments = self.arguments()?;
                let value = function::call(name, &arguments, &mut self.work);
                value.map_err(|mistake| mistake.at(at))
            }
            _ => Err(self.unexpected("a number")),
        }
    }

    /// What stands between the parentheses of a function.
    fn arguments(&mut self) -> Result<Vec<Number>, Mistake> {
        let mut arguments = Vec::new();
        if self.take_one_of(&[")"]).is_some() {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.deeper(Self::sum)?);
            if self.take_one_of(&[","]).is_none() {
                self.expect_close()?;
                return Ok(arguments);
            }
        }
    }

    fn expect_close(&mut self) -> Result<(), Mistake> {
        match self.take_one_of(&[")"]) {
            Some(_) => Ok(()),
            None => Err(self.unexpected("`)`")),
        }
    }

    fn deeper(
        &mut self,
        part: fn(&mut Self) -> Result<Number, Mistake>,
    ) -> Result<Number, Mistake> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.mistake(&format!("it is nested more than {MAX_DEPTH} times")));
        }
        let value = part(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn take_one_of(&mut self, operators: &[&str]) -> Option<(&'static str, usize)> {
        match self.current() {
            (at, Token::Operator(operator)) if operators.contains(&operator) => {
                self.next += 1;
                Some((operator, at))
            }
            _ => None,
        }
    }

    fn peek(&self) -> &Token {
        self.tokens
            .get(self.next)
            .map_or(&Token::End, |(_, token)| token)
    }

    fn current(&self) -> (usize, Token) {
        let last = self.tokens.last().map_or(0, |(at, _)| *at);
        self.tokens
            .get(self.next)
            .cloned()
            .unwrap_or((last, Token::End))
    }

    fn unexpected(&self, expected: &str) -> Mistake {
        let found = match self.peek() {
            Token::Number(number) => format!("`{number}`"),
            Token::Name(name) => format!("`{name}`"),
            Token::Operator(operator) => format!("`{operator}`"),
            Token::End => "the end".to_owned(),
        };
        self.mistake(&format!("expected {expected}, found {found}"))
    }

    fn mistake(&self, message: &str) -> Mistake {
        Mistake::new(message).at(self.current().0)
    }
}
