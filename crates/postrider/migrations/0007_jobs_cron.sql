-- What workers need besides jobs: falling asleep, leaving, and schedules.

-- The database's side of the wake-up protocol, as functions: whoever works off jobs has no right on a sequence. See crates/postrider/src/log/bell.rs.
create or replace function postrider.take_job_ticket(sleep double precision) returns bigint
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select nextval('postrider.job_armed') from setval('postrider.job_armed_until', (
        select greatest(ceil(w.wanted), case when w.held < w.wanted + 60 then w.held end)::bigint
        from (select date_part('epoch', clock_timestamp()) + take_job_ticket.sleep as wanted,
                     pg_sequence_last_value('postrider.job_armed_until') as held) w))
$$;

create or replace function postrider.disarm_jobs(ticket bigint) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    armed    bigint;
    disarmed bigint;
begin
    lock table postrider.job_bell in exclusive mode;
    armed := coalesce(pg_sequence_last_value('postrider.job_armed'), 0);
    disarmed := coalesce(pg_sequence_last_value('postrider.job_disarmed'), 0);
    perform setval('postrider.job_disarmed', greatest(least(disarm_jobs.ticket, armed), least(disarmed, armed)));
end
$$;

-- In how many seconds the next job of these queues that waits for its time is due; null if none does.
create or replace function postrider.next_job_at(queues text[]) returns double precision
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    -- What is due in a paused queue is nobody's haste.
    select date_part('epoch', min(w.run_at) - clock_timestamp())
    from unnest(next_job_at.queues) as q (queue)
    cross join lateral (
        (select w.run_at from postrider.job_waiting w where w.queue = q.queue and w.state = 'scheduled' order by w.queue, w.run_at limit 1)
        union all
        (select t.at from postrider.job_turns t where t.queue = q.queue order by t.queue, t.at limit 1)) w
    where isfinite(w.run_at) and not exists (select from postrider.job_queues p where p.queue = q.queue and p.paused_at is not null)
$$;

-- The shortest lease of these queues, in seconds.
create or replace function postrider.job_lease(queues text[]) returns double precision
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select coalesce(min(date_part('epoch', q.lease)), 30) from postrider.job_queues q where q.queue = any (job_lease.queues)
$$;

-- A worker that leaves in good order.
create or replace function postrider.end_job_worker(worker uuid) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    delete from postrider.job_workers w where w.worker = end_job_worker.worker;
    perform postrider.ring_job_bell();
end
$$;

-- Makes a schedule, or changes it: one whose times are other ones is reckoned anew.
create or replace function postrider.declare_cron(
    name text, expression text, kind text, payload json default '{}', time_zone text default 'UTC', queue text default 'default', priority integer default 0,
    max_attempts integer default 25, missed text default 'last'
) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
begin
    if declare_cron.name is null or declare_cron.name = '' or declare_cron.expression is null or declare_cron.missed is null
       or declare_cron.missed not in ('skip', 'last', 'all') then
        raise exception using errcode = '22023', message = format('postrider: schedule %L cannot be kept', declare_cron.name),
            detail = format('expression %L, missed %L. It was not changed.', declare_cron.expression, declare_cron.missed),
            hint = 'It has a name, the five fields of cron, and for missed ticks ''skip'', ''last'' or ''all''.';
    end if;
    -- What enqueue would refuse is refused now, and not with every tick.
    if declare_cron.kind is null or declare_cron.kind = '' or octet_length(declare_cron.kind) > 255
       or declare_cron.queue is null or declare_cron.queue = '' or octet_length(declare_cron.queue) > 255
       or declare_cron.payload is null or octet_length(declare_cron.payload::text) > postrider.max_payload()
       or declare_cron.priority is null or declare_cron.priority not between -32768 and 32767
       or declare_cron.max_attempts is null or declare_cron.max_attempts not between 1 and 1000 then
        perform postrider.refuse_job(declare_cron.kind, octet_length(declare_cron.payload::text), declare_cron.queue, declare_cron.priority, null,
            declare_cron.max_attempts, null, format(' (schedule %L)', left(declare_cron.name, 80)));
    end if;
    if not exists (select from pg_timezone_names z where z.name = declare_cron.time_zone) then
        raise exception using errcode = '22023', message = format('postrider: there is no time zone %L', declare_cron.time_zone),
            detail = format('Schedule %L was not changed.', declare_cron.name), hint = 'See pg_timezone_names, for example ''Europe/Berlin''.';
    end if;
    insert into postrider.job_crons as c (name, expression, time_zone, queue, kind, payload, priority, max_attempts, missed)
    values (declare_cron.name, declare_cron.expression, declare_cron.time_zone, declare_cron.queue, declare_cron.kind, declare_cron.payload,
            declare_cron.priority, declare_cron.max_attempts, declare_cron.missed)
    on conflict on constraint job_crons_pkey do update set
        next_at = case when (c.expression, c.time_zone) = (excluded.expression, excluded.time_zone) then c.next_at end,
        expression = excluded.expression, time_zone = excluded.time_zone, queue = excluded.queue, kind = excluded.kind, payload = excluded.payload,
        priority = excluded.priority, max_attempts = excluded.max_attempts, missed = excluded.missed
    where (c.expression, c.time_zone, c.queue, c.kind, c.payload::text, c.priority, c.max_attempts, c.missed) is distinct from
          (excluded.expression, excluded.time_zone, excluded.queue, excluded.kind, excluded.payload::text, excluded.priority, excluded.max_attempts, excluded.missed);
end
$$;

-- Of the schedules that are due, or have never been reckoned: the local time of the tick that is due and of now. Only this server's clock is asked.
create or replace function postrider.due_crons(names text[]) returns table (
    name text, expression text, missed text, next_at timestamptz, tick timestamp, now_there timestamp)
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select c.name, c.expression, c.missed, c.next_at, c.next_at at time zone c.time_zone, clock_timestamp() at time zone c.time_zone
    from postrider.job_crons c
    where c.name = any (due_crons.names) and (c.next_at is null or c.next_at <= clock_timestamp())
$$;

-- Enqueues a job for each of these ticks, in local time, and sets when the next one is: both or neither, and only if nobody was faster.
create or replace function postrider.tick_cron(name text, expected timestamptz, ticks timestamp[], next timestamp) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    c    postrider.job_crons;
    tick timestamp;
    job  bigint;
begin
    select l.* into c from postrider.job_crons l where l.name = tick_cron.name for update;
    if not found or c.next_at is distinct from tick_cron.expected then
        return false;
    end if;
    foreach tick in array tick_cron.ticks loop
        job := postrider.enqueue(c.kind, c.payload, queue => c.queue, priority => c.priority::integer, max_attempts => c.max_attempts::integer);
    end loop;
    update postrider.job_crons l set
        -- Where clocks are set back, a local time comes twice: the server takes the second, and the ticks of that hour come then.
        next_at = greatest(tick_cron.next at time zone c.time_zone, tick_cron.expected + interval '1 second'),
        last_tick = coalesce(tick_cron.ticks[cardinality(tick_cron.ticks)] at time zone c.time_zone, l.last_tick), last_job = coalesce(job, l.last_job)
    where l.name = tick_cron.name;
    return true;
end
$$;
