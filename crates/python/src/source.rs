//! Facts about Python source, without executing it: imports, dynamic imports and the first syntax error.
//!
//! This module alone uses the parser. Its verdict is that of CPython's `ast.parse`: what only the compiler
//! refuses (`return` outside a function) is no syntax error here. Facts are advice. Code can import in ways
//! that no parser finds, so a policy of the sandbox is the boundary.

use std::collections::HashSet;
use std::thread;

use rustpython_ruff_python_ast::visitor::source_order::{SourceOrderVisitor, walk_expr, walk_stmt};
use rustpython_ruff_python_ast::{Expr, ModModule, PythonVersion, Stmt, token::TokenKind};
use rustpython_ruff_python_parser::{Mode, ParseOptions, Parsed, lexer, parse_unchecked};
use rustpython_ruff_text_size::{Ranged as _, TextSize};

/// Maximum size of source. The syntax tree is some fifty times as large.
pub const MAX_SOURCE_BYTES: usize = 1024 * 1024;

/// Maximum number of open brackets, which is CPython's.
const MAX_BRACKETS: usize = 200;
/// Maximum number of levels of indentation, which is CPython's.
const MAX_INDENTATION: usize = 100;
/// Maximum depth of an expression, as [`Outline`] estimates it.
const MAX_DEPTH: usize = 3000;
/// Maximum depth that is parsed on the caller's stack.
const INLINE_DEPTH: usize = 150;
/// Stack for what is deeper: the parser, the visitor and the destructor are recursive.
const STACK_BYTES: usize = 256 * 1024 * 1024;

/// Facts about one piece of source.
///
/// ```
/// use cantle_python::SourceFacts;
///
/// let facts = SourceFacts::of(b"import numpy.linalg\nfrom os import path\n");
/// let allowed = ["numpy".to_owned()];
/// let refused: Vec<_> = facts.forbidden_imports(Some(&allowed)).map(|it| (it.module.as_str(), it.line)).collect();
/// assert_eq!(refused, [("os", 2)]);
/// assert_eq!(facts.syntax_error, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceFacts {
    /// The imported modules, in order of appearance. Empty if there is a syntax error.
    pub imports: Vec<Import>,
    /// Calls that import or execute code whose name or content is only known when they run.
    pub dynamic: Vec<DynamicImport>,
    /// The first syntax error.
    pub syntax_error: Option<SyntaxError>,
}

/// An imported module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Import {
    /// Its dotted name, without the names imported from it. Empty for `from . import x`.
    pub module: String,
    /// For `from . import x`, the imported names; otherwise empty.
    pub names: Vec<String>,
    /// The number of leading dots of a relative import; 0 for an absolute one.
    pub level: u32,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

/// A call that may import a module without an import statement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DynamicImport {
    /// The called function as it is written, e.g. `importlib.import_module`.
    pub function: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

/// A syntax error, or source that Python does not accept as text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (line {line}, column {column})")]
#[non_exhaustive]
pub struct SyntaxError {
    /// The problem.
    pub message: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
}

impl SourceFacts {
    /// Parses source. This takes time and memory in proportion to its size, up to [`MAX_SOURCE_BYTES`], and never
    /// fails: what can't be parsed has a [`syntax_error`](Self::syntax_error). Syntax of every Python 3 is accepted.
    pub fn of(source: &[u8]) -> Self {
        Self::for_version(source, PythonVersion::latest_preview())
    }

    /// Parses source like [`of`](Self::of) for one version of Python 3, which may lack newer syntax.
    pub fn for_minor_version(source: &[u8], minor: u8) -> Self {
        Self::for_version(source, PythonVersion::from((3, minor)))
    }

    fn for_version(source: &[u8], version: PythonVersion) -> Self {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!(
                "the source has {} bytes; at most {MAX_SOURCE_BYTES} are accepted",
                source.len()
            );
            return Self::error_at(message, (1, 1));
        }
        let Ok(text) = std::str::from_utf8(source) else {
            let valid = source.utf8_chunks().next().map_or("", |it| it.valid());
            let at = position(valid, valid.len());
            return Self::error_at("the source is not UTF-8".to_owned(), at);
        };
        if let Some(nul) = text.find('\0') {
            let message = "source code cannot contain null bytes".to_owned();
            return Self::error_at(message, position(text, nul));
        }
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let outline = match Outline::of(text) {
            Ok(outline) => outline,
            Err(message) => return Self::error_at(message.to_owned(), (refused_line(text), 1)),
        };
        if outline.depth <= INLINE_DEPTH {
            return Self::parse(text, version);
        }
        thread::scope(|scope| {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let thread = builder.spawn_scoped(scope, || Self::parse(text, version));
            let parsed = thread.ok().and_then(|thread| thread.join().ok());
            parsed.unwrap_or_else(|| Self::error_at("the source is too complex".to_owned(), (1, 1)))
        })
    }

    /// Returns the absolute imports that a list of allowed modules does not contain, each module once, in order.
    ///
    /// `None` allows every module, and an empty list none. An entry allows the module of its name and the modules
    /// below it. Relative imports stay within the user's own files and are always allowed.
    pub fn forbidden_imports<'f>(
        &'f self,
        allowed: Option<&'f [String]>,
    ) -> impl Iterator<Item = &'f Import> {
        let is_allowed = move |module: &str| {
            allowed.is_none_or(|allowed| {
                allowed.iter().any(|entry| {
                    let below = module.strip_prefix(entry.as_str());
                    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                })
            })
        };
        let mut seen = HashSet::new();
        self.imports.iter().filter(move |import| {
            import.level == 0 && !is_allowed(&import.module) && seen.insert(&import.module)
        })
    }

    fn error_at(message: String, (line, column): (usize, usize)) -> Self {
        Self {
            syntax_error: Some(SyntaxError {
                message,
                line,
                column,
            }),
            ..Self::default()
        }
    }

    fn parse(text: &str, version: PythonVersion) -> Self {
        let options = ParseOptions::from(Mode::Module).with_target_version(version);
        let parsed = parse_unchecked(text, options);
        let Some(parsed) = parsed.try_into_module() else {
            return Self::default();
        };
        let first = parsed.errors().iter().min_by_key(|it| it.location.start());
        if let Some(error) = first {
            let at = position(text, error.location.start().to_usize());
            // As CPython does, and more useful than where the missing bracket was noticed.
            if let Some((bracket, offset)) = unclosed_bracket(&parsed) {
                let opened = position(text, offset);
                if opened.0 < at.0 || error.location.start().to_usize() >= text.trim_end().len() {
                    return Self::error_at(format!("'{bracket}' was never closed"), opened);
                }
            }
            return Self::error_at(lower_first(&error.error.to_string()), at);
        }
        let unsupported = parsed.unsupported_syntax_errors().iter();
        if let Some(error) = unsupported.min_by_key(|it| it.start()) {
            let at = position(text, error.start().to_usize());
            return Self::error_at(lower_first(&error.to_string()), at);
        }
        let mut collector = Collector {
            positions: Positions::new(text),
            facts: Self::default(),
        };
        collector.visit_body(&parsed.syntax().body);
        collector.facts
    }
}

/// The nesting of source, computed from its tokens, so that hostile nesting never reaches the recursive parser.
struct Outline {
    /// Upper bound of the depth of the deepest expression or block.
    depth: usize,
}

impl Outline {
    fn of(text: &str) -> Result<Self, &'static str> {
        let mut lexer = lexer::lex(text, Mode::Module);
        // For each open bracket, the depth that the tokens since the latest separator can add, and how much of it
        // separators leave: they are part of a lambda, of a yield, and of a statement after a colon.
        let mut levels = vec![(0, 0)];
        let (mut depth, mut indentation, mut lambdas, mut sum) = (0, 0, 0_usize, 0_usize);
        loop {
            let kind = lexer.next_token();
            match kind {
                TokenKind::EndOfFile => return Ok(Self { depth }),
                TokenKind::Lpar | TokenKind::Lsqb | TokenKind::Lbrace => levels.push((0, 0)),
                TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace if levels.len() > 1 => {
                    sum -= levels.pop().unwrap_or_default().0;
                }
                // Adjacent strings are one node.
                TokenKind::String
                | TokenKind::FStringMiddle
                | TokenKind::TStringMiddle
                | TokenKind::NonLogicalNewline
                | TokenKind::Comment => continue,
                TokenKind::Comma | TokenKind::Newline | TokenKind::Semi => {
                    if let Some((tokens, kept)) = levels.last_mut() {
                        // The parser continues past the line's end after `lambda` without its colon.
                        if kind == TokenKind::Newline && lambdas == 0 {
                            *kept = 0;
                        }
                        sum -= std::mem::replace(tokens, *kept);
                        sum += *kept;
                    }
                }
                TokenKind::Lambda | TokenKind::Yield => {
                    lambdas += usize::from(kind == TokenKind::Lambda);
                    add_kept(&mut levels);
                }
                TokenKind::Colon => {
                    lambdas = lambdas.saturating_sub(1);
                    if levels.len() == 1 {
                        add_kept(&mut levels);
                    }
                }
                TokenKind::Indent => indentation += 1,
                TokenKind::Dedent => indentation = usize::saturating_sub(indentation, 1),
                _ => {}
            }
            if let Some((tokens, _)) = levels.last_mut() {
                *tokens += 1;
                sum += 1;
            }
            depth = depth.max(sum + 4 * (levels.len() + indentation));
            if levels.len() > MAX_BRACKETS {
                return Err("too many nested parentheses");
            }
            if indentation > MAX_INDENTATION {
                return Err("too many levels of indentation");
            }
            if depth > MAX_DEPTH {
                return Err("the expression is too complex");
            }
        }
    }
}

fn add_kept(levels: &mut [(usize, usize)]) {
    if let Some((_, kept)) = levels.last_mut() {
        *kept += 4;
    }
}

/// Returns the first line with which the beginning of the source is refused. The lexer does not tell positions.
fn refused_line(text: &str) -> usize {
    let lines = text.split_inclusive('\n').scan(0, |end, line| {
        *end += line.len();
        Some(*end)
    });
    let ends: Vec<_> = lines.collect();
    let is_accepted = |end: &usize| {
        text.get(..*end)
            .is_none_or(|text| Outline::of(text).is_ok())
    };
    ends.partition_point(is_accepted) + 1
}

/// Returns the innermost bracket that is never closed, and its offset.
fn unclosed_bracket(parsed: &Parsed<ModModule>) -> Option<(char, usize)> {
    let mut open = Vec::new();
    for token in parsed.tokens() {
        let bracket = match token.kind() {
            TokenKind::Lpar => '(',
            TokenKind::Lsqb => '[',
            TokenKind::Lbrace => '{',
            TokenKind::Rpar | TokenKind::Rsqb | TokenKind::Rbrace => {
                open.pop();
                continue;
            }
            _ => continue,
        };
        open.push((bracket, token.start().to_usize()));
    }
    open.pop()
}

struct Collector<'t> {
    positions: Positions<'t>,
    facts: SourceFacts,
}

impl Collector<'_> {
    fn import(&mut self, module: String, names: Vec<String>, level: u32, start: TextSize) {
        let (line, column) = self.positions.at(start.to_usize());
        self.facts.imports.push(Import {
            module,
            names,
            level,
            line,
            column,
        });
    }
}

/// In the order of the source, so that positions ascend.
impl<'a> SourceOrderVisitor<'a> for Collector<'_> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        match statement {
            Stmt::Import(import) => {
                for alias in &import.names {
                    self.import(alias.name.to_string(), Vec::new(), 0, alias.range.start());
                }
            }
            Stmt::ImportFrom(import) => {
                let (module, names) = match &import.module {
                    Some(module) => (module.to_string(), Vec::new()),
                    None => {
                        let names = import.names.iter().map(|it| it.name.to_string());
                        (String::new(), names.collect())
                    }
                };
                self.import(module, names, import.level, import.range.start());
            }
            _ => walk_stmt(self, statement),
        }
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        if let Expr::Call(call) = expression
            && let Some(function) = dynamic_function(&call.func)
        {
            let (line, column) = self.positions.at(call.range.start().to_usize());
            self.facts.dynamic.push(DynamicImport {
                function,
                line,
                column,
            });
        }
        walk_expr(self, expression);
    }
}

/// Returns the name of a called function that can import or execute code.
fn dynamic_function(function: &Expr) -> Option<String> {
    match function {
        Expr::Name(name) => {
            let name = name.id.as_str();
            let is_dynamic = ["__import__", "compile", "eval", "exec", "import_module"];
            is_dynamic.contains(&name).then(|| name.to_owned())
        }
        Expr::Attribute(attribute) => {
            let Expr::Name(object) = &*attribute.value else {
                return None;
            };
            let object = object.id.as_str();
            let is_dynamic = matches!(object, "importlib" | "runpy" | "__builtins__" | "builtins");
            is_dynamic.then(|| format!("{object}.{}", attribute.attr))
        }
        _ => None,
    }
}

/// Converts ascending offsets to lines and columns, in one pass over the text. Lines end with `\n`, `\r\n` or `\r`.
struct Positions<'t> {
    text: &'t str,
    offset: usize,
    line: usize,
    column: usize,
}

impl<'t> Positions<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            text,
            offset: 0,
            line: 1,
            column: 1,
        }
    }

    /// Returns the line and the column of an offset. One before the previous offset is found from the start.
    fn at(&mut self, offset: usize) -> (usize, usize) {
        if offset < self.offset {
            *self = Self::new(self.text);
        }
        let offset = offset.min(self.text.len());
        let between = self.text.get(self.offset..offset).unwrap_or_default();
        let bytes = between.as_bytes();
        let mut line_start = 0;
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' || (*byte == b'\r' && bytes.get(at + 1) != Some(&b'\n')) {
                self.line += 1;
                self.column = 1;
                line_start = at + 1;
            }
        }
        let rest = between.get(line_start..).unwrap_or_default();
        self.column += rest.chars().count();
        self.offset = offset;
        (self.line, self.column)
    }
}

fn position(text: &str, offset: usize) -> (usize, usize) {
    Positions::new(text).at(offset)
}

/// Writes a message as CPython does, in lower case.
fn lower_first(message: &str) -> String {
    let mut chars = message.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

#[cfg(test)]
mod tests;
