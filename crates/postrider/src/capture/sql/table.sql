-- A table by its name as written. $1 name
select c.oid::bigint as oid, c.relkind, c.relnatts, format('%I.%I', n.nspname, c.relname) as name, quote_ident(c.relname) as alias,
       coalesce((select string_agg(i.inhrelid::regclass::text, ', ' order by i.inhrelid) from pg_inherits i where i.inhparent = c.oid), '') as children
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass($1)
