-- $1 queue, $2 state, $3 how many at most. Each kind of place gives so many at most, so nothing is walked that is not shown.
select * from (
    (select w.id, w.state, w.queue::text, w.kind, w.key::text, w.attempt, null::text as worker, w.run_at as at, w.last_error as error
     from postrider.job_waiting w
     where ($1::text is null or w.queue = $1) and ($2::text is null or w.state = $2)
     order by w.id desc limit $3)
    union all
    (select r.id, 'running', r.queue::text, r.kind, r.key::text, r.attempt, coalesce(nullif(r.worker_name, ''), r.worker::text), r.claimed_at, null
     from postrider.list_running_jobs() r
     where ($1::text is null or r.queue = $1) and ($2::text is null or $2 = 'running')
     order by r.id desc limit $3)
    union all
    (select j.id, 'ready', j.queue::text, j.kind, j.key::text, j.attempt, null, j.created_at, null
     from postrider.job_bands b
     cross join lateral postrider.list_ready_jobs(b.queue, b.priority, $3::integer) j
     where ($1::text is null or b.queue = $1) and ($2::text is null or $2 = 'ready')
     limit $3)
    union all
    (select r.id, r.state, r.queue, r.kind, r.key, r.attempt, coalesce(nullif(w.name, ''), r.worker::text), r.finished_at, r.error
     from postrider.job_results r left join postrider.job_workers w on w.worker = r.worker
     where ($1::text is null or r.queue = $1) and r.state = $2
     order by r.finished_at desc limit $3)) l
order by l.id desc limit $3
