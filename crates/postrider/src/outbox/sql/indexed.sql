-- The columns of each index of a table that can give its rows in order, from the first to the last; null for an expression. $1 table
select array_agg(a.attname::text order by k.place) as columns, i.indpred is not null as is_partial
from pg_index i
cross join lateral unnest(i.indkey::smallint[]) with ordinality as k (number, place)
left join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number and k.number > 0
join pg_class c on c.oid = i.indexrelid
join pg_am m on m.oid = c.relam and m.amname = 'btree'
where i.indrelid = $1::bigint::oid and i.indisvalid and k.place <= i.indnkeyatts
group by i.indexrelid, i.indpred, i.indoption
having not 0 < any (i.indoption::smallint[])
order by 1
