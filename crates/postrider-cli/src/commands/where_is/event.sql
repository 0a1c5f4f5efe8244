select e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.created_at, e.xid::text as xid, e.seq, e.slot, e.lane
from postrider.events e
