-- Rows of an adopted table that a sink had refused, and that none refuses any more. $1 table, $2 how many, $3 how many parts the lanes are in, $4 which part, $5 the events of those that are passed over
with freed as materialized (
    select a.lane, a.seq, a.event, a.source_id, a.born, a.attempts
    from postrider.all_adopted a
    where a.outbox = $1 and a.lane % $3 = $4 and a.attempts is not null and a.event <> all ($5) and not exists (select from postrider.parked p where p.id = a.event offset 0)
    order by a.lane, a.seq
    limit $2)
