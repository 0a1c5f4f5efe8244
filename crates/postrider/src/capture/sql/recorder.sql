-- What a table's recording functions let through, as its owner may call them now; by the catalogs alone. $1 oid, $2 their name
select case when bool_and(r.prosecdef and has_function_privilege(c.relowner, r.oid, 'execute')) then min(obj_description(r.oid, 'pg_proc')) end
from pg_class c
join pg_proc r on r.pronamespace = 'postrider'::regnamespace and r.proname = $2
where c.oid = $1::bigint::oid
