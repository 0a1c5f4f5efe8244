-- What people do with jobs and see of them: cancel, retry, pause; who runs what since when; how much waits.

-- Whether a job can be claimed, or is claimed and not finished. Its row stays in the ring, or set aside, after it has ended: only cursors and claims tell.
create or replace function postrider.is_job_on_its_way(id bigint) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from postrider.jobs j
        left join lateral (
            select c.* from postrider.job_claims c where c.queue = j.queue and c.priority = j.priority
            order by c.queue desc, c.priority desc, c.number desc limit 1) c on true
        where j.id = is_job_on_its_way.id
          and (c.claim is null or not (pg_visible_in_snapshot(j.xid, c.seen)
               or pg_visible_in_snapshot(j.xid, c.target) and (j.xid, j.id) <= (c.upto_xid, c.upto_id))))
    or exists (
        select from postrider.jobs j
        join postrider.job_claims c on c.queue = j.queue and c.priority = j.priority
        where j.id = is_job_on_its_way.id
          and pg_visible_in_snapshot(j.xid, c.target) and not pg_visible_in_snapshot(j.xid, c.seen)
          and (j.xid, j.id) > (c.after_xid, c.after_id) and (j.xid, j.id) <= (c.upto_xid, c.upto_id)
          and not exists (select from postrider.job_settled s where s.claim = c.claim and s.job in (0, j.id)))
    or exists (
        select from postrider.job_kept k join postrider.job_claims c on c.claim = k.claim
        where k.id = is_job_on_its_way.id
          and not exists (select from postrider.job_settled s where s.claim = c.claim and s.job in (0, k.id)))
$$;

-- Cancels a job. One that waits or is dead is gone at once; of one that may be running its worker is told. Answers what happened, or null if there is no such job.
create or replace function postrider.cancel_job(id bigint) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    gone postrider.job_waiting;
begin
    delete from postrider.job_waiting w where w.id = cancel_job.id returning w.* into gone;
    if found then
        delete from postrider.job_keys k where k.queue = gone.queue and k.key = gone.key and k.id = gone.id;
        delete from postrider.job_unique u where u.queue = gone.queue and u.unique_key = gone.unique_key and u.id = gone.id and u.until = 'infinity';
        delete from postrider.job_failures f where f.id = gone.id;
        -- Whoever waits behind it may go.
        insert into postrider.job_turns (queue, key, at) select gone.queue, gone.key, clock_timestamp() where gone.key is not null;
        insert into postrider.job_results (slot, id, queue, kind, key, state, attempt, created_at, error)
        select coalesce(pg_sequence_last_value('postrider.job_result_slot'), 0) & 7, gone.id, gone.queue, gone.kind, gone.key,
               case when gone.state = 'dead' then 'discarded' else 'cancelled' end, gone.attempt, gone.created_at, gone.last_error
        where not exists (select from postrider.job_queues q where q.queue = gone.queue and q.keep_results = interval '0');
        perform postrider.ring_job_bell();
        return case when gone.state = 'dead' then 'discarded' else 'cancelled' end;
    end if;
    if not postrider.is_job_on_its_way(cancel_job.id) then
        return null;
    end if;
    insert into postrider.job_cancelled (id) values (cancel_job.id) on conflict do nothing;
    return 'told';
end
$$;

-- A dead job gets one more attempt now, one that waits for its time does not wait any longer. Answers the state it was in, or null.
create or replace function postrider.retry_job(id bigint) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    before postrider.job_waiting;
begin
    select w.* into before from postrider.job_waiting w where w.id = retry_job.id and w.state <> 'key' for update;
    if not found then
        return null;
    end if;
    -- Whoever cancelled it before meant another time.
    delete from postrider.job_cancelled c where c.id = before.id;
    -- A dead one has given its key back, and takes its place in it again.
    update postrider.job_waiting w set run_at = clock_timestamp(), lost = 0,
        state = case when before.state = 'dead' and before.key is not null then 'key' else 'scheduled' end,
        attempt = case when before.state = 'dead' then least(before.attempt + 1, 32767) else before.attempt end,
        max_attempts = case when before.state = 'dead' then greatest(before.max_attempts, least(before.attempt + 1, 32767)) else before.max_attempts end
    where w.id = before.id;
    insert into postrider.job_turns (queue, key, at) select before.queue, before.key, clock_timestamp() where before.state = 'dead' and before.key is not null;
    -- What went wrong before is told with what goes wrong next.
    insert into postrider.job_failures as f (id, history) select before.id, before.history where before.state = 'dead' and before.history <> '[]'
    on conflict (id) do update set history = excluded.history;
    perform postrider.ring_job_bell();
    return before.state;
end
$$;

-- Every complaint about a queue's name. Never returns if there is one.
create or replace function postrider.check_queue(queue text) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
begin
    if queue is null or queue = '' or octet_length(queue) > 255 then
        raise exception using errcode = case when queue is null then '22004' when queue = '' then '22023' else '54000' end,
            message = format('postrider: the queue must not be %s',
                case when queue is null then 'null' when queue = '' then 'empty' else 'longer than 255 bytes' end),
            detail = 'Nothing was changed.', hint = 'Name a queue, for example ''default''.';
    end if;
end
$$;

create or replace function postrider.pause_queue(queue text, paused boolean default true) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform postrider.check_queue(pause_queue.queue);
    if pause_queue.paused is null then
        raise exception using errcode = '22004', message = format('postrider: queue %L is to be paused or not, null is neither', pause_queue.queue),
            detail = 'Nothing was changed.', hint = 'true pauses it, false lets it go on.';
    end if;
    insert into postrider.job_queues as q (queue, paused_at) values (pause_queue.queue, case when pause_queue.paused then clock_timestamp() end)
    on conflict on constraint job_queues_pkey do update set paused_at = case when pause_queue.paused then coalesce(q.paused_at, clock_timestamp()) end
    where (q.paused_at is null) = pause_queue.paused;
    if not found then
        return false;
    end if;
    perform postrider.ring_job_bell();
    return true;
end
$$;

-- What is left out stays as it is.
create or replace function postrider.set_queue(
    queue text, lease interval default null, keep_results interval default null, first_backoff interval default null, max_backoff interval default null
) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    -- The server's times end somewhere: what is added to the clock, or taken from it, must not be beyond.
    longest constant interval := interval '100 years';
    wrong   text;
begin
    perform postrider.check_queue(set_queue.queue);
    wrong := case when set_queue.lease not between interval '1 second' and longest then format('a lease of %s', set_queue.lease)
                  when set_queue.keep_results not between interval '0' and longest then format('keep_results of %s', set_queue.keep_results)
                  when set_queue.first_backoff <= interval '0' or set_queue.first_backoff > longest then format('a first_backoff of %s', set_queue.first_backoff)
                  when set_queue.max_backoff <= interval '0' or set_queue.max_backoff > longest then format('a max_backoff of %s', set_queue.max_backoff) end;
    if wrong is not null then
        raise exception using errcode = '22023', message = format('postrider: queue %L cannot have %s', set_queue.queue, wrong),
            detail = 'Nothing was changed.',
            hint = 'A lease is a second or more, a backoff more than nothing, keep_results ''0'' keeps nothing, and none of them is more than 100 years.';
    end if;
    insert into postrider.job_queues (queue) values (set_queue.queue) on conflict on constraint job_queues_pkey do nothing;
    update postrider.job_queues q set lease = coalesce(set_queue.lease, q.lease), keep_results = coalesce(set_queue.keep_results, q.keep_results),
        first_backoff = coalesce(set_queue.first_backoff, q.first_backoff), max_backoff = coalesce(set_queue.max_backoff, q.max_backoff)
    where q.queue = set_queue.queue;
end
$$;

-- Jobs that are claimed and not finished: who has them, since when, and until when without another sign of life.
create or replace function postrider.list_running_jobs() returns table (
    id bigint, queue text, kind text, key text, priority smallint, attempt smallint, worker uuid, worker_name text, claimed_at timestamptz, expires_at timestamptz)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select j.id, j.queue, j.kind, j.key, j.priority, j.attempt, c.worker, w.name, c.claimed_at,
           greatest(c.expires_at, case when w.claims is null or c.claim = any (w.claims) then w.expires_at end)
    from postrider.job_claims c
    cross join lateral postrider.unfinished_jobs(c.claim) j
    left join postrider.job_workers w on w.worker = c.worker
    where not exists (select from postrider.job_settled s where s.claim = c.claim and s.job = 0)
$$;

-- The jobs of a band that nobody has claimed, in the order they will be, at most so many.
create or replace function postrider.list_ready_jobs(queue text, priority smallint, most integer) returns setof postrider.jobs
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    c postrider.job_claims;
    brought bigint;
begin
    select l.* into c from postrider.job_claims l where l.queue = list_ready_jobs.queue and l.priority = list_ready_jobs.priority
    order by l.queue desc, l.priority desc, l.number desc limit 1;
    return query select b.* from postrider.job_band(list_ready_jobs.queue, list_ready_jobs.priority, coalesce(c.seen, '1:1:'), coalesce(c.target, '1:1:'),
        coalesce(c.upto_xid, '0'), coalesce(c.upto_id, 0), list_ready_jobs.most) b;
    get diagnostics brought = row_count;
    if brought < list_ready_jobs.most then
        return query select b.* from postrider.job_band(list_ready_jobs.queue, list_ready_jobs.priority, coalesce(c.target, '1:1:'),
            pg_current_snapshot(), '0', 0, (list_ready_jobs.most - brought)::integer) b;
    end if;
end
$$;

-- How many there are; counting stops at the number given.
create or replace function postrider.count_ready_jobs(queue text, priority smallint, most integer default 10000) returns integer
    language sql stable security definer set search_path = pg_catalog, pg_temp
    return (select count(*)::integer from postrider.list_ready_jobs(count_ready_jobs.queue, count_ready_jobs.priority, count_ready_jobs.most));

-- From band to band by the index.
create or replace view postrider.job_bands as
    with recursive band (queue, priority) as (
        (select j.queue, j.priority from postrider.jobs j order by j.queue, j.priority limit 1)
        union all
        select next.queue, next.priority from band b cross join lateral (
            select j.queue, j.priority from postrider.jobs j where (j.queue, j.priority) > (b.queue, b.priority) order by j.queue, j.priority limit 1) next)
    select b.queue, b.priority from band b;

-- Jobs in a state, or in any that is not an end, the newest first, without what is in them. Each kind of place gives so many at most, so nothing is walked that
-- is not shown.
create or replace function postrider.list_jobs(queue text default null, state text default null, most integer default 50) returns table (
    id bigint, state text, queue text, kind text, key text, attempt smallint, worker text, at timestamptz, error text)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select l.* from (
        (select w.id, w.state, w.queue::text, w.kind, w.key::text, w.attempt, null::text as worker, w.run_at as at, w.last_error as error
         from postrider.job_waiting w
         where (list_jobs.queue is null or w.queue = list_jobs.queue) and (list_jobs.state is null or w.state = list_jobs.state)
         order by w.id desc limit list_jobs.most)
        union all
        (select r.id, 'running', r.queue::text, r.kind, r.key::text, r.attempt, coalesce(nullif(r.worker_name, ''), r.worker::text), r.claimed_at, null
         from postrider.list_running_jobs() r
         where (list_jobs.queue is null or r.queue = list_jobs.queue) and (list_jobs.state is null or list_jobs.state = 'running')
         order by r.id desc limit list_jobs.most)
        union all
        (select j.id, 'ready', j.queue::text, j.kind, j.key::text, j.attempt, null, j.created_at, null
         from postrider.job_bands b
         cross join lateral postrider.list_ready_jobs(b.queue, b.priority, list_jobs.most) j
         where (list_jobs.queue is null or b.queue = list_jobs.queue) and (list_jobs.state is null or list_jobs.state = 'ready')
         limit list_jobs.most)
        union all
        (select r.id, r.state, r.queue, r.kind, r.key, r.attempt, coalesce(nullif(w.name, ''), r.worker::text), r.finished_at, r.error
         from postrider.job_results r left join postrider.job_workers w on w.worker = r.worker
         where (list_jobs.queue is null or r.queue = list_jobs.queue) and r.state = list_jobs.state
         order by r.finished_at desc limit list_jobs.most)) l
    order by l.id desc limit list_jobs.most
$$;

-- One row per queue. Counts of ready jobs stop at 10,000 a priority.
create or replace view postrider.job_stats as
    with names (queue) as (
        select q.queue from postrider.job_queues q union select b.queue from postrider.job_bands b union select w.queue from postrider.job_waiting w),
    running as materialized (
        select r.queue, count(*) as jobs, min(r.claimed_at) as since from postrider.list_running_jobs() r group by r.queue)
    select n.queue, q.paused_at,
           coalesce((select sum(postrider.count_ready_jobs(b.queue, b.priority)) from postrider.job_bands b where b.queue = n.queue), 0)::bigint as ready,
           coalesce(r.jobs, 0) as running, r.since as running_since,
           (select count(*) from postrider.job_waiting w where w.queue = n.queue and w.state = 'scheduled') as scheduled,
           (select count(*) from postrider.job_waiting w where w.queue = n.queue and w.state = 'key') as behind_key,
           (select count(*) from postrider.job_waiting w where w.queue = n.queue and w.state = 'dead') as dead,
           (select count(*) from postrider.job_workers w where w.expires_at > clock_timestamp() and n.queue = any (w.queues)) as workers
    from names n
    left join postrider.job_queues q on q.queue = n.queue
    left join running r on r.queue = n.queue;
