-- Rows of an adopted table that a sink has refused once more since the last time. $1 table, $2 how many, $3 how many parts the lanes are in, $4 which part, $5 the events of those that are passed over
with refused as materialized (
    select a.lane, a.seq, a.event, a.source_id, a.born, max(p.attempts) as attempts,
           (array_agg(s.name || ': ' || coalesce(p.reason, 'waits behind an earlier event of its key') order by p.attempts desc, s.name))[1] as reason
    from postrider.parked p
    join postrider.sinks s on s.sink = p.sink
    join postrider.all_adopted a on a.lane = p.lane and a.seq = p.seq and a.event = p.id
    where a.outbox = $1 and a.lane % $3 = $4 and a.event <> all ($5)
    group by a.lane, a.seq, a.event, a.source_id, a.born, a.attempts
    having max(p.attempts) is distinct from a.attempts
    order by a.lane, a.seq
    limit $2)
