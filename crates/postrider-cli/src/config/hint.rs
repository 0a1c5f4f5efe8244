//! "Did you mean": the nearest of the words that would have been right.

/// The nearest word, if it is near enough to be meant.
pub(crate) fn nearest<'w>(word: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let word = word.to_ascii_lowercase();
    words
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(&word, &known.to_ascii_lowercase()), known))
        .filter(|(distance, known)| *distance <= (known.len().max(word.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// As the help of a finding: the nearest word, else all of them.
pub(crate) fn among(word: &str, words: &[&str]) -> Option<String> {
    match nearest(word, words.iter().copied()) {
        Some(known) => Some(format!("did you mean `{known}`?")),
        None if words.is_empty() => None,
        None => Some(format!("possible here: {}", words.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_found_and_the_far_is_not() {
        let words = ["retention", "lease", "idle", "sweep"];
        assert_eq!(nearest("retentoin", words), Some("retention"));
        assert_eq!(nearest("Leases", words), Some("lease"));
        assert_eq!(nearest("listen", words), None);
        assert_eq!(among("x", &[]), None);
    }
}
