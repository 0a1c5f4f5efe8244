//! User and password, as they stand in an address.

/// `%40` is an `@`; what is no such thing stays as it is.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = hex.filter(|_| first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_has_encoded_is_decoded() {
        for (encoded, plain) in
            [("me", "me"), ("p%40ss%3A%2f", "p@ss:/"), ("50%", "50%"), ("%zz%4", "%zz%4"), ("%ff", "%ff")]
        {
            assert_eq!(decoded(encoded), plain);
        }
    }
}
