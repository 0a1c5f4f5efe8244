-- The last $1 events, from the end of each lane. $2 type (a LIKE pattern), $3 key, $4 tenant, $5 entity, $6 last position,
-- $7 the snapshot that counts, $8 where to go on behind
select * from (
    select e.*
    from generate_series(0, postrider.lanes() - 1) as l (lane)
    cross join lateral (
        select e.lane, e.seq, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at
        from postrider.events e
        where e.lane = l.lane::smallint and e.seq <= $6::bigint
          and pg_visible_in_snapshot(e.xid, $7::text::pg_snapshot)
          and ($2::text is null or e.type like $2)
          and ($3::text is null or e.key = $3)
          and ($4::text is null or e.tenant = $4)
          and ($5::text is null or e.entity = $5)
        order by e.lane desc, e.seq desc
        limit $1
    ) e
    order by e.seq desc
    limit $1
) e
where e.seq > $8::bigint
order by e.seq
