//! Values as text, bounded.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use jaq_json::{Num, Val};

use crate::json;

/// Of what a transform gives.
const LARGEST: usize = 16 << 20;

/// As people read it, cut at this many bytes; whether that is all of it.
pub(crate) fn display(value: &dyn fmt::Display, most: usize) -> (String, bool) {
    let mut out = Bounded { text: String::new(), most };
    let whole = write!(out, "{value}").is_ok();
    (out.text, whole)
}

struct Bounded {
    text: String,
    most: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.most - self.text.len();
        self.text.push_str(&more[..more.floor_char_boundary(room)]);
        if more.len() > room { Err(fmt::Error) } else { Ok(()) }
    }
}

/// As JSON, or why there is none: jq knows values that JSON does not.
pub(crate) fn json(value: &Val) -> Result<String, String> {
    let mut out = Vec::with_capacity(512);
    push(&mut out, value)?;
    String::from_utf8(out).map_err(|error| error.to_string())
}

fn push(out: &mut Vec<u8>, value: &Val) -> Result<(), String> {
    if out.len() > LARGEST {
        return Err(format!("gives more than {LARGEST} bytes"));
    }
    match value {
        Val::Null => out.extend_from_slice(b"null"),
        Val::Bool(true) => out.extend_from_slice(b"true"),
        Val::Bool(false) => out.extend_from_slice(b"false"),
        Val::Num(number) => push_number(out, number)?,
        Val::TStr(text) => {
            let text = std::str::from_utf8(text)
                .map_err(|error| format!("gives a string that is no text: {error}"))?;
            json::push_string(out, text);
        }
        Val::BStr(_) => return Err("gives bytes; JSON has only text".to_owned()),
        Val::Arr(elements) => {
            out.push(b'[');
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                push(out, element)?;
            }
            out.push(b']');
        }
        Val::Obj(members) => {
            out.push(b'{');
            for (at, (name, member)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                if !matches!(name, Val::TStr(_)) {
                    return Err(format!(
                        "gives an object with the name {}; JSON has only strings",
                        display(name, 100).0
                    ));
                }
                push(out, name)?;
                out.push(b':');
                push(out, member)?;
            }
            out.push(b'}');
        }
    }
    Ok(())
}

/// Integers and decimals that were only passed on are written as they were read, to the last digit.
fn push_number(out: &mut Vec<u8>, number: &Num) -> Result<(), String> {
    match number {
        Num::Float(float) if !float.is_finite() => {
            return Err(format!("gives {number}, which JSON does not have"));
        }
        Num::Dec(text) if !is_json_number(text) => {
            let Num::Float(float) = Num::from_dec_str(text) else {
                return Err(format!("gives the number {text}"));
            };
            return push_number(out, &Num::Float(float));
        }
        // Writing into a vector cannot fail.
        _ => {
            let _ = write!(out, "{number}");
        }
    }
    Ok(())
}

/// jq also reads `+1.5` and `01.5`.
fn is_json_number(text: &str) -> bool {
    serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
}
