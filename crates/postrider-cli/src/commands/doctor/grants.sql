-- Roles other than the owner that may emit, keep a relay's state, look at the views.
with granted as (
    select p.proname::text as thing, a.grantee, a.privilege_type, p.proowner as owner
    from pg_proc p cross join lateral aclexplode(p.proacl) a
    where p.pronamespace = 'postrider'::regnamespace and p.proname = 'emit'
    union all
    select c.relname::text, a.grantee, a.privilege_type, c.relowner
    from pg_class c cross join lateral aclexplode(c.relacl) a
    where c.relnamespace = 'postrider'::regnamespace and c.relname in ('progress', 'backlog')
),
roles as (
    select distinct g.thing, g.privilege_type, case g.grantee when 0 then 'everybody' else g.grantee::regrole::text end as role
    from granted g where g.grantee <> g.owner
)
select array(select distinct r.role from roles r where r.thing = 'emit' order by 1),
       array(select distinct r.role from roles r where r.thing = 'progress' and r.privilege_type = 'INSERT' order by 1),
       array(select distinct r.role from roles r where r.thing = 'backlog' and r.privilege_type = 'SELECT' order by 1)
