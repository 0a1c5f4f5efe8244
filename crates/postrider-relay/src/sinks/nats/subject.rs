//! Names of subjects.

/// Whether an event can be published there: tokens with dots between them, and nothing that means several subjects.
pub(crate) fn check_subject(name: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{name:?} is no subject of NATS for an event: {why}"));
    if name.starts_with('$') {
        return wrong("what begins with $ is the server's own");
    }
    if name.contains(char::is_whitespace) {
        return wrong("it has a blank in it");
    }
    for token in name.split('.') {
        match token {
            "" => return wrong("there is nothing before, after or between two of its dots"),
            "*" | ">" => return wrong("* and > are for those who listen"),
            _ => {}
        }
    }
    Ok(())
}

/// Whether a stream with this subject, in which `*` is any token and a last `>` is any rest, takes that one; or all that it stands for, if it
/// is such a subject itself.
pub(super) fn takes(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for wanted in filter.split('.') {
        match (wanted, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(token)) if token != ">" => {}
            (wanted, Some(token)) if wanted == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_several_subjects_or_none_is_refused() {
        for good in ["events", "events.order.paid", "a.b*c", "ä.é"] {
            assert_eq!(check_subject(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a.*", ">", "a.>", "$JS.API.INFO", "a\tb"] {
            assert!(check_subject(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stream_takes_what_its_subjects_say() {
        for (filter, subject) in
            [("a", "a"), ("a.>", "a.b"), ("a.>", "a.b.c"), ("*.b", "a.b"), ("a.*.c", "a.b.c"), (">", "a")]
        {
            assert!(takes(filter, subject), "{filter} {subject}");
        }
        for (filter, subject) in [("a", "b"), ("a.>", "a"), ("a.*", "a.b.c"), ("a.*", "a"), ("a", "a.b")] {
            assert!(!takes(filter, subject), "{filter} {subject}");
        }
        // Of subjects that stand for several.
        for (filter, subjects) in
            [(">", "a.>"), ("a.>", "a.>"), ("a.>", "a.*"), ("*.>", "a.>"), ("a.*", "a.*")]
        {
            assert!(takes(filter, subjects), "{filter} {subjects}");
        }
        for (filter, subjects) in [("a.*", "a.>"), ("*", ">"), ("a.b", "a.*"), ("a.b.>", "a.>"), ("a.>", ">")]
        {
            assert!(!takes(filter, subjects), "{filter} {subjects}");
        }
    }
}
