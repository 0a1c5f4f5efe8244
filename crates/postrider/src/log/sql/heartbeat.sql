-- This reader is alive for another lease, and says how it is. $1 reader, $2 its name, $3 sink, $4 lease, $5 state, $6 for how long, $7 trouble.
-- Times are ages in seconds: only this server's clock counts.
insert into postrider.readers as r (reader, name, sinks, heard_at, expires_at, state, since, trouble)
select $1, $2, array[$3::integer], n.now, n.now + make_interval(secs => $4), $5, n.now - make_interval(secs => $6), $7
from (select clock_timestamp() as now offset 0) n
on conflict (reader) do update
set heard_at = excluded.heard_at, expires_at = excluded.expires_at, state = excluded.state,
    -- It does not creep with every heartbeat.
    since = case when r.state = excluded.state then r.since else excluded.since end,
    trouble = excluded.trouble
