//! What can go wrong with the log, and what to do about it.

use uuid::Uuid;

use super::advice;

/// Result of a log operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the log: what happened and the remedy, with the cause behind it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database answered with an error or not at all.
    #[error("the database failed: {}", advice::said(.0))]
    Database(#[source] sqlx::Error),

    /// A function of the schema refused its arguments.
    #[error("the input is refused: {}", advice::said(.0))]
    Input(#[source] sqlx::Error),

    /// The database answered a handler with an error or not at all, and the handler has an error of its own around that.
    #[error("the database failed a handler: {said}")]
    Handler {
        /// What the handler said.
        said: String,
    },

    /// The server said nothing for too long.
    #[error("the database did not answer within {seconds} seconds; connecting again")]
    NoAnswer {
        /// How long that was.
        seconds: u64,
    },

    /// Events turned out to be much larger than those before.
    #[error("events became large, one of {bytes} bytes: connecting again to read fewer at a time")]
    RoundTooLarge {
        /// The size of one of them.
        bytes: usize,
    },

    /// The schema is not there.
    #[error("this database has no postrider schema; install it with `postrider init`")]
    NotInstalled,

    /// The schema is older or newer than this program.
    #[error(
        "the postrider schema has version {found}, this program works with {oldest} to {newest}; {}",
        if found < oldest { "upgrade it with `postrider init`" } else { "use a newer postrider" }
    )]
    SchemaVersion {
        /// What is installed.
        found: i32,
        /// The oldest that will do.
        oldest: i32,
        /// The newest that is known.
        newest: i32,
    },

    /// Connected to a standby.
    #[error(
        "this server is a standby (or read-only): the log can only be read on the primary; give the primary's own address, a name \
         that follows it, or all the hosts that may be it, as postgres://h1,h2/NAME"
    )]
    NotPrimary,

    /// Of several servers none will do.
    #[error("none of the servers is a primary that answers: {tried}")]
    NoPrimary {
        /// Each with what is wrong with it.
        tried: String,
    },

    /// Something between us and the server takes no settings for a session.
    #[error(
        "a pooler is in between that takes no session settings ({0}); reading needs a session of its own: connect to the server \
         itself. Producers may go through the pooler"
    )]
    Pooler(#[source] sqlx::Error),

    /// A setting that reading depends on did not take.
    #[error(
        "the session setting {name} is {found:?}, not {wanted:?}, after it was set; something between us and the server \
         (a pooler in transaction mode?) changes sessions: connect the relay directly"
    )]
    Setting {
        /// Which one.
        name: &'static str,
        /// What the server says.
        found: String,
        /// What reading needs.
        wanted: String,
    },

    /// The log belongs to another cluster or to another past of this one.
    #[error(
        "this is not the database the cursors were made in: {what}; see what it would do and then run `postrider rebase`"
    )]
    Rebase {
        /// Which check failed.
        what: String,
    },

    /// A rebase while somebody reads.
    #[error(
        "readers are at work: {names}; stop them first (one that died is forgotten when its lease has run out, seconds later), or \
         take their lanes away with `postrider rebase --yes --overrule-readers`: what they have in flight is then sent again"
    )]
    ReadersAlive {
        /// Their names.
        names: String,
    },

    /// A rebase while transactions that have written events stay open.
    #[error(
        "these transactions have written events and do not end: {transactions}; end them and run `postrider rebase --yes` again, \
         with a longer --wait if they need it. Until then no reader can start"
    )]
    WritersOpen {
        /// Virtual transaction and process of each.
        transactions: String,
    },

    /// A table or sequence of the log was changed so that events could be lost.
    #[error("the log is not safe to read: {what}; {remedy}")]
    Unsafe {
        /// What was found.
        what: String,
        /// The statement that mends it.
        remedy: String,
    },

    /// Somebody else holds the lanes.
    #[error(
        "sink {sink:?}: the lease was lost to another reader (epoch {epoch}); what was in flight will be read again"
    )]
    LeaseLost {
        /// The sink.
        sink: String,
        /// The epoch that no longer holds anything.
        epoch: i64,
    },

    /// The connection that read a batch is gone, and with it the right to settle it.
    #[error(
        "sink {sink:?}: the connection that read these records was lost before they were settled; they will be read again"
    )]
    ConnectionLost {
        /// The sink.
        sink: String,
    },

    /// The task behind a reader has ended.
    #[error("the reader of sink {sink:?} has ended; its last error said why: open it again")]
    ReaderEnded {
        /// The sink.
        sink: String,
    },

    /// A batch was settled before one that was read earlier.
    #[error("lane {lane} was settled out of order: settle batches in the order in which they were read")]
    OutOfOrder {
        /// The lane.
        lane: i16,
    },

    /// A sink lacks the cursor of a lane.
    #[error(
        "sink {sink:?} has no cursor for lane {lane}: its progress was removed by hand; forget the sink and create it again"
    )]
    CursorMissing {
        /// The sink.
        sink: String,
        /// The lane.
        lane: i16,
    },

    /// Somebody forgot the sink while it was read.
    #[error(
        "sink {sink:?} was forgotten while this reader read it, with everything that was known about it; it begins anew, where its start \
         says. Take it out of the configuration first if it is to stay away"
    )]
    SinkForgotten {
        /// The sink.
        sink: String,
    },

    /// A sink has the name of a consumer.
    #[error(
        "{sink:?} is a consumer that reads the log by itself (postrider.next_batch), and a relay would take its events away; give the sink \
         another name"
    )]
    IsConsumer {
        /// Its name.
        sink: String,
    },

    /// A lane outside of the log's.
    #[error("the log has no lane {lane}")]
    UnknownLane {
        /// The number asked for.
        lane: i16,
    },

    /// Asked to read nothing.
    #[error("no lane to read")]
    NoLanes,

    /// The reading statement's first row could not be understood.
    #[error("the facts of a round could not be read")]
    Facts(#[source] serde_json::Error),

    /// Roles have to exist and may not be created by us.
    #[error(
        "{missing} missing and {user:?} may not create roles; let a role with CREATEROLE run:\n{statements}"
    )]
    Roles {
        /// Which.
        missing: String,
        /// Who we are.
        user: String,
        /// What to run.
        statements: String,
    },

    /// Installing needs a right that this user has not got.
    #[error("{user:?} {missing}; let {whom} run:\n{statement}")]
    Rights {
        /// Who we are.
        user: String,
        /// What is missing.
        missing: String,
        /// Who can help.
        whom: String,
        /// What to run.
        statement: String,
    },

    /// A superuser would run whatever the schema's owner has put there.
    #[error(
        "the schema postrider belongs to {owner:?}, and this is a superuser: what its owner has put there would run with all rights; \
         connect as {owner:?}, or as a member of the role for the task"
    )]
    Superuser {
        /// Whose schema it is.
        owner: String,
    },

    /// The schema was installed with other lanes.
    #[error(
        "this log was installed with {found} lanes, and their number is fixed from then on, so {wanted} is refused; leave it out, or, \
         while nothing is in the log yet, run `drop schema postrider, postrider_capture cascade` and install it anew"
    )]
    Lanes {
        /// As installed.
        found: i32,
        /// As asked.
        wanted: i32,
    },

    /// A reader's heartbeat vanished.
    #[error("reader {reader} was forgotten by the database; it registers again")]
    Forgotten {
        /// Its id.
        reader: Uuid,
    },

    /// A position or xid that is no number.
    #[error("the database returned {text:?} where a transaction id belongs")]
    Xid {
        /// What it was.
        text: String,
    },
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        if advice::is_input(&error) { Self::Input(error) } else { Self::Database(error) }
    }
}

impl Error {
    /// Whether somebody else held a lock for too long.
    pub fn is_lock_timeout(&self) -> bool {
        matches!(self, Self::Database(error) if has_code(error, "55P03"))
    }

    /// Whether a statement took longer than it may.
    pub(super) fn is_too_slow(&self) -> bool {
        matches!(self, Self::NoAnswer { .. })
            || matches!(self, Self::Database(error) if has_code(error, "57014"))
    }

    /// Whether the connection was lost over it, or ended by somebody's hand.
    pub fn is_disconnect(&self) -> bool {
        let Self::Database(error) = self else { return false };
        match error {
            sqlx::Error::Io(_) => true,
            sqlx::Error::Database(error) => error
                .code()
                .is_some_and(|code| code.starts_with("57P0") || code.starts_with("08") || was_idle(&code)),
            _ => false,
        }
    }

    /// Whether connecting again may help. Everything else needs a person.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database(error) => is_transient(error),
            Self::LeaseLost { .. }
            | Self::ConnectionLost { .. }
            | Self::NotPrimary
            | Self::NoPrimary { .. }
            | Self::NoAnswer { .. }
            | Self::Handler { .. }
            | Self::RoundTooLarge { .. }
            | Self::Forgotten { .. } => true,
            _ => false,
        }
    }
}

fn has_code(error: &sqlx::Error, wanted: &str) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() == Some(wanted)
}

/// The server has ended a session in the middle of a transaction that took too long.
fn was_idle(code: &str) -> bool {
    matches!(code, "25P03" | "25P04")
}

/// Whether connecting again may help.
pub(crate) fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => is_passing(&**error),
        _ => false,
    }
}

/// Whether what a server says may be over by itself.
pub(crate) fn is_passing(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().is_some_and(|code| {
        // Connection trouble, serialization failures and deadlocks, resources, an operator's hand, lock not available, a server
        // that became read-only, a process that was not let run for longer than its transactions may be idle.
        ["08", "40", "53", "57"].iter().any(|class| code.starts_with(class))
            || code == "55P03"
            || code == "25006"
            || was_idle(&code)
    })
}
