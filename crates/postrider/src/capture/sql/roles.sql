-- The roles that relays run as: those that may empty the log. Nobody, where relays run as its owner.
select pg_get_userbyid(a.grantee)::text as role, quote_ident(pg_get_userbyid(a.grantee)) as ident
from pg_class c
cross join aclexplode(c.relacl) a
where c.oid = 'postrider.events_0'::regclass and a.privilege_type = 'TRUNCATE' and a.grantee <> c.relowner and a.grantee <> 0
order by 1
