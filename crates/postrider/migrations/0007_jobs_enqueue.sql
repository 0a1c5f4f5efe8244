-- Writing jobs: enqueue and enqueue_many, in the caller's transaction.

-- Of before: it knew nothing of unique_for.
drop function if exists postrider.refuse_job(text, bigint, text, integer, text, integer, text, text, timestamptz);
create or replace function postrider.refuse_job(
    kind text, payload_bytes bigint, queue text, priority integer, unique_key text, max_attempts integer, key text, place text default '',
    run_at timestamptz default null, unique_for interval default null
) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    what text;
    too_long text;
begin
    what := case when kind is null then 'kind' when payload_bytes is null then 'payload' when queue is null then 'queue'
                 when priority is null then 'priority' when max_attempts is null then 'max_attempts' end;
    if what is not null then
        raise exception using errcode = '22004', message = format('postrider: the %s of a job must not be null%s', what, place),
            detail = 'Nothing was written.',
            hint = case what when 'kind' then 'Name the work, for example ''email.send''.'
                             when 'payload' then 'A job without content has the payload ''{}'' or ''null'' (the JSON value, in quotes).'
                             else 'Leave it out to take the default.' end;
    end if;
    if kind = '' or queue = '' or unique_key = '' or key = '' then
        raise exception using errcode = '22023',
            message = format('postrider: the %s of a job must not be empty%s',
                case '' when kind then 'kind' when queue then 'queue' when unique_key then 'unique_key' else 'key' end, place),
            detail = 'Nothing was written.', hint = 'Give it a name, or leave it out where it has a default.';
    end if;
    too_long := case when octet_length(kind) > 255 then format('kind is %s bytes long, 255', octet_length(kind))
                     when octet_length(queue) > 255 then format('queue is %s bytes long, 255', octet_length(queue))
                     when octet_length(key) > 1024 then format('key is %s bytes long, 1024', octet_length(key))
                     when octet_length(unique_key) > 1024 then format('unique_key is %s bytes long, 1024', octet_length(unique_key))
                     when payload_bytes > postrider.max_payload() then format('payload is %s bytes long, %s', payload_bytes, postrider.max_payload()) end;
    if too_long is not null then
        raise exception using errcode = '54000', message = format('postrider: job %L is over a limit%s', left(kind, 80), place),
            detail = format('Its %s are allowed. Nothing was written.', too_long),
            hint = 'Shorten it: a large body belongs in a table or an object store, with its address in the job. '
                   'The payload''s limit is set by postrider init --max-payload.';
    end if;
    if priority not between -32768 and 32767 then
        raise exception using errcode = '22003', message = format('postrider: priority %s of job %L is out of range%s', priority, left(kind, 80), place),
            detail = 'Priorities go from -32768 to 32767, the highest first. Nothing was written.',
            hint = 'Use a handful of them: every priority in use is one more place that a worker looks at.';
    end if;
    if run_at < '0001-01-01+00' or run_at >= '10000-01-01+00' then
        raise exception using errcode = '22008', message = format('postrider: job %L cannot run at %s%s', left(kind, 80), run_at, place),
            detail = 'Times go from the year 1 to the year 9999. Nothing was written.', hint = 'Leave it out to run at once; a job that nobody wants to run is not enqueued.';
    end if;
    if unique_for is not null and unique_key is null then
        raise exception using errcode = '22023', message = format('postrider: job %L has a unique_for and no unique_key%s', left(kind, 80), place),
            detail = 'Nothing would be unique. Nothing was written.', hint = 'Name the key too, or leave unique_for out.';
    end if;
    if unique_for < interval '0' or unique_for > interval '1000 years' then
        raise exception using errcode = '22008', message = format('postrider: job %L cannot be unique for %s%s', left(kind, 80), unique_for, place),
            detail = 'The time goes from nothing to 1000 years. Nothing was written.', hint = 'Leave it out to keep the unique key until the job has ended.';
    end if;
    raise exception using errcode = '22023', message = format('postrider: job %L cannot have %s attempts%s', left(kind, 80), max_attempts, place),
        detail = 'max_attempts goes from 1 to 1000. Nothing was written.', hint = 'Leave it out for 25; 1 tries once.';
end
$$;

-- A worker sleeps: wake it. The twin of postrider.ring_bell().
create or replace function postrider.ring_job_bell() returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ticket constant bigint := coalesce(pg_sequence_last_value('postrider.job_armed'), 0);
begin
    if ticket > coalesce(pg_sequence_last_value('postrider.job_disarmed'), 0)
       and date_part('epoch', clock_timestamp()) < coalesce(pg_sequence_last_value('postrider.job_armed_until'), 0)
       and pg_notification_queue_usage() < 0.75 then
        perform pg_notify('postrider_jobs', ticket::text);
    end if;
end
$$;

-- Takes a unique key for a job, or answers whose it is. Waits for an open transaction that enqueues the same one: only its end tells.
create or replace function postrider.take_unique_key(queue text, unique_key text, id bigint, unique_for interval) returns bigint
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    owner   bigint;
    expires timestamptz;
begin
    -- Of one that is taken nothing is locked: whoever finishes its job would wait for this transaction, and others that enqueue too. Of one whose
    -- job is just being finished the end is waited for: by `on conflict`, which is why that comes first.
    for attempt in 1..10 loop
        insert into postrider.job_unique as u (queue, unique_key, id, until)
        values (queue, unique_key, id, coalesce(clock_timestamp() + unique_for, 'infinity'))
        on conflict on constraint job_unique_pkey do nothing returning u.id into owner;
        exit when found;
        select u.id, u.until into owner, expires from postrider.job_unique u where u.queue = queue and u.unique_key = unique_key;
        exit when expires >= clock_timestamp();
        update postrider.job_unique u set id = take_unique_key.id, until = coalesce(clock_timestamp() + unique_for, 'infinity')
        where u.queue = queue and u.unique_key = unique_key and u.until < clock_timestamp() returning u.id into owner;
        exit when found;
        owner := null;
    end loop;
    if owner is null then
        raise exception using errcode = '40001', message = format('postrider: the unique key %L changes hands too fast', left(unique_key, 80)),
            detail = 'Nothing was written.', hint = 'Try the transaction again.';
    end if;
    return owner;
end
$$;

do $install$
declare
    json_type text;
    parse text;
    body text;
begin
    foreach json_type in array array['text', 'json', 'jsonb'] loop
        body := case json_type when 'text' then 'body' when 'json' then 'payload' else 'to_json(payload)' end;
        parse := case json_type when 'text' then $parse$
                declare
                    reason text;
                begin
                    body := payload::json;
                exception when invalid_text_representation or untranslatable_character then
                    get stacked diagnostics reason = pg_exception_detail;
                    raise exception using errcode = '22P02', message = format('postrider: the payload of job %L is not JSON', left(kind, 80)),
                        detail = format('%s. Nothing was written.', rtrim(coalesce(nullif(reason, ''), 'It cannot be parsed'), '.')),
                        hint = 'Text must be quoted inside JSON: ''"hello"'', not ''hello''. to_json(...) turns any SQL value into JSON.';
                end;$parse$ else '' end;
        execute format($create$
            create or replace function postrider.enqueue(
                kind text, payload %1$s, queue text default 'default', priority integer default 0, run_at timestamptz default null,
                unique_key text default null, max_attempts integer default 25, key text default null, unique_for interval default null
            ) returns bigint
                language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $function$
            #variable_conflict use_variable
            declare
                id constant bigint := nextval('postrider.job_id');
                owner bigint;
                body json;
            begin
                if kind is null or kind = '' or octet_length(kind) > 255 or queue is null or queue = '' or octet_length(queue) > 255
                   or payload is null or octet_length(payload::text) > postrider.max_payload()
                   or priority is null or priority not between -32768 and 32767 or max_attempts is null or max_attempts not between 1 and 1000
                   or key = '' or octet_length(key) > 1024 or unique_key = '' or octet_length(unique_key) > 1024
                   or run_at < '0001-01-01+00' or run_at >= '10000-01-01+00'
                   or unique_for is not null and (unique_key is null or unique_for not between interval '0' and interval '1000 years') then
                    perform postrider.refuse_job(kind, octet_length(payload::text), queue, priority, unique_key, max_attempts, key, run_at => run_at,
                        unique_for => unique_for);
                end if;%2$s
                if unique_key is not null then
                    owner := postrider.take_unique_key(queue, unique_key, id, unique_for);
                    if owner <> id then
                        return owner;
                    end if;
                end if;
                if key is not null or run_at > now() then
                    insert into postrider.job_waiting (id, queue, priority, kind, key, unique_key, max_attempts, payload, state, run_at)
                    values (id, queue, priority, kind, key, unique_key, max_attempts, %3$s,
                            case when key is null then 'scheduled' else 'key' end, coalesce(run_at, now()));
                    if key is not null then
                        insert into postrider.job_turns (queue, key, at) values (queue, key, coalesce(run_at, now()));
                    end if;
                else
                    insert into postrider.jobs (id, slot, queue, priority, kind, unique_key, max_attempts, payload)
                    values (id, coalesce(pg_sequence_last_value('postrider.job_slot'), 0) & 7, queue, priority, kind, unique_key, max_attempts, %3$s);
                end if;
                -- After the row has its xid: a worker about to sleep waits for every older xid, so either it waits for ours or we see its ticket.
                if coalesce(pg_sequence_last_value('postrider.job_armed'), 0) > coalesce(pg_sequence_last_value('postrider.job_disarmed'), 0) then
                    perform postrider.ring_job_bell();
                end if;
                return id;
            end
            $function$
            $create$, json_type, parse, body);
    end loop;
end
$install$;

-- Many jobs at once: [{"kind":..., "payload":..., and what else enqueue takes}, ...]. Answers their ids in the same order; of one whose unique key is
-- taken, the id of the job that has it.
create or replace function postrider.enqueue_many(jobs json) returns setof bigint
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    job record;
    bad record;
begin
    if jobs is null or json_typeof(jobs) <> 'array' then
        raise exception using errcode = '22023', message = 'postrider: enqueue_many takes a JSON array of jobs',
            detail = format('It was given %s. Nothing was written.', coalesce('a JSON ' || json_typeof(jobs), 'null')),
            hint = 'For example ''[{"kind": "email.send", "payload": {"to": 7}}]''.';
    end if;
    -- A word that nobody reads must not make two jobs of one that was to be unique, or run one now that was to run tomorrow.
    select f.place, f.kind, f.field into bad
    from (
        select e.place, json_typeof(e.job) as kind,
               json_object_keys(case when json_typeof(e.job) = 'object' then e.job else '{"": null}' end) as field
        from json_array_elements(enqueue_many.jobs) with ordinality as e (job, place)) f
    where f.field not in ('kind', 'payload', 'queue', 'priority', 'run_at', 'unique_key', 'max_attempts', 'key', 'unique_for')
    order by f.place limit 1;
    if bad.place is not null then
        raise exception using errcode = '22023', message = format('postrider: job %s of enqueue_many is not a job', bad.place),
            detail = case when bad.kind <> 'object' then format('It is a JSON %s. Nothing was written.', bad.kind)
                          else format('It has the unknown field %s. Nothing was written.', to_json(bad.field)) end,
            hint = 'The fields of a job are kind, payload, queue, priority, run_at, unique_key, max_attempts, key and unique_for.';
    end if;
    if exists (
        select from json_to_recordset(enqueue_many.jobs) as j (unique_key text, key text, run_at timestamptz, unique_for text)
        where j.unique_key is not null or j.unique_for is not null or j.key is not null or j.run_at > now() or j.run_at < '0001-01-01+00')
    then
        for job in
            select j.*, j.job -> 'payload' as body from rows from (
                json_to_recordset(enqueue_many.jobs) as (kind text, queue text, priority integer, run_at timestamptz, unique_key text,
                    max_attempts integer, key text, unique_for interval),
                json_array_elements(enqueue_many.jobs)) with ordinality as j (kind, queue, priority, run_at, unique_key,
                    max_attempts, key, unique_for, job, place)
            order by j.place
        loop
            return next postrider.enqueue(job.kind, job.body, coalesce(job.queue, 'default'), coalesce(job.priority, 0), job.run_at, job.unique_key,
                coalesce(job.max_attempts, 25), job.key, job.unique_for);
        end loop;
        return;
    end if;
    return query
        insert into postrider.jobs as written (slot, queue, priority, kind, max_attempts, payload)
        select coalesce(pg_sequence_last_value('postrider.job_slot'), 0) & 7, coalesce(j.queue, 'default'), coalesce(j.priority, 0),
               case when j.kind is null or j.kind = '' or octet_length(j.kind) > 255 or j.queue = '' or octet_length(j.queue) > 255
                         or j.payload is null or octet_length(j.payload::text) > postrider.max_payload()
                         or j.priority not between -32768 and 32767 or j.max_attempts not between 1 and 1000
                    then postrider.refuse_job(j.kind, octet_length(j.payload::text), coalesce(j.queue, 'default'), coalesce(j.priority, 0), null,
                                              coalesce(j.max_attempts, 25), null, format(' (job %s of enqueue_many)', j.place))::text
                    else j.kind end,
               coalesce(j.max_attempts, 25), j.payload
        from (
            select e.kind, e.queue, e.priority, e.max_attempts, e.place,
                   -- A string was unescaped on the way, and a null is none any more.
                   case when json_typeof(e.payload) <> 'string' then e.payload else e.job -> 'payload' end as payload
            from rows from (
                json_to_recordset(enqueue_many.jobs) as (kind text, payload json, queue text, priority integer, max_attempts integer),
                json_array_elements(enqueue_many.jobs)
            ) with ordinality as e (kind, payload, queue, priority, max_attempts, job, place)
            order by e.place
            offset 0) j
        returning written.id;
    perform postrider.ring_job_bell();
end
$$;
create or replace function postrider.enqueue_many(jobs jsonb) returns setof bigint
    language sql volatile as 'select postrider.enqueue_many(jobs::pg_catalog.json)';
create or replace function postrider.enqueue_many(jobs text) returns setof bigint
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    parsed json;
    reason text;
begin
    begin
        parsed := enqueue_many.jobs::json;
    exception when invalid_text_representation or untranslatable_character then
        get stacked diagnostics reason = pg_exception_detail;
        raise exception using errcode = '22P02', message = 'postrider: the argument of enqueue_many is not JSON',
            detail = format('%s. Nothing was written.', rtrim(coalesce(nullif(reason, ''), 'It cannot be parsed'), '.')),
            hint = 'Pass one JSON array: ''[{"kind": "email.send", "payload": {"to": 7}}]''.';
    end;
    return query select postrider.enqueue_many(parsed);
end
$$;
