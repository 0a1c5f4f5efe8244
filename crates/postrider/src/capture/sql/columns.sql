-- The columns of a table. $1 oid
with recursive base (attnum, typid) as (
    select a.attnum, a.atttypid from pg_attribute a where a.attrelid = $1::bigint::oid and a.attnum > 0 and not a.attisdropped
    union all
    select b.attnum, t.typbasetype from base b join pg_type t on t.oid = b.typid where t.typtype = 'd'),
-- What a value has inside: see postrider.row_json.
inside (attnum, typid) as (
    select b.attnum, b.typid from base b where b.typid >= 16384 or b.typid in ('json[]'::regtype, 'jsonb[]'::regtype)
    union
    select i.attnum, f.typid from inside i join pg_type t on t.oid = i.typid
    cross join lateral (
        select t.typbasetype union all select t.typelem
        union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) f (typid)
    where f.typid >= 16384 or f.typid in ('json[]'::regtype, 'jsonb[]'::regtype))
-- Always between quotes: quote_ident does not know the words that only PL/pgSQL reserves.
select a.attnum as number, a.attname as name, '"' || replace(a.attname, '"', '""') || '"' as ident, quote_ident(a.attname) as bare, quote_literal(a.attname) as literal,
       format_type(a.atttypid, a.atttypmod) as type_name, format_type(a.atttypid, -1) as any_type, case when a.atttypid < 12000 then format_type(a.atttypid, -1) end as lasting_type, t.oid::regtype::text as base_type, t.typtype as type_kind,
       -- Only of these is it known; text only under a collation that tells unequal strings apart.
       t.oid::regtype::text in ('boolean', 'smallint', 'integer', 'bigint', 'oid', 'uuid', 'date', 'timestamp without time zone',
           'timestamp with time zone', 'bytea', 'name', '"char"', 'inet', 'cidr', 'macaddr', 'xid8')
       or t.typtype = 'e'
       or t.oid::regtype::text in ('text', 'character varying') and coalesce((select c.collisdeterministic from pg_collation c where c.oid = a.attcollation), true)
           as equality_is_identity,
       coalesce(a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1]), false) as in_key, k.less, k.equal, k.not_less, k.greater, h.hash,
       (select format('%I.%I', n.nspname, c.collname) from pg_collation c join pg_namespace n on n.oid = c.collnamespace
        where c.oid = a.attcollation and not c.collisdeterministic) as loose_collation,
       exists (select from inside s join pg_cast c on c.castsource = s.typid and c.casttarget = 'json'::regtype and c.castmethod = 'f'
               where s.attnum = a.attnum)
       or exists (select from inside s join pg_type y on y.oid = s.typid join pg_type e on e.oid = y.typelem
                  where s.attnum = a.attnum
                    and (e.oid in ('json'::regtype, 'jsonb'::regtype) or e.typbasetype in ('json'::regtype, 'jsonb'::regtype))) as has_own_json,
       a.attnotnull or exists (select from base d join pg_type y on y.oid = d.typid where d.attnum = a.attnum and y.typnotnull) as never_null,
       a.attgenerated <> '' as generated,
       case when a.attgenerated = 'v' then (
           select pg_get_expr(d.adbin, d.adrelid) from pg_attrdef d where d.adrelid = a.attrelid and d.adnum = a.attnum) end as virtual
from pg_attribute a
join base b on b.attnum = a.attnum
join pg_type t on t.oid = b.typid and t.typtype <> 'd'
left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
-- The operators of its order, of a key's column that of the key, which need not be where a search path looks. What is no btree has ordinary
-- types.
cross join lateral (
    select coalesce(max(s.operator) filter (where s.strategy = 1), 'operator(pg_catalog.<)') as less,
           coalesce(max(s.operator) filter (where s.strategy = 3), 'operator(pg_catalog.=)') as equal,
           coalesce(max(s.operator) filter (where s.strategy = 4), 'operator(pg_catalog.>=)') as not_less,
           coalesce(max(s.operator) filter (where s.strategy = 5), 'operator(pg_catalog.>)') as greater
    from (select m.amopstrategy as strategy, format('operator(%I.%s)', n.nspname, o.oprname) as operator
          from (select u.opclass from unnest(i.indkey::int2[], i.indclass::oid[]) u (attnum, opclass) where u.attnum = a.attnum
                union all
                select d.oid from pg_opclass d where d.opcdefault and d.opcintype = t.oid and a.attnum <> all (coalesce((i.indkey::int2[])[0:i.indnkeyatts - 1], '{}'))) u (opclass)
          join pg_opclass c on c.oid = u.opclass
          join pg_am y on y.oid = c.opcmethod and y.amname = 'btree'
          join pg_amop m on m.amopfamily = c.opcfamily and m.amoplefttype = c.opcintype and m.amoprighttype = c.opcintype
          join pg_operator o on o.oid = m.amopopr
          join pg_namespace n on n.oid = o.oprnamespace) s) k
-- What equal values have in common, where that is not their text.
cross join lateral (
    select max(format('%I.%I', n.nspname, p.proname)) as hash
    from pg_opclass c
    join pg_am y on y.oid = c.opcmethod and y.amname = 'hash'
    join pg_amproc m on m.amprocfamily = c.opcfamily and m.amproclefttype = c.opcintype and m.amprocrighttype = c.opcintype and m.amprocnum = 2
    join pg_proc p on p.oid = m.amproc
    join pg_namespace n on n.oid = p.pronamespace
    where c.opcdefault and c.opcintype = case when t.oid = 'varchar'::regtype then 'text'::regtype else t.oid end) h
where a.attrelid = $1::bigint::oid
order by a.attnum
