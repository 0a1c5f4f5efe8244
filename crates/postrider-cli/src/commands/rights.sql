-- The statement that makes whoever asks a member of the role that reads the log ($1) or only looks at the views, by what `postrider init` has
-- granted. In the catalogs alone, which everybody may read.
select current_user::text, (
    select format('grant %I to %I;', r.rolname, current_user)
    from (
        select a.grantee, bool_or(a.privilege_type = 'INSERT') as is_relay
        from pg_class c cross join lateral aclexplode(c.relacl) a
        where c.relnamespace = to_regnamespace('postrider') and a.grantee not in (0, c.relowner)
          and (c.relname, a.privilege_type) in (('backlog', 'SELECT'), ('progress', 'INSERT'))
        group by a.grantee) g
    -- To be a member of a superuser is to be one.
    join pg_roles r on r.oid = g.grantee and not r.rolsuper
    where g.is_relay or not $1
    order by g.is_relay = $1 desc, r.rolname
    limit 1)
