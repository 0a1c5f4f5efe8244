//! No secret in what others get to read.

/// Takes out what may be a password. Nothing of ours prints one; this is for words of others that repeat what the user typed, such
/// as a URL in the place of an option. Rather too much than too little: a password may itself contain `@`, quotes or blanks.
pub fn redact(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(redact_line).collect();
    lines.join("\n")
}

fn redact_line(line: &str) -> String {
    let mut line = line.to_owned();
    if let Some(scheme) = line.find("://")
        && let Some(at) = line.rfind('@')
        && let Some(colon) = line.get(scheme + 3..at).and_then(|login| login.find(':'))
    {
        line.replace_range(scheme + 3 + colon + 1..at, "***");
    }
    if let Some(start) = line.find("password=") {
        line.replace_range(start + "password=".len().., "***");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_taken_out() {
        for line in [
            "unexpected argument 'postgres://me:canary@host/db' found",
            "unexpected argument 'postgres://me:can@canary@host/db' found",
            "unexpected argument 'postgres://me:it is a canary@host/db' found",
            "'postgres://host/db?user=me&password=canary' found",
            "'host=h password=canary'",
        ] {
            let redacted = redact(&format!("first\n{line}\nlast"));
            assert!(!redacted.contains("canary"), "{redacted}");
            assert!(redacted.contains("***"), "{redacted}");
            assert!(redacted.starts_with("first\n") && redacted.ends_with("\nlast"), "{redacted}");
        }
        let harmless = "give postgres://USER@HOST:PORT/NAME, see https://postgresql.org";
        assert_eq!(redact(harmless), harmless);
    }
}
