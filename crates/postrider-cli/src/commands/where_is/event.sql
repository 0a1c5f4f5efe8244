select e.seq, e.lane, e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload, e.headers, e.created_at, e.xid::text as xid, e.slot
from postrider.events e
