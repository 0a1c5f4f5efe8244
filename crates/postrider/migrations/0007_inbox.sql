-- The inbox: which events a consumer has had. A broker may deliver a message twice; the row that says so is written in the
-- transaction of the effect, so the effect happens once.
--
-- A ring of four tables that are emptied as a whole, never row by row. Uniqueness has to hold across the ring, also while it turns, and
-- without a lock per id (a transaction that takes ten thousand would use up the server's lock table). So the ring has two phases:
--
--   even  one table is written. An unfinished row of the same id can only be there, and its unique index waits for it; what the other
--         tables have is committed and seen.
--   odd   the ring turns: every row goes into the old table and into the new one. Whoever still has unfinished rows in the old one alone
--         is met there. It ends when all transactions that ran when it began have ended.
--
-- Under repeatable read or serializable a committed row may be invisible, so there the other tables are asked by trying to insert.

-- Outside MVCC, so always the newest; set, never drawn. The table that is written: (phase + 1) / 2, the one before it phase / 2, both modulo 4.
create sequence if not exists postrider.inbox_phase as bigint minvalue 0 start 0 cache 1;

create table if not exists postrider.inbox (
    slot     smallint         not null,
    consumer text collate "C" not null,
    event_id text collate "C" not null,
    seen_at  timestamptz      not null default now(),
    primary key (consumer, event_id, slot)
) partition by list (slot);

do $$
begin
    for slot in 0..3 loop
        execute format('create table if not exists postrider.inbox_%s partition of postrider.inbox for values in (%s)', slot, slot);
    end loop;
end
$$;

-- Whoever turns the ring locks this row first.
create table if not exists postrider.inbox_ring (
    only_row      boolean  primary key default true check (only_row),
    -- Every id is remembered for at least this long.
    retention     interval not null default '14 days',
    -- And for at least as long as the log keeps events: they may be sent again from there. Noted by the relay.
    log_retention interval,
    -- An xid that is younger than the beginning of the odd phase `turning`.
    turning       bigint,
    turning_xid   xid8
);

create table if not exists postrider.inbox_slots (
    slot      smallint    primary key check (slot between 0 and 3),
    opened_at timestamptz not null default clock_timestamp(),
    closed_at timestamptz not null default '-infinity'
);

-- In this transaction the server gives a client up that takes nothing of what it is sent for so long. Without, one that freezes while it is sent rows keeps its
-- locks for ever: no other timeout counts while the server writes. Where it is Linux: others know no such option, and would say so in the log each time.
create or replace function postrider.give_up_on_deaf_clients(milliseconds integer) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    -- Not in SQL, which would be planned with every claim, for 0.1 ms.
    if current_setting('tcp_user_timeout')::integer not between 1 and give_up_on_deaf_clients.milliseconds and version() like '%linux%' then
        perform set_config('tcp_user_timeout', give_up_on_deaf_clients.milliseconds::text, true);
    end if;
end
$$;

-- Every complaint of first_time. Never returns.
create or replace function postrider.refuse_inbox(consumer text, event_id text) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    what  constant text := case when consumer is null or consumer = '' or octet_length(consumer) > 255 then 'consumer' else 'event id' end;
    given constant text := case what when 'consumer' then consumer else event_id end;
    most  constant integer := case what when 'consumer' then 255 else 1024 end;
begin
    raise exception using
        errcode = case when given is null then '22004' when given = '' then '22023' else '54000' end,
        message = format('postrider: the %s must not be %s', what,
            case when given is null then 'null' when given = '' then 'empty' else format('longer than %s bytes', most) end),
        detail = format('%sNothing was written.', case when octet_length(given) > most then format('It is %s bytes long. ', octet_length(given)) end),
        hint = case what
            when 'consumer' then 'Name who reacts to the event, for example ''billing'': two consumers each have it once.'
            else 'Pass the id that came with the message: every delivery of one event has the same.' end;
end
$$;

-- Whether this consumer has this event for the first time. True once, for the transaction that commits; who asks meanwhile waits for it.
create or replace function postrider.first_time(consumer text, event_id text) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    -- One uuid may be written in two ways.
    id      constant text := case when event_id ~ '^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$' then lower(event_id) else event_id end;
    is_seen boolean;
    probes  integer;
    phase   bigint := -1;
    newest  bigint := coalesce(pg_sequence_last_value('postrider.inbox_phase'), 0);
    target  smallint;
    written smallint[] := '{}';
begin
    if consumer is null or consumer = '' or octet_length(consumer) > 255 or id is null or id = '' or octet_length(id) > 1024 then
        perform postrider.refuse_inbox(consumer, event_id);
    end if;
    -- Again if the ring has turned meanwhile: then the row stands where nobody would wait for it.
    while phase <> newest loop
        phase := newest;
        -- In a block that is always rolled back, and with it the locks on all tables: kept until the caller commits, they would keep
        -- the ring from turning for as long as anybody is at work.
        begin
            if current_setting('transaction_isolation') = 'read committed' then
                is_seen := exists (
                    select from postrider.inbox i where i.consumer = consumer and i.event_id = id and i.slot <> all (written));
            else
                insert into postrider.inbox (slot, consumer, event_id)
                -- In the order in which they are written: who waits for whom never goes in a circle.
                select s, consumer, id from (select (phase / 2 + step & 3)::smallint as s from generate_series(0, 3) step offset 0) slots
                where s <> all (written)
                on conflict do nothing;
                get diagnostics probes = row_count;
                is_seen := probes < 4 - cardinality(written);
            end if;
            raise exception using errcode = 'PR000';
        exception when sqlstate 'PR000' then
            null;
        end;
        if is_seen then
            return false;
        end if;
        -- The old one first, if there is one: everybody who writes two does it in this order.
        foreach target in array array[phase / 2 & 3, (phase + 1) / 2 & 3]::smallint[] loop
            if target <> all (written) then
                insert into postrider.inbox (slot, consumer, event_id) values (target, consumer, id) on conflict do nothing;
                if not found then
                    return false;
                end if;
                written := written || target;
            end if;
        end loop;
        newest := coalesce(pg_sequence_last_value('postrider.inbox_phase'), 0);
    end loop;
    return true;
end
$$;

create or replace function postrider.first_time(consumer text, event_id uuid) returns boolean
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select postrider.first_time(first_time.consumer, first_time.event_id::text)
$$;

-- One step of turning the ring, if it is due; says which. Run about once a minute, by anybody: one at a time does it.
create or replace function postrider.turn_inbox(log_retention interval default null) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    ring   postrider.inbox_ring;
    phase  bigint;
    keep   interval;
    target integer;
    is_due boolean;
begin
    if not exists (select from postrider.inbox_ring) then
        insert into postrider.inbox_ring default values on conflict do nothing;
        insert into postrider.inbox_slots (slot) select generate_series(0, 3) on conflict do nothing;
    end if;
    select * into ring from postrider.inbox_ring for update skip locked;
    if not found then
        return 'busy';
    end if;
    if log_retention is not null and log_retention is distinct from ring.log_retention then
        update postrider.inbox_ring set log_retention = turn_inbox.log_retention;
        ring.log_retention := log_retention;
    end if;
    -- Seconds, because intervals of days and of hours are told apart by the clock changes in between. No more than 100 years, whoever
    -- has set more: the server's times end somewhere.
    keep := make_interval(secs => least(greatest(extract(epoch from ring.retention), extract(epoch from ring.log_retention)), 3153600000));
    phase := coalesce(pg_sequence_last_value('postrider.inbox_phase'), 0);
    if phase & 1 = 1 then
        if ring.turning is distinct from phase then
            -- In another transaction than the one that began the phase: our xid is younger than that.
            update postrider.inbox_ring set turning = phase, turning_xid = pg_current_xact_id();
            return 'turning';
        elsif pg_snapshot_xmin(pg_current_snapshot()) <= ring.turning_xid then
            return 'turning';
        end if;
        update postrider.inbox_slots set closed_at = clock_timestamp() where slot = phase / 2 & 3;
        perform setval('postrider.inbox_phase', phase + 1);
        return 'turned';
    end if;
    -- Of a clock that was ahead: nothing would be older than that until it is that late.
    update postrider.inbox_slots set opened_at = least(opened_at, clock_timestamp()), closed_at = least(closed_at, clock_timestamp())
    where opened_at > clock_timestamp() or closed_at > clock_timestamp();
    target := ((phase + 2) / 2 & 3);
    select bool_and(case s.slot when target then s.closed_at < clock_timestamp() - keep else s.opened_at < clock_timestamp() - keep / 3 end)
    into is_due from postrider.inbox_slots s where s.slot in (target, phase / 2 & 3);
    if not coalesce(is_due, false) then
        return 'young';
    end if;
    begin
        execute format('lock table postrider.inbox_%s in access exclusive mode nowait', target);
    exception when lock_not_available then
        return 'in use';
    end;
    execute format('truncate postrider.inbox_%s', target);
    update postrider.inbox_slots set opened_at = clock_timestamp(), closed_at = '-infinity' where slot = target;
    -- At once and for everybody. Those who write there wait for our commit; should it fail, the table was not emptied, and no harm done.
    perform setval('postrider.inbox_phase', phase + 1);
    return 'emptied';
end
$$;

-- For how many seconds every id is remembered at least.
create or replace function postrider.inbox_retention() returns double precision
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(max(greatest(extract(epoch from r.retention), extract(epoch from r.log_retention))), 14 * 86400)::double precision
    from postrider.inbox_ring r
$$;

-- What operators see of it.
create or replace view postrider.inbox_state as
    select s.slot, s.opened_at, nullif(s.closed_at, '-infinity') as closed_at, pg_total_relation_size(format('postrider.inbox_%s', s.slot)::regclass) as bytes,
           r.retention, r.log_retention
    from postrider.inbox_slots s cross join postrider.inbox_ring r;
insert into postrider.inbox_ring default values on conflict do nothing;
insert into postrider.inbox_slots (slot) select generate_series(0, 3) on conflict do nothing;
