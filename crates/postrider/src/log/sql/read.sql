-- One round of one group of lanes that share a snapshot: late rows first, then new ones, seen by one snapshot.
--
--   $1 snapshot, $2 target or null, $3 bound or null
--   $4 positions, $5 late positions: arrays over all lanes, from lane 0; a lane that is not read is null
--   $6 rows per lane, $7 late rows in all
--   $8 bytes of a payload that is not withheld, or null
--
-- The first row (kind 0) carries the round's facts as JSON. Kind 1 is late, kind 2 is new. The last row (kind 3) says how far the WAL is on disk: while
-- the rows are read somebody else's commit may have brought it far enough, and then nobody has to ask again. A payload that is larger than it may be
-- comes as null: whoever wants it asks for it alone. Its size costs nothing to know unless it is compressed, by 256 to 1 at most;
-- only what may then be too large is unpacked to see.
with round as materialized (
    select pg_current_snapshot() as seen,
           $1::text::pg_snapshot as old,
           coalesce($2::text::pg_snapshot, pg_current_snapshot()) as upto,
           (select max(p) from unnest($4::bigint[]) p) as highest,
           (select min(coalesce(p, 0)) from unnest($5::bigint[]) p) as lowest
    where not pg_is_in_recovery()
),
-- Two index scans, not one OR: an OR becomes a sequential scan when one xid has many rows.
late as materialized (
    select * from (
        -- Transactions that ran when we last looked and have ended since. Probing only these keeps a million-row open
        -- transaction from being walked in every round.
        select e.*
        from round r
        cross join lateral pg_snapshot_xip(r.old) as writer (xid)
        cross join lateral (
            select e.lane, e.seq, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at
            from postrider.events e
            where e.xid = writer.xid and e.seq <= r.highest and e.seq > r.lowest
              and e.seq <= ($4::bigint[])[e.lane + 1] and e.seq > coalesce(($5::bigint[])[e.lane + 1], 0)
            order by e.xid, e.seq
            limit $7 + 1
        ) e
        where pg_visible_in_snapshot(writer.xid, r.upto)
        union all
        -- Transactions that were not known then. A snapshot's xmax is one past the highest *completed* xid, so some of
        -- them may have taken their seq before we looked. None has an xid from the bound on.
        select e.*
        from round r
        cross join lateral (
            select e.lane, e.seq, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at
            from postrider.events e
            where e.xid >= pg_snapshot_xmax(r.old)
              and e.xid < least($3::text::xid8, pg_snapshot_xmax(r.upto))
              -- `+ 0` keeps the planner off (lane, seq), which it would walk whole.
              and e.seq + 0 <= ($4::bigint[])[e.lane + 1] and e.seq + 0 > coalesce(($5::bigint[])[e.lane + 1], 0)
              and pg_visible_in_snapshot(e.xid, r.upto)
            order by e.seq
            limit $7 + 1
        ) e
    ) either
    order by seq
    limit $7 + 1
),
fresh as (
    select e.*
    from round r
    cross join lateral unnest($4::bigint[]) with ordinality as c (position, place)
    cross join lateral (
        select e.lane, e.seq, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at
        from postrider.events e
        where e.lane = (c.place - 1)::smallint and e.seq > c.position
        order by e.lane, e.seq
        limit $6
    ) e
    -- In the middle of a large late set nothing new may overtake it.
    where $2::text is null and c.position is not null and (select count(*) from late) <= $7
)
select 0::smallint as kind, null::smallint as lane, null::bigint as seq, null::uuid as id, null::text as source_id, null::text as type,
       null::text as entity, null::text as key, null::text as tenant,
       json_build_object(
           'snapshot', r.seen, 'xmin', pg_snapshot_xmin(r.seen)::text,
           'last_seq', coalesce(pg_sequence_last_value('postrider.seq'), 0),
           'inserted', pg_current_wal_insert_lsn() - '0/0'::pg_lsn) as payload,
       null::json as headers, null::timestamptz as created_at
from round r
union all
select 1::smallint, late.lane, late.seq, late.id, late.source_id, late.type, late.entity, late.key, late.tenant,
       case when $8::bigint is null or pg_column_size(late.payload) <= $8 / 256 then late.payload
            when pg_column_size(late.payload) > $8 then null
            when pg_column_compression(late.payload) is null or octet_length(late.payload::text) <= $8 then late.payload end,
       late.headers, late.created_at
from late
union all
select 2::smallint, fresh.lane, fresh.seq, fresh.id, fresh.source_id, fresh.type, fresh.entity, fresh.key, fresh.tenant,
       case when $8::bigint is null or pg_column_size(fresh.payload) <= $8 / 256 then fresh.payload
            when pg_column_size(fresh.payload) > $8 then null
            when pg_column_compression(fresh.payload) is null or octet_length(fresh.payload::text) <= $8 then fresh.payload end,
       fresh.headers, fresh.created_at
from fresh
union all
select 3::smallint, null, null, null, null, null, null, null, null, (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::text::json, null, null
from round
