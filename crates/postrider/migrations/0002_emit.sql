-- Writing events: emit, emit_many, the context they copy into headers, and emitted() for tests.

-- UUIDv7 with microseconds in the twelve bits after the version, as PostgreSQL 18 does; the built-in where there is one.
do $install$
begin
    if current_setting('server_version_num')::integer >= 180000 then
        create or replace function postrider.uuid7() returns uuid
            language sql volatile parallel safe as 'select uuidv7()';
    else
        create or replace function postrider.uuid7() returns uuid
            language plpgsql volatile parallel safe as $function$
        declare
            micros constant bigint := date_part('epoch', clock_timestamp()) * 1000000;
        begin
            -- 48 bits of milliseconds, version 7, 12 bits of what is below; the variant bits of the v4 stay as they are.
            return encode(overlay(uuid_send(gen_random_uuid()) placing
                int8send(((micros / 1000) << 16) | 28672 | ((micros % 1000) * 4096 / 1000)) from 1 for 8), 'hex');
        end
        $function$;
    end if;
end
$install$;

-- Every complaint of emit and emit_many: which argument, what was found, what to do. Never returns.
create or replace function postrider.refuse_event(
    type text, payload_bytes bigint, key text, tenant text, entity text, headers_kind text, place text default ''
) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    max_payload constant bigint := postrider.max_payload();
    too_long text := null;
begin
    if type is null or type = '' then
        raise exception using errcode = case when type is null then '22004' else '22023' end,
            message = format('postrider: the type of an event must not be %s%s', case when type is null then 'null' else 'empty' end, place),
            detail = 'Nothing was written.',
            hint = 'Name what happened, for example ''order.paid''.';
    end if;
    if payload_bytes is null then
        raise exception using errcode = '22004',
            message = format('postrider: the payload of event %L must not be null%s', left(type, 80), place),
            detail = 'Nothing was written.',
            hint = 'An event without content has the payload ''{}'' or ''null'' (the JSON value, in quotes).';
    end if;
    if octet_length(type) > 255 then too_long := format('type is %s bytes long, 255', octet_length(type));
    elsif octet_length(key) > 1024 then too_long := format('key is %s bytes long, 1024', octet_length(key));
    elsif octet_length(tenant) > 255 then too_long := format('tenant is %s bytes long, 255', octet_length(tenant));
    elsif octet_length(entity) > 255 then too_long := format('entity is %s bytes long, 255', octet_length(entity));
    elsif payload_bytes > max_payload then too_long := format('payload is %s bytes long, %s', payload_bytes, max_payload);
    end if;
    if too_long is not null then
        raise exception using errcode = '54000',
            message = format('postrider: event %L is over a limit%s', left(type, 80), place),
            detail = format('Its %s are allowed. Nothing was written.', too_long),
            hint = 'Shorten it: a large body belongs in a table or an object store, with its address in the event. '
                   'The payload''s limit is set by postrider init --max-payload.';
    end if;
    raise exception using errcode = '22023',
        message = format('postrider: the headers of event %L must be a JSON object%s', left(type, 80), place),
        detail = format('They are a JSON %s. Nothing was written.', headers_kind),
        hint = 'Pass something like ''{"traceparent": "00-…"}'', or leave headers out.';
end
$$;

create or replace function postrider.refuse_json(what text, type text, reason text) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using errcode = '22P02',
        message = format('postrider: the %s of event %L is not JSON', what, left(refuse_json.type, 80)),
        detail = format('%s. Nothing was written.', rtrim(coalesce(reason, 'It cannot be parsed'), '.')),
        hint = 'Text must be quoted inside JSON: ''"hello"'', not ''hello''. to_json(…) turns any SQL value into JSON.';
end
$$;

-- The context of this transaction: an object that every later event of the transaction carries in its headers.
create or replace function postrider.set_context(context jsonb) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if set_context.context is null or jsonb_typeof(set_context.context) <> 'object' then
        raise exception using errcode = '22023',
            message = 'postrider: a context must be a JSON object',
            detail = format('It is %s.', coalesce('a JSON ' || jsonb_typeof(set_context.context), 'null')),
            hint = 'select postrider.set_context(''{"initiator": "user-7"}''). A null value takes an entry out.';
    end if;
    perform set_config('postrider.context', jsonb_strip_nulls(
        coalesce(nullif(current_setting('postrider.context', true), ''), '{}')::jsonb || set_context.context)::text, true);
end
$$;

create or replace function postrider.set_context(name text, value text) returns void
    language sql volatile set search_path = pg_catalog, pg_temp as $$
    select postrider.set_context(jsonb_build_object(name, value))
$$;

-- emit, once per type of its JSON arguments. With json alone a jsonb argument finds no function, with json and jsonb a literal is
-- ambiguous; with text as well everything resolves, and a literal goes the way of text, byte for byte.
do $install$
declare
    lanes constant integer := current_setting('postrider.install.lanes')::integer;
    max_payload constant bigint := current_setting('postrider.install.max_payload')::bigint;
    has_is_json constant boolean := current_setting('server_version_num')::integer >= 160000;
    json_type text;
    check_json text;
begin
    if lanes < 1 or lanes > 1024 or lanes & (lanes - 1) <> 0 then
        raise exception using errcode = '22023', message = format('postrider: %s lanes are not possible', lanes),
            hint = 'Choose a power of two from 1 to 1024; 16 is the default, 1 gives one total order.';
    end if;
    execute format('create or replace function postrider.lanes() returns integer language sql immutable parallel safe as %L',
        format('select %s', lanes));
    execute format('create or replace function postrider.max_payload() returns bigint language sql immutable parallel safe as %L',
        format('select %s::bigint', max_payload));

    foreach json_type in array array['text', 'json', 'jsonb'] loop
        -- Text has to be parsed, and the parser's own complaint has no hint. IS JSON (16 and later) costs 0.2 µs for a small
        -- payload, the block with its subtransaction about 1 µs.
        check_json := case
            when json_type <> 'text' then ''
            when has_is_json then $check$
                if not (payload is json) then perform postrider.refuse_json('payload', type, null); end if;
                if not (headers is json) then perform postrider.refuse_json('headers', type, null); end if;$check$
            else $check$
                declare
                    reason text;
                begin
                    perform_payload := payload::json;
                    perform_headers := headers::json;
                exception when invalid_text_representation or untranslatable_character then
                    get stacked diagnostics reason = pg_exception_detail;
                    perform postrider.refuse_json(case when perform_payload is null then 'payload' else 'headers' end, type, reason);
                end;$check$
            end;
        execute format($create$
            create or replace function postrider.emit(
                type text, payload %1$s, key text default null, tenant text default null, entity text default null, headers %1$s default null
            ) returns uuid
                language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $function$
            #variable_conflict use_variable
            declare
                event_id constant uuid := postrider.uuid7();
                context constant text := current_setting('postrider.context', true);
                all_headers json;
                %5$s
            begin
                if type is null or type = '' or octet_length(type) > 255 or octet_length(key) > 1024
                   or octet_length(tenant) > 255 or octet_length(entity) > 255
                   or payload is null or octet_length(payload::text) > %3$s then
                    perform postrider.refuse_event(type, octet_length(payload::text), key, tenant, entity, null);
                end if;
                %4$s
                all_headers := headers;
                if headers is not null and json_typeof(all_headers) <> 'object' then
                    perform postrider.refuse_event(type, 0, key, tenant, entity, json_typeof(all_headers));
                end if;
                if context <> '' then
                    all_headers := context::jsonb || coalesce(all_headers::jsonb, '{}');
                end if;
                insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
                values (
                    -- Null after a schema-only restore: without the coalesce the caller's transaction would fail.
                    coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7,
                    -- The hash is signed: a mask, never abs().
                    case when key is null then uuid_hash_extended(event_id, 0) else hashtextextended(key collate "C", 0) end & %2$s,
                    event_id, type, entity, key, tenant, payload::json, all_headers);
                -- After the row has its xid: a reader about to sleep waits for every xid older than its ticket, so either
                -- it waits for ours or we see its ticket.
                if coalesce(pg_sequence_last_value('postrider.armed'), 0) > coalesce(pg_sequence_last_value('postrider.disarmed'), 0) then
                    perform postrider.ring_bell();
                end if;
                return event_id;
            end
            $function$
            $create$,
            json_type, lanes - 1, max_payload, check_json,
            case when check_json like '%perform_payload%' then 'perform_payload json; perform_headers json;' else '' end);
    end loop;
end
$install$;

-- A reader sleeps: wake it, with the ticket we saw. Not when its sleep is over anyway: a reader that died asleep would make every
-- producer notify for ever, and committing notifiers go one at a time.
-- Nor when the queue of notifications fills up: a full one fails the COMMIT of whoever notified. Asking costs about 1 µs.
create or replace function postrider.ring_bell() returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ticket constant bigint := coalesce(pg_sequence_last_value('postrider.armed'), 0);
begin
    if ticket > coalesce(pg_sequence_last_value('postrider.disarmed'), 0)
       and date_part('epoch', clock_timestamp()) < coalesce(pg_sequence_last_value('postrider.armed_until'), 0)
       and pg_notification_queue_usage() < 0.75 then
        perform pg_notify('postrider', ticket::text);
    end if;
end
$$;

-- Many events in one statement, in the order of the array: [{"type": …, "payload": …, "key": …, "tenant": …, "entity": …, "headers": …}, …].
create or replace function postrider.emit_many(events json) returns setof uuid
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    lane_mask constant integer := postrider.lanes() - 1;
    max_payload constant bigint := postrider.max_payload();
    context constant jsonb := nullif(current_setting('postrider.context', true), '')::jsonb;
    bad record;
begin
    if events is null or json_typeof(events) <> 'array' then
        raise exception using errcode = '22023', message = 'postrider: emit_many takes a JSON array of events',
            detail = format('It was given %s. Nothing was written.', coalesce('a JSON ' || json_typeof(events), 'null')),
            hint = 'select postrider.emit_many(''[{"type": "order.paid", "payload": {"order": 7}, "key": "7"}]'')';
    end if;
    for bad in
        select e.place, json_typeof(e.event) as kind, u.field
        from json_array_elements(events) with ordinality as e (event, place)
        left join lateral (
            select f.field from json_object_keys(case when json_typeof(e.event) = 'object' then e.event else '{}' end) as f (field)
            where f.field not in ('type', 'payload', 'key', 'tenant', 'entity', 'headers') limit 1) u on true
        where json_typeof(e.event) <> 'object' or u.field is not null
        order by e.place limit 1
    loop
        raise exception using errcode = '22023', message = format('postrider: event %s of emit_many is not an event', bad.place),
            detail = case when bad.field is null then format('It is a JSON %s. Nothing was written.', bad.kind)
                          else format('It has the unknown field %s. Nothing was written.', to_json(bad.field)) end,
            hint = 'The fields of an event are type, payload, key, tenant, entity and headers.';
    end loop;
    for bad in
        select * from (
            select e.place, e.event ->> 'type' as type, octet_length((e.event -> 'payload')::text) as payload_bytes, e.event ->> 'key' as key,
                   e.event ->> 'tenant' as tenant, e.event ->> 'entity' as entity, nullif(json_typeof(e.event -> 'headers'), 'null') as headers_kind
            from json_array_elements(events) with ordinality as e (event, place)) c
        where c.type is null or c.type = '' or c.payload_bytes is null or octet_length(c.type) > 255 or octet_length(c.key) > 1024
           or octet_length(c.tenant) > 255 or octet_length(c.entity) > 255 or c.payload_bytes > max_payload or c.headers_kind <> 'object'
        order by c.place limit 1
    loop
        perform postrider.refuse_event(bad.type, bad.payload_bytes, bad.key, bad.tenant, bad.entity, bad.headers_kind,
                                       format(' (event %s of emit_many)', bad.place));
    end loop;
    return query
        insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
        select coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7,
               case when n.key is null then uuid_hash_extended(n.id, 0) else hashtextextended(n.key collate "C", 0) end & lane_mask,
               n.id, n.type, n.entity, n.key, n.tenant, n.payload,
               case when context is null then n.headers else (context || coalesce(n.headers::jsonb, '{}'))::json end
        from (
            select postrider.uuid7() as id, e.event ->> 'type' as type, e.event ->> 'entity' as entity, e.event ->> 'key' as key,
                   e.event ->> 'tenant' as tenant, e.event -> 'payload' as payload,
                   case when json_typeof(e.event -> 'headers') = 'object' then e.event -> 'headers' end as headers
            from json_array_elements(events) with ordinality as e (event, place)
            order by e.place
            offset 0) n
        returning events.id;
    perform postrider.ring_bell();
end
$$;

create or replace function postrider.emit_many(events jsonb) returns setof uuid
    language sql volatile as 'select postrider.emit_many(events::json)';
create or replace function postrider.emit_many(events text) returns setof uuid
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    parsed json;
    reason text;
begin
    begin
        parsed := emit_many.events::json;
    exception when invalid_text_representation or untranslatable_character then
        get stacked diagnostics reason = pg_exception_detail;
        raise exception using errcode = '22P02', message = 'postrider: the argument of emit_many is not JSON',
            detail = format('%s. Nothing was written.', rtrim(reason, '.')),
            hint = 'Pass one JSON array: select postrider.emit_many(''[{"type": "order.paid", "payload": {"order": 7}}]'')';
    end;
    return query select postrider.emit_many(parsed);
end
$$;

-- The events of my open transaction, for tests in any language.
create or replace function postrider.emitted() returns table (
    id uuid, source_id text, type text, key text, tenant text, entity text, payload json, headers json, created_at timestamptz
)
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select e.id, e.source_id, e.type, e.key, e.tenant, e.entity, e.payload, e.headers, e.created_at
    from postrider.events e
    where e.xid = pg_current_xact_id_if_assigned()
    order by e.seq
$$;
