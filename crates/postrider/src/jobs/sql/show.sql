-- $1 the id. What has ended is looked for first, then what waits, then what is on its way.
select * from (
    (select 0 as place, r.id, r.state, r.queue, r.kind, r.key, r.attempt, coalesce(nullif(w.name, ''), r.worker::text) as worker, r.finished_at as at, r.error,
            j.priority, j.max_attempts, r.created_at, j.payload::text, null::text as history, r.output::text as output
     from postrider.job_results r
     left join postrider.job_workers w on w.worker = r.worker
     left join lateral (select j.priority, j.max_attempts, j.payload from postrider.jobs j where j.id = r.id limit 1) j on true
     where r.id = $1 limit 1)
    union all
    (select 1, w.id, w.state, w.queue::text, w.kind, w.key::text, w.attempt, null, w.run_at, w.last_error, w.priority, w.max_attempts, w.created_at, w.payload::text,
            w.history::text, null
     from postrider.job_waiting w where w.id = $1)
    union all
    (select 2, r.id, 'running', r.queue::text, r.kind, r.key::text, r.attempt, coalesce(nullif(r.worker_name, ''), r.worker::text), r.claimed_at, null, r.priority,
            j.max_attempts, coalesce(j.created_at, r.claimed_at), j.payload::text, (select f.history::text from postrider.job_failures f where f.id = r.id), null
     from postrider.list_running_jobs() r
     left join lateral (
         select j.max_attempts, j.created_at, j.payload from postrider.jobs j where j.id = r.id
         union all
         -- Its slot had to be emptied.
         select k.max_attempts, k.created_at, k.payload from postrider.job_kept k where k.id = r.id
         limit 1) j on true
     where r.id = $1)
    union all
    (select 3, j.id, 'ready', j.queue::text, j.kind, j.key::text, j.attempt, null, j.created_at, null, j.priority, j.max_attempts, j.created_at, j.payload::text,
            (select f.history::text from postrider.job_failures f where f.id = j.id), null
     from postrider.job_bands b
     cross join lateral postrider.list_ready_jobs(b.queue, b.priority, 2147483647) j
     where j.id = $1 and exists (select from postrider.jobs k where k.id = $1)
     limit 1)) s
order by s.place limit 1
