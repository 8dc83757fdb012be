-- Removes an operation, or only its traces if it is gone already.
--
-- KEYS: facts, versions, index, due. ARGV: opid, and '1' to leave it alone while it is there.

local facts, versions, index, due = unpack(KEYS)
local opid, only_if_gone = ARGV[1], ARGV[2]

if only_if_gone == '1' and redis.call('EXISTS', facts) == 1 then
    return 0
end
redis.call('DEL', facts, versions)
redis.call('ZREM', index, opid)
redis.call('ZREM', due, opid)
return 1
