//! Finding the Python code in a model's answer.

use serde_json::Value;

/// The arguments that hold code, by preference.
const CODE_FIELDS: [&str; 5] = ["code", "command", "query", "script", "source"];

/// The signs of Python, one of which a block without a language must contain.
const PYTHON_SIGNS: [&str; 5] = ["def ", "class ", "import ", "print(", "if __name__"];

/// A tool call in which code may be.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "the parts of a call that matter here"
)]
pub struct CodeCall {
    /// The tool's name.
    pub name: String,
    /// The arguments.
    pub arguments: Value,
    /// The JSON schema of the tool's parameters, if it is known.
    pub schema: Option<Value>,
}

/// Returns the best piece of Python in a model's answer: the block with the highest score, or the code of a tool call
/// if no block looks like Python.
pub fn extract_code(text: &str, calls: &[CodeCall]) -> Option<String> {
    let blocks = blocks(text);
    let scored = blocks.into_iter().filter_map(|(language, code)| {
        let base = match language.as_str() {
            "python" => 10,
            "" if PYTHON_SIGNS.iter().any(|sign| code.contains(sign)) => 0,
            _ => return None,
        };
        Some((base + score(&code), code))
    });
    let mut candidates: Vec<_> = scored.filter(|(_, code)| !code.trim().is_empty()).collect();
    if candidates.is_empty() {
        let codes = calls.iter().filter_map(extract_from_call);
        candidates = codes.map(|code| (5 + score(&code), code)).collect();
    }
    // The first of the best.
    let best = candidates.iter().map(|(score, _)| *score).max()?;
    let found = candidates.into_iter().find(|(score, _)| *score == best);
    found.map(|(_, code)| code.trim().to_owned())
}

/// Returns the code in the arguments of a tool call.
pub fn extract_from_call(call: &CodeCall) -> Option<String> {
    let properties = call
        .schema
        .as_ref()
        .and_then(|schema| schema.get("properties"))
        .and_then(Value::as_object);
    let is_parameter = |field: &&&str| properties.is_none_or(|known| known.contains_key(**field));
    let field = CODE_FIELDS
        .iter()
        .filter(is_parameter)
        .find(|field| call.arguments.get(**field).is_some())?;
    let code = call.arguments.get(field)?.as_str()?.trim();
    (!code.is_empty()).then(|| code.to_owned())
}

/// Returns the fenced blocks of a text with their languages. Fences are three back quotes, or two as in reStructuredText.
fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        let (fence, rest) = if let Some(rest) = line.strip_prefix("```") {
            ("```", rest)
        } else if let Some(rest) = line.strip_prefix("``").filter(|rest| *rest == "python") {
            ("``", rest)
        } else {
            continue;
        };
        let language = rest.trim().to_lowercase();
        let mut code = Vec::new();
        for line in lines.by_ref() {
            if line.trim() == fence {
                break;
            }
            code.push(line);
        }
        blocks.push((language, code.join("\n")));
    }
    blocks
}

/// Returns the score of a piece of code: longer and structured pieces win.
fn score(code: &str) -> i32 {
    let trimmed = || code.lines().map(str::trim);
    let substantial = trimmed().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let count = i32::try_from(substantial.count()).unwrap_or(i32::MAX);
    let lines = i32::try_from(code.lines().count()).unwrap_or(i32::MAX);
    let begins = |words: &[&str]| trimmed().any(|line| words.iter().any(|it| line.starts_with(it)));
    let mut score = lines.min(10);
    if begins(&["def ", "class ", "async def "]) {
        score += 5;
    }
    if begins(&["if ", "for ", "while ", "try:", "with "]) {
        score += 3;
    }
    if count < 2 {
        score -= 5;
    }
    score
}
