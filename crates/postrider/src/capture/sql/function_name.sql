-- The name of a function for a table: unique for the table and the purpose, and readable. $1 oid, $2 purpose
select 'postrider_capture.' || quote_ident($2 || '_' || case
           -- Where the schema has no underscore it ends at the first one: nothing else is called so.
           when position('_' in n.nspname) = 0 and octet_length(f.name) <= 54 then f.name
           else case when octet_length(left(f.name, 40)) <= 45 then left(f.name, 40) else left(f.name, 10) end
                || '_' || left(md5(format('%I.%I', n.nspname, c.relname)), 8)
       end)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
cross join lateral (select n.nspname || '_' || c.relname) as f (name)
where c.oid = $1::bigint::oid
