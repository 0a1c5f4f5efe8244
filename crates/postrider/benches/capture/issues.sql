-- An issue as trackers have it: sixteen columns, of which an update changes two.
create table public.issues (
    id uuid primary key,
    name text not null,
    state_id int,
    type_id int,
    workspace_id int not null,
    project_id int not null,
    priority text not null,
    estimate numeric(8, 2),
    start_date date,
    target_date date,
    sequence_id int not null,
    sort_order float8 not null,
    description text,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    deleted_at timestamptz
);
