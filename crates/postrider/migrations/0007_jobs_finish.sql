-- Finishing jobs: done, failed, snoozed, cancelled; and taking over from workers that have vanished.

-- How long until the next attempt: doubled each time up to the queue's longest, and up to a fifth more or less, so that what failed together does not
-- come back together.
create or replace function postrider.job_backoff(attempt integer, first interval, longest interval) returns interval
    language sql volatile parallel safe return
    least(first * (2 ^ least(attempt - 1, 30)), longest) * (0.8 + 0.4 * random());

-- Settles jobs of a claim: those in `done`, and those that `outcomes` names. Without `done` all that is not named is done too, and the claim is closed.
-- Answers null, or why nothing was settled.
--
-- An outcome: {"id": 7, and one of "output": ..., "error": "why" (with "retry_in": seconds, or "dead": true), "snooze": seconds, "cancelled": true}.
--
-- Whoever closes a claim locks its row; whoever settles a part of it shares that lock until the end of his transaction. So of a worker that
-- comes back late and the one who takes over from it only one can succeed.
create or replace function postrider.settle_jobs(claim bigint, outcomes json default null, done bigint[] default null) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    held     postrider.job_claims;
    settings postrider.job_queues;
    number   bigint;
    named    bigint[];
    released integer;
begin
    perform postrider.refuse_snapshot('finished');
    -- Before any snapshot is taken: a ring that is turned while a statement waits for its lock would be empty to it, and what was set aside unseen.
    lock table postrider.jobs, postrider.job_claims, postrider.job_settled in access share mode;
    if settle_jobs.done is null then
        select c.* into held from postrider.job_claims c where c.claim = settle_jobs.claim for update;
    else
        select c.* into held from postrider.job_claims c where c.claim = settle_jobs.claim for share;
    end if;
    if not found or exists (select from postrider.job_settled s where s.claim = settle_jobs.claim and s.closes) then
        return format('claim %s is not held any more', settle_jobs.claim);
    end if;
    select q.* into settings from postrider.job_queues q where q.queue = held.queue;
    if settle_jobs.done is null then
        number := coalesce((select max(s.number) from postrider.job_settled s where s.claim = settle_jobs.claim), 0) + 1;
        -- The usual case needs nothing of what follows.
        if settle_jobs.outcomes is null and held.is_plain then
            if settings.keep_results > interval '0' then
                insert into postrider.job_results (slot, id, queue, kind, state, attempt, worker, created_at, claimed_at)
                select coalesce(pg_sequence_last_value('postrider.job_result_slot'), 0) & 7, j.id, j.queue, j.kind, 'done', j.attempt, held.worker,
                       j.created_at, held.claimed_at
                from postrider.unfinished_jobs(settle_jobs.claim) j;
            end if;
            insert into postrider.job_settled (slot, claim, number, closes) values (held.slot, held.claim, number, true);
            return null;
        end if;
    else
        named := settle_jobs.done || array(select (o ->> 'id')::bigint from json_array_elements(settle_jobs.outcomes) o);
        if cardinality(named) = 0 then
            return null;
        end if;
        if exists (select from postrider.job_settled s where s.claim = settle_jobs.claim and s.ids && named) then
            return format('a job of claim %s is finished already', settle_jobs.claim);
        end if;
        -- Two that settle parts of a claim at once: the second waits for the first, and is refused if it was the same job.
        number := named[1];
    end if;
    with unfinished as materialized (
        select j.* from postrider.unfinished_jobs(settle_jobs.claim) j
        where settle_jobs.done is null or j.id = any (named)),
    ended as materialized (
        select u.*, o.output, o.snooze,
               case when c.id is not null or o.cancelled then 'cancelled'
                    when o.snooze is not null then 'snoozed'
                    when o.error is null then 'done'
                    when o.dead or u.attempt >= u.max_attempts then 'dead'
                    else 'failed' end as fate,
               case when o.error is not null then left(o.error, 10000) end as error,
               coalesce(o.vanished, false) as vanished,
               coalesce(make_interval(secs => o.retry_in), postrider.job_backoff(u.attempt, settings.first_backoff, settings.max_backoff)) as pause
        from unfinished u
        left join json_to_recordset(settle_jobs.outcomes) as o (id bigint, output json, error text, retry_in double precision, dead boolean,
            snooze double precision, cancelled boolean, vanished boolean) on o.id = u.id
        -- What was cancelled on its way is not tried again; if it was done all the same, it is done.
        left join postrider.job_cancelled c on c.id = u.id and (o.error is not null or o.snooze is not null)),
    tombs as (
        delete from postrider.job_cancelled c using ended e where c.id = e.id and e.fate in ('done', 'dead', 'cancelled')),
    keys as (
        delete from postrider.job_keys k using ended e
        where k.queue = e.queue and k.key = e.key and k.id = e.id and e.fate in ('done', 'dead', 'cancelled') returning k.id),
    uniques as (
        delete from postrider.job_unique u using ended e
        where u.queue = e.queue and u.unique_key = e.unique_key and u.id = e.id and u.until = 'infinity' and e.fate in ('done', 'cancelled')),
    waiting as (
        insert into postrider.job_waiting (id, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at, state, run_at, last_error, history)
        select e.id, e.queue, e.priority, e.kind, e.key, e.unique_key,
               case when e.fate = 'failed' then e.attempt + 1 else e.attempt end,
               case when e.vanished then e.lost + 1 else 0 end, e.max_attempts, e.payload, e.created_at,
               case when e.fate = 'dead' then 'dead' else 'scheduled' end,
               case when e.fate = 'dead' then clock_timestamp() when e.fate = 'snoozed' then clock_timestamp() + make_interval(secs => e.snooze)
                    else clock_timestamp() + e.pause end,
               e.error, coalesce(f.history, '[]') || case when e.error is null then '[]' else jsonb_build_array(jsonb_build_object(
                   'at', clock_timestamp(), 'attempt', e.attempt, 'worker', held.worker, 'error', left(e.error, 1000))) end
        from ended e
        left join postrider.job_failures f on f.id = e.id
        where e.fate in ('failed', 'dead', 'snoozed')),
    failures as (
        insert into postrider.job_failures as f (id, history)
        select e.id, jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'attempt', e.attempt, 'worker', held.worker, 'error', left(e.error, 1000)))
        from ended e where e.fate = 'failed'
        on conflict (id) do update set history = (
            select jsonb_agg(h order by place) from (
                select h, place from jsonb_array_elements(f.history || excluded.history) with ordinality as a (h, place)
                order by place desc limit 10) a)),
    forgotten as (
        delete from postrider.job_failures f using ended e where f.id = e.id and e.attempt > 1 and e.fate in ('done', 'dead', 'cancelled')),
    results as (
        insert into postrider.job_results (slot, id, queue, kind, key, state, attempt, worker, created_at, claimed_at, error, output)
        select coalesce(pg_sequence_last_value('postrider.job_result_slot'), 0) & 7, e.id, e.queue, e.kind, e.key, e.fate, e.attempt, held.worker, e.created_at,
               held.claimed_at, e.error, e.output
        from ended e where e.fate in ('done', 'cancelled') and settings.keep_results > interval '0'),
    settled as (
        insert into postrider.job_settled (slot, claim, number, ids, closes)
        values (held.slot, held.claim, number, case when settle_jobs.done is not null then named end, settle_jobs.done is null))
    select count(*) into released from keys;
    if released > 0 or settle_jobs.outcomes is not null then
        perform postrider.ring_job_bell();
    end if;
    return null;
end
$$;

-- Finishes jobs of a claim, in the caller's transaction: what the work has written there and its being done are one. All jobs of the claim are done but for
-- those that `outcomes` says otherwise of; with `done` only those are finished, and the claim stays open. See settle_jobs for an outcome.
create or replace function postrider.finish_jobs(claim bigint, outcomes json default null, done bigint[] default null) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    refused constant text := postrider.settle_jobs(finish_jobs.claim, finish_jobs.outcomes, finish_jobs.done);
begin
    if refused is not null then
        raise exception using errcode = '55000', message = format('postrider: %s', refused),
            detail = 'Its lease ran out and the jobs went to another worker, or they have been finished before. Nothing was finished.',
            hint = 'Roll back: the other worker does the work. Take a longer lease, or extend it with postrider.extend_jobs.';
    end if;
    -- Whoever stops between this and the commit must not keep the claim for ever.
    perform set_config('idle_in_transaction_session_timeout', '30s', true)
    where current_setting('idle_in_transaction_session_timeout') = '0';
end
$$;

-- A sign of life of a worker: all that it has claimed is its own for another lease. Answers the jobs that were cancelled on their way, for it to stop.
create or replace function postrider.extend_jobs(worker uuid, lease interval default interval '30 seconds', name text default null, queues text[] default '{}')
    returns setof bigint
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    insert into postrider.job_workers as w (worker, name, queues, expires_at)
    values (extend_jobs.worker, coalesce(extend_jobs.name, ''), extend_jobs.queues, clock_timestamp() + extend_jobs.lease)
    on conflict (worker) do update set expires_at = excluded.expires_at;
    return query select c.id from postrider.job_cancelled c;
end
$$;

-- Takes over what vanished workers have left: every unfinished job gets its next attempt, at once. Answers how many jobs.
create or replace function postrider.reap_jobs() returns integer
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    left_behind record;
    outcomes json;
    taken integer := 0;
begin
    perform postrider.refuse_snapshot('taken over');
    -- Before any snapshot is taken: a ring that is turned while a statement waits for its lock would be empty to it, and what was set aside unseen.
    lock table postrider.jobs, postrider.job_claims, postrider.job_settled in access share mode;
    for left_behind in
        select c.claim, c.worker, c.claimed_at, w.name from postrider.job_claims c
        left join postrider.job_workers w on w.worker = c.worker
        where greatest(c.expires_at, w.expires_at) < clock_timestamp()
          and not exists (select from postrider.job_settled s where s.claim = c.claim and s.closes)
        order by c.claim limit 100
        -- One whose worker is just finishing something is left for the next time.
        for update of c skip locked
    loop
        select json_agg(json_build_object('id', j.id, 'retry_in', 0, 'vanished', true,
                   'error', format('worker %s vanished; it had claimed the job at %s', coalesce(nullif(left_behind.name, ''), left_behind.worker::text), left_behind.claimed_at))),
               taken + count(*) into outcomes, taken
        from postrider.unfinished_jobs(left_behind.claim) j;
        perform postrider.settle_jobs(left_behind.claim, outcomes);
    end loop;
    delete from postrider.job_workers w where w.expires_at < clock_timestamp() - interval '1 day';
    return taken;
end
$$;
