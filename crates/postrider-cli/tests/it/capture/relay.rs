//! A relay at work looks after the triggers of the declared tables.

use super::{File, ORDERS};
use crate::http::{Relay, until};
use crate::world::{installed, run};

/// Its role may do what a relay must, and nothing with the tables.
#[tokio::test]
async fn fault_54_a_trigger_that_is_switched_off_is_an_alarm_of_the_relay() {
    let database = installed().await;
    run(&database, ORDERS).await;
    let role = format!("{}_relay", database.name());
    run(
        &database,
        format!(
            "create role \"{role}\" login in role postrider_relay; revoke all on schema public from public"
        ),
    )
    .await;
    let file = File::new(
        &database,
        "log: { sweep: 200ms }\nhttp: { listen: '127.0.0.1:0' }\nlogs: { format: json }\nsinks:\n  out: { 'null': {} }\n\
         tables:\n  public.orders: { entity: order }\n",
    );
    file.run(&database, &["apply"]).expect(0);
    let mut command = file.command(&database, &["run"]);
    let mut relay = Relay::start(command.env("DATABASE_URL", database.url_as(&role)));
    let address = relay.address();
    let state = |state: &str, is: u8| {
        format!("\npostrider_capture_table_state{{table=\"public.orders\",state=\"{state}\"}} {is}\n")
    };
    until(address, "/metrics", |_, page| page.contains(&state("installed", 1)));
    until(address, "/healthz", |code, _| code == 200);

    run(&database, "alter table orders disable trigger user").await;
    until(address, "/metrics", |_, page| {
        page.contains(&state("disabled", 1)) && page.contains(&state("installed", 0))
    });
    let health = until(address, "/healthz", |code, _| code == 503);
    assert!(health.contains("[-] table public.orders: disabled: "), "{health}");
    until(address, "/readyz", |code, _| code == 200);

    file.run(&database, &["apply"]).expect(0);
    until(address, "/healthz", |code, _| code == 200);
    run(
        &database,
        "drop trigger \"00_postrider\" on orders; drop trigger \"00_postrider_truncate\" on orders",
    )
    .await;
    until(address, "/metrics", |_, page| page.contains(&state("missing", 1)));
    let said = relay.stop();
    let alarm = |state: &str| {
        said.lines().any(|line| {
            line.contains("a declared table is not captured as declared")
                && line.contains(&format!("\"state\":\"{state}\""))
        })
    };
    assert!(alarm("disabled") && alarm("missing"), "{said}");
    run(&database, format!("drop role \"{role}\"")).await;
}
