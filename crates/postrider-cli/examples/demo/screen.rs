//! What the demo prints. Data that does not fit is cut; colours and the live line are for terminals.

use std::io::{self, IsTerminal as _, Write};
use std::time::{Duration, Instant};

use postrider_testkit::Report;

use crate::books::Shown;
use crate::brokers::Kind;
use crate::load::{ROLLED_BACK, WRITERS};
use crate::pace::Pace;
use crate::place::{Holders, Place};
use crate::published::Published;
use crate::relays::Ended;
use crate::takeover::Outcome;
use crate::words::{clock, cut, span, thousands};

/// So many of the load's events are shown one by one; after that only yours.
const FIRST: usize = 10;

/// Where there is no terminal.
const WIDTH: usize = 100;

/// Where there is no terminal, the live line is printed this often.
const OFTEN: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
enum Style {
    Plain,
    Faint,
    Bold,
    Yours,
    Alarm,
}

pub(crate) struct Screen {
    out: Box<dyn Write>,
    is_terminal: bool,
    colours: bool,
    began: Instant,
    ran: Duration,
    shown: usize,
    /// On the screen's last line now.
    live: String,
    live_at: Instant,
}

/// What the live line tells.
pub(crate) struct Live<'a> {
    pub(crate) pace: &'a mut Pace,
    pub(crate) holders: &'a Holders,
    pub(crate) delivered: usize,
    /// Of the oldest event that is committed and not delivered.
    pub(crate) wait: Duration,
    /// The brokers, and how many events each has still to get.
    pub(crate) behind: &'a [(&'static str, i64)],
}

impl Default for Screen {
    fn default() -> Self {
        Self::new(Box::new(io::stdout()), io::stdout().is_terminal())
    }
}

impl Screen {
    pub(crate) fn new(out: Box<dyn Write>, is_terminal: bool) -> Self {
        Self {
            out,
            is_terminal,
            colours: is_terminal && std::env::var_os("NO_COLOR").is_none(),
            began: Instant::now(),
            ran: Duration::ZERO,
            shown: 0,
            live: String::new(),
            live_at: Instant::now(),
        }
    }

    pub(crate) fn line(&mut self, text: &str) -> io::Result<()> {
        self.styled(Style::Plain, text)
    }

    /// Server, schema and folder are there.
    pub(crate) fn welcome(&mut self, took: Duration, with: &[Kind]) -> io::Result<()> {
        let brokers = with.iter().map(|kind| kind.name());
        let names: Vec<&str> = std::iter::once("the screen and to a file").chain(brokers).collect();
        let to = names.join(", to ");
        self.line(&format!(
            "Ready after {:.1} s. {WRITERS} people work on issues, and each change of a row is an event of its transaction; one in {ROLLED_BACK} is rolled back.\n\
             Two relays run: A carries the events, B stands by. They write them to {to}.\n",
            took.as_secs_f64()
        ))
    }

    /// The load starts.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.began = Instant::now();
        self.live_at = self.began;
        let heads = self.row("UTC", "type", "key", "payload", "lag");
        self.styled(Style::Faint, &heads)
    }

    /// An event has arrived. True once enough of them were shown.
    pub(crate) fn event(&mut self, event: &Published, shown: Shown) -> io::Result<bool> {
        let Shown { lag, is_yours, is_again } = shown;
        if !is_yours && self.shown >= FIRST {
            return Ok(false);
        }
        let row = self.row(&clock(event.at), &event.r#type, &event.key, &event.payload, &span(lag));
        if is_yours {
            let again = if is_again { ", once more, with the same id" } else { "" };
            self.styled(Style::Yours, &format!("{row}  <- yours{again}"))?;
            return Ok(false);
        }
        self.shown += 1;
        self.styled(Style::Plain, &row)?;
        Ok(self.shown == FIRST)
    }

    /// What one can do now.
    pub(crate) fn hints(&mut self, place: &Place, carrier: Option<u32>) -> io::Result<()> {
        let program = place.program();
        self.line("… and so on. In another terminal, write something yourself; it shows up here at once:\n")?;
        self.styled(Style::Bold, &format!("  {}\n", place.how_to_write()))?;
        self.line("Look at it from outside:\n")?;
        self.styled(
            Style::Bold,
            &format!(
                "  export DATABASE_URL={}\n  {program} status --watch\n  {program} tail\n  tail -f {}\n",
                place.url,
                place.archive().display()
            ),
        )?;
        for broker in &place.brokers {
            self.line(&format!("What {} has got:\n", broker.kind().name()))?;
            self.styled(Style::Bold, &format!("  {}\n", broker.look()))?;
        }
        if let Some(pid) = carrier {
            self.line("Kill the relay that does the work, and see what is lost:\n")?;
            self.styled(Style::Bold, &format!("  kill -9 {pid}\n"))?;
        }
        Ok(())
    }

    /// A relay has ended.
    pub(crate) fn ended(&mut self, ended: &Ended, holders: &Holders) -> io::Result<()> {
        let Ended { name, pid, status } = ended;
        let after = if !holders.contains_key(name) {
            "It was standing by, nothing changes."
        } else if status.code() == Some(0) {
            "It handed its lanes over."
        } else {
            "The other one takes its lanes when its lease has run out, within 6 s."
        };
        self.styled(Style::Alarm, &format!("Relay {name} (pid {pid}) has ended: {status}. {after}"))
    }

    /// Everything that was committed when delivery went on is delivered, or it took too long.
    pub(crate) fn taken_over(&mut self, outcome: &Outcome, carrier: Option<(String, u32)>) -> io::Result<()> {
        let Outcome { gap, committed, missing, repeated } = outcome;
        let delivered = thousands(committed - missing);
        let committed = thousands(*committed);
        self.styled(
            if *missing == 0 { Style::Yours } else { Style::Alarm },
            &format!(
                "Delivery went on after {}: committed {committed}, delivered {delivered}, lost {missing}, sent twice {repeated}",
                span(*gap)
            ),
        )?;
        match carrier {
            Some((name, pid)) => self.line(&format!("Relay {name} does the work now: kill -9 {pid}")),
            None => Ok(()),
        }
    }

    /// Draws the live line anew; where there is no terminal, prints it now and then.
    pub(crate) fn live(&mut self, mut live: Live<'_>) -> io::Result<()> {
        if !self.is_terminal {
            if self.live_at.elapsed() < OFTEN {
                return Ok(());
            }
            self.live_at += OFTEN;
            let text = cut(&self.live_text(&mut live), WIDTH);
            return writeln!(self.out, "{text}");
        }
        let text = cut(&self.live_text(&mut live), width().saturating_sub(1));
        self.live = text;
        self.draw()
    }

    fn live_text(&self, live: &mut Live<'_>) -> String {
        let (rate, lags) = live.pace.now();
        let lag = match lags {
            _ if live.wait > Duration::from_secs(1) => format!("waiting {}", span(live.wait)),
            Some((half, most)) => format!("lag {}, p99 {}", span(half), span(most)),
            None => "quiet".to_owned(),
        };
        format!(
            "{:>4} s  {rate:>4}/s  {lag}  delivered {}{}  lanes: {}",
            self.began.elapsed().as_secs(),
            thousands(live.delivered),
            behind(live.behind),
            lanes(live.holders)
        )
    }

    /// The load has stopped.
    pub(crate) fn end(&mut self) -> io::Result<()> {
        self.ran = self.began.elapsed();
        self.clear()?;
        self.live.clear();
        Ok(())
    }

    /// The end.
    pub(crate) fn result(
        &mut self,
        report: &Report,
        pace: &mut Pace,
        yours: usize,
        brokers: &[(&str, u64)],
    ) -> io::Result<()> {
        let rolled_back = report.attempted - report.committed;
        let own = match yours {
            0 => String::new(),
            1 => ", 1 of them yours".to_owned(),
            many => format!(", {many} of them yours"),
        };
        let lag = match pace.whole() {
            Some((half, most, longest)) => {
                format!("p50 {}, p99 {}, longest {}", span(half), span(most), span(longest))
            }
            None => "nothing came".to_owned(),
        };
        self.line(&format!(
            "\ncommitted  {} events in {} s{own}; {} more were rolled back on purpose\n\
             delivered  {}, lost {}, invented {}, out of order {}, duplicates {}\n\
             lag        from commit to here {lag}\n",
            thousands(report.committed),
            self.ran.as_secs(),
            thousands(rolled_back),
            thousands(report.delivered),
            report.lost.count,
            report.phantom.count,
            report.misordered.count,
            report.duplicated.count
        ))?;
        for (name, count) in brokers {
            self.line(&format!("{name:<10} has {count} messages, by its own word"))?;
        }
        let verdict = if report.is_exact() {
            "Every committed event arrived, once and in order; no other did. Everything is gone again."
        } else if report.is_faithful() {
            "Every committed event arrived, in order; no other did. Some came twice, with the same id. Everything is gone again."
        } else {
            return self.styled(Style::Alarm, &format!("This is not right, please report it: {report}"));
        };
        self.styled(Style::Yours, verdict)
    }

    fn row(&self, time: &str, r#type: &str, key: &str, payload: &str, lag: &str) -> String {
        let width = if self.is_terminal { width() } else { WIDTH };
        // Beside the payload there are 47 columns, and behind yours a note.
        let payload_width = width.saturating_sub(47 + 11).clamp(10, 120);
        let (r#type, key) = (cut(r#type, 14), cut(key, 6));
        let payload = cut(payload, payload_width);
        format!("{time:<12}  {type:<14} {key:<6} {payload:<payload_width$} {lag:>8}")
    }

    fn styled(&mut self, style: Style, text: &str) -> io::Result<()> {
        let on = match style {
            _ if !self.colours => "",
            Style::Plain => "",
            Style::Faint => "\x1b[2m",
            Style::Bold => "\x1b[1m",
            Style::Yours => "\x1b[1;32m",
            Style::Alarm => "\x1b[1;33m",
        };
        let off = if on.is_empty() { "" } else { "\x1b[0m" };
        self.clear()?;
        writeln!(self.out, "{on}{text}{off}")?;
        self.draw()
    }

    /// Takes the live line away.
    fn clear(&mut self) -> io::Result<()> {
        if self.live.is_empty() { Ok(()) } else { write!(self.out, "\r\x1b[K") }
    }

    fn draw(&mut self) -> io::Result<()> {
        if !self.live.is_empty() {
            let (on, off) = if self.colours { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
            write!(self.out, "\r\x1b[K{on}{}{off}", self.live)?;
        }
        self.out.flush()
    }
}

/// `  waiting: nats 0, redis 2`.
fn behind(brokers: &[(&str, i64)]) -> String {
    if brokers.is_empty() {
        return String::new();
    }
    let each: Vec<String> = brokers.iter().map(|(name, events)| format!("{name} {events}")).collect();
    format!("  waiting: {}", each.join(", "))
}

/// `A archive 16, screen 16`.
fn lanes(holders: &Holders) -> String {
    if holders.is_empty() {
        return "nobody's".to_owned();
    }
    let relays = holders.iter().map(|(relay, sinks)| {
        let sinks: Vec<String> = sinks.iter().map(|(sink, lanes)| format!("{sink} {lanes}")).collect();
        format!("{relay} {}", sinks.join(", "))
    });
    relays.collect::<Vec<_>>().join("; ")
}

fn width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout()).map_or(WIDTH, |size| usize::from(size.ws_col).max(20))
}
