-- Removes an operation, or only its traces if it is gone already.
--
-- KEYS: facts, versions, index, due. ARGV: opid, and '1' to leave it alone while it is there. The error FOREIGN and a
-- number says which key holds something that is not the store's.

local facts, versions = unpack(KEYS)
local opid, only_if_gone = ARGV[1], ARGV[2]

if only_if_gone == '1' and redis.call('EXISTS', facts) == 1 then
    return 0
end
redis.call('DEL', facts, versions)
for position = 3, 4 do
    local reply = redis.pcall('ZREM', KEYS[position], opid)
    if type(reply) == 'table' and reply.err then
        return string.find(reply.err, 'WRONGTYPE', 1, true) and redis.error_reply('FOREIGN ' .. position) or reply
    end
end
return 1
