-- The columns of a table. $1 oid
with recursive base (attnum, typid) as (
    select a.attnum, a.atttypid from pg_attribute a where a.attrelid = $1::bigint::oid and a.attnum > 0 and not a.attisdropped
    union all
    select b.attnum, t.typbasetype from base b join pg_type t on t.oid = b.typid where t.typtype = 'd')
select a.attname as name, quote_ident(a.attname) as ident, quote_literal(a.attname) as literal, format_type(a.atttypid, a.atttypmod) as type_name,
       t.oid::regtype::text as base_type, t.typtype as type_kind,
       -- Only of these is it known; text only under a collation that tells unequal strings apart.
       t.oid::regtype::text in ('boolean', 'smallint', 'integer', 'bigint', 'oid', 'uuid', 'date', 'timestamp without time zone',
           'timestamp with time zone', 'bytea', 'name', '"char"', 'inet', 'cidr', 'macaddr', 'xid8')
       or t.typtype = 'e'
       or t.oid::regtype::text in ('text', 'character varying') and coalesce((select c.collisdeterministic from pg_collation c where c.oid = a.attcollation), true)
           as equality_is_identity,
       coalesce(a.attnum = any (i.indkey), false) as in_key, a.attgenerated <> '' as generated
from pg_attribute a
join base b on b.attnum = a.attnum
join pg_type t on t.oid = b.typid and t.typtype <> 'd'
left join pg_index i on i.indrelid = a.attrelid and i.indisprimary
where a.attrelid = $1::bigint::oid
order by a.attnum
