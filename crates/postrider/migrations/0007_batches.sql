-- Batches of the log: fetched, worked on and finished in one transaction. See 0007_consume.sql.

-- The open batch of this transaction; complains if it is not this one. It is a setting, which whoever may call these functions can also make up: what it
-- names is looked for among what is the consumer's own, and nowhere else.
create or replace function postrider.open_batch(consumer text, token text) returns jsonb
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    batch constant jsonb := nullif(current_setting('postrider.batch', true), '')::jsonb;
begin
    if token is null or batch ->> 'token' is distinct from token or batch ->> 'consumer' is distinct from consumer then
        raise exception using errcode = '55000',
            message = format('postrider: this transaction has no batch %s of consumer %L',
                coalesce(quote_literal(left(token, 80)), 'null'), left(consumer, 80)),
            detail = 'A batch belongs to the transaction that fetched it, and ends with it. Nothing was written.',
            hint = 'begin; select * from postrider.next_batch(...); what is to be done; select postrider.finish_batch(...); commit.';
    end if;
    return batch;
end
$$;

-- The next events of one lane, in order; no row if there is nothing, or others have the rest. Holds the lane until the transaction ends. An event
-- that somebody began with and never said more about comes alone, as a suspect, unless the lane was asked for.
create or replace function postrider.next_batch(
    consumer text, max_events integer default 100, lease interval default '30 seconds', only_lane integer default null
) returns table (
    token text, id uuid, type text, entity text, key text, tenant text, payload json, headers json, created_at timestamptz, source_id text,
    lane integer, attempts integer, suspect boolean
)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set jit = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    this_sink    constant integer := postrider.find_consumer(next_batch.consumer);
    had_xid   constant boolean := pg_current_xact_id_if_assigned() is not null;
    new_token constant text := gen_random_uuid()::text;
    idle      integer;
    tried     smallint[] := '{}';
    wanted    smallint[];
    candidate smallint;
    stored    record;
    failing   postrider.retries;
    step      record;
    moved     jsonb;
    due       postrider.parked[];
    events    postrider.events[] := '{}';
    tries     integer := 0;
begin
    if this_sink is null then
        raise exception using errcode = '42704', message = format('postrider: there is no consumer %L', next_batch.consumer),
            detail = 'Nothing was read.', hint = format('select postrider.subscribe(%L) once, or with ''earliest'' as its start.', next_batch.consumer);
    end if;
    if next_batch.max_events is null or next_batch.max_events not between 1 and 10000 then
        raise exception using errcode = '22023', message = format('postrider: a batch has 1 to 10000 events, not %s', coalesce(next_batch.max_events::text, 'null')),
            detail = 'Nothing was read.', hint = '100 is a good number.';
    end if;
    if next_batch.lease is null or not next_batch.lease between interval '1 second' and interval '1 day' then
        raise exception using errcode = '22023', message = format('postrider: a lease of %s is too short or too long', coalesce(next_batch.lease::text, 'null')),
            detail = 'It may be between one second and one day. Nothing was read.', hint = 'It is how long you may say nothing to the server before the batch goes to somebody else.';
    end if;
    -- An old snapshot does not see what others have finished since.
    if current_setting('transaction_isolation') <> 'read committed' then
        raise exception using errcode = '25000', message = format('postrider: next_batch needs a transaction that is read committed, this one is %s', current_setting('transaction_isolation')),
            detail = 'It would read again what others have finished since it began. Nothing was read.', hint = 'begin isolation level read committed.';
    end if;
    if coalesce(current_setting('postrider.batch', true), '') <> '' then
        raise exception using errcode = '55000', message = 'postrider: this transaction has a batch that is not finished, or has finished one',
            detail = 'A transaction has one batch: its effects are committed together with it. Nothing was read.', hint = 'Finish it with postrider.finish_batch and commit.';
    end if;
    if pg_is_in_recovery() then
        raise exception using errcode = '25006', message = 'postrider: this server is a standby', detail = 'The log can only be read on the primary. Nothing was read.', hint = 'Connect to the primary.';
    end if;
    if exists (select from postrider.sinks s where s.sink = this_sink and s.paused_at is not null) then
        return;
    end if;
    -- Two lanes at random first: with much to do the first one will do. All of them before the answer is that there is nothing.
    for turn in 1..2 loop
        -- Blocks that are rolled back let go of the locks on the log, or its ring could not turn while anybody is at work.
        begin
            if exists (select from postrider.identity i, pg_control_system() c where i.system_identifier <> c.system_identifier) then
                raise exception using errcode = '55000', message = 'postrider: this is not the database the cursors were made in',
                    detail = 'Positions and snapshots mean nothing here. Nothing was read.', hint = 'See what postrider rebase says.';
            end if;
            wanted := array(
                select c.lane from (
                    select c.* from postrider.cursors c
                    where c.sink = next_batch.consumer and c.lane <> all (tried) and (only_lane is null or c.lane = only_lane)
                    order by random() offset 0) c
                where not exists (select from postrider.retries r where r.sink = this_sink and r.lane = c.lane and r.not_before > clock_timestamp() and only_lane is null)
                  and (exists (select from postrider.events e where e.lane = c.lane and e.seq > c.position)
                    or c.target is not null
                    or exists (select from pg_snapshot_xip(c.snapshot) as writer (xid)
                               cross join lateral (select from postrider.events e where e.xid = writer.xid and e.seq <= c.position and e.lane = c.lane limit 1) e
                               where pg_visible_in_snapshot(writer.xid, pg_current_snapshot()))
                    or exists (select from postrider.events e where e.xid >= pg_snapshot_xmax(c.snapshot) and e.xid < c.bound
                               and e.seq + 0 <= c.position and e.lane + 0 = c.lane)
                    or exists (select from postrider.parked p where p.sink = this_sink and p.lane = c.lane and p.state = 'waiting' and p.next_attempt_at <= clock_timestamp()))
                limit case turn when 1 then 2 end);
            raise exception using errcode = 'PR000';
        exception when sqlstate 'PR000' then
            null;
        end;
        foreach candidate in array wanted loop
            tried := tried || candidate;
            begin
                if not pg_try_advisory_xact_lock(1886548585, this_sink * 1024 + candidate) then
                    raise exception using errcode = 'PR001';
                end if;
                begin
                    select l.epoch, p.number, c.position, c.late_position, p.snapshots[c.snapshot_of] as snapshot, p.snapshots[c.target_of] as target, c.bound
                    into strict stored
                    from postrider.leases l
                    cross join lateral (select * from postrider.progress p where p.sink = l.sink and p.epoch = l.epoch order by p.number desc limit 1) p
                    cross join lateral unnest(p.lanes, p.positions, p.late_positions, p.snapshot_of, p.target_of, p.bounds)
                        as c (lane, position, late_position, snapshot_of, target_of, bound)
                    where l.sink = this_sink and l.lane = candidate and c.lane = candidate;
                    due := array(
                        select p from postrider.parked p
                        where p.sink = this_sink and p.lane = candidate and p.state = 'waiting' and p.next_attempt_at <= clock_timestamp()
                        order by p.next_attempt_at limit 1);
                    select r.* into failing from postrider.retries r where r.sink = this_sink and r.lane = candidate;
                    moved := '{}';
                    if cardinality(due) = 0 then
                        select * into step from postrider.read_lane(candidate,
                            case when failing.is_suspect and only_lane is null then 1 else next_batch.max_events end, stored.position, stored.late_position,
                            stored.snapshot, stored.target, stored.bound);
                        if step.last_seq < stored.position then
                            raise exception using errcode = '55000', message = 'postrider: the sequence postrider.seq was set back',
                                detail = format('A cursor stands at %s, the sequence at %s: new events would be missed. Nothing was read.', stored.position, step.last_seq),
                                hint = 'See what postrider rebase says.';
                        end if;
                        events := step.records;
                        moved := jsonb_build_object('position', step.new_place, 'late_position', step.new_late_place,
                            'snapshot', step.new_snapshot, 'target', step.new_target, 'bound', step.new_bound);
                    else
                        events := array[row(null, (due[1]).seq, null, (due[1]).lane, (due[1]).id, (due[1]).source_id, (due[1]).type, (due[1]).entity, (due[1]).key,
                            (due[1]).tenant, (due[1]).payload, (due[1]).headers, (due[1]).created_at)::postrider.events];
                        tries := (due[1]).attempts;
                    end if;
                    if cardinality(events) > 0 and failing.event = (events[1]).id then
                        tries := failing.begun + case cardinality(due) when 0 then failing.attempts else tries end;
                    elsif failing.event <> '00000000-0000-0000-0000-000000000000' then
                        failing := null;
                    end if;
                    raise exception using errcode = 'PR000';
                exception when sqlstate 'PR000' then
                    null;
                end;
                -- Somebody else has just finished it: the lock goes, too.
                if cardinality(events) = 0 then
                    raise exception using errcode = 'PR001';
                end if;
                exit;
            exception when sqlstate 'PR001' then
                null;
            end;
        end loop;
        exit when cardinality(events) > 0;
    end loop;
    if cardinality(events) = 0 then
        return;
    end if;
    -- The lease: who says nothing for so long is ended by the server.
    idle := (extract(epoch from next_batch.lease) * 1000)::integer;
    perform set_config('idle_in_transaction_session_timeout', idle::text, true)
    where extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000 not between 1 and idle;
    perform postrider.give_up_on_deaf_clients(idle);
    perform set_config('postrider.batch', (jsonb_build_object(
        'token', new_token, 'consumer', next_batch.consumer, 'sink', this_sink, 'lane', candidate, 'epoch', stored.epoch, 'number', stored.number,
        'had_xid', had_xid, 'tries', tries, 'parked', (due[1]).place,
        'ids', (select jsonb_agg(e.id) from unnest(events) e), 'seqs', (select jsonb_agg(e.seq) from unnest(events) e)) || moved)::text, true);
    return query
        select new_token, e.id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at, e.source_id, candidate::integer,
               case e.place when 1 then tries else 0 end, e.place = 1 and coalesce(failing.is_suspect, false)
        from unnest(events) with ordinality as e (xid, seq, slot, lane, id, source_id, type, entity, key, tenant, payload, headers, created_at, place)
        order by e.place;
end
$$;

-- The whole batch is done, if this transaction commits. Answers how many events that are.
create or replace function postrider.finish_batch(consumer text, token text) returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    batch     constant jsonb := postrider.open_batch(consumer, token);
    number    constant integer := postrider.find_consumer(consumer);
    lane      constant smallint := (batch ->> 'lane')::smallint;
    own_epoch bigint;
begin
    -- The lane was ours from the beginning; a rebase, or somebody who forgets the consumer, asks nobody.
    select l.epoch into own_epoch from postrider.leases l where l.sink = number and l.lane = lane for no key update;
    if own_epoch is distinct from (batch ->> 'epoch')::bigint or number is distinct from (batch ->> 'sink')::integer then
        raise exception using errcode = '40001', message = format('postrider: the lane of batch %s was taken away', token),
            detail = 'Its consumer was forgotten or its cursors were renewed meanwhile. Nothing was written.',
            hint = 'Roll back and fetch again.';
    end if;
    if batch ->> 'parked' is not null then
        with gone as (
            delete from postrider.parked p where p.place = (batch ->> 'parked')::bigint and p.sink = number and p.state = 'waiting' returning p.id)
        insert into postrider.unparked (sink, destination, id, fate) select number, '', g.id, 'delivered' from gone g
        on conflict on constraint unparked_pkey do update set fate = excluded.fate, ended_at = excluded.ended_at;
    else
        -- After a rebase all lanes share an epoch: a row of this one alone would hide the others.
        if exists (select from postrider.leases l where l.sink = number and l.epoch = own_epoch and l.lane <> lane) then
            select (max(l.epoch) / postrider.lanes() + 1) * postrider.lanes() + lane into own_epoch from postrider.leases l where l.sink = number;
            update postrider.leases l set epoch = own_epoch where l.sink = number and l.lane = lane;
        end if;
        insert into postrider.progress (slot, sink, epoch, number, lanes, positions, late_positions, snapshots, snapshot_of, target_of, bounds, events)
        values (coalesce(pg_sequence_last_value('postrider.progress_slot'), 0) & 3, number, own_epoch, (batch ->> 'number')::bigint + 1, array[lane],
            array[(batch ->> 'position')::bigint], array[(batch ->> 'late_position')::bigint],
            array_remove(array[batch ->> 'snapshot', batch ->> 'target'], null)::pg_snapshot[], array[1],
            array[case when batch ->> 'target' is not null then 2 end],
            array[coalesce((batch ->> 'bound')::xid8, case when (batch ->> 'had_xid')::boolean then postrider.younger_xid() else pg_current_xact_id() end)],
            jsonb_array_length(batch -> 'ids'));
    end if;
    -- What was noted of these events is over. If somebody has tried the first one alone, the one that he is looking for may be the next.
    delete from postrider.retries r where r.sink = number and r.lane = lane and (r.begun = 0 or r.events <= 1 or not batch -> 'ids' ? r.event::text);
    update postrider.retries r
    set event = '00000000-0000-0000-0000-000000000000', attempts = 0, begun = 0, reason = '', is_suspect = true, events = r.events - 1
    where r.sink = number and r.lane = lane;
    perform set_config('postrider.batch', '{}', true);
    return jsonb_array_length(batch -> 'ids');
end
$$;

-- This event of the open batch is given up: it is parked as dead, with its reason, when this transaction commits. `postrider dead` shows it.
-- Counts as one attempt more, unless it was not tried this time.
create or replace function postrider.give_up(consumer text, token text, event_id uuid, reason text, was_tried boolean default true) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    batch  constant jsonb := postrider.open_batch(consumer, token);
    number constant integer := postrider.find_consumer(consumer);
    words  constant text := coalesce(nullif(left(reason, 10000), ''), 'no reason was given');
    place  integer;
begin
    select p.place into place from jsonb_array_elements_text(batch -> 'ids') with ordinality as p (id, place) where p.id::uuid = event_id;
    if place is null then
        raise exception using errcode = '22023', message = format('postrider: event %s is not in this batch', coalesce(event_id::text, 'null')),
            detail = 'Nothing was written.', hint = 'Pass the column id of a row of the batch.';
    end if;
    -- Like everybody who parks.
    perform from postrider.sinks s where s.sink = number for no key update;
    if batch ->> 'parked' is not null then
        update postrider.parked p set state = 'dead', attempts = (batch ->> 'tries')::integer + was_tried::integer, kind = 'handler', reason = words, next_attempt_at = null,
            history = p.history || jsonb_build_object('at', clock_timestamp(), 'kind', 'handler', 'reason', words)
        where p.place = (batch ->> 'parked')::bigint and p.sink = number;
        return;
    end if;
    insert into postrider.parked (sink, id, lane, seq, source_id, type, entity, key, tenant, payload, headers, created_at, state, attempts, kind, reason, history)
    select number, e.id, e.lane, e.seq, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at, 'dead',
           case place when 1 then (batch ->> 'tries')::integer else 0 end + was_tried::integer, 'handler', words,
           jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'kind', 'handler', 'reason', words))
    from postrider.events e
    where e.lane = (batch ->> 'lane')::smallint and e.seq = (batch -> 'seqs' ->> (place - 1))::bigint and e.id = event_id
    on conflict on constraint parked_pkey do nothing;
end
$$;

-- The first event of a lane failed, and its transaction was rolled back: nobody tries the lane before this time is over. Answers how often
-- in a row that event has failed.
create or replace function postrider.postpone(consumer text, lane integer, event_id uuid, reason text, pause interval) returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    number constant integer := postrider.find_consumer(consumer);
    tries  integer;
begin
    if number is null or event_id is null or lane is null or pause is null or not pause between interval '0' and interval '1 day'
       or not exists (select from postrider.leases l where l.sink = number and l.lane = lane) then
        raise exception using errcode = '22023', message = 'postrider: there is nothing to postpone', detail = 'The consumer, its lane, the event or the pause (at most a day) is none. Nothing was written.',
            hint = 'Pass the columns lane and id of the first row of the batch that failed.';
    end if;
    update postrider.parked p set attempts = p.attempts + 1, reason = left(postpone.reason, 10000), kind = 'handler', next_attempt_at = clock_timestamp() + pause,
        history = p.history || jsonb_build_object('at', clock_timestamp(), 'kind', 'handler', 'reason', left(postpone.reason, 10000))
    where p.id = event_id and p.sink = number and p.destination = '' and p.state = 'waiting' returning p.attempts into tries;
    if tries is not null then
        delete from postrider.retries r where r.sink = number and r.lane = lane and r.event = event_id;
    else
        insert into postrider.retries as r (sink, lane, event, attempts, reason, not_before)
        values (number, lane, event_id, 1, coalesce(left(reason, 10000), ''), clock_timestamp() + pause)
        on conflict on constraint retries_pkey do update
        set attempts = case when r.event = excluded.event then r.attempts + 1 else 1 end, event = excluded.event, reason = excluded.reason,
            failed_at = excluded.failed_at, not_before = excluded.not_before, begun = 0, is_suspect = false
        returning r.attempts into tries;
    end if;
    return tries;
end
$$;

-- The first event of a lane is about to be tried, in a batch of so many: noted, and committed by itself, before anybody begins with it. Whoever finds
-- the note knows that the process of the one before may have ended over it, or over the events behind it. `alone`: nothing else is at work in the
-- caller's process, so its end is the event's doing, and is counted. Called on another connection by who has the batch open, so that the note is never
-- of an event that somebody else has finished. It goes with the batch, or with `postpone`. Answers how often it has failed, or was begun alone, with
-- this time.
create or replace function postrider.begin_try(consumer text, lane integer, event_id uuid, alone boolean default true, events integer default 1) returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    number  constant integer := postrider.find_consumer(consumer);
    anybody constant uuid := '00000000-0000-0000-0000-000000000000';
    tries   integer;
begin
    if number is null or event_id is null or lane is null or alone is null or events is null
       or not exists (select from postrider.leases l where l.sink = number and l.lane = lane) then
        raise exception using errcode = '22023', message = 'postrider: there is nothing to begin with', detail = 'The consumer, its lane or the event is none. Nothing was written.',
            hint = 'Pass the columns lane and id of the first row of a batch.';
    end if;
    insert into postrider.retries as r (sink, lane, event, attempts, reason, not_before, begun, is_suspect, events)
    values (number, lane, event_id, 0, '', clock_timestamp(), alone::integer, true, events)
    on conflict on constraint retries_pkey do update
    set event = excluded.event, is_suspect = true, failed_at = excluded.failed_at, not_before = excluded.not_before,
        begun = case when r.event = excluded.event then r.begun else 0 end + excluded.begun,
        attempts = case when r.event = excluded.event then r.attempts else 0 end,
        reason = case when r.event = excluded.event then r.reason else '' end,
        events = greatest(case when r.event in (excluded.event, anybody) then r.events end, excluded.events)
    returning r.attempts + r.begun into tries;
    return tries;
end
$$;
