//! A real project of Django, in `tests/django/`: our migration is one of its own, and nothing it writes goes by unseen.

use std::path::{Path, PathBuf};
use std::process::Command;

use postrider_testkit::Database;

use super::File;
use crate::support::End;
use crate::world::{ask, installed, run};

const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/django");

/// Triggers and functions of ours that are there for captured tables.
const OURS: &str = "select (select count(*) from pg_trigger where tgname like '00\\_postrider%')
    + (select count(*) from pg_proc where proname like 'capture\\_public\\_%')";

/// A copy of the project, because a migration is written into it. Gone with the value.
struct Project {
    folder: PathBuf,
    database: Database,
}

impl Project {
    async fn new() -> Self {
        let database = installed().await;
        let folder = std::env::temp_dir().join(format!("{}-django", database.name()));
        copy(Path::new(PROJECT), &folder);
        Self { folder, database }
    }

    fn python(&self, url: &str, words: &[&str]) -> End {
        let packages = postrider_testkit::cache().join("pip");
        assert!(
            packages.join("django").is_dir() && packages.join("psycopg").is_dir(),
            "there is no Django in {}: `./dev setup` fetches it",
            packages.display()
        );
        let mut python = Command::new("/usr/bin/python3");
        python.args(words).current_dir(&self.folder).env("PYTHONPATH", packages).env("DATABASE_URL", url);
        // Nothing of whoever runs this, and nothing left behind in the cache.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("PG") || text.starts_with("DJANGO") {
                python.env_remove(&name);
            }
        }
        End::of(python.env("PYTHONDONTWRITEBYTECODE", "1"))
    }

    fn manage(&self, words: &[&str]) -> End {
        self.python(&self.database.url(), &[&["manage.py"], words].concat())
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            copy(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

#[tokio::test]
async fn whatever_django_writes_is_an_event() {
    let project = Project::new().await;
    let database = &project.database;
    let file = File::new(database, include_str!("../../django/postrider.yaml"));
    project.manage(&["migrate", "--skip-checks", "--verbosity", "0"]).expect(0);
    let migration = project.folder.join("tracker/migrations/0002_capture.py");
    let written = file.run(database, &["sql", "--format", "django", "--after", "tracker.0001_initial"]);
    std::fs::write(&migration, written.expect(0).stdout).unwrap();

    // Forwards, back, forwards.
    project.manage(&["migrate", "--skip-checks", "tracker"]).expect(0);
    file.run(database, &["plan"]).expect(0);
    project.manage(&["migrate", "--skip-checks", "tracker", "0001_initial"]).expect(0);
    assert_eq!(ask(database, OURS).await, "0");
    file.run(database, &["plan"]).expect(2);
    project.manage(&["migrate", "--skip-checks", "tracker"]).expect(0);
    let plan = file.run(database, &["plan", "--json"]).expect(0).json();
    let tables = plan["tables"].as_array().unwrap();
    assert!(tables.len() >= 3 && tables.iter().all(|table| table["state"] == "installed"), "{plan}");

    // The application's role has no right on our schema.
    let role = format!("{}_app", database.name());
    run(
        database,
        format!(
            "create role \"{role}\" login;
             grant select, insert, update, delete on all tables in schema public to \"{role}\";
             grant usage on all sequences in schema public to \"{role}\""
        ),
    )
    .await;
    project.python(&database.url_as(&role), &["writes.py"]).expect(0);
    // Between keys there is no order: one statement may change its rows in any.
    let events = "select string_agg(format(E'%s  %s  %s\\n    %s\\n    %s\\n', path, type, key,
                         payload -> 'data', payload -> 'previous_attributes'), '' order by first, key::int, seq)
                  from (select headers ->> 'path' as path, min(seq) over (partition by headers ->> 'path') as first, * from postrider.events) e";
    let events = ask(database, events).await;
    let wanted = include_str!("../../django/events.txt");
    for (found, wanted) in events.lines().zip(wanted.lines()) {
        assert_eq!(found, wanted, "in\n{events}");
    }
    assert_eq!(events, wanted);
    run(database, format!("drop owned by \"{role}\"; drop role \"{role}\"")).await;
}
