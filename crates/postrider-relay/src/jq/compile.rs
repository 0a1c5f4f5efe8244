//! From text to something that runs, or to a message with the place of the mistake.

use jaq_core::load::lex::{Lexer, Token};
use jaq_core::load::parse::{Def, Expect, Parser};
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Filter};

use super::guard;
use super::meter::Metered;
use crate::prepare::PrepareError;

/// A name that no expression can have.
const MAIN: &str = "postrider_expression";

pub(crate) fn compile(key: &'static str, code: &str) -> Result<Filter<Metered>, PrepareError> {
    let wrong = |message: String| PrepareError { key, message };
    if cfg!(panic = "abort") {
        return Err(wrong("this program was built with panic=abort, and a runaway expression could not be stopped; build it with panic=unwind".to_owned()));
    }
    let tokens = Lexer::new(code).lex().map_err(|errors| {
        wrong(first(
            code,
            errors.iter().map(|(expected, found)| (*found, format!("expected {}", expected.as_str()))),
        ))
    })?;
    let expression = Parser::new(&tokens).parse(Parser::term).map_err(|errors| {
        let expected = |expect: &Expect<&'_ str>| match expect {
            Expect::Nothing => "expected the end".to_owned(),
            other => format!("expected {}", other.as_str()),
        };
        let mistakes =
            errors.iter().map(|(expect, found)| (Token::opt_as_str(*found, code), expected(expect)));
        wrong(first(code, mistakes))
    })?;
    let main = Def { name: MAIN, args: Vec::new(), body: guard::term(expression) };
    let arena = Arena::default();
    let loader = Loader::new(guard::definitions().map(shorter).chain([main]));
    let modules = loader
        .load(&arena, File { code: MAIN, path: () })
        .map_err(|errors| wrong(format!("cannot be loaded: {errors:?}")))?;
    Compiler::default().with_funs(guard::functions()).compile(modules).map_err(|errors| {
        let undefined = errors.iter().flat_map(|(_, errors)| errors);
        wrong(first(
            code,
            undefined.map(|(name, what)| (*name, format!("there is no {} {name}", what.as_str()))),
        ))
    })
}

/// Lets the library live with an expression that lives shorter.
fn shorter<'s>(def: Def<&'static str>) -> Def<&'s str> {
    def
}

/// The first mistake, with its place.
fn first<'s>(code: &'s str, mistakes: impl Iterator<Item = (&'s str, String)>) -> String {
    let mut mistakes: Vec<_> = mistakes.map(|(found, what)| (offset(code, found), what)).collect();
    mistakes.sort();
    let Some((at, what)) = mistakes.into_iter().next() else { return "cannot be compiled".to_owned() };
    let Some(at) = at else { return what };
    let before = &code[..at];
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let found = code[at..].lines().next().unwrap_or_default();
    if found.is_empty() {
        return format!("line {line}, column {column}: {what}, and the expression ends");
    }
    let shown: String = found.chars().take(40).collect();
    format!("line {line}, column {column}: {what} at {shown:?}")
}

/// Where a piece of the code stands in it; names of the library do not.
fn offset(code: &str, piece: &str) -> Option<usize> {
    let at = piece.as_ptr().addr().checked_sub(code.as_ptr().addr())?;
    (at <= code.len() && code.is_char_boundary(at)).then_some(at)
}
