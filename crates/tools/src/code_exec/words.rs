//! Splitting of a command line into words, without a shell.
//!
//! Blanks separate words; quotes and backslashes work as in bash; nothing is expanded. Unquoted shell
//! syntax (several commands, redirection, substitution, assignments) is refused with advice.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

use super::refusal;

/// Splits a command line into at least one word, or returns its refusal.
pub(super) fn split(line: &str) -> Result<Vec<String>, String> {
    let line = trim(line);
    if let Some(name) = assignment(line) {
        return Err(refusal::not_allowed(
            &format!("The command begins with the assignment of `{name}`."),
            "There is no shell, so variables can't be set: give values as arguments, or quote the \
             word if it is a program's name.",
        ));
    }
    let mut words = Vec::new();
    let mut characters = line.chars().peekable();
    while let Some(first) = characters.peek().copied() {
        if is_blank(first) {
            characters.next();
        } else if let Some(word) = word(&mut characters)? {
            words.push(word);
        }
    }
    if words.is_empty() {
        // Only a line continuation.
        return Err(refusal::invalid(
            "The command has no word.",
            "Give a command, for example `ls -la`.",
        ));
    }
    Ok(words)
}

/// Removes white space around a line, but not a blank at its end that is escaped.
fn trim(line: &str) -> &str {
    let line = line.trim_start();
    let trimmed = line.trim_end();
    let backslashes = trimmed.len() - trimmed.trim_end_matches('\\').len();
    let longer = line.get(..=trimmed.len());
    match longer.filter(|longer| longer.ends_with(is_blank)) {
        Some(longer) if backslashes % 2 == 1 => longer,
        _ => trimmed,
    }
}

/// Returns the next word; `None` for a line continuation.
fn word(characters: &mut Peekable<Chars<'_>>) -> Result<Option<String>, String> {
    let mut word = None::<String>;
    while let Some(character) = characters.peek().copied() {
        if is_blank(character) {
            break;
        }
        if let Some(refusal) = operator(character) {
            return Err(refusal);
        }
        characters.next();
        match character {
            '\'' => single_quoted(characters, word.get_or_insert_default())?,
            '"' => double_quoted(characters, word.get_or_insert_default())?,
            '\\' => match characters.next() {
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => {
                    return Err(refusal::invalid(
                        "The command ends with a backslash.",
                        "Leave it out, or put single quotes around it if it is meant as text.",
                    ));
                }
            },
            _ => word.get_or_insert_default().push(character),
        }
    }
    Ok(word)
}

fn single_quoted(characters: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), String> {
    for character in characters {
        match character {
            '\'' => return Ok(()),
            _ => word.push(character),
        }
    }
    Err(unclosed("single"))
}

fn double_quoted(characters: &mut Peekable<Chars<'_>>, word: &mut String) -> Result<(), String> {
    while let Some(character) = characters.next() {
        match character {
            '"' => return Ok(()),
            '\\' => match characters.next() {
                Some('\n') => {}
                Some(escaped @ ('"' | '\\' | '$' | '`')) => word.push(escaped),
                Some(other) => word.extend(['\\', other]),
                None => break,
            },
            _ => word.push(character),
        }
    }
    Err(unclosed("double"))
}

fn unclosed(quote: &str) -> String {
    refusal::invalid(
        &format!("A {quote} quote is opened and not closed."),
        "Close it, or put the other kind of quotes around a quote that is meant as text.",
    )
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t')
}

/// Returns the refusal of an unquoted operator character.
fn operator(character: char) -> Option<String> {
    let advice = match character {
        ';' | '\n' => "Give one command per call.",
        '&' => {
            "Give one command per call and look at its result before the next; nothing runs in the \
             background."
        }
        '|' => {
            "There are no pipes: give one command per call, and let it read a file or work on the \
             output you were shown."
        }
        '<' => "There is no redirection: give the program the file's name as an argument.",
        '>' => {
            "There is no redirection: you are shown the output, and many programs take the name of a \
             file to write (`-o FILE`)."
        }
        '(' | ')' => "There are no sub-shells or `$(…)`: run the inner command first, by itself.",
        '`' => "There is no command substitution: run the inner command first, by itself.",
        _ => return None,
    };
    let shown = match character {
        '\n' => "A line break".to_owned(),
        _ => format!("`{character}`"),
    };
    let details = format!("{shown} outside of quotes: commands are run without a shell.");
    let advice = format!("{advice} Put quotes around it if it is meant as text.");
    Some(refusal::not_allowed(&details, &advice))
}

/// Returns the variable of a leading assignment.
fn assignment(line: &str) -> Option<&str> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let end = line.find(|character| !is_name(character))?;
    let (name, rest) = line.split_at_checked(end)?;
    let digit_first = name.starts_with(|first: char| first.is_ascii_digit());
    let assigned = rest.starts_with('=') || rest.starts_with("+=") || element_is_assigned(rest);
    (!name.is_empty() && !digit_first && assigned).then_some(name)
}

/// Returns whether the text is an assignment to an array element, `[…]=`.
fn element_is_assigned(rest: &str) -> bool {
    let element = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    element.is_some_and(|(index, rest)| {
        !index.contains([' ', '\t', '\n']) && (rest.starts_with('=') || rest.starts_with("+="))
    })
}

/// Joins words into the canonical form of a command, which splits into them again.
pub(super) fn join(words: &[String]) -> String {
    let quoted: Vec<Cow<'_, str>> = words.iter().map(|word| quote(word)).collect();
    quoted.join(" ")
}

fn quote(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', "'\"'\"'")))
    }
}

#[cfg(test)]
mod tests;
