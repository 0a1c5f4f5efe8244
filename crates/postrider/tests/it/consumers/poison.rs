//! Fault 107: messages that nobody can digest, among others that were in hand with them.

use std::os::unix::process::ExitStatusExt as _;

use super::child::{Order, Worker};
use super::far::{Far, Letter, prepare, unique};
use super::{ledger, payments, sums, until};

const GOOD: usize = 60;
const MAX_ATTEMPTS: u32 = 3;

/// All of them are given up with their reason, and nobody else.
pub async fn poison<F: Far>(far: &F) {
    let consumer = unique("poisoned");
    let (database, pool) = ledger().await;
    prepare(far, &consumer).await;
    let mut letters = payments(GOOD, 20);
    let bad = [
        (20, Letter::of(101, "fatal", "fatal"), "the process ended each time"),
        (10, Letter::of(102, "dead", "dead"), "not for us"),
        (30, Letter::of(103, "broken", "broken"), "always"),
        (40, Letter::of(104, "panicking", "panicking"), "the handler panicked: at the payment"),
        (
            5,
            Letter { body: b"{\"specversion\":".to_vec(), ..Letter::payment(105, "torn") },
            "the body is no JSON",
        ),
        (
            15,
            Letter { body: payment_in_words(), ..Letter::payment(106, "words") },
            "the payload is not what the handler takes",
        ),
        (25, Letter::of(109, "heedless", "heedless"), "the database failed: current transaction is aborted"),
        (35, Letter { body: with_id("a\\u0000b"), ..Letter::payment(110, "zero") }, "no inbox takes its id"),
        (
            45,
            Letter { body: with_id(&"x".repeat(1025)), ..Letter::payment(110, "long") },
            "no inbox takes its id",
        ),
    ];
    for (place, letter, _) in &bad {
        letters.insert(*place, letter.clone());
    }
    letters.push(Letter::of(107, "late", "late"));
    // Beside the one that ends the process, and longer at work than that one lives: it must not be counted with it.
    let fatal = letters.iter().position(|letter| letter.key == "fatal").unwrap();
    letters.insert(fatal, Letter::of(108, "slow", "slow"));
    far.publish(&letters).await;
    let order = Order {
        kind: far.kind().to_owned(),
        url: far.url(),
        consumer: consumer.clone(),
        database: database.url(),
        slot: 0,
        point: None,
        countdown: 0,
        max_attempts: MAX_ATTEMPTS,
    };
    let mut deaths = 0;
    let mut worker = Worker::start(&order);
    until("nothing is left", async || {
        if let Some(status) = worker.has_ended() {
            assert_eq!(status.signal(), Some(9), "{status}");
            deaths += 1;
            worker = Worker::start(&order);
        }
        let booked = sums(&pool).await.0 >= i64::try_from(GOOD + 2).unwrap();
        booked && far.left(&consumer).await == 0 && far.dead_letters(&consumer).await.len() >= bad.len()
    })
    .await;
    assert!(worker.stop().await.success());
    assert_eq!(far.left(&consumer).await, 0);
    println!("{}: the process ended {deaths} times", far.kind());
    // Once unseen, unless the broker cannot tell what came before, and then as often as it is let.
    assert!((MAX_ATTEMPTS..=MAX_ATTEMPTS + 1).contains(&deaths), "{deaths} deaths");
    let neighbours: Vec<String> =
        sqlx::query_scalar("select event_id from ledger order by amount").fetch_all(&pool).await.unwrap();
    let good: Vec<String> = (1..=GOOD).chain([107, 108]).map(Letter::id).collect();
    assert_eq!(neighbours, good, "each neighbour once");
    let mut found = far.dead_letters(&consumer).await;
    let all = found.len();
    found.sort_by(|a, b| a.body.cmp(&b.body));
    found.dedup_by(|a, b| a.body == b.body);
    assert_eq!(found.len(), bad.len(), "{found:?}");
    // What has no id, or none that an inbox takes, is in none: read again after a crash, it is buried again.
    let torn = 3 * (1 + deaths as usize);
    assert!((bad.len()..bad.len() + torn).contains(&all), "{all} dead letters");
    for (_, letter, reason) in bad {
        let dead = found.iter().find(|dead| dead.body == letter.body);
        let dead = dead.unwrap_or_else(|| panic!("{reason}: no letter with its body among {found:?}"));
        assert!(dead.reason.starts_with(reason), "{:?} is not {reason:?}", dead.reason);
        assert_eq!(dead.consumer, consumer);
    }
}

/// As it stands in JSON.
fn with_id(id: &str) -> Vec<u8> {
    let letter = Letter::payment(110, "zero");
    String::from_utf8(letter.body).unwrap().replace(&Letter::id(110), id).into_bytes()
}

fn payment_in_words() -> Vec<u8> {
    let letter = Letter::payment(106, "words");
    String::from_utf8(letter.body).unwrap().replace(r#""amount":106"#, r#""amount":"many""#).into_bytes()
}
