-- Others' sessions are visible to members of pg_read_all_stats only.
select coalesce((select max(extract(epoch from clock_timestamp() - a.xact_start))
                 from pg_catalog.pg_stat_activity a
                 where a.datname = current_database() and a.backend_type = 'client backend'
                   and a.pid <> pg_backend_pid()), 0)::float8 as session,
       coalesce((select max(extract(epoch from clock_timestamp() - p.prepared))
                 from pg_catalog.pg_prepared_xacts p
                 where p.database = current_database()), 0)::float8 as prepared
