-- Sizes come from the file system. A slot that was emptied has no pages.
with current as (
    select (coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7)::smallint as slot
)
select n.slot::smallint as slot, n.slot = current.slot as is_current,
       pg_relation_size(format('postrider.events_%s', n.slot)::regclass) > 0 as is_filled,
       pg_total_relation_size(format('postrider.events_%s', n.slot)::regclass) as bytes,
       extract(epoch from clock_timestamp() - r.opened_at)::float8 as age
from generate_series(0, 7) as n (slot)
cross join current
left join postrider.ring r on r.slot = n.slot
order by n.slot
