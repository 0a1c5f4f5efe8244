-- What keeps the rings of the job queue small. Workers call tend_jobs every few seconds; nobody waits for it for longer than a moment.

-- Locks tables to empty them, if that is a matter of a moment. Whoever waits for a lock makes everybody wait who comes after it, so beside a long reader (a
-- dump, a report) nothing is asked for; transactions that end are waited for, or it would never be the turn of a busy queue.
create or replace function postrider.lock_job_slot(tables text[]) returns boolean
    language plpgsql volatile set search_path = pg_catalog, pg_temp set lock_timeout = '20ms' as $$
declare
    wanted  constant text := (select string_agg(format('postrider.%I', t.name), ', ') from unnest(lock_job_slot.tables) as t (name));
    oids    constant oid[] := array(select format('postrider.%I', t.name)::regclass::oid from unnest(lock_job_slot.tables) as t (name));
    holders text[];
begin
    begin
        execute format('lock table %s in access exclusive mode nowait', wanted);
        return true;
    exception when lock_not_available then
        null;
    end;
    holders := array(select l.virtualtransaction from pg_locks l where l.relation = any (oids) and l.pid is distinct from pg_backend_pid());
    perform pg_sleep(0.05);
    if exists (select from pg_locks l where l.relation = any (oids) and l.virtualtransaction = any (holders)) then
        return false;
    end if;
    begin
        execute format('lock table %s in access exclusive mode', wanted);
        return true;
    exception when lock_not_available then
        return false;
    end;
end
$$;

-- Jobs that nobody works on (a queue that is paused or has no worker, a priority that is never reached) would keep the ring from turning for ever, one in each
-- slot is enough. When it would turn and cannot, those of the next slot are claimed and given back as they were, and wait in job_waiting.
create or replace function postrider.set_jobs_aside(slot_bytes bigint, linger interval, most integer default 10000) returns integer
    language plpgsql volatile set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off as $$
#variable_conflict use_column
declare
    turned constant bigint := coalesce(pg_sequence_last_value('postrider.job_slot'), 0);
    n      constant smallint := ((turned + 1) & 7)::smallint;
    -- Of no worker, so that such a claim is not taken for one.
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    band   record;
    next   record;
    held   postrider.job_claims;
    last   smallint;
    moved  integer := 0;
begin
    if pg_relation_size(format('postrider.jobs_%s', turned & 7)::regclass) < set_jobs_aside.slot_bytes
       or pg_relation_size(format('postrider.jobs_%s', n)::regclass) = 0 then
        return 0;
    end if;
    for band in
        with recursive band as (
            (select j.queue, j.priority from postrider.jobs j where j.slot = n order by j.queue, j.priority limit 1)
            union all
            select next.queue, next.priority from band b cross join lateral (
                select j.queue, j.priority from postrider.jobs j where j.slot = n
                and (j.queue, j.priority) > (b.queue, b.priority) order by j.queue, j.priority limit 1) next)
        select b.queue, b.priority from band b
        where not exists (select from postrider.job_claims c where c.queue = b.queue and c.priority = b.priority and c.worker <> nobody
                          and c.claimed_at > clock_timestamp() - set_jobs_aside.linger)
          and (select r.slot = n and r.created_at <= clock_timestamp() - set_jobs_aside.linger from postrider.list_ready_jobs(b.queue, b.priority, 1) r)
    loop
        insert into postrider.job_queues (queue) values (band.queue) on conflict on constraint job_queues_pkey do nothing;
        -- As claim_jobs does. Whoever has it claims there, and is not waited for.
        perform from postrider.job_queues q where q.queue = band.queue for no key update skip locked;
        continue when not found;
        loop
            select c.* into next from postrider.claim_band(band.queue, band.priority, 1000, 16777216, nobody, interval '0', false) c;
            held := next.made;
            exit when held.claim is null;
            last := (select j.slot from postrider.jobs j where j.queue = held.queue and j.priority = held.priority and j.xid = held.upto_xid and j.id = held.upto_id);
            perform postrider.settle_jobs(held.claim, json_agg(json_build_object('id', j.id, 'untouched', true))) from unnest(next.ids) as j (id);
            moved := moved + held.jobs;
            exit when moved >= set_jobs_aside.most or last <> n;
        end loop;
        exit when moved >= set_jobs_aside.most;
    end loop;
    return moved;
end
$$;

-- Empties a slot in which every job has been claimed, if there is one. Jobs of claims that are still open are set aside.
create or replace function postrider.turn_jobs(slot_bytes bigint) returns integer
    language plpgsql volatile set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
    turned  bigint := coalesce(pg_sequence_last_value('postrider.job_slot'), 0);
    n       integer;
    is_owed boolean;
begin
    if pg_relation_size(format('postrider.jobs_%s', turned & 7)::regclass) >= turn_jobs.slot_bytes
       and pg_relation_size(format('postrider.jobs_%s', (turned + 1) & 7)::regclass) = 0 then
        turned := turned + 1;
        perform setval('postrider.job_slot', turned);
    end if;
    for step in 1..7 loop
        n := (turned + step) & 7;
        continue when pg_relation_size(format('postrider.jobs_%s', n)::regclass) = 0;
        -- Is a job there that no cursor has passed? Not seen at all, or beyond the position. First without a lock, as most slots of a backlog have one; and
        -- again with it, when nobody can be writing there.
        for look in 1..2 loop
            execute format($owed$
                with recursive band as (
                    (select j.queue, j.priority from postrider.jobs_%1$s j order by j.queue, j.priority limit 1)
                    union all
                    select next.queue, next.priority from band b cross join lateral (
                        select j.queue, j.priority from postrider.jobs_%1$s j
                        where (j.queue, j.priority) > (b.queue, b.priority) order by j.queue, j.priority limit 1) next)
                select exists (
                    select from band b
                    left join lateral (
                        select c.* from postrider.job_claims c where c.queue = b.queue and c.priority = b.priority
                        order by c.queue desc, c.priority desc, c.number desc limit 1) c on true
                    where c.claim is null
                       or exists (select from postrider.jobs_%1$s j where j.queue = b.queue and j.priority = b.priority
                                  and j.xid >= pg_snapshot_xmax(c.seen) and (j.xid, j.id) > (c.upto_xid, c.upto_id))
                       or exists (select from pg_snapshot_xip(c.target) w (xid) join postrider.jobs_%1$s j on j.xid = w.xid
                                  where j.queue = b.queue and j.priority = b.priority)
                       or exists (select from pg_snapshot_xip(c.seen) w (xid) join postrider.jobs_%1$s j on j.xid = w.xid
                                  where j.queue = b.queue and j.priority = b.priority and (j.xid, j.id) > (c.upto_xid, c.upto_id)))
            $owed$, n) into is_owed;
            exit when is_owed or look = 2;
            is_owed := not postrider.lock_job_slot(array[format('jobs_%s', n)]);
            exit when is_owed;
        end loop;
        continue when is_owed;
        insert into postrider.job_kept
        select c.claim, j.* from postrider.job_claims c cross join lateral postrider.unfinished_jobs(c.claim) j
        where j.slot = n and not exists (select from postrider.job_settled s where s.claim = c.claim and s.job = 0)
        on conflict do nothing;
        execute format('truncate postrider.jobs_%s', n);
        return 1;
    end loop;
    return 0;
end
$$;

-- Empties a slot of claims: what still counts of them, the newest cursor of each band and the claims that are open, moves to the slot being written. Of a
-- band that has no job in the ring no cursor is needed: whatever comes is new to it.
create or replace function postrider.turn_job_claims(slot_bytes bigint) returns integer
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    turned  bigint := coalesce(pg_sequence_last_value('postrider.job_claim_slot'), 0);
    n       integer;
begin
    if pg_relation_size(format('postrider.job_claims_%s', turned & 3)::regclass) >= turn_job_claims.slot_bytes
       and pg_relation_size(format('postrider.job_claims_%s', (turned + 1) & 3)::regclass) = 0 then
        turned := turned + 1;
        perform setval('postrider.job_claim_slot', turned);
    end if;
    for step in 1..3 loop
        n := (turned + step) & 3;
        continue when pg_relation_size(format('postrider.job_claims_%s', n)::regclass) = 0;
        continue when not postrider.lock_job_slot(array[format('job_claims_%s', n), format('job_settled_%s', n)]);
        with still as (
            select c.* from postrider.job_claims c
            where c.slot = n
              and (not exists (select from postrider.job_settled s where s.claim = c.claim and s.job = 0)
                   or exists (select from postrider.jobs j where j.queue = c.queue and j.priority = c.priority)
                   and not exists (select from postrider.job_claims l where l.queue = c.queue and l.priority = c.priority and l.number > c.number))),
        settled as (
            insert into postrider.job_settled (slot, claim, job, settled_at)
            select (turned & 3)::smallint, s.claim, s.job, s.settled_at
            from postrider.job_settled s join still on still.claim = s.claim)
        insert into postrider.job_claims (slot, claim, queue, priority, number, seen, target, after_xid, after_id, upto_xid, upto_id, jobs, is_plain,
            begins, worker, claimed_at, expires_at)
        select (turned & 3)::smallint, c.claim, c.queue, c.priority, c.number, c.seen, c.target, c.after_xid, c.after_id, c.upto_xid, c.upto_id, c.jobs,
               c.is_plain, c.begins, c.worker, c.claimed_at, c.expires_at from still c;
        execute format('truncate postrider.job_claims_%1$s, postrider.job_settled_%1$s', n);
        return 1;
    end loop;
    return 0;
end
$$;

-- Results go by time: the longest that any queue keeps them is spread over six slots.
create or replace function postrider.turn_job_results() returns integer
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    turned  bigint := coalesce(pg_sequence_last_value('postrider.job_result_slot'), 0);
    keep    constant interval := coalesce((select max(q.keep_results) from postrider.job_queues q), interval '1 day');
    oldest  smallint := ((turned + 1) & 7)::smallint;
begin
    insert into postrider.job_result_ring (slot) values (turned & 7) on conflict do nothing;
    -- Where nothing is kept it is always time, and there is nothing to do.
    if not exists (select from generate_series(0, 7) as s (slot) where pg_relation_size(format('postrider.job_results_%s', s.slot)::regclass) > 0) then
        return 0;
    end if;
    -- Of a clock that was ahead: nothing would be older than that until it is that late.
    update postrider.job_result_ring set opened_at = clock_timestamp() where opened_at > clock_timestamp();
    if (select r.opened_at < clock_timestamp() - keep / 6 from postrider.job_result_ring r where r.slot = turned & 7)
       and postrider.lock_job_slot(array[format('job_results_%s', oldest)]) then
        -- The slot after this one holds what is oldest, at least as old as seven times a sixth.
        execute format('truncate postrider.job_results_%s', oldest);
        delete from postrider.job_result_ring r where r.slot = oldest;
        insert into postrider.job_result_ring (slot) values (oldest);
        perform setval('postrider.job_result_slot', turned + 1);
        return 1;
    end if;
    return 0;
end
$$;

-- All of it, and what has to be swept by rows. One at a time; whoever finds another at it leaves. Answers whether there may be more to do: one slot is emptied
-- in a transaction, so that none is locked while another is waited for.
create or replace function postrider.tend_jobs(
    slot_bytes bigint default 67108864, claim_bytes bigint default 2097152, linger interval default interval '10 minutes') returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    emptied integer;
    swept   integer;
begin
    perform postrider.refuse_snapshot('tended');
    if not pg_try_advisory_xact_lock(7310868752) then
        return 0;
    end if;
    delete from postrider.job_unique u using (
        select u.queue, u.unique_key from postrider.job_unique u where u.until < clock_timestamp() limit 10000 for update skip locked) old
    where u.queue = old.queue and u.unique_key = old.unique_key;
    get diagnostics swept = row_count;
    -- Of one that still waits it counts when its turn comes, whenever that is.
    delete from postrider.job_cancelled c where c.cancelled_at < clock_timestamp() - interval '1 day'
       and not exists (select from postrider.jobs j where j.id = c.id) and not exists (select from postrider.job_waiting w where w.id = c.id)
       and not exists (select from postrider.job_kept k where k.id = c.id);
    delete from postrider.job_kept k where exists (select from postrider.job_settled s where s.claim = k.claim and s.job = 0)
                                        or not exists (select from postrider.job_claims c where c.claim = k.claim);
    delete from postrider.job_begun b where exists (select from postrider.job_settled s where s.claim = b.claim and s.job = 0)
                                         or not exists (select from postrider.job_claims c where c.claim = b.claim);
    perform postrider.set_jobs_aside(tend_jobs.slot_bytes, tend_jobs.linger);
    emptied := postrider.turn_jobs(tend_jobs.slot_bytes);
    if emptied = 0 then
        emptied := postrider.turn_job_claims(tend_jobs.claim_bytes);
    end if;
    if emptied = 0 then
        emptied := postrider.turn_job_results();
    end if;
    -- As many as are taken at once: there may be more, and 2,000 a second would come faster than one such sweep every five seconds takes them away.
    return case when swept = 10000 then 1 else emptied end;
end
$$;

-- After a restore into another cluster: snapshots and xids mean nothing there, but the old ones can be compared with each other. What was not finished waits
-- for its turn anew, in job_waiting. With all workers stopped.
create or replace function postrider.rebase_jobs() returns bigint
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moved bigint;
begin
    lock table postrider.job_queues, postrider.jobs, postrider.job_claims, postrider.job_settled in access exclusive mode;
    insert into postrider.job_waiting (id, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at, state, run_at)
    select j.id, j.queue, j.priority, j.kind, j.key, j.unique_key, j.attempt, j.lost, j.max_attempts, j.payload, j.created_at, 'scheduled', clock_timestamp()
    from (
        select j.* from postrider.jobs j
        left join lateral (
            select c.* from postrider.job_claims c where c.queue = j.queue and c.priority = j.priority order by c.number desc limit 1) c on true
        where c.claim is null or not (pg_visible_in_snapshot(j.xid, c.seen)
              or pg_visible_in_snapshot(j.xid, c.target) and (j.xid, j.id) <= (c.upto_xid, c.upto_id))
        union all
        select u.* from postrider.job_claims c cross join lateral postrider.unfinished_jobs(c.claim) u) j
    on conflict (id) do nothing;
    get diagnostics moved = row_count;
    truncate postrider.jobs, postrider.job_claims, postrider.job_settled, postrider.job_kept, postrider.job_begun;
    perform setval('postrider.job_id', greatest(pg_sequence_last_value('postrider.job_id'), (select max(w.id) from postrider.job_waiting w), 1));
    return moved;
end
$$;
