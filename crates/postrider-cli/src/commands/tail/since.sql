-- Events written at $1 or later. An id holds the time at which its event was written, which is never before its transaction began, and has an index.
--   $2 type (a LIKE pattern), $3 key, $4 tenant, $5 entity, $6 last position, $7 the snapshot that counts, $8 where to go on behind
select e.lane, e.seq, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at
from postrider.events e
where e.id >= (lpad(to_hex(greatest(floor(date_part('epoch', $1::timestamptz) * 1000), 0)::bigint), 12, '0') || '00000000000000000000')::uuid
  and e.created_at >= $1::timestamptz
  and ($2::text is null or e.type like $2)
  and ($3::text is null or e.key = $3)
  and ($4::text is null or e.tenant = $4)
  and ($5::text is null or e.entity = $5)
  and e.seq > $8::bigint and e.seq <= $6::bigint
  and pg_visible_in_snapshot(e.xid, $7::text::pg_snapshot)
order by e.seq
