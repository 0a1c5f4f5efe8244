-- Finishing jobs: done, failed, snoozed, cancelled; and taking over from workers that have vanished.

-- How long until the next attempt: doubled each time up to the queue's longest, and up to a fifth more or less, so that what failed together does not
-- come back together. In seconds, as doubles: an interval of days or years that is doubled thirty times is none of the server's any more.
create or replace function postrider.job_backoff(attempt integer, first interval, longest interval) returns interval
    language sql volatile parallel safe return
    make_interval(secs => least(extract(epoch from first) * 2 ^ least(attempt - 1, 30), extract(epoch from longest)) * (0.8 + 0.4 * random()));

-- Refuses what is not understood: a word that nobody reads must not make a failed job a done one.
create or replace function postrider.check_outcomes(outcomes json, done bigint[]) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    wrong text;
begin
    if array_position(check_outcomes.done, null) is not null then
        wrong := 'A job in "done" is null.';
    elsif json_typeof(check_outcomes.outcomes) is distinct from 'array' then
        wrong := format('They are a JSON %s.', json_typeof(check_outcomes.outcomes));
    else
        select format('Number %s, %s, %s.', o.place, left(o.said::text, 200), o.reason) into wrong
        from (
            select a.said, a.place,
                case when json_typeof(a.said) <> 'object' then 'is not an object'
                     when a.said ->> 'id' is null or a.said ->> 'id' !~ '^[0-9]{1,18}$' then 'names no job by its "id"'
                     when w.unknown is not null then format('has the word "%s", which means nothing here', left(w.unknown, 80))
                     when w.different < w.words then 'says something twice'
                     when w.verdicts > 1 then 'says more than one of "error", "snooze", "cancelled", "untouched" and "output"'
                     when w.errors = 0 and w.of_errors > 0 then 'has "dead", "retry_in" or "vanished", which belong to an "error"'
                     when w.mistyped is not null then format('has a JSON %s for "%s"', json_typeof(a.said -> w.mistyped), w.mistyped)
                     when w.denied is not null then format('has "%s": false, which says nothing of how it ended', w.denied)
                     when w.endless is not null then format('has a "%s" beyond 100 years', w.endless)
                     end as reason
            from json_array_elements(check_outcomes.outcomes) with ordinality as a (said, place)
            cross join lateral (
                select count(*) as words, count(distinct k.word) as different,
                       min(k.word) filter (where k.word not in ('id', 'output', 'error', 'retry_in', 'dead', 'snooze', 'cancelled', 'untouched', 'vanished')) as unknown,
                       count(*) filter (where k.word in ('error', 'snooze', 'cancelled', 'untouched', 'output')) as verdicts,
                       count(*) filter (where k.word = 'error') as errors,
                       count(*) filter (where k.word in ('dead', 'retry_in', 'vanished')) as of_errors,
                       min(k.word) filter (where json_typeof(a.said -> k.word) is distinct from case
                           when k.word = 'error' then 'string' when k.word in ('retry_in', 'snooze') then 'number'
                           when k.word in ('dead', 'cancelled', 'untouched', 'vanished') then 'boolean' else json_typeof(a.said -> k.word) end) as mistyped,
                       min(k.word) filter (where k.word in ('cancelled', 'untouched') and a.said ->> k.word = 'false') as denied,
                       -- In seconds, as the worker's own longest pause. An exponent of three digits may be more than a number of the server holds.
                       min(k.word) filter (where case
                           when k.word not in ('retry_in', 'snooze') or json_typeof(a.said -> k.word) <> 'number' then false
                           when a.said ->> k.word ~ '[eE][+-]?0*[1-9][0-9]{2}' then true
                           else (a.said ->> k.word)::numeric not between -3153600000 and 3153600000 end) as endless
                from json_object_keys(case when json_typeof(a.said) = 'object' then a.said else '{}' end) as k (word)) w) o
        where o.reason is not null order by o.place limit 1;
        if wrong is null then
            select format('Job %s is named twice.', n.id) into wrong
            from (select (a.said ->> 'id')::bigint as id from json_array_elements(check_outcomes.outcomes) as a (said)
                  union all select unnest(check_outcomes.done)) n
            group by n.id having count(*) > 1 order by n.id limit 1;
        end if;
    end if;
    if wrong is not null then
        raise exception using errcode = '22023', message = 'postrider: these outcomes of jobs are not understood',
            detail = wrong || ' Nothing was finished.',
            hint = 'An array of {"id": 7, "error": "why"}, with "retry_in": seconds or "dead": true beside the error; or, in place of it, '
                   '"snooze": seconds, "output": any value, "cancelled": true, "untouched": true. In "done", ids of jobs.';
    end if;
end
$$;

-- Settles jobs of a claim: those in `done`, and those that `outcomes` names. Without `done` all that is not named is done too, and the claim is closed.
-- Answers null, or why nothing was settled.
--
-- An outcome: {"id": 7, and one of "output": ..., "error": "why" (with "retry_in": seconds, or "dead": true), "snooze": seconds, "cancelled": true,
-- "untouched": true (it was not begun, and loses nothing)}.
--
-- Whoever closes a claim locks its row; whoever settles a part of it shares that lock until the end of his transaction. So of a worker that
-- comes back late and the one who takes over from it only one can succeed.
create or replace function postrider.settle_jobs(claim bigint, outcomes json default null, done bigint[] default null) returns text
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp
    set jit = off set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    held     postrider.job_claims;
    settings postrider.job_queues;
    named    bigint[];
    found_in bigint[];
    stranger bigint;
    released integer;
    written  smallint;
begin
    perform postrider.refuse_snapshot('finished');
    if settle_jobs.outcomes is not null or array_position(settle_jobs.done, null) is not null then
        perform postrider.check_outcomes(settle_jobs.outcomes, settle_jobs.done);
    end if;
    -- Before any snapshot is taken: a ring that is turned while a statement waits for its lock would be empty to it, and what was set aside unseen.
    lock table postrider.jobs, postrider.job_claims, postrider.job_settled in access share mode;
    if settle_jobs.done is null then
        select c.* into held from postrider.job_claims c where c.claim = settle_jobs.claim for update;
    else
        select c.* into held from postrider.job_claims c where c.claim = settle_jobs.claim for share;
    end if;
    if not found or exists (select from postrider.job_settled s where s.claim = settle_jobs.claim and s.job = 0) then
        return format('claim %s is not held any more', settle_jobs.claim);
    end if;
    select q.* into settings from postrider.job_queues q where q.queue = held.queue;
    -- The slot of the results, once and not for every row.
    written := (coalesce(pg_sequence_last_value('postrider.job_result_slot'), 0) & 7)::smallint;
    -- The usual case needs nothing of what follows.
    if settle_jobs.done is null and settle_jobs.outcomes is null and held.is_plain then
        if settings.keep_results > interval '0' then
            insert into postrider.job_results (slot, id, queue, kind, state, attempt, worker, created_at, claimed_at)
            -- As unfinished_jobs reads them, in place: it would store and copy them, payloads and all, and 1000 took 3.5 ms in place of 2.5.
            select written, j.id, held.queue, j.kind, 'done', j.attempt, held.worker, j.created_at, held.claimed_at
            from (
                select j.* from (
                    select w.xid from pg_snapshot_xip(held.seen) as w (xid)
                    where w.xid >= held.after_xid and pg_visible_in_snapshot(w.xid, held.target)) w
                cross join lateral (
                    select j.id, j.kind, j.attempt, j.created_at from postrider.jobs j
                    where j.queue = held.queue and j.priority = held.priority and j.xid = w.xid
                      and (j.xid, j.id) > (held.after_xid, held.after_id) and (j.xid, j.id) <= (held.upto_xid, held.upto_id)
                    order by j.queue, j.priority, j.xid, j.id limit held.jobs) j
                union all
                (select j.id, j.kind, j.attempt, j.created_at from postrider.jobs j
                where j.queue = held.queue and j.priority = held.priority and j.xid >= pg_snapshot_xmax(held.seen)
                  and (j.xid, j.id) > (held.after_xid, held.after_id) and (j.xid, j.id) <= (held.upto_xid, held.upto_id)
                  and pg_visible_in_snapshot(j.xid, held.target)
                order by j.queue, j.priority, j.xid, j.id limit held.jobs)
                union all
                select k.id, k.kind, k.attempt, k.created_at from postrider.job_kept k where k.claim = held.claim) j
            where j.id not in (select s.job from postrider.job_settled s where s.claim = held.claim);
        end if;
        insert into postrider.job_settled (slot, claim, job) values (held.slot, held.claim, 0);
        return null;
    end if;
    named := array(select unnest(settle_jobs.done) union select (o ->> 'id')::bigint from json_array_elements(settle_jobs.outcomes) o);
    if settle_jobs.done is not null and cardinality(named) = 0 then
        return null;
    end if;
    -- Of two that settle the same job at once the second waits for the first at the key of job_settled, and all that it did here is undone.
    begin
        with unfinished as materialized (
            select j.* from postrider.unfinished_jobs(settle_jobs.claim) j
            where settle_jobs.done is null or j.id = any (named)),
        ended as materialized (
            select u.*, o.output, o.snooze,
                   case when c.id is not null or o.cancelled then 'cancelled'
                        when o.untouched then 'untouched'
                        when o.snooze is not null then 'snoozed'
                        when o.error is null then 'done'
                        when o.dead or u.attempt >= u.max_attempts then 'dead'
                        else 'failed' end as fate,
                   case when o.error is not null then left(o.error, 10000) end as error,
                   coalesce(o.vanished, false) as vanished,
                   coalesce(make_interval(secs => o.retry_in), postrider.job_backoff(u.attempt, settings.first_backoff, settings.max_backoff)) as pause
            from unfinished u
            left join json_to_recordset(settle_jobs.outcomes) as o (id bigint, output json, error text, retry_in double precision, dead boolean,
                snooze double precision, cancelled boolean, vanished boolean, untouched boolean) on o.id = u.id
            -- What was cancelled on its way is not tried again; if it was done all the same, it is done.
            left join postrider.job_cancelled c on c.id = u.id and (o.error is not null or o.snooze is not null or o.untouched)),
        tombs as (
            delete from postrider.job_cancelled c using ended e where c.id = e.id and e.fate in ('done', 'dead', 'cancelled')),
        keys as (
            delete from postrider.job_keys k using ended e
            where k.queue = e.queue and k.key = e.key and k.id = e.id and e.fate in ('done', 'dead', 'cancelled') returning k.queue, k.key),
        -- Whether or not somebody is seen to wait: one that is just being enqueued cannot be, and its own turn may be over by then.
        turns as (
            insert into postrider.job_turns (queue, key, at) select k.queue, k.key, clock_timestamp() from keys k),
        uniques as (
            delete from postrider.job_unique u using ended e
            where u.queue = e.queue and u.unique_key = e.unique_key and u.id = e.id and u.until = 'infinity' and e.fate in ('done', 'cancelled')),
        waiting as (
            insert into postrider.job_waiting (id, queue, priority, kind, key, unique_key, attempt, lost, max_attempts, payload, created_at, state, run_at, last_error, history)
            select e.id, e.queue, e.priority, e.kind, e.key, e.unique_key,
                   case when e.fate = 'failed' then e.attempt + 1 else e.attempt end,
                   case when e.vanished then e.lost + 1 when e.fate = 'untouched' then e.lost else 0 end, e.max_attempts, e.payload, e.created_at,
                   case when e.fate = 'dead' then 'dead' else 'scheduled' end,
                   case when e.fate = 'dead' then clock_timestamp() when e.fate = 'snoozed' then clock_timestamp() + make_interval(secs => e.snooze)
                        -- At once, and among themselves in the order they had.
                        when e.fate = 'untouched' then e.created_at
                        else clock_timestamp() + e.pause end,
                   e.error, coalesce(f.history, '[]') || case when e.error is null then '[]' else jsonb_build_array(jsonb_build_object(
                       'at', clock_timestamp(), 'attempt', e.attempt, 'worker', held.worker, 'error', left(e.error, 1000))) end
            from ended e
            left join postrider.job_failures f on f.id = e.id
            where e.fate in ('failed', 'dead', 'snoozed', 'untouched')),
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
            select written, e.id, e.queue, e.kind, e.key, e.fate, e.attempt, held.worker, e.created_at,
                   held.claimed_at, e.error, e.output
            from ended e where e.fate in ('done', 'cancelled') and settings.keep_results > interval '0'),
        settled as (
            insert into postrider.job_settled (slot, claim, job)
            select held.slot, held.claim, s.job from (
                select u.id as job from unfinished u where settle_jobs.done is not null
                union all
                select 0 where settle_jobs.done is null) s
            order by s.job)
        select (select count(*) from keys), array(select u.id from unfinished u) into released, found_in;
        select n.id into stranger from unnest(named) as n (id)
        where n.id <> all (found_in) and not exists (select from postrider.job_settled s where s.claim = settle_jobs.claim and s.job = n.id)
        order by n.id limit 1;
        if stranger is not null then
            raise exception using errcode = '22023', message = format('postrider: job %s is not one of claim %s', stranger, settle_jobs.claim),
                detail = 'Nothing was finished.', hint = 'Finish with each claim the jobs that claim_jobs brought with it.';
        end if;
        if settle_jobs.done is not null and cardinality(found_in) < cardinality(named) then
            raise unique_violation;
        end if;
    exception when unique_violation then
        if exists (select from postrider.job_settled s where s.claim = settle_jobs.claim and s.job = any (named)) then
            return format('a job of claim %s is finished already', settle_jobs.claim);
        end if;
        raise;
    end;
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
    where extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000 not between 1 and 30000;
end
$$;

-- The last attempt of these jobs begins: from now on they are dead if the worker vanishes. Commit before they are begun.
create or replace function postrider.begin_jobs(claim bigint, ids bigint[]) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    perform postrider.refuse_snapshot('begun');
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    lock table postrider.job_claims, postrider.job_settled in access share mode;
    -- Whoever takes over waits for this, or this for him.
    perform from postrider.job_claims c where c.claim = begin_jobs.claim for share;
    if not found or exists (select from postrider.job_settled s where s.claim = begin_jobs.claim and (s.job = 0 or s.job = any (begin_jobs.ids))) then
        raise exception using errcode = '55000', message = format('postrider: claim %s is not held any more', begin_jobs.claim),
            detail = 'Its lease ran out and the jobs went to another worker, or they have been finished before. None of them may be begun.',
            hint = 'Leave them to the other worker. Take a longer lease, or extend it with postrider.extend_jobs.';
    end if;
    insert into postrider.job_begun (claim, id) select begin_jobs.claim, unnest(begin_jobs.ids) on conflict do nothing;
end
$$;

-- A sign of life of a worker: all that it has claimed is its own for another lease, or with `claims` these alone; whoever may have lost the answer of a
-- claim names those it knows of, or the others would never run out. Answers the jobs that were cancelled on their way, for it to stop.
create or replace function postrider.extend_jobs(
    worker uuid, lease interval default interval '30 seconds', name text default null, queues text[] default '{}', claims bigint[] default null)
    returns setof bigint
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if extend_jobs.worker is null or extend_jobs.lease is null or extend_jobs.queues is null then
        raise exception using errcode = '22004', message = 'postrider: a worker and its lease must not be null',
            detail = format('worker %L, lease %L, queues %L. Nothing was extended.', extend_jobs.worker, extend_jobs.lease, extend_jobs.queues),
            hint = 'Pass the uuid that was given to claim_jobs as its worker; 30 seconds is a good lease.';
    end if;
    if extend_jobs.lease <= interval '0' then
        raise exception using errcode = '22023', message = format('postrider: a lease of %s has run out already', extend_jobs.lease),
            detail = 'Nothing was extended.', hint = '30 seconds is a good lease. A worker that ends calls finish_jobs for what it has claimed.';
    end if;
    insert into postrider.job_workers as w (worker, name, queues, claims, expires_at)
    values (extend_jobs.worker, coalesce(extend_jobs.name, ''), extend_jobs.queues, extend_jobs.claims, clock_timestamp() + extend_jobs.lease)
    on conflict (worker) do update set expires_at = excluded.expires_at, claims = excluded.claims;
    return query select c.id from postrider.job_cancelled c;
end
$$;

-- Takes over what vanished workers have left: every unfinished job gets its next attempt, at once. One that would be dead by that is given back as it was
-- if its worker would have said that it begins. Answers how many jobs.
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
        select c.claim, c.worker, c.begins, c.claimed_at, w.name from postrider.job_claims c
        left join postrider.job_workers w on w.worker = c.worker
        where greatest(c.expires_at, case when w.claims is null or c.claim = any (w.claims) then w.expires_at end) < clock_timestamp()
          and not exists (select from postrider.job_settled s where s.claim = c.claim and s.job = 0)
        order by c.claim limit 100
        -- One whose worker is just finishing something is left for the next time.
        for update of c skip locked
    loop
        select json_agg(case when left_behind.begins and j.attempt >= j.max_attempts
                                  and not exists (select from postrider.job_begun b where b.claim = left_behind.claim and b.id = j.id)
                   then json_build_object('id', j.id, 'untouched', true)
                   else json_build_object('id', j.id, 'retry_in', 0, 'vanished', true,
                   'error', format('worker %s vanished; it had claimed the job at %s', coalesce(nullif(left_behind.name, ''), left_behind.worker::text), left_behind.claimed_at)) end),
               taken + count(*) into outcomes, taken
        from postrider.unfinished_jobs(left_behind.claim) j;
        perform postrider.settle_jobs(left_behind.claim, outcomes);
    end loop;
    delete from postrider.job_workers w where w.expires_at < clock_timestamp() - interval '1 day';
    return taken;
end
$$;
