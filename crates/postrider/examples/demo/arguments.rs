//! The command line.

pub(crate) const HELP: &str = "\
usage: ./dev demo [--seconds N]

Starts a private PostgreSQL, lets a few writers emit events and shows them as they commit, until Ctrl-C.

  --seconds N    end after N seconds
  --help         this text

Exit status: 0 if every committed event arrived exactly once and in order, 1 if not, 64 for wrong usage.
";

pub(crate) struct Arguments {
    pub(crate) seconds: Option<u64>,
}

impl Arguments {
    /// `None` if only help was asked for.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut seconds = None;
        while let Some(word) = words.next() {
            let value = match word.split_once('=') {
                _ if word == "--help" || word == "-h" => return Ok(None),
                _ if word == "--seconds" => words.next().ok_or("--seconds needs a number")?,
                Some(("--seconds", value)) => value.to_owned(),
                _ => return Err(format!("unknown argument `{word}`")),
            };
            seconds = match value.parse() {
                Ok(number @ 1..) => Some(number),
                _ => {
                    return Err(format!("--seconds needs a whole number of at least 1, not `{value}`"));
                }
            };
        }
        Ok(Some(Self { seconds }))
    }
}
