//! The command line.

use std::time::Duration;

use crate::brokers::Kind;

pub(crate) const HELP: &str = "\
usage: ./dev demo [--seconds N] [--kill N] [--with BROKER,...]

Starts a private PostgreSQL with a small issue tracker, makes an event of every change of its tables, lets a few writers change
them, and relays the events by `postrider run` to the screen and to a file, until Ctrl-C.

  --seconds N    end after N seconds
  --kill N       after N seconds kill -9 the relay that does the work, as you can by hand at any time
  --with LIST    relay them to private brokers too: rabbitmq, kafka, nats, redis, with commas between them
  --help         this text

Exit status: 0 if every committed event arrived, in order, and no other did; 1 if not; 64 for wrong usage.
";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) end: Option<Duration>,
    pub(crate) kill: Option<Duration>,
    pub(crate) with: Vec<Kind>,
}

impl Arguments {
    /// `None` if only help was asked for.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut arguments = Self::default();
        while let Some(word) = words.next() {
            if word == "--help" || word == "-h" {
                return Ok(None);
            }
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let place = match name {
                "--seconds" => &mut arguments.end,
                "--kill" => &mut arguments.kill,
                "--with" => {
                    let list = value.or_else(|| words.next()).ok_or("--with needs the names of brokers")?;
                    arguments.with = Kind::list(&list)?;
                    continue;
                }
                _ => return Err(format!("unknown argument `{word}`")),
            };
            let value = value.or_else(|| words.next()).ok_or_else(|| format!("{name} needs a number"))?;
            match value.parse() {
                Ok(seconds @ 1..) => *place = Some(Duration::from_secs(seconds)),
                _ => return Err(format!("{name} needs a whole number of at least 1, not `{value}`")),
            }
        }
        Ok(Some(arguments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Option<Arguments>, String> {
        Arguments::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn words_are_understood_or_refused() {
        let with = vec![Kind::Nats, Kind::Redis];
        let all = Arguments { end: Some(Duration::from_secs(9)), kill: Some(Duration::from_secs(3)), with };
        assert_eq!(parse(&["--seconds", "9", "--kill=3", "--with", "nats,redis"]), Ok(Some(all)));
        assert_eq!(parse(&["--seconds", "9", "-h"]), Ok(None));
        for wrong in
            [&["--seconds"][..], &["--seconds", "0"], &["--kill=x"], &["--fast"], &["--with"], &["--with=x"]]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
