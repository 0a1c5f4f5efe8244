-- A trigger that finds out at run time what has changed: it asks the catalog for the columns and compares each by a statement of its
-- own. The outbox has what its poller needs.
create table public.outbox (
    id bigint generated always as identity primary key,
    event_id uuid not null unique,
    event_type text not null,
    entity_type text not null,
    entity_id uuid not null,
    payload jsonb not null,
    workspace_id int,
    project_id int,
    initiator_id text,
    initiator_type text,
    created_at timestamptz not null,
    claimed_at timestamptz,
    processed_at timestamptz
);
create index on public.outbox (claimed_at, processed_at, id) where claimed_at is null and processed_at is null;
create index on public.outbox (processed_at) where processed_at is not null;

create function public.issue_to_outbox() returns trigger language plpgsql as $$
declare
    field name;
    was text;
    is_now text;
    previous jsonb := '{}';
    verb text := 'updated';
begin
    begin
        if old.deleted_at is null and new.deleted_at is not null then
            verb := 'deleted';
            previous := '{"deleted_at": null}';
        else
            for field in
                select c.column_name from information_schema.columns c
                where c.table_schema = 'public' and c.table_name = 'issues' and c.column_name not in ('sort_order')
            loop
                execute format('select ($1).%I, ($2).%I', field, field) into was, is_now using old, new;
                if was is distinct from is_now then
                    previous := previous || jsonb_build_object(field, was);
                end if;
            end loop;
        end if;
        if previous <> '{}' then
            insert into public.outbox (event_id, event_type, entity_type, entity_id, payload, workspace_id, project_id,
                                       initiator_id, initiator_type, created_at)
            values (gen_random_uuid(), case when new.type_id is null then 'workitem.' else 'epic.' end || verb, 'issue', new.id,
                    jsonb_build_object('data', row_to_json(new), 'previous_attributes', previous), new.workspace_id, new.project_id,
                    current_setting('app.initiator_id', true), current_setting('app.initiator_type', true), now())
            on conflict do nothing;
        end if;
    exception when others then
        raise warning 'no event: %', sqlerrm;
    end;
    return new;
end
$$;
create trigger issue_to_outbox after update on public.issues for each row execute function public.issue_to_outbox();
