-- Partitions that came by ATTACH, or that went, since they were noted. $1 oid, $2 name of the table
with now as (select * from postrider.partitions_of($1::bigint::oid)),
noted as (
    select p.partition, n.relid is not null as is_there, n.born,
           -- What was noted in another cluster or database has other numbers here; what was noted long ago has none.
           coalesce(p.origin ^@ (n.cluster || '/') and p.origin <> n.origin, false) as has_moved,
           coalesce(p.origin ^@ (n.cluster || '/' || n.relid || '/'), false) as is_same
    from postrider.all_partitions p
    left join now n on n.name = p.partition
    where p.parent = $2)
select n.name, true from now n
where not n.born and not exists (select from noted p where p.partition = n.name)
union all
-- Gone and come again: the same table with what it had been given meanwhile, or another one under its name.
select p.partition, p.is_same or not p.born from noted p where p.has_moved
union all
select p.partition, false from noted p where not p.is_there
order by 1, 2
