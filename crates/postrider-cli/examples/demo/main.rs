//! `./dev demo`: a private PostgreSQL with an issue tracker whose tables are captured, people who change issues, and two relays
//! (`postrider run`) that carry the events to the screen and to a file. Kill a relay: the file is compared with what was committed.
//!
//! Nothing of the machine is used or changed: everything is started for this and is gone afterwards, even after `kill -9`.
#![forbid(unsafe_code)]

mod archive;
mod arguments;
mod books;
mod brokers;
mod load;
mod pace;
mod place;
mod published;
mod relays;
mod screen;
mod show;
mod takeover;
#[cfg(test)]
mod tests;
mod words;

use std::process::ExitCode;
use std::sync::Arc;

use postrider_testkit::Report;

use arguments::{Arguments, HELP};
use books::Books;
use load::Load;
use place::Place;
use relays::Relays;
use screen::Screen;
use show::Show;

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
    match run(&arguments, Screen::default()) {
        Ok(report) if report.is_faithful() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was committed against what is in the file. One thread: the relays' lives hang on it.
#[tokio::main(flavor = "current_thread")]
async fn run(arguments: &Arguments, mut screen: Screen) -> anyhow::Result<Report> {
    let place = Place::make(&mut screen, &arguments.with).await?;
    let books = Arc::new(Books::default());
    let shown = show(arguments, &place, &books, screen).await;
    let stopped = place.stop().await;
    let mut show = shown?;
    stopped?;
    let report = books.close();
    show.result(&report, books.yours())?;
    anyhow::ensure!(show.brokers_have(report.committed), "a broker has fewer messages than were committed");
    Ok(report)
}

/// Runs the load and shows what comes, until the time is over or somebody presses Ctrl-C; then waits for the rest.
async fn show<'p>(
    arguments: &Arguments,
    place: &'p Place,
    books: &Arc<Books>,
    screen: Screen,
) -> anyhow::Result<Show<'p>> {
    let relays = Relays::start(place).await?;
    let mut show = Show::new(place, Arc::clone(books), relays, screen);
    let mut load = Load::start(&place.pool, books);
    show.until_over(arguments, &mut load).await?;
    load.stop().await?;
    show.rest().await?;
    show.count().await?;
    Ok(show)
}
