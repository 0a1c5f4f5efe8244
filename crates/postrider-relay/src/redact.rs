//! No secret in what others get to read.

use std::ops::Range;

/// Takes out what may be a password. Nothing of ours prints one; this is for words of others that repeat what the user typed, such
/// as a URL in the place of an option. Rather too much than too little: a password may itself contain `@`, quotes or blanks.
pub fn redact(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(redact_line).collect();
    lines.join("\n")
}

fn redact_line(line: &str) -> String {
    let mut line = line.to_owned();
    if let Some(secret) = login(&line) {
        line.replace_range(secret, "***");
    }
    if let Some(start) = line.find("password=") {
        line.replace_range(start + "password=".len().., "***");
    }
    line
}

/// The secret before the host of an address, also where its scheme is misspelt.
fn login(line: &str) -> Option<Range<usize>> {
    let at = line.rfind('@')?;
    let Some(slashes) = line.find("//").filter(|slashes| *slashes < at) else {
        // `redis:me:canary@host`
        let word = line[..at].rfind([' ', '\'', '"', '`']).map_or(0, |blank| blank + 1);
        return line[word..at].find(':').map(|colon| word + colon + 1..at);
    };
    let start = slashes + 2;
    let login = &line[start..at];
    // A user without a password is a token there.
    let is_nats = ["nats:", "tls:"].iter().any(|scheme| line[..slashes].ends_with(scheme));
    let user = login.split('@').next().unwrap_or(login);
    if is_nats && !user.contains(':') {
        return Some(start..at);
    }
    login.find(':').map(|colon| start + colon + 1..at)
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
            "url: nats://canary@host:4222",
            "url: tls://canary@host:4222,nats://canary@other:4222",
            "url: nats://me:canary@host:4222,nats://me:canary@other:4222",
            "invalid value 'redis//me:canary@host' for '--to <PLACE>'",
            "invalid value 'redis:me:canary@host' for '--to <PLACE>'",
        ] {
            let redacted = redact(&format!("first\n{line}\nlast"));
            assert!(!redacted.contains("canary"), "{redacted}");
            assert!(redacted.contains("***"), "{redacted}");
            assert!(redacted.starts_with("first\n") && redacted.ends_with("\nlast"), "{redacted}");
        }
        for harmless in [
            "give postgres://USER@HOST:PORT/NAME, see https://postgresql.org",
            "invalid: me@host",
            "url: nats://host:4222",
        ] {
            assert_eq!(redact(harmless), harmless);
        }
        assert_eq!(redact("nats://me:canary@host"), "nats://me:***@host");
    }
}
