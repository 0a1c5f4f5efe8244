//! `./dev demo`: a private PostgreSQL, writers that emit events along with their changes, and a reader that shows them as they commit.
//!
//! Nothing of the machine is used or changed: the server is started for this and is gone afterwards, even after `kill -9`.
#![forbid(unsafe_code)]

mod arguments;
mod books;
mod load;
mod screen;
mod server;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use postrider::log::{Reader, ReaderOptions, Record, Start};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use arguments::{Arguments, HELP};
use books::Books;
use load::Load;
use screen::Screen;
use server::Demo;

/// How long events may take to arrive after the last commit. They take milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(complaint) => {
            eprintln!("demo: {complaint}\n\n{HELP}");
            return ExitCode::from(USAGE);
        }
    };
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Answers whether every committed event arrived exactly once and in order, and no other.
#[tokio::main]
async fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let mut screen = Screen::default();
    let demo = Demo::start(&mut screen).await?;
    let books = Arc::new(Books::default());
    let delivered = deliver(arguments, &demo, &books, &mut screen).await;
    let stopped = demo.stop().await;
    delivered?;
    stopped?;
    let report = books.close();
    screen.result(&report, books.yours())?;
    Ok(report.is_exact())
}

/// Runs the load and shows what is read, until the time is over or somebody presses Ctrl-C; then reads what is left.
async fn deliver(
    arguments: &Arguments,
    demo: &Demo,
    books: &Arc<Books>,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let options = ReaderOptions { start: Start::Earliest, ..ReaderOptions::new("demo") };
    let reader = Reader::open(demo.options.clone(), options).await?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let reading = tokio::spawn(read(reader, sender));
    let mut load = Load::start(&demo.pool, books);
    screen.begin()?;

    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    second.tick().await;
    let mut over = std::pin::pin!(async {
        match arguments.seconds {
            Some(seconds) => sleep(Duration::from_secs(seconds)).await,
            None => std::future::pending().await,
        }
    });
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        tokio::select! {
            received = events.recv() => match received {
                Some(received) => show(&received, books, screen)?,
                None => return reading.await?,
            },
            _ = second.tick() => screen.second()?,
            failed = load.failure() => return Err(failed).context("a writer failed"),
            () = &mut over => break,
            _ = &mut interrupt => break,
        }
    }

    load.stop().await?;
    screen.end();
    let owed = demo.events().await?;
    let all_read = async {
        while !books.have_received(&owed) {
            match events.recv().await {
                Some(received) => show(&received, books, screen)?,
                None => bail!("the reader has ended"),
            }
        }
        Ok(())
    };
    // What is missing after that is lost, and the report says so.
    if let Ok(result) = timeout(PATIENCE, all_read).await {
        result?;
    }
    books.note_yours(&owed, &demo.events().await?);
    reading.abort();
    Ok(())
}

struct Received {
    at: Instant,
    records: Vec<Record>,
}

/// Hands on each batch, and settles it when that is done: not before, or a crash in between would lose it.
async fn read(mut reader: Reader, events: mpsc::UnboundedSender<Received>) -> anyhow::Result<()> {
    loop {
        let batch = reader.next().await?;
        let received = Received { at: Instant::now(), records: batch.records().cloned().collect() };
        if events.send(received).is_err() {
            return Ok(());
        }
        reader.settle(&batch).await?;
    }
}

fn show(received: &Received, books: &Books, screen: &mut Screen) -> anyhow::Result<()> {
    for record in &received.records {
        let lag = books.receive(record, received.at);
        screen.event(record, lag)?;
    }
    Ok(())
}
