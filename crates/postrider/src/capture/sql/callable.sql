-- The first of a table's functions that a relay must not call: it is not there, or has not the rights of one who may do anything with the table.
-- $1 functions, $2 table
select f.signature
from unnest($1::text[]) with ordinality f (signature, place)
where not coalesce((
    select p.prosecdef and pg_has_role(p.proowner, c.relowner, 'member') and has_function_privilege(p.oid, 'execute')
    from pg_proc p, pg_class c
    where p.oid = to_regprocedure(f.signature) and c.oid = $2::bigint::oid), false)
order by f.place limit 1
