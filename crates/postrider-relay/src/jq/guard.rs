//! What of jq is replaced so that everything an expression does is counted and bounded.
//!
//! The interpreter evaluates `+`, `*` and string interpolation in one go, whatever the size of the result: `"x" * 1e12` asks for
//! a terabyte. So the parsed expression, and the library it is compiled with, is rewritten to call functions of ours. Collecting
//! `[f]` becomes `[f | .]`, so that each element is a step.

use std::cmp::Ordering;

use jaq_core::box_iter::box_once;
use jaq_core::load::lex::StrPart;
use jaq_core::load::parse::{BinaryOp, Def, Pattern, Term};
use jaq_core::native::{self, Fun, bome, v};
use jaq_core::ops::Math;
use jaq_core::path::{Part, Path};
use jaq_core::{Cv, Exn, RunPtr, ValXs};
use jaq_json::{Error, Num, Val, read};

use super::DEEPEST_INPUT;
use super::meter::Metered;
use super::output;
use crate::json;

/// Of one string, array, or number's digits that an operation makes.
const LARGEST_VALUE: usize = 16 << 20;
/// Of one number, in bits: the time to multiply grows faster than its digits.
const LARGEST_NUMBER: u64 = 1 << 18;

/// Functions that we write ourselves, and those that a relay must not have: an expression has no business with its environment,
/// its output or its end.
const REPLACED: [&str; 7] = ["range", "tojson", "fromjson", "env", "halt", "debug_empty", "stderr_empty"];
/// Definitions that go with them.
const LEFT_OUT: [&str; 4] = ["halt", "halt_error", "debug", "stderr"];

/// The library that expressions are written with.
pub(crate) fn definitions() -> impl Iterator<Item = Def<&'static str>> {
    let all = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    all.filter(|def| !LEFT_OUT.contains(&def.name)).map(definition)
}

/// The functions it rests on.
pub(crate) fn functions() -> impl Iterator<Item = Fun<Metered>> {
    let all = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    all.filter(|(name, ..)| !REPLACED.contains(name)).chain(ours())
}

fn definition(mut def: Def<&str>) -> Def<&str> {
    def.body = term(def.body);
    def
}

/// Rewrites an expression.
pub(crate) fn term<'s>(expression: Term<&'s str>) -> Term<&'s str> {
    let boxed = |inner: Box<Term<&'s str>>| Box::new(term(*inner));
    let all = |terms: Vec<Term<&'s str>>| terms.into_iter().map(term).collect();
    match expression {
        Term::Id | Term::Recurse | Term::Num(_) | Term::Arr(None) | Term::Break(_) | Term::Var(_) => {
            expression
        }
        Term::Str(None, parts) => Term::Str(
            None,
            string(parts, |inner| {
                Term::BinOp(inner.into(), BinaryOp::Pipe(None), call("!text", vec![]).into())
            }),
        ),
        // A format, `@uri "…\(.x)…"`, turns values into text by functions of ours already.
        Term::Str(format, parts) => Term::Str(format, string(parts, |inner| inner)),
        Term::Arr(Some(inner)) => {
            Term::Arr(Some(Box::new(Term::BinOp(boxed(inner), BinaryOp::Pipe(None), Box::new(Term::Id)))))
        }
        Term::Obj(members) => {
            Term::Obj(members.into_iter().map(|(name, value)| (term(name), value.map(term))).collect())
        }
        Term::Neg(inner) => Term::Neg(boxed(inner)),
        Term::BinOp(left, operator, right) => binary(boxed(left), operator, boxed(right)),
        Term::Label(name, inner) => Term::Label(name, boxed(inner)),
        Term::Fold(kind, over, bound, parts) => Term::Fold(kind, boxed(over), pattern(bound), all(parts)),
        Term::TryCatch(inner, handler) => Term::TryCatch(boxed(inner), handler.map(boxed)),
        Term::IfThenElse(cases, otherwise) => Term::IfThenElse(
            cases.into_iter().map(|(condition, then)| (term(condition), term(then))).collect(),
            otherwise.map(boxed),
        ),
        Term::Def(definitions, inner) => {
            Term::Def(definitions.into_iter().map(definition).collect(), boxed(inner))
        }
        Term::Call(name, arguments) => Term::Call(name, all(arguments)),
        Term::Path(inner, Path(parts)) => Term::Path(
            boxed(inner),
            Path(
                parts
                    .into_iter()
                    .map(|(part, optional)| {
                        let part = match part {
                            Part::Index(index) => Part::Index(term(index)),
                            Part::Range(from, to) => Part::Range(from.map(term), to.map(term)),
                        };
                        (part, optional)
                    })
                    .collect(),
            ),
        ),
    }
}

fn call<'s>(name: &'s str, arguments: Vec<Term<&'s str>>) -> Term<&'s str> {
    Term::Call(name, arguments)
}

fn string<'s>(
    parts: Vec<StrPart<&'s str, Term<&'s str>>>,
    wrap: impl Fn(Term<&'s str>) -> Term<&'s str>,
) -> Vec<StrPart<&'s str, Term<&'s str>>> {
    let part = |part| match part {
        StrPart::Term(inner) => StrPart::Term(wrap(term(inner))),
        other => other,
    };
    parts.into_iter().map(part).collect()
}

fn pattern(bound: Pattern<&str>) -> Pattern<&str> {
    match bound {
        Pattern::Var(_) => bound,
        Pattern::Arr(parts) => Pattern::Arr(parts.into_iter().map(pattern).collect()),
        Pattern::Obj(parts) => {
            Pattern::Obj(parts.into_iter().map(|(name, part)| (term(name), pattern(part))).collect())
        }
    }
}

fn binary<'s>(
    left: Box<Term<&'s str>>,
    operator: BinaryOp<&'s str>,
    right: Box<Term<&'s str>>,
) -> Term<&'s str> {
    match operator {
        BinaryOp::Math(math) => call(name(math), vec![*left, *right]),
        // `l += r` is `r as $x | l |= . + $x`, with a name that no expression can have.
        BinaryOp::UpdateMath(math) => {
            let update = call(name(math), vec![Term::Id, Term::Var("$!x")]);
            Term::BinOp(
                right,
                BinaryOp::Pipe(Some(Pattern::Var("$!x"))),
                Box::new(Term::BinOp(left, BinaryOp::Update, Box::new(update))),
            )
        }
        BinaryOp::Pipe(Some(bound)) => Term::BinOp(left, BinaryOp::Pipe(Some(pattern(bound))), right),
        other => Term::BinOp(left, other, right),
    }
}

fn name(math: Math) -> &'static str {
    match math {
        Math::Add => "!add",
        Math::Sub => "!sub",
        Math::Mul => "!mul",
        Math::Div => "!div",
        Math::Rem => "!rem",
    }
}

fn ours() -> impl Iterator<Item = Fun<Metered>> {
    let functions: [native::Filter<RunPtr<Metered>>; 9] = [
        ("!add", v(2), |cv| calculate(cv, Math::Add)),
        ("!sub", v(2), |cv| calculate(cv, Math::Sub)),
        ("!mul", v(2), |cv| calculate(cv, Math::Mul)),
        ("!div", v(2), |cv| calculate(cv, Math::Div)),
        ("!rem", v(2), |cv| calculate(cv, Math::Rem)),
        ("!text", v(0), |cv| match cv.1 {
            Val::BStr(_) | Val::TStr(_) => box_once(Ok(cv.1)),
            _ => to_text(&cv),
        }),
        ("tojson", v(0), |cv| to_text(&cv)),
        ("fromjson", v(0), |cv| from_text(&cv)),
        ("range", v(3), range),
    ];
    functions.into_iter().map(native::run::<Metered>)
}

fn calculate(mut cv: Cv<'_, Metered>, math: Math) -> ValXs<'_, Val> {
    let (right, left) = (cv.0.pop_var(), cv.0.pop_var());
    let size = match math {
        Math::Add => size(&left).saturating_add(size(&right)),
        Math::Mul => product_size(&left, &right),
        Math::Sub | Math::Div | Math::Rem => 0,
    };
    if size > LARGEST_VALUE {
        let what = math.as_str();
        return bome(Err(Error::str(format_args!(
            "the result of {what} would be larger than {LARGEST_VALUE} bytes"
        ))));
    }
    let meter = cv.0.data().meter;
    // A value that grows at its end is not copied each time, or rarely.
    meter.spend_bytes(size / 64);
    meter.spend_bytes(if math == Math::Mul { size } else { self::size(&right) });
    bome(math.run(left, right))
}

/// About how many bytes a value holds itself.
fn size(value: &Val) -> usize {
    match value {
        Val::Null | Val::Bool(_) => 0,
        Val::Num(Num::BigInt(number)) => usize::try_from(number.bits() / 8).unwrap_or(usize::MAX),
        Val::Num(_) => 8,
        Val::BStr(text) | Val::TStr(text) => text.len(),
        Val::Arr(elements) => elements.len().saturating_mul(16),
        Val::Obj(members) => members.len().saturating_mul(64),
    }
}

fn product_size(left: &Val, right: &Val) -> usize {
    let bits = |number: &Num| match number {
        Num::BigInt(number) => number.bits(),
        _ => 64,
    };
    match (left, right) {
        (Val::BStr(text) | Val::TStr(text), Val::Num(times))
        | (Val::Num(times), Val::BStr(text) | Val::TStr(text)) => {
            let times = match times {
                Num::BigInt(_) => usize::MAX,
                other => other.as_isize().and_then(|times| usize::try_from(times).ok()).unwrap_or(0),
            };
            text.len().saturating_mul(times)
        }
        (Val::Num(left), Val::Num(right)) if bits(left).saturating_add(bits(right)) > LARGEST_NUMBER => {
            usize::MAX
        }
        _ => size(left).saturating_add(size(right)),
    }
}

fn to_text<'a>(cv: &Cv<'a, Metered>) -> ValXs<'a, Val> {
    let (text, whole) = output::display(&cv.1, LARGEST_VALUE);
    if !whole {
        return bome(Err(Error::str(format_args!("the text would be larger than {LARGEST_VALUE} bytes"))));
    }
    cv.0.data().meter.spend_bytes(text.len());
    box_once(Ok(Val::from(text)))
}

fn from_text<'a>(cv: &Cv<'a, Metered>) -> ValXs<'a, Val> {
    let text = match cv.1.try_as_utf8_bytes_owned() {
        Ok(text) => text,
        Err(error) => return bome(Err(error)),
    };
    cv.0.data().meter.spend_bytes(text.len().saturating_mul(16));
    if !json::is_within_depth(&text, DEEPEST_INPUT) {
        return bome(Err(Error::str(format_args!(
            "cannot parse a text that is nested deeper than {DEEPEST_INPUT} levels"
        ))));
    }
    let fail = |error| {
        let (input, _) = output::display(&cv.1, 200);
        Exn::from(Error::str(format_args!("cannot parse {input} as JSON: {error}")))
    };
    let mut values = Vec::new();
    for value in read::parse_many(&text) {
        let is_last = value.is_err();
        values.push(value.map_err(fail));
        // Behind an error it would say the same for ever.
        if is_last {
            break;
        }
    }
    Box::new(values.into_iter())
}

/// The library's own counts nothing when its values are thrown away unseen: `last(range(1e12))`.
fn range(mut cv: Cv<'_, Metered>) -> ValXs<'_, Val> {
    let (by, to, from) = (cv.0.pop_var(), cv.0.pop_var(), cv.0.pop_var());
    let meter = cv.0.data().meter;
    let direction = by.cmp(&Val::from(0_isize));
    let mut next = Some(Ok(from));
    Box::new(std::iter::from_fn(move || {
        meter.spend(1);
        match next.take()? {
            Ok(at) => {
                let goes_on = match direction {
                    Ordering::Greater => at < to,
                    Ordering::Less => at > to,
                    Ordering::Equal => at != to,
                };
                if !goes_on {
                    return None;
                }
                next = Some((at.clone() + by.clone()).map_err(Exn::from));
                Some(Ok(at))
            }
            Err(error) => Some(Err(error)),
        }
    }))
}
