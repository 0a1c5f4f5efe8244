-- The rights on single columns, and to delete, that a role lacks on a table; null if it has them all.
-- $1 table, $2 role, $3 columns to read, $4 columns to write, $5 whether it deletes
select nullif(concat_ws(', ',
    (select 'select (' || string_agg(quote_ident(c), ', ' order by place) || ')'
     from unnest($3::text[]) with ordinality as u (c, place) where not has_column_privilege($2, $1::bigint::oid, c, 'select')),
    (select 'update (' || string_agg(quote_ident(c), ', ' order by place) || ')'
     from unnest($4::text[]) with ordinality as u (c, place) where not has_column_privilege($2, $1::bigint::oid, c, 'update')),
    case when $5 and not has_table_privilege($2, $1::bigint::oid, 'delete') then 'delete' end), '')
