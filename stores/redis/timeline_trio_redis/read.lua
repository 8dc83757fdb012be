-- Reads one operation: nothing new, what changed since a known revision, or all of it.
--
-- KEYS: facts, versions. ARGV: the known incarnation and version, '' for none.
--
-- Returns nil if there is none, {incarnation, version} if that is known, {incarnation, version, 'changes', {field,
-- text, ...}}, or {incarnation, version, 'all', {field, text, ...}}.

local facts, versions = unpack(KEYS)
local known_incarnation, known_version = ARGV[1], ARGV[2]

local CHUNK = 1000 -- Lua cannot pass on more than some thousand values at once

local head = redis.call('HMGET', facts, 'v', 'c', 'n')
local version, incarnation, count = head[1], head[2], tonumber(head[3] or '')
if not version and not incarnation and not head[3] and redis.call('EXISTS', facts) == 0 then
    return false
end
if not (version and incarnation and count and tonumber(version) and tonumber(incarnation)) then
    return redis.error_reply('DAMAGED head')
end
if incarnation == known_incarnation then
    if version == known_version then
        return {incarnation, version}
    end
    -- Only as long as the set is complete does it tell all changes: memory pressure may have removed it. And where
    -- most has changed, all of it is as short. Another program's key is no such set.
    if tonumber(known_version) < tonumber(version) and redis.pcall('ZCARD', versions) == count then
        local changed = redis.call('ZRANGEBYSCORE', versions, '(' .. known_version, '+inf')
        if 2 * #changed < count then
            local texts = {}
            for begin = 1, #changed, CHUNK do
                local finish = math.min(begin + CHUNK - 1, #changed)
                for number, text in ipairs(redis.call('HMGET', facts, unpack(changed, begin, finish))) do
                    texts[#texts + 1] = changed[begin + number - 1]
                    texts[#texts + 1] = text
                end
            end
            return {incarnation, version, 'changes', texts}
        end
    end
end
return {incarnation, version, 'all', redis.call('HGETALL', facts)}
