-- Whether row security may hide rows of a table from a role: it is bound by it, and no policy shows it all. $1 table, $2 role
select coalesce((
    select c.relrowsecurity and not r.rolsuper and not r.rolbypassrls
           and (c.relforcerowsecurity or not pg_has_role(r.oid, c.relowner, 'usage'))
           and not (exists (
                   select from pg_policy p
                   where p.polrelid = c.oid and p.polpermissive and p.polcmd = '*' and pg_get_expr(p.polqual, p.polrelid) = 'true'
                     and exists (select from unnest(p.polroles) o (role) where case when o.role = 0 then true else pg_has_role(r.oid, o.role, 'usage') end))
               and not exists (
                   select from pg_policy p
                   where p.polrelid = c.oid and not p.polpermissive
                     and exists (select from unnest(p.polroles) o (role) where case when o.role = 0 then true else pg_has_role(r.oid, o.role, 'usage') end)))
    from pg_class c, pg_roles r
    where c.oid = $1::bigint::oid and r.rolname = $2), false)
