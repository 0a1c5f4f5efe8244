-- The job queue: what is there. How it is written is in 0007_jobs_enqueue.sql, how it is worked off in 0007_jobs_work.sql.
--
-- A job that may run flows through a ring of tables that is only appended to, as the log's events do. Claiming moves a cursor, one appended row
-- for a whole batch; finishing appends one row for a batch again. No row is updated or deleted, so a held xmin keeps nothing alive that
-- anybody walks over. Only what has to wait (for its time, for another attempt, for its key) is in an ordinary table.
--
-- Measured before it was built, batches of 500, claim and finish in transactions of their own, two busy cores, PostgreSQL 15, jobs per second:
--                                                          alone   with a REPEATABLE READ transaction held open
--   update (skip locked) to claim, delete to finish         30.6k  17.7k after 50,000 jobs, and falling
--   delete (skip locked) to claim, a row for the batch      42.0k  20.0k after 50,000 jobs, and falling
--   cursor over an append-only table (this one)             65.9k  67.4k

create sequence if not exists postrider.job_id as bigint cache 1 no cycle;
create sequence if not exists postrider.job_claim as bigint cache 1 no cycle;
-- Where each ring is written; sequences for the reasons of 0001_log.sql.
create sequence if not exists postrider.job_slot as bigint minvalue 0 start 0 cache 1;
create sequence if not exists postrider.job_claim_slot as bigint minvalue 0 start 0 cache 1;
create sequence if not exists postrider.job_result_slot as bigint minvalue 0 start 0 cache 1;
-- The wake-up protocol of the log (crates/postrider/src/log/wake.rs), for workers.
create sequence if not exists postrider.job_armed as bigint minvalue 0 start 1 cache 1;
create sequence if not exists postrider.job_disarmed as bigint minvalue 0 start 1 cache 1;
create sequence if not exists postrider.job_armed_until as bigint minvalue 0 start 1 cache 1;
create table if not exists postrider.job_bell (nothing boolean primary key);

-- Jobs that may run. One that is tried again is here once for each attempt, with the same id.
create table if not exists postrider.jobs (
    -- First on purpose, as in postrider.events: (xid, id) is the position that a cursor moves over.
    xid          xid8        not null default pg_current_xact_id(),
    id           bigint      not null default nextval('postrider.job_id'),
    slot         smallint    not null,
    queue        text        collate "C" not null,
    priority     smallint    not null,
    kind         text        not null,
    key          text        collate "C",
    unique_key   text        collate "C",
    -- Which attempt this is, from 1, and in how many of those before it the worker vanished.
    attempt      smallint    not null default 1,
    lost         smallint    not null default 0,
    max_attempts smallint    not null,
    payload      json        not null,
    created_at   timestamptz not null default now()
) partition by list (slot);

-- A claim: a range of one band (a queue's jobs of one priority), and where its cursor stands afterwards. The jobs of a claim are those that `target` sees
-- and `seen` does not, in the order of (xid, id), after `after` and up to `upto`; the next claim goes on from there. When a target is
-- used up it becomes what was seen, and the snapshot of the moment the next target: a transaction that was open is found when it has committed, and
-- nobody waits for it. The claim's number is the fencing token.
create table if not exists postrider.job_claims (
    slot       smallint    not null,
    claim      bigint      not null,
    queue      text        collate "C" not null,
    priority   smallint    not null,
    number     bigint      not null,
    seen       pg_snapshot not null,
    target     pg_snapshot not null,
    after_xid  xid8        not null,
    after_id   bigint      not null,
    upto_xid   xid8        not null,
    upto_id    bigint      not null,
    jobs       integer     not null,
    -- None of them has a key, a unique key or a failure behind it, so that finishing need not look.
    is_plain   boolean     not null,
    -- Its worker says in job_begun when the last attempt of a job begins.
    begins     boolean     not null,
    worker     uuid        not null,
    claimed_at timestamptz not null default clock_timestamp(),
    -- By this server's clock. A worker that sends heartbeats holds it for longer.
    expires_at timestamptz not null,
    primary key (claim, slot),
    unique (queue, priority, number, slot)
) partition by list (slot);

-- What is finished of a claim: this job, or with 0 all that is left, which closes the claim. Beside the claim, in the slot of the same number. A row
-- for each job: of two that finish the same one the second waits for the first at the key, and is refused.
create table if not exists postrider.job_settled (
    slot       smallint    not null,
    claim      bigint      not null,
    job        bigint      not null,
    settled_at timestamptz not null default clock_timestamp(),
    primary key (claim, job, slot)
) partition by list (slot);

-- How jobs ended, for as long as their queue keeps it.
create table if not exists postrider.job_results (
    slot        smallint    not null,
    id          bigint      not null,
    queue       text        not null,
    kind        text        not null,
    key         text,
    state       text        not null check (state in ('done', 'cancelled', 'discarded')),
    attempt     smallint    not null,
    worker      uuid,
    created_at  timestamptz not null,
    claimed_at  timestamptz,
    finished_at timestamptz not null default clock_timestamp(),
    error       text,
    output      json
) partition by list (slot);

do $$
begin
    for slot in 0..7 loop
        execute format('create table if not exists postrider.jobs_%s partition of postrider.jobs for values in (%s)', slot, slot);
        execute format('create table if not exists postrider.job_results_%s partition of postrider.job_results for values in (%s)', slot, slot);
    end loop;
    for slot in 0..3 loop
        execute format('create table if not exists postrider.job_claims_%s partition of postrider.job_claims for values in (%s)', slot, slot);
        execute format('create table if not exists postrider.job_settled_%s partition of postrider.job_settled for values in (%s)', slot, slot);
    end loop;
    if to_regclass('postrider.jobs_band') is null then create index jobs_band on postrider.jobs (queue, priority, xid, id); end if;
    if to_regclass('postrider.jobs_id') is null then create index jobs_id on postrider.jobs using brin (id) with (pages_per_range = 16); end if;
    if to_regclass('postrider.job_results_id') is null then
        create index job_results_id on postrider.job_results using brin (id) with (pages_per_range = 16);
    end if;
end
$$;

-- Jobs of open claims whose slot had to be emptied.
create table if not exists postrider.job_kept (
    claim bigint not null,
    like postrider.jobs,
    primary key (claim, id)
);

-- Jobs that wait: for their time (the first run, another attempt, a snooze), for their key to be free, or dead, for a person.
create table if not exists postrider.job_waiting (
    id           bigint      primary key,
    queue        text        collate "C" not null,
    priority     smallint    not null,
    kind         text        not null,
    key          text        collate "C",
    unique_key   text        collate "C",
    attempt      smallint    not null default 1,
    lost         smallint    not null default 0,
    max_attempts smallint    not null,
    payload      json        not null,
    created_at   timestamptz not null default now(),
    state        text        not null check (state in ('scheduled', 'key', 'dead')),
    run_at       timestamptz not null,
    last_error   text,
    -- The failures, oldest first: [{"at":...,"attempt":...,"error":...}], the last ten.
    history      jsonb       not null default '[]'
);
create index if not exists job_waiting_due on postrider.job_waiting (queue, run_at) where state = 'scheduled';
create index if not exists job_waiting_key on postrider.job_waiting (queue, key, id) where state = 'key';
create index if not exists job_waiting_dead on postrider.job_waiting (queue, id) where state = 'dead';

-- Keys to look at, and from when on: a job has come, or the one before it has gone. A row for each such event and none for a key, so nobody
-- who enqueues or finishes waits for another, and a claim looks at what has changed and not at all that waits.
create table if not exists postrider.job_turns (
    queue  text        collate "C" not null,
    at     timestamptz not null,
    number bigint      generated always as identity,
    key    text        collate "C" not null,
    primary key (queue, at, number)
);

-- Last attempts that have begun: of a worker that vanishes, such a job is dead, and one that was not begun is not.
create table if not exists postrider.job_begun (
    claim bigint not null,
    id    bigint not null,
    primary key (claim, id)
);

-- The failures of a job that is on its way again.
create table if not exists postrider.job_failures (
    id      bigint primary key,
    history jsonb  not null
);

-- Which job of a key is on its way; the others of the key wait for it.
create table if not exists postrider.job_keys (
    queue text   collate "C" not null,
    key   text   collate "C" not null,
    id    bigint not null,
    primary key (queue, key)
);

-- Which job has a unique key, and until when: 'infinity' is until it ends.
create table if not exists postrider.job_unique (
    queue      text        collate "C" not null,
    unique_key text        collate "C" not null,
    id         bigint      not null,
    until      timestamptz not null,
    primary key (queue, unique_key)
);
create index if not exists job_unique_until on postrider.job_unique (until) where until < 'infinity';

-- Jobs that were cancelled while they were on their way.
create table if not exists postrider.job_cancelled (
    id           bigint      primary key,
    cancelled_at timestamptz not null default clock_timestamp()
);

-- What is set for a queue; one that is not here has these defaults. Claiming locks its row, and changes nothing in it.
create table if not exists postrider.job_queues (
    queue         text     collate "C" primary key,
    paused_at     timestamptz,
    -- After how long without a sign of life a worker's jobs go to others.
    lease         interval not null default '30 seconds' check (lease >= interval '1 second'),
    -- For how long it is kept how a job ended; zero: not at all.
    keep_results  interval not null default '1 day' check (keep_results >= interval '0'),
    first_backoff interval not null default '1 second' check (first_backoff > interval '0'),
    max_backoff   interval not null default '1 hour' check (max_backoff > interval '0')
);

create table if not exists postrider.job_workers (
    worker     uuid        primary key,
    name       text        not null,
    queues     text[]      not null,
    -- The claims that it holds; null: all that were made under this name.
    claims     bigint[],
    started_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
);

create table if not exists postrider.job_crons (
    name         text        primary key,
    expression   text        not null,
    time_zone    text        not null default 'UTC',
    queue        text        not null default 'default',
    kind         text        not null,
    payload      json        not null default '{}',
    priority     smallint    not null default 0,
    max_attempts smallint    not null default 25,
    -- What becomes of ticks that passed while nobody looked: none of them runs, the last one, or each.
    missed       text        not null default 'last' check (missed in ('skip', 'last', 'all')),
    next_at      timestamptz,
    last_tick    timestamptz,
    last_job     bigint
);

-- When the slot of results was begun that is being written.
create table if not exists postrider.job_result_ring (
    slot      smallint primary key check (slot between 0 and 7),
    opened_at timestamptz not null default clock_timestamp()
);
