create table issues (
    id bigint generated always as identity (start 1001) primary key,
    title text not null,
    state text not null default 'open',
    assignee text
);
create table comments (
    id bigint generated always as identity primary key,
    issue_id bigint not null references issues,
    author text not null,
    body text not null
);
