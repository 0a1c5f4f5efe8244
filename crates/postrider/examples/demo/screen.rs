//! What the demo prints. Everything fits into 100 columns.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider_testkit::Report;
use time::OffsetDateTime;

use crate::books::Lag;
use crate::load::{ROLLED_BACK, WRITERS};

/// Of the load's events one per so much time is shown: eight lines a second can be read.
const LINE_EVERY: Duration = Duration::from_millis(125);

const PAYLOAD_WIDTH: usize = 46;

#[derive(Clone, Copy)]
enum Style {
    Plain,
    Faint,
    Loud,
}

pub(crate) struct Screen {
    colours: bool,
    began: Instant,
    /// How long the load ran.
    ran: Duration,
    last_line: Option<Instant>,
    /// Since the last summary.
    recent: Vec<Duration>,
    all: Vec<Duration>,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            began: Instant::now(),
            ran: Duration::ZERO,
            last_line: None,
            recent: Vec::new(),
            all: Vec::new(),
        }
    }
}

impl Screen {
    pub(crate) fn line(&self, text: &str) -> io::Result<()> {
        self.styled(Style::Plain, text)
    }

    /// The server is there.
    pub(crate) fn welcome(&self, took: Duration, how_to_emit: &str) -> io::Result<()> {
        self.line(&format!(
            "Ready after {:.1} s. {WRITERS} writers change orders and emit an event in the same transaction; one in {ROLLED_BACK}\n\
             of them rolls back. What commits shows up below: a few events each second, and all of yours.\n\n\
             Emit one yourself, in another terminal:\n",
            took.as_secs_f64()
        ))?;
        self.styled(Style::Loud, &format!("  {how_to_emit}\n"))
    }

    /// The load starts.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.began = Instant::now();
        let heads = row("UTC", "type", "key", "payload", "lag");
        self.styled(Style::Faint, &heads)
    }

    /// An event has arrived.
    pub(crate) fn event(&mut self, record: &Record, lag: Lag) -> io::Result<()> {
        let key = record.key.as_deref().unwrap_or("-");
        let print =
            |lag: Duration| row(&clock(record.created_at), &record.r#type, key, &record.payload, &ms(lag));
        match lag {
            Lag::Yours(lag) => self.styled(Style::Loud, &format!("{}  <- yours", print(lag))),
            Lag::Load(lag) => {
                self.recent.push(lag);
                let now = Instant::now();
                if self.last_line.is_some_and(|last| now < last + LINE_EVERY) {
                    return Ok(());
                }
                self.last_line = Some(now);
                self.styled(Style::Plain, &print(lag))
            }
        }
    }

    /// A second has passed.
    pub(crate) fn second(&mut self) -> io::Result<()> {
        let mut lags = std::mem::take(&mut self.recent);
        let text = format!(
            "------------  {:>3} s: {:>4} events/s, from commit to here {}",
            self.began.elapsed().as_secs(),
            lags.len(),
            percentiles(&mut lags)
        );
        self.all.extend(lags);
        self.styled(Style::Faint, &text)
    }

    /// The load has stopped.
    pub(crate) fn end(&mut self) {
        self.ran = self.began.elapsed();
    }

    /// The end.
    pub(crate) fn result(&mut self, report: &Report, yours: usize) -> io::Result<()> {
        self.all.append(&mut self.recent);
        let lags = percentiles(&mut self.all);
        let longest = self.all.last().copied().unwrap_or_default();
        let rolled_back = report.attempted - report.committed;
        let own = match yours {
            0 => String::new(),
            1 => ", 1 of them yours".to_owned(),
            many => format!(", {many} of them yours"),
        };
        self.line(&format!(
            "\ncommitted  {} events in {} s{own}; {rolled_back} more were rolled back on purpose\n\
             delivered  {}: {} lost, {} invented, {} duplicated, {} out of order\n\
             lag        from commit to here {lags}, longest {}\n",
            report.committed,
            self.ran.as_secs(),
            report.delivered,
            report.lost.count,
            report.phantom.count,
            report.duplicated.count,
            report.misordered.count,
            ms(longest)
        ))?;
        if report.is_exact() {
            self.styled(
                Style::Loud,
                "Every committed event arrived, once and in order; no other did. The server is gone again.",
            )
        } else {
            self.styled(Style::Loud, &format!("This is not right, please report it: {report}"))
        }
    }

    fn styled(&self, style: Style, text: &str) -> io::Result<()> {
        let (on, off) = match style {
            Style::Faint if self.colours => ("\x1b[2m", "\x1b[0m"),
            Style::Loud if self.colours => ("\x1b[1;32m", "\x1b[0m"),
            _ => ("", ""),
        };
        writeln!(io::stdout(), "{on}{text}{off}")
    }
}

fn row(time: &str, r#type: &str, key: &str, payload: &str, lag: &str) -> String {
    let r#type = cut(r#type, 13);
    let key = cut(key, 5);
    let payload = cut(payload, PAYLOAD_WIDTH);
    format!("{time:<12}  {type:<13} {key:<5}  {payload:<PAYLOAD_WIDTH$} {lag:>8}")
}

/// At most `width` characters, on one line, and nothing that a terminal would obey.
fn cut(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(width + 1).collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let mut short: String = clean.chars().take(width - 1).collect();
    short.push('…');
    short
}

fn clock(at: OffsetDateTime) -> String {
    let (hour, minute, second, milli) = at.to_hms_milli();
    format!("{hour:02}:{minute:02}:{second:02}.{milli:03}")
}

fn ms(lag: Duration) -> String {
    format!("{:.1} ms", lag.as_secs_f64() * 1000.0)
}

/// Sorts them.
fn percentiles(lags: &mut [Duration]) -> String {
    lags.sort_unstable();
    let at = |percent: usize| lags.get((lags.len() * percent / 100).min(lags.len().saturating_sub(1)));
    match (at(50), at(99)) {
        (Some(&half), Some(&most)) => format!("p50 {}, p99 {}", ms(half), ms(most)),
        _ => "nothing".to_owned(),
    }
}
