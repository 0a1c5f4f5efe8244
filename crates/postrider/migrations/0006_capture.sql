-- What the triggers of captured tables need beside the log.

-- A write survived although its event could not be recorded: everything that recording it later takes. Of the tables with
-- `on_failure: record`, and of any table whose columns changed under its trigger.
create table if not exists postrider.capture_failures (
    failure   bigint generated always as identity primary key,
    relation  text        not null,
    operation text        not null,
    old_row   json,
    new_row   json,
    context   json,
    sqlstate  text        not null,
    message   text        not null,
    failed_at timestamptz not null default clock_timestamp()
);

-- Rows that were deleted in a transaction, for the triggers of their children: when a deletion cascades the parent is gone before
-- any trigger of a child runs. By each column that children know it by; without one, a partition that goes with its table. Swept by
-- the relay; no reader outside the transaction has a use for them.
create table if not exists postrider.departed (
    xid      xid8 not null default pg_current_xact_id(),
    relation oid  not null,
    field    text not null,
    key      text not null,
    departed json not null,
    primary key (xid, relation, field, key)
);

-- The parent of children that are captured: remembers a row that goes, by the columns that are its arguments.
create or replace function postrider.remember_departed() returns trigger
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into postrider.departed (relation, field, key, departed)
    select coalesce(pg_partition_root(tg_relid), tg_relid), f.field, to_jsonb(old) ->> f.field, to_json(old)
    from unnest(tg_argv) f (field)
    where to_jsonb(old) ->> f.field is not null
    on conflict do nothing;
    return null;
end
$$;

-- Whether a TRUNCATE means this table of a tree, and not one above it: then its trigger fires behind that one's, which has left a
-- mark. With the file that the table was in, which is another after a TRUNCATE: a mark that is left over counts for nothing.
create or replace function postrider.is_truncated_alone(truncated oid, root oid) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- Detached since.
    if not exists (select from pg_partition_ancestors(truncated) a where a.relid = root) then
        return false;
    end if;
    delete from postrider.departed d
    where d.xid = pg_current_xact_id() and d.relation = truncated and d.field = '' and d.key = coalesce(pg_relation_filenode(truncated), 0)::text;
    if found then
        return false;
    end if;
    insert into postrider.departed (relation, field, key, departed)
    select t.relid, '', coalesce(pg_relation_filenode(t.relid), 0)::text, 'null' from pg_partition_tree(truncated) t where t.level > 0
    on conflict do nothing;
    return true;
end
$$;

create or replace function postrider.base64(bytes bytea) returns text
    language sql immutable parallel safe return translate(encode(bytes, 'base64'), E'\n', '');

-- Fields of a row that came after its trigger was generated, each behind a comma; if told so only those that differ in another
-- row. Here nothing is known at generation time: the types are looked up, and every setting that changes a text is set.
create or replace function postrider.unknown_fields(relation oid, known text[], captured record, other record, only_changed boolean) returns text
    language plpgsql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set intervalstyle = 'iso_8601'
    set extra_float_digits = 1 set bytea_output = 'hex' set datestyle = 'ISO, MDY' as $$
declare
    row constant json := to_json(captured);
    other_row constant json := to_json(other);
begin
    return (
        select coalesce(string_agg(',' || to_json(f.key) || ':' || case
                   when f.value::text <> 'null' and coalesce(nullif(t.typbasetype, 0), t.oid) = 'bytea'::regtype
                   then to_json(postrider.base64((f.value #>> '{}')::bytea))::text
                   else f.value::text end, ''), '')
        from json_each(row) f
        join pg_attribute a on a.attrelid = relation and a.attname = f.key
        join pg_type t on t.oid = a.atttypid
        where f.key <> all (known)
          and (not only_changed or f.value::text is distinct from (other_row -> f.key)::text));
end
$$;

-- Settings of the session as headers; null if there is none.
-- A body that is one expression, so that it costs its callers no call.
create or replace function postrider.captured_headers(type text, headers json) returns json
    language sql stable
    return case when coalesce(current_setting('postrider.context', true), '') <> ''
                then postrider.join_headers(type, current_setting('postrider.context', true), headers)
                else headers end;

create or replace function postrider.record_failure(relation oid, operation text, old_row json, new_row json, context json, state text, message text)
    returns void language sql volatile set search_path = pg_catalog, pg_temp as $$
    insert into postrider.capture_failures (relation, operation, old_row, new_row, context, sqlstate, message)
    values (relation::regclass::text, operation, old_row, new_row, context, state, message)
$$;

-- Whether writes of this table, or of a partition of it, wait to be recorded.
create or replace function postrider.has_failures(relation oid) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from postrider.capture_failures f
        where to_regclass(f.relation)::oid in (select has_failures.relation union all select t.relid from pg_partition_tree(has_failures.relation) t))
$$;

-- What waits for `postrider recapture`, by table. Nothing of the rows.
create or replace view postrider.uncaptured as
    select f.relation, count(*) as failures, min(f.failed_at) as oldest, (array_agg(f.sqlstate order by f.failure desc))[1] as sqlstate
    from (select failure, relation, failed_at, sqlstate from postrider.capture_failures order by failure limit 10000) f
    group by f.relation;

-- The partitions of captured tables, as they were when somebody looked: those that come or go since bring or take rows of which no
-- trigger hears. By name, so that a dump carries it.
create table if not exists postrider.partitions (
    parent    text not null,
    partition text not null,
    primary key (parent, partition)
);

create or replace function postrider.note_partitions(captured regclass) returns void
    language sql volatile set search_path = pg_catalog, pg_temp as $$
    delete from postrider.partitions p where p.parent = captured::text;
    insert into postrider.partitions (parent, partition)
    select captured::text, t.relid::text from pg_partition_tree(captured) t where t.level > 0;
$$;

-- How far a backfill has come: along the primary key, behind the row with these values.
create table if not exists postrider.backfills (
    relation    text        not null,
    condition   text        not null,
    place       text[],
    emitted     bigint      not null default 0,
    started_at  timestamptz not null default now(),
    finished_at timestamptz,
    primary key (relation, condition)
);
