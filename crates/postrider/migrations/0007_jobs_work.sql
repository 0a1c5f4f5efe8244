-- Working jobs off: claiming, finishing, taking over. The same functions serve the Rust worker and any other language.

-- Claims are locked and never updated, and rings are truncated: a snapshot of before would see neither, and nobody would tell.
create or replace function postrider.refuse_snapshot(what text) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception using errcode = '25000', message = format('postrider: jobs cannot be %s in a %s transaction', what, current_setting('transaction_isolation')),
            detail = 'What others have done since it began could not be seen. Nothing was changed.',
            hint = 'Begin it with: begin isolation level read committed.';
    end if;
end
$$;

-- The snapshot of the moment without the caller itself. Its own xid is in no snapshot's list, so a job that it enqueues after claiming
-- would count as seen and never be found.
create or replace function postrider.job_horizon() returns pg_snapshot
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    now_seen constant pg_snapshot := pg_current_snapshot();
    own      constant xid8 := pg_current_xact_id_if_assigned();
begin
    if own is null or own >= pg_snapshot_xmax(now_seen) then
        return now_seen;
    end if;
    return format('%s:%s:%s', least(own::text::numeric, pg_snapshot_xmin(now_seen)::text::numeric), pg_snapshot_xmax(now_seen),
        (select string_agg(x.xid::text, ',' order by x.xid)
         from (select own as xid union select pg_snapshot_xip(now_seen)) x))::pg_snapshot;
end
$$;

-- The next jobs of a band behind a position, at most so many. Two index scans, each in the order of the index: what transactions wrote that `seen` knew as
-- running, one probe for each of them, and what has come since. Neither walks over a job that was claimed before.
create or replace function postrider.job_band(
    queue text, priority smallint, seen pg_snapshot, target pg_snapshot, after_xid xid8, after_id bigint, most integer
) returns setof postrider.jobs
    language plpgsql stable set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan rows 100 as $$
#variable_conflict use_column
declare
    brought bigint;
begin
    return query
        select j.* from (
            select w.xid from pg_snapshot_xip(job_band.seen) as w (xid)
            where w.xid >= job_band.after_xid and pg_visible_in_snapshot(w.xid, job_band.target) order by w.xid) w
        cross join lateral (
            select j.* from postrider.jobs j
            where j.queue = job_band.queue and j.priority = job_band.priority and j.xid = w.xid
              and (j.xid > job_band.after_xid or j.id > job_band.after_id)
            order by j.queue, j.priority, j.xid, j.id
            limit job_band.most) j
        limit job_band.most;
    get diagnostics brought = row_count;
    if brought < job_band.most then
        return query
            select j.* from postrider.jobs j
            where j.queue = job_band.queue and j.priority = job_band.priority
              and j.xid >= pg_snapshot_xmax(job_band.seen) and j.xid < pg_snapshot_xmax(job_band.target)
              and (j.xid, j.id) > (job_band.after_xid, job_band.after_id)
              and pg_visible_in_snapshot(j.xid, job_band.target)
            order by j.queue, j.priority, j.xid, j.id
            limit job_band.most - brought;
    end if;
end
$$;

-- The jobs of a claim that are not finished. Not in SQL, which would be planned with every call, for 0.6 ms.
create or replace function postrider.unfinished_jobs(claim bigint) returns setof postrider.jobs
    language plpgsql stable set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
    return query
        select j.* from postrider.job_claims c
        cross join lateral (
            select b.* from postrider.job_band(c.queue, c.priority, c.seen, c.target, c.after_xid, c.after_id, c.jobs) b
            where (b.xid, b.id) <= (c.upto_xid, c.upto_id)
            union all
            select k.xid, k.id, k.slot, k.queue, k.priority, k.kind, k.key, k.unique_key, k.attempt, k.lost, k.max_attempts, k.payload, k.created_at
            from postrider.job_kept k where k.claim = c.claim) j
        where c.claim = unfinished_jobs.claim
          and not exists (select from postrider.job_settled s where s.claim = unfinished_jobs.claim and s.job = 0)
          and j.id not in (select s.job from postrider.job_settled s where s.claim = unfinished_jobs.claim);
end
$$;

-- What is due goes to where it can be claimed: what waited for its time, and of the keys that have a turn and are free the first job. Called by
-- claim_jobs under its lock, and found by the next claim: this transaction's own rows are beyond its horizon.
create or replace function postrider.promote_jobs(queue text, most integer default 1000) returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    slot   constant smallint := (coalesce(pg_sequence_last_value('postrider.job_slot'), 0) & 7)::smallint;
    moment constant timestamptz := clock_timestamp();
    moved  integer := 0;
    keyed  integer := 0;
    looked integer;
begin
    if exists (select from postrider.job_waiting w where w.queue = promote_jobs.queue and w.state = 'scheduled' and w.run_at <= moment) then
        with due as (
            select w.id from postrider.job_waiting w
            where w.queue = promote_jobs.queue and w.state = 'scheduled' and w.run_at <= moment
            order by w.run_at limit promote_jobs.most
            for update skip locked),
        gone as (
            delete from postrider.job_waiting w using due where w.id = due.id returning w.*)
        insert into postrider.jobs (id, slot, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at)
        select g.id, slot, g.queue, g.priority, g.kind, g.key, g.unique_key, g.attempt, g.lost, g.max_attempts, g.payload, g.created_at from gone g
        order by g.run_at, g.id;
        get diagnostics moved = row_count;
    end if;

    -- So many turns may be of one key that is busy; others must not wait for a claim each thousand.
    for step in 1..10 loop
        exit when not exists (select from postrider.job_turns t where t.queue = promote_jobs.queue and t.at <= moment);
        with due as (
            select t.queue, t.at, t.number from postrider.job_turns t
            where t.queue = promote_jobs.queue and t.at <= moment
            order by t.queue, t.at, t.number limit promote_jobs.most
            for update skip locked),
        seen as (
            delete from postrider.job_turns t using due d where t.queue = d.queue and t.at = d.at and t.number = d.number returning t.key),
        -- A key that is busy has another turn when it is given back.
        free as materialized (
            select k.key, first.id, first.run_at from (select distinct s.key from seen s) k
            cross join lateral (
                select w.id, w.run_at from postrider.job_waiting w
                where w.queue = promote_jobs.queue and w.state = 'key' and w.key = k.key
                order by w.queue, w.key, w.id limit 1) first
            where not exists (select from postrider.job_keys l where l.queue = promote_jobs.queue and l.key = k.key)),
        -- One that is just being cancelled must not take its key: nobody would give it back.
        held as materialized (
            select w.id, w.key from postrider.job_waiting w join free f on f.id = w.id
            where w.state = 'key' and f.run_at <= moment for update of w skip locked),
        taken as (
            insert into postrider.job_keys (queue, key, id) select promote_jobs.queue, h.key, h.id from held h
            on conflict on constraint job_keys_pkey do nothing returning id),
        gone as (
            delete from postrider.job_waiting w using taken where w.id = taken.id returning w.*),
        -- Not due yet, or just being cancelled, which may be rolled back.
        later as (
            insert into postrider.job_turns (queue, key, at)
            select promote_jobs.queue, f.key, greatest(f.run_at, moment + interval '100 milliseconds') from free f
            where f.id not in (select h.id from held h)),
        placed as (
            insert into postrider.jobs (id, slot, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at)
            select g.id, slot, g.queue, g.priority, g.kind, g.key, g.unique_key, g.attempt, g.lost, g.max_attempts, g.payload, g.created_at from gone g
            order by g.id
            returning id)
        select (select count(*) from placed), (select count(*) from seen) into keyed, looked;
        moved := moved + keyed;
        exit when keyed > 0 or looked < promote_jobs.most;
    end loop;
    return moved;
end
$$;

-- How far a claim goes where it may not take all that there is: payloads that are compressed, too many bytes, or a suspect among them. Rare, so it may
-- carry whole jobs about, which costs about 1 ms more for 1000 of them.
create or replace function postrider.cut_band(
    queue text, priority smallint, seen pg_snapshot, target pg_snapshot, after_xid xid8, after_id bigint, most integer, most_bytes bigint,
    out ids bigint[], out upto_xid xid8, out bytes bigint, out is_plain boolean, out is_suspect boolean)
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    brought postrider.jobs[];
    stop_at integer;
begin
    -- Sizes as they are stored, or every payload would be unpacked to be left behind. One that is compressed counts eight times: JSON
    -- comes to less, and what comes to the most possible, 255 times, to half of what a value may have.
    brought := array(
        select s.b from (
            select b, sum(s.size) over (rows unbounded preceding) - s.size as before
            from postrider.job_band(cut_band.queue, cut_band.priority, cut_band.seen, cut_band.target, cut_band.after_xid, cut_band.after_id, cut_band.most) b
            cross join lateral (
                select pg_column_size(b.payload)::bigint * case when pg_column_compression(b.payload) is null then 1 else 8 end as size) s) s
        where s.before < cut_band.most_bytes);
    -- A job that has cost two workers their life is handed out alone, and before its last attempt one that has cost a single one: its neighbours would be dead
    -- with it. The same rule is in claim_band and in src/jobs/job.rs.
    select min(f.place) filter (where f.lost > 1 or f.lost > 0 and f.attempt >= f.max_attempts),
           bool_and(f.key is null and f.unique_key is null and f.attempt <= 1), sum(octet_length(f.payload::text))
    into stop_at, is_plain, bytes
    from unnest(brought) with ordinality
        as f (xid, id, slot, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at, place);
    if bytes > cut_band.most_bytes and cardinality(brought) > 1 then
        -- They unpack to more than was reckoned.
        brought := brought[1:(
            select count(*) from (
                select sum(octet_length(f.payload::text)) over (rows unbounded preceding) - octet_length(f.payload::text) as before from unnest(brought) f) s
            where s.before < cut_band.most_bytes)];
    end if;
    is_suspect := stop_at is not null;
    if is_suspect then
        brought := brought[1:greatest(stop_at - 1, 1)];
    end if;
    ids := array(select f.id from unnest(brought) f);
    upto_xid := (brought[cardinality(brought)]).xid;
end
$$;

-- Of before: it answered the jobs themselves.
drop function if exists postrider.claim_band(text, smallint, integer, bigint, uuid, interval, boolean);
-- Claims the next jobs of a band, under the lock of its queue: the claim that was made, with the number that proves whose they are, and their ids in order.
-- Nothing, if there is none.
--
-- Of the jobs only places, sizes and flags are read here, and claim_jobs reads the range again. To carry the jobs themselves in an array, with a window over
-- their sizes (numeric, as those were bigint), made a claim of 1000 take 2.8 ms; so it takes 1.9, both readings together.
create or replace function postrider.claim_band(
    queue text, priority smallint, most integer, most_bytes bigint, worker uuid, lease interval, begins boolean,
    out made postrider.job_claims, out ids bigint[], out bytes bigint, out is_suspect boolean)
    language plpgsql volatile set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    cursor_at postrider.job_claims;
    nothing   constant pg_snapshot := '1:1:';
    own       constant xid8 := coalesce(pg_current_xact_id_if_assigned(), '0');
    beyond    xid8;
    next_seen pg_snapshot;
    next_aim  pg_snapshot;
    from_xid  xid8;
    from_id   bigint;
    last_xid  xid8;
    xids      xid8[];
    is_packed boolean;
    is_plain  boolean;
begin
    select c.* into cursor_at from postrider.job_claims c
    where c.queue = claim_band.queue and c.priority = claim_band.priority order by c.queue desc, c.priority desc, c.number desc limit 1;
    -- What can be seen was committed below the snapshot's end. If it says otherwise, that was in another cluster.
    select j.xid into beyond from postrider.jobs j
    where j.queue = claim_band.queue and j.priority = claim_band.priority and j.xid >= pg_snapshot_xmax(pg_current_snapshot()) and j.xid > own
    order by j.queue, j.priority, j.xid limit 1;
    if beyond is not null or pg_snapshot_xmax(cursor_at.target) > pg_snapshot_xmax(pg_current_snapshot()) then
        raise exception using errcode = '55000', message = 'postrider: the job queue was restored into another cluster',
            detail = format('Queue %L knows of transaction %s, this cluster is only at %s.', claim_band.queue,
                coalesce(beyond, pg_snapshot_xmax(cursor_at.target)), pg_snapshot_xmax(pg_current_snapshot())),
            hint = 'Stop the workers and run: select postrider.rebase_jobs().';
    end if;
    next_seen := coalesce(cursor_at.seen, nothing);
    next_aim := coalesce(cursor_at.target, nothing);
    from_xid := coalesce(cursor_at.upto_xid, '0');
    from_id := coalesce(cursor_at.upto_id, 0);
    for step in 1..2 loop
        -- What job_band reads, without its rows being stored and copied: the same two scans, one behind the other.
        select array_agg(b.xid), array_agg(b.id), sum(b.size), bool_or(b.is_packed), bool_or(b.is_suspect), bool_and(b.is_plain)
        into xids, ids, bytes, is_packed, is_suspect, is_plain
        from (
            select j.xid, j.id, pg_column_size(j.payload) as size, pg_column_compression(j.payload) is not null as is_packed,
                   j.lost > 1 or j.lost > 0 and j.attempt >= j.max_attempts as is_suspect,
                   j.key is null and j.unique_key is null and j.attempt <= 1 as is_plain
            from (
                (select j.* from (
                    select w.xid from pg_snapshot_xip(next_seen) as w (xid)
                    where w.xid >= from_xid and pg_visible_in_snapshot(w.xid, next_aim) order by w.xid) w
                cross join lateral (
                    select j.xid, j.id, j.payload, j.lost, j.attempt, j.max_attempts, j.key, j.unique_key from postrider.jobs j
                    where j.queue = claim_band.queue and j.priority = claim_band.priority and j.xid = w.xid
                      and (j.xid > from_xid or j.id > from_id)
                    order by j.queue, j.priority, j.xid, j.id
                    limit claim_band.most) j)
                union all
                (select j.xid, j.id, j.payload, j.lost, j.attempt, j.max_attempts, j.key, j.unique_key from postrider.jobs j
                where j.queue = claim_band.queue and j.priority = claim_band.priority
                  and j.xid >= pg_snapshot_xmax(next_seen) and j.xid < pg_snapshot_xmax(next_aim)
                  and (j.xid, j.id) > (from_xid, from_id)
                  and pg_visible_in_snapshot(j.xid, next_aim)
                order by j.queue, j.priority, j.xid, j.id
                limit claim_band.most)) j
            limit claim_band.most) b;
        exit when ids is not null;
        if step = 2 then
            return;
        end if;
        -- Used up: on to what has been committed since.
        next_seen := next_aim;
        next_aim := postrider.job_horizon();
        from_xid := '0';
        from_id := 0;
    end loop;
    last_xid := xids[cardinality(xids)];
    if is_packed or is_suspect or bytes > claim_band.most_bytes then
        select c.ids, c.upto_xid, c.bytes, c.is_plain, c.is_suspect into ids, last_xid, bytes, is_plain, is_suspect
        from postrider.cut_band(claim_band.queue, claim_band.priority, next_seen, next_aim, from_xid, from_id, claim_band.most, claim_band.most_bytes) c;
    end if;
    insert into postrider.job_claims as c (slot, claim, queue, priority, number, seen, target, after_xid, after_id, upto_xid, upto_id, jobs, is_plain, begins, worker, expires_at)
    values (coalesce(pg_sequence_last_value('postrider.job_claim_slot'), 0) & 3, nextval('postrider.job_claim'), claim_band.queue, claim_band.priority,
            coalesce(cursor_at.number, 0) + 1, next_seen, next_aim, from_xid, from_id, last_xid, ids[cardinality(ids)], cardinality(ids),
            is_plain, claim_band.begins, claim_band.worker, clock_timestamp() + claim_band.lease)
    returning c.* into made;
end
$$;

-- Claims at most so many jobs of a queue, those of the highest priority first, for as long as the lease says or a worker's heartbeat holds it; fewer if
-- their payloads come to more than 16 MB. Commit, work, and hand each claim's number back to finish_jobs: it is what proves that nobody else has taken the
-- jobs over. With `begins` the worker calls begin_jobs before the last attempt of a job: what was not begun when it vanished loses nothing.
create or replace function postrider.claim_jobs(
    queue text default 'default', most integer default 100, lease interval default null, worker uuid default null, begins boolean default false
) returns table (claim bigint, id bigint, kind text, payload json, key text, priority smallint, attempt smallint, max_attempts smallint,
                 lost smallint, created_at timestamptz)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    settings  postrider.job_queues;
    band      integer := 32768;
    left_over integer := claim_jobs.most;
    room      bigint := 16777216;
    next      record;
    held      postrider.job_claims;
    has_tombs boolean;
    cancelled bigint[] := '{}';
    owner     constant uuid := coalesce(claim_jobs.worker, gen_random_uuid());
begin
    if claim_jobs.queue is null or claim_jobs.most is null or claim_jobs.most not between 1 and 10000 or claim_jobs.lease < interval '1 second'
       or claim_jobs.begins is null then
        raise exception using errcode = '22023', message = 'postrider: these jobs cannot be claimed',
            detail = format('queue %L, most %L, lease %L, begins %L.', claim_jobs.queue, claim_jobs.most, claim_jobs.lease, claim_jobs.begins),
            hint = 'Name a queue, 1 to 10000 jobs, and a lease of a second or more.';
    end if;
    perform postrider.refuse_snapshot('claimed');
    -- Whoever stops between this and the commit must not keep the queue from others for ever.
    perform set_config('idle_in_transaction_session_timeout', '30s', true)
    where extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000 not between 1 and 30000;
    perform postrider.give_up_on_deaf_clients(30000);
    -- A job of a transaction that a crash could still take back must not run: the commit of this one waits for all WAL before it.
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    -- The row is locked and never changed: claims of one queue go one after the other, for about a millisecond each.
    select q.* into settings from postrider.job_queues q where q.queue = claim_jobs.queue for no key update;
    if not found then
        insert into postrider.job_queues (queue) values (claim_jobs.queue) on conflict on constraint job_queues_pkey do nothing;
        select q.* into settings from postrider.job_queues q where q.queue = claim_jobs.queue for no key update;
    end if;
    if settings.paused_at is not null then
        return;
    end if;
    perform postrider.promote_jobs(claim_jobs.queue);
    has_tombs := exists (select from postrider.job_cancelled);
    loop
        -- From priority to priority by the index.
        select j.priority into band from postrider.jobs j
        where j.queue = claim_jobs.queue and j.priority < band order by j.queue desc, j.priority desc limit 1;
        exit when not found;
        select c.* into next from postrider.claim_band(
            claim_jobs.queue, band::smallint, left_over, room, owner, coalesce(claim_jobs.lease, settings.lease), claim_jobs.begins) c;
        held := next.made;
        continue when held.claim is null;
        if has_tombs then
            -- Looked up once, or one that is cancelled in between would be neither settled nor brought. By its index: to compare each job with each cancelled
            -- one took 200 ms at 18,000 of them, under the lock of the queue.
            cancelled := array(select c.id from postrider.job_cancelled c where c.id = any (next.ids));
        end if;
        if cardinality(cancelled) > 0 then
            -- If it is all of them, nobody hears of the claim, so it is closed.
            perform postrider.settle_jobs(held.claim, (select json_agg(json_build_object('id', c.id, 'cancelled', true)) from unnest(cancelled) as c (id)),
                case when cardinality(cancelled) < held.jobs then array[]::bigint[] end);
        end if;
        -- The range again, in which nothing can have come or gone: both snapshots were taken before, and the tables are locked against being emptied. First
        -- what was running when it was looked for before, if anything was.
        if pg_snapshot_xmin(held.seen) < pg_snapshot_xmax(held.seen) then
            return query
                select held.claim, j.id, j.kind, j.payload, j.key, j.priority, j.attempt, j.max_attempts, j.lost, j.created_at
                from (
                    select w.xid from pg_snapshot_xip(held.seen) as w (xid)
                    where w.xid >= held.after_xid and pg_visible_in_snapshot(w.xid, held.target) order by w.xid) w
                cross join lateral (
                    select j.* from postrider.jobs j
                    where j.queue = held.queue and j.priority = held.priority and j.xid = w.xid
                      and (j.xid, j.id) > (held.after_xid, held.after_id) and (j.xid, j.id) <= (held.upto_xid, held.upto_id)
                    order by j.queue, j.priority, j.xid, j.id
                    limit held.jobs) j
                where j.id not in (select unnest(cancelled));
        end if;
        return query
            select held.claim, j.id, j.kind, j.payload, j.key, j.priority, j.attempt, j.max_attempts, j.lost, j.created_at
            from postrider.jobs j
            where j.queue = held.queue and j.priority = held.priority and j.xid >= pg_snapshot_xmax(held.seen)
              and (j.xid, j.id) > (held.after_xid, held.after_id) and (j.xid, j.id) <= (held.upto_xid, held.upto_id)
              and pg_visible_in_snapshot(j.xid, held.target) and j.id not in (select unnest(cancelled))
            order by j.queue, j.priority, j.xid, j.id;
        left_over := left_over - held.jobs;
        room := room - next.bytes;
        exit when left_over <= 0 or room <= 0 or next.is_suspect;
    end loop;
end
$$;
