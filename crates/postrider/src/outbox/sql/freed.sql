-- Rows of an adopted table that a sink had refused, and that none refuses any more. A set of them: the others come the next time. $1 table
with freed as materialized (
    select a.lane, a.seq, a.event, a.source_id, a.born, a.attempts
    from postrider.all_adopted a
    where a.outbox = $1 and a.attempts is not null and not exists (select from postrider.parked p where p.id = a.event)
    limit 50000)
