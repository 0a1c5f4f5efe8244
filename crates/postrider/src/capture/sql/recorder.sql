-- What a table's recording function lets through, as its owner may call it now; by the catalogs alone. $1 oid, $2 name of the function
select obj_description(r.oid, 'pg_proc')
from pg_class c
join pg_proc r on r.pronamespace = 'postrider'::regnamespace and r.proname = $2
where c.oid = $1::bigint::oid and r.prosecdef and has_function_privilege(c.relowner, r.oid, 'execute')
